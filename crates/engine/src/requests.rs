//! Serves many requests with one session: which rows each step computes, and the answers that come of it.
//!
//! [`Scheduler`] is the pure part: arrivals, tokens and cancels in, the next step's rows out. [`Executor`] runs those
//! rows on a session and turns logits into tokens and text.

mod answer;
mod begun;
mod executor;
mod fairness;
mod fixed;
mod pace;
mod prefix;
mod prompts;
mod request;
mod revise;
mod scheduler;
mod sequences;
mod slots;

pub use crate::generate::Shift;
pub use executor::{
    Delta, Event, Executor, ExecutorSettings, PositionLogprobs, Served, Slot, StepReport,
    Submission, SubmitError,
};
pub use fairness::KeyId;
pub use request::{
    Arrival, Deterministic, Item, Policy, Progress as RequestProgress, Refused, RequestId,
};
pub use scheduler::Scheduler;
pub use sequences::Sequences;

#[cfg(test)]
mod tests;
