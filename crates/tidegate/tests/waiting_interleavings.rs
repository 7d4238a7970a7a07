//! The queues of waiting callers under shuttle.
