//! Real servers for tests: each is started on a free port in a directory of its own and ended by
//! its process id.
