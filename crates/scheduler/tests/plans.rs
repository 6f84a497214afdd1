//! Plans of small models, whose sizes and times are worked out by hand: which device runs what, what fits, and how long it
//! takes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "plans/cuts.rs"]
mod cuts;
#[path = "plans/estimates.rs"]
mod estimates;
#[path = "plans/experts.rs"]
mod experts;
#[path = "plans/memory.rs"]
mod memory;
#[path = "plans/models.rs"]
mod models;
#[path = "plans/offloads.rs"]
mod offloads;
#[path = "plans/printed.rs"]
mod printed;
#[path = "plans/streamed_times.rs"]
mod streamed_times;
#[path = "plans/streams.rs"]
mod streams;
#[path = "plans/times.rs"]
mod times;
