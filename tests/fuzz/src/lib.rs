//! What is fuzzed, as functions of bytes.

pub mod targets;
