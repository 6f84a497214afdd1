//! What the executor reports: the events of requests, their times and counts, and the last step.

use std::time::Duration;

use crate::Error;
use crate::generate::{Stop, Token};
use crate::sampling::TokenLogprob;
use crate::session::Spent;

/// Log-probabilities at one position: of the token that is there, and of the most likely ones.
pub type PositionLogprobs = (TokenLogprob, Vec<TokenLogprob>);

/// A generated token and where its answer stands.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The token.
    pub token: Token,
    /// Times and counts up to it.
    pub served: Served,
}

/// What happened to a request in a step.
#[derive(Debug)]
pub enum Event {
    /// Its prompt begins, with what was cached, or a part of it was computed.
    Prefilled(Served),
    /// Log-probabilities of the prompt's tokens from the second on, if requested.
    PromptLogprobs(Vec<PositionLogprobs>),
    /// The next token.
    Token(Box<Delta>),
    /// The answer ended; text that was still withheld.
    Ended {
        /// Why.
        stop: Stop,
        /// The withheld text.
        text: String,
        /// Times and counts.
        served: Served,
    },
    /// The answer failed.
    Failed(Error),
}

/// Times and counts of one request.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those that were in the cache.
    pub cached: usize,
    /// Tokens of the prompt that are computed or were cached.
    pub processed: usize,
    /// Tokens generated.
    pub generated: usize,
    /// From arrival to the first step.
    pub queued: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// From the token before to this one; none for the first. Tokens of one step come at once.
    pub gap: Option<Duration>,
    /// Time that devices were busy in steps with this request, and copies between devices.
    pub spent: Spent,
    /// Bytes of hidden states that crossed between devices for its rows.
    pub crossed_bytes: u64,
    /// How often its pages were given to others and computed again.
    pub preempted: usize,
    /// The slot that it has.
    pub slot: u32,
    /// Steps that verified draft tokens for it.
    pub drafts: usize,
    /// Draft tokens that were verified for it.
    pub drafted: usize,
    /// Those that were accepted.
    pub accepted: usize,
    /// How often tokens left its full context.
    pub shifted: usize,
}

/// The last step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Decode rows.
    pub decode_rows: usize,
    /// Prefill rows.
    pub prefill_rows: usize,
    /// Selected tokens.
    pub tokens: usize,
    /// Time on devices and in total.
    pub spent: Spent,
}
