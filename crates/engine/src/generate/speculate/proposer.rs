//! Proposes tokens from the logits of a session that drafts, with the options of the answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Bounds, Draft};
use crate::Error;
use crate::sampling::{Options, Row, Sampler};
use crate::session::{OutputRows, Session};

/// Minimum number of best tokens that are read if the device selects them; the best one's share is computed among
/// them.
pub const BEST: usize = 10;

/// Separates the drafter's random numbers from those that verify its tokens, which must be independent.
const APART: u64 = 0x9E37_79B9_7F4A_7C15;

/// Draws draft tokens from rows of logits.
pub struct Proposer {
    bounds: Bounds,
    sampler: Sampler,
    /// The row from which the next token is drawn.
    pub rows: OutputRows,
    /// Number of tokens that the drafting and the verifying model share.
    shared: usize,
}

impl Proposer {
    /// One for answers from a session.
    ///
    /// # Errors
    /// Those of [`Sampler::new`].
    pub fn new(session: &Session, bounds: Bounds, shared: usize) -> Result<Proposer, Error> {
        let options = Options::default();
        let rows = rows(session, &options);
        let sampler = Sampler::new(options, session.vocab(), session.context())?;
        Ok(Proposer { bounds, sampler, rows, shared })
    }

    /// One with the same bounds.
    ///
    /// # Errors
    /// Those of [`Proposer::new`].
    pub fn another(&self, session: &Session) -> Result<Proposer, Error> {
        Proposer::new(session, self.bounds, self.shared)
    }

    /// Starts an answer. Tokens are drawn with the same options, since more similar distributions mean more accepted
    /// tokens. Mirostat's and adaptive-p's state belongs to the text, so drafts do not use them.
    ///
    /// # Errors
    /// Those of [`Sampler::new`].
    pub fn begin(&mut self, session: &Session, options: &Options) -> Result<(), Error> {
        let logit_bias = options.logit_bias.iter().filter(|(id, _)| (*id as usize) < self.shared);
        let options = Options {
            seed: options.seed ^ APART,
            mirostat: None,
            adaptive_target: -1.0,
            logit_bias: logit_bias.copied().collect(),
            ..options.clone()
        };
        self.rows = rows(session, &options);
        let (vocab, context) = (session.vocab(), session.context());
        self.sampler = Sampler::new(options, vocab, context)?;
        Ok(())
    }

    /// Whether tokens are the likeliest ones.
    pub fn is_greedy(&self) -> bool {
        self.sampler.options().is_greedy()
    }

    /// The tokens so far, draft tokens included.
    pub fn follow(&mut self, text: impl Iterator<Item = u32>) {
        self.sampler.follow(text);
    }

    /// Appends a token to a draft, drawn from the row; none if at least `least` are drafted and the best one is not
    /// probable enough.
    ///
    /// # Errors
    /// Those of [`Sampler::draw`].
    pub fn propose(&mut self, least: usize, draft: &mut Draft) -> Result<Option<u32>, Error> {
        let Proposer { bounds, sampler, rows, shared } = self;
        // Whether another token is drafted is decided before it is drawn; see the module above.
        let is_free = draft.tokens().len() >= least;
        if is_free && share_of_best(rows.row(0)) < bounds.draft_p_min {
            return Ok(None);
        }
        let Ok(chances) = sampler.distribute(rows.row(0)) else { return Ok(None) };
        if chances.iter().any(|c| c.id as usize >= *shared) {
            return Ok(None);
        }
        let token = sampler.draw(None)?;
        draft.push_drawn(token, sampler.candidates());
        Ok(Some(token))
    }
}

/// One row: all best tokens that the session can find if these suffice, since shares are computed among them.
fn rows(session: &Session, options: &Options) -> OutputRows {
    let all = session.top_k().unwrap_or(0);
    OutputRows::new(session, options.needs().map(|needs| needs.max(all)), 1)
}

/// The session. After a panic of another drafter its step has been undone, as after an error.
pub fn locked(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The probability of the best token at temperature 1, among the known tokens; sums in f64.
fn share_of_best(row: Row<'_>) -> f32 {
    let share = |logits: &mut dyn Iterator<Item = f32>| {
        // A new maximum rescales the sum.
        let (mut best, mut sum) = (f32::NEG_INFINITY, 0.0f64);
        for logit in logits {
            if logit > best {
                sum *= f64::from(best - logit).exp();
                best = logit;
            }
            sum += f64::from(logit - best).exp();
        }
        (1.0 / sum) as f32
    };
    match row {
        Row::Logits(logits) => share(&mut logits.iter().copied()),
        Row::Best(best) => share(&mut best.iter().map(|(_, logit)| *logit)),
    }
}
