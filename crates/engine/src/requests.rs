//! Serves many requests with one session: which rows each step computes, and the answers that come of it.
//!
//! [`Scheduler`] is the pure part: arrivals, tokens and cancels in, the next step's rows out. [`Executor`] runs those
//! rows on a session and turns logits into tokens and text.

mod answer;
mod executor;
mod fairness;
mod pace;
mod prompts;
mod report;
mod request;
mod scheduler;
mod sequences;

pub use crate::generate::Shift;
pub use executor::{Executor, ExecutorSettings, Slot, Submission, SubmitError};
pub use fairness::KeyId;
pub use report::{Delta, Event, PositionLogprobs, Served, StepReport};
pub use request::{
    Arrival, Deterministic, Item, Policy, Progress as RequestProgress, Refused, RequestId,
};
pub use scheduler::Scheduler;
pub use sequences::Sequences;

#[cfg(test)]
mod tests;
