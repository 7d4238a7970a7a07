//! What each algorithm admits at most.
