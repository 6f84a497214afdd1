//! A drafter that is the model's own block for multi-token prediction (MTP).
//!
//! The block computes, from a token and the model's hidden state at the position before it, the token after it. Its
//! sequence is the text from the second token on, each with that hidden state: token `p + 1` with the state at `p`.
//! Beyond the text it continues with its own hidden states in place of the model's. What it drafted is removed before the
//! next draft, and accepted tokens are run again with the model's states, so its KV cache never depends on drafts.

use std::sync::{Arc, Mutex, MutexGuard};

use super::proposer::{BEST, Proposer, locked};
use super::{Bounds, CHECKED_ROWS, Draft, Drafter, DrafterSource, Text};
use crate::sampling::Options;
use crate::session::{Purpose, Run, SequenceId, Session, Settings, Spent, Wanted, Warning};
use crate::{Error, Model};

/// Drafts with an MTP block, in a session of its own that the drafters of several answers share. The model's session must
/// have [`Purpose::WithHidden`].
pub struct MtpDrafter {
    session: Arc<Mutex<Session>>,
    sequence: SequenceId,
    bounds: Bounds,
    proposer: Proposer,
    /// Position of the first hidden state that the sequence was given.
    first: usize,
    /// Tokens of the sequence that were run with the model's hidden states.
    held: usize,
    waiting: Waiting,
    /// Moves of the session that the sequence knows of.
    moves: u64,
}

/// Hidden states of the model that were not run yet, from position `first + held` on.
#[derive(Default)]
struct Waiting {
    /// The tokens at these positions.
    tokens: Vec<u32>,
    /// `[tokens, width]`.
    hidden: Vec<f32>,
}

impl Waiting {
    fn truncate(&mut self, tokens: usize) {
        let width = self.hidden.len() / self.tokens.len().max(1);
        self.hidden.truncate(tokens * width);
        self.tokens.truncate(tokens);
    }

    fn remove_first(&mut self, tokens: usize) {
        let width = self.hidden.len() / self.tokens.len().max(1);
        self.hidden.drain(..tokens * width);
        self.tokens.drain(..tokens);
    }
}

impl MtpDrafter {
    /// Prepares the MTP block of a model, placed by the settings.
    ///
    /// # Errors
    /// [`Error::NoMtp`]; those of [`Session::new`].
    pub fn new(model: &Model, settings: Settings<'_>, bounds: Bounds) -> Result<Self, Error> {
        let top_k = Some(settings.top_k.map_or(BEST, |k| k.max(BEST)));
        let settings = Settings { purpose: Purpose::Mtp, top_k, time_device: None, ..settings };
        let mut session = Session::new(model, settings)?;
        let sequence = session.open()?;
        let proposer = Proposer::new(&session, bounds, session.vocab())?;
        let session = Arc::new(Mutex::new(session));
        Ok(MtpDrafter::of(session, sequence, bounds, proposer))
    }

    fn of(
        session: Arc<Mutex<Session>>,
        sequence: SequenceId,
        bounds: Bounds,
        proposer: Proposer,
    ) -> MtpDrafter {
        let moves = locked(&session).moves();
        let waiting = Waiting::default();
        MtpDrafter { session, sequence, bounds, proposer, first: 0, held: 0, waiting, moves }
    }

    /// The session, for its placement and its warnings.
    pub fn session(&self) -> MutexGuard<'_, Session> {
        locked(&self.session)
    }

    /// Position of the first hidden state that waits.
    fn base(&self) -> usize {
        self.first + self.held
    }

    /// Forgets everything: the next hidden state is that of position `first`.
    fn restart(&mut self, first: usize) {
        self.waiting.truncate(0);
        (self.first, self.held) = (first, 0);
    }

    /// Begins anew after what was run, if the session has moved to other devices: keys and values did not, since the
    /// model's hidden states are not kept.
    fn notice_moves(&mut self) {
        let moves = self.session().moves();
        if std::mem::replace(&mut self.moves, moves) != moves {
            (self.first, self.held) = (self.base(), 0);
        }
    }

    /// Forgets what belongs to positions from `position` on, where `token` is now.
    fn back_to(&mut self, position: usize, token: u32) {
        let base = self.base();
        let end = base + self.waiting.tokens.len();
        if (base..=end).contains(&position) {
            // The last token that was run stands at `base`.
            let last = || self.session().tokens(self.sequence).get(self.held - 1).copied();
            let is_same = position > base || self.held == 0 || last() == Some(token);
            return if is_same {
                self.waiting.truncate(position - base)
            } else {
                self.restart(position)
            };
        }
        if position <= self.first || position > end {
            return self.restart(position);
        }
        // The hidden state before `position` was run with the token that stood there.
        let held = position - self.first;
        if self.session().tokens(self.sequence).get(held - 1) != Some(&token) {
            return self.restart(position);
        }
        self.waiting.truncate(0);
        self.held = held;
    }

    /// Runs tokens with the first waiting hidden states, all but the last without logits.
    fn run(&mut self, tokens: &[u32], last: Wanted) -> Result<(), Error> {
        let MtpDrafter { session, sequence, proposer, waiting, held, .. } = self;
        let session = &mut *locked(session);
        session.truncate(*sequence, *held);
        let width = waiting.hidden.len() / waiting.tokens.len().max(1);
        let most = session.limits().tokens;
        for (number, chunk) in tokens.chunks(most).enumerate() {
            let first = number * most;
            let is_last = first + chunk.len() == tokens.len();
            let wanted = if is_last { last } else { Wanted::None };
            session.give_hidden(&waiting.hidden[first * width..][..chunk.len() * width]);
            let run = Run { sequence: *sequence, tokens: chunk, wanted };
            let row = session.step_reading(&[run], proposer.rows.reading)?;
            if wanted == Wanted::Last {
                proposer.rows.fill(row);
            }
        }
        *held += tokens.len();
        waiting.remove_first(tokens.len());
        Ok(())
    }
}

impl Drafter for MtpDrafter {
    fn begin(&mut self, options: &Options) -> Result<(), Error> {
        self.proposer.begin(&locked(&self.session), options)
    }

    fn see(&mut self, start: usize, tokens: &[u32], hidden: &[f32]) -> Result<(), Error> {
        let Some(&token) = tokens.first().filter(|_| !hidden.is_empty()) else { return Ok(()) };
        self.notice_moves();
        self.back_to(start, token);
        self.waiting.tokens.extend_from_slice(tokens);
        self.waiting.hidden.extend_from_slice(hidden);
        // A prompt is run as it comes; the few rows of a step wait until it is known which belong to the answer.
        if self.waiting.tokens.len() > CHECKED_ROWS {
            let tokens = self.waiting.tokens[1..].to_vec();
            self.run(&tokens, Wanted::None)?;
        }
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        self.notice_moves();
        let (base, last) = (self.base(), text.len() - 1);
        let waits = last.saturating_sub(base);
        let is_known = |(at, &token): (usize, &u32)| token == text.get(base + at);
        let is_text = waits > 0
            && self.waiting.tokens.len() >= waits
            && self.waiting.tokens[..waits].iter().enumerate().all(is_known);
        let room = self.session().context().saturating_sub(last - self.first.min(last));
        let most = most.min(self.bounds.draft_max).min(room);
        if most == 0 || !is_text {
            return Ok(());
        }
        self.waiting.truncate(waits);
        let tokens: Vec<u32> = text.from(base + 1).collect();
        self.run(&tokens, Wanted::Last)?;
        self.proposer.follow(text.from(0));
        let MtpDrafter { session, sequence, proposer, bounds, .. } = self;
        let session = &mut *locked(session);
        for drafted in 0..most {
            let Some(token) = proposer.propose(bounds.draft_min, draft)? else { break };
            if drafted + 1 < most {
                let hidden = session.hidden().to_vec();
                session.give_hidden(&hidden);
                let run = Run { sequence: *sequence, tokens: &[token], wanted: Wanted::Last };
                let rows = &mut proposer.rows;
                rows.fill(session.step_reading(&[run], rows.reading)?);
            }
        }
        Ok(())
    }

    fn move_spent(&mut self, all: &mut Spent) {
        self.session().move_spent(all);
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        self.session().take_warnings()
    }
}

impl DrafterSource for MtpDrafter {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        let mut session = locked(&self.session);
        let Ok(sequence) = session.open() else { return Ok(None) };
        let proposer = self.proposer.another(&session)?;
        drop(session);
        Ok(Some(Box::new(MtpDrafter::of(self.session.clone(), sequence, self.bounds, proposer))))
    }
}

impl Drop for MtpDrafter {
    fn drop(&mut self) {
        locked(&self.session).close(self.sequence);
    }
}
