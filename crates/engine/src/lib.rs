//! Loading, sessions, cache book-keeping, sampling, measuring.

pub mod cache;
pub mod sampling;
