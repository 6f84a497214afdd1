//! Loading, sessions, cache book-keeping, sampling, measuring.
