//! What the scheduler of requests is told and what it tells: limits, arrivals, rows of a step.

use std::time::Duration;

use super::fairness::KeyId;
use crate::session::{SequenceId, Wanted};

/// Identifies a request for the lifetime of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Maximum rows of a step.
    pub rows: usize,
    /// Maximum rows with logits of a step.
    pub outputs: usize,
    /// Maximum running requests.
    pub sequences: usize,
    /// Maximum waiting requests.
    pub waiting: usize,
    /// Maximum waiting requests of one key.
    pub waiting_per_key: usize,
    /// Bound on the duration of a step while answers are running or a short prompt is behind a long one.
    pub step: Duration,
    /// Fixes the composition of steps so that a request's results do not depend on the others.
    pub deterministic: Option<Deterministic>,
}

/// The composition of steps that makes results independent of other requests: a step has either one chunk of one
/// prompt, at fixed positions, or a few decode rows that are computed as if each were alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deterministic {
    /// Tokens of a prompt chunk.
    pub chunk: usize,
    /// Maximum decode rows of a step.
    pub rows: usize,
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// Whose queue it joins.
    pub key: KeyId,
    /// Only sequences of the same namespace share prefixes.
    pub namespace: u64,
    /// The prompt, at least one token and fewer than the context.
    pub prompt: Vec<u32>,
    /// Whether it starts from a cached prefix of any request; from that of the one in `after` it does in any case.
    pub reuse: bool,
    /// Whether logits of every prompt token are wanted; nothing is reused then.
    pub all_logits: bool,
    /// A request with the same prompt that computes it first.
    pub after: Option<RequestId>,
    /// The slot whose sequence it continues; without one it may continue any.
    pub slot: Option<u32>,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue is full.
    #[error("the server is at capacity: {waiting} requests are waiting")]
    Full {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// The key has too many waiting requests.
    #[error("too many requests: {waiting} of this key are waiting")]
    Key {
        /// Number of waiting requests of the key.
        waiting: usize,
    },
}

/// Rows of one request in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: SequenceId,
    /// First of its tokens to be run.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// The logits wanted.
    pub wanted: Wanted,
    /// Whether the next token is selected from its last row.
    pub selects: bool,
    /// Whether the rows belong to the prompt, or were computed before and lost.
    pub is_prefill: bool,
}

impl Item {
    /// Rows with logits.
    pub fn outputs(&self) -> usize {
        match self.wanted {
            Wanted::None => 0,
            Wanted::First | Wanted::Last => 1,
            Wanted::All | Wanted::Verified => self.end - self.start,
        }
    }
}

/// How a request came along so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those taken from the cache when it was admitted first.
    pub cached: usize,
    /// Time from arrival to the first admission.
    pub queued: Duration,
    /// How often it gave its pages back.
    pub preempted: usize,
    /// The slot that it has, or had last.
    pub slot: u32,
}
