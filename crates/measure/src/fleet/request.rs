//! The requests to a fleet, and what became of them.

use std::time::Duration;

/// A request to a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The conversation.
    pub conversation: usize,
    /// Its turn, from 0.
    pub turn: usize,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Tokens of the answer.
    pub answer_tokens: usize,
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The conversation.
    pub conversation: usize,
    /// Its turn.
    pub turn: usize,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those that were taken from the KV cache.
    pub cached: usize,
    /// How often its pages were given to others.
    pub preempted: usize,
    /// When it arrived.
    pub arrived: Duration,
    /// When each token was ready.
    pub ready: Vec<Duration>,
}
