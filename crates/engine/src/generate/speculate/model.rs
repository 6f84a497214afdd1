//! A drafter that is a smaller model with the same vocabulary.

use std::sync::{Arc, Mutex, MutexGuard};

use super::proposer::{BEST, Proposer, locked};
use super::weigh::Record;
use super::{Bounds, Draft, Drafter, DrafterSource, Text};
use crate::sampling::Options;
use crate::session::{Run, SequenceId, Session, Settings, Spent, Wanted, Warning};
use crate::{Error, Model};

/// Tolerated difference in vocabulary length: some vocabularies are padded with unused tokens.
const PADDING_MAX: usize = 128;

/// Drafts with a session of its own model, which the drafters of several answers share. Its sequence follows the text:
/// the common prefix is kept.
pub struct DraftModel {
    session: Arc<Mutex<Session>>,
    sequence: SequenceId,
    bounds: Bounds,
    proposer: Proposer,
    /// Tokens of the text missing in the sequence.
    rest: Vec<u32>,
    record: Record,
    ahead: Ahead,
}

/// A draft made while the model verifies the one before.
#[derive(Default)]
struct Ahead {
    /// The text with the draft that is being verified, if that has tokens.
    after: Vec<u32>,
    /// Draft tokens of the draft being verified, at most; 0 once this draft is made.
    most: usize,
    /// The token that the model is expected to select then, and the draft after it.
    draft: Draft,
    /// Whether it ended by itself, and not because the model was done.
    is_whole: bool,
}

impl Ahead {
    /// Whether a text is the one that was expected.
    fn is_for(&self, text: Text<'_>) -> bool {
        let next = self.draft.tokens().first();
        let same = || self.after.iter().copied().chain(next.copied()).eq(text.from(0));
        next.is_some() && text.len() == self.after.len() + 1 && same()
    }

    /// Remembers what is verified now.
    fn expect(&mut self, text: Text<'_>, draft: &Draft, most: usize) {
        self.draft.clear();
        self.after.clear();
        if !draft.tokens().is_empty() {
            self.after.extend(text.from(0));
            self.after.extend_from_slice(draft.tokens());
        }
        self.most = most;
    }
}

impl DraftModel {
    /// Prepares a draft model for `model`, placed by the settings. [`DrafterSource::drafter`] makes drafters for other
    /// answers, of which each takes one of the settings' sequences, too.
    ///
    /// # Errors
    /// A different vocabulary; those of [`Session::new`].
    pub fn new(
        draft: &Model,
        model: &Model,
        settings: Settings<'_>,
        bounds: Bounds,
    ) -> Result<DraftModel, Error> {
        let shared = shared(draft, model)?;
        let record = Record::new(settings.placing.kept.as_deref(), draft, model);
        let top_k = Some(settings.top_k.map_or(BEST, |k| k.max(BEST)));
        let mut session = Session::new(draft, Settings { top_k, ..settings })?;
        let sequence = session.open()?;
        session.keep_all_states(sequence);
        let proposer = Proposer::new(&session, bounds, shared)?;
        Ok(DraftModel {
            session: Arc::new(Mutex::new(session)),
            sequence,
            bounds,
            proposer,
            rest: Vec::new(),
            record,
            ahead: Ahead::default(),
        })
    }

    /// The session, for its placement and its warnings.
    pub fn session(&self) -> MutexGuard<'_, Session> {
        locked(&self.session)
    }

    /// Updates the sequence to the text and runs new tokens. False if the text is impossible for this model.
    fn catch_up(&mut self, text: Text<'_>) -> Result<bool, Error> {
        let DraftModel { session, sequence, proposer, rest, .. } = self;
        let (session, rows) = (&mut *locked(session), &mut proposer.rows);
        let held = session.tokens(*sequence);
        let common = held.iter().zip(text.from(0)).take_while(|(a, b)| **a == *b).count();
        // The last token is always run: its logits begin the draft.
        let common = common.min(text.len() - 1);
        let common = session.truncate(*sequence, common);
        rest.clear();
        rest.extend(text.from(common));
        if rest.iter().any(|&token| token as usize >= session.vocab()) {
            return Ok(false);
        }
        let row = session.prefill_reading(*sequence, rest, &mut |_| true, rows.reading)?;
        Ok(row.map(|row| rows.fill(row)).is_some())
    }
}

impl DraftModel {
    /// Tokens that fit the context after a text.
    fn room(&self, text: Text<'_>) -> usize {
        self.session().context().saturating_sub(text.len())
    }

    /// Drafts after `text`, which ends with the tokens that `draft` has, while `goes_on` says so: at least and at most so
    /// many tokens. Whether the draft ended by itself.
    fn extend(
        &mut self,
        text: &[u32],
        (least, most): (usize, usize),
        draft: &mut Draft,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Error> {
        let Some((&last, held)) = text.split_last() else { return Ok(true) };
        if most == 0 || !self.catch_up(Text { held, last })? {
            return Ok(true);
        }
        let DraftModel { session, sequence, proposer, .. } = self;
        proposer.follow(text.iter().copied());
        for drafted in draft.tokens().len()..most {
            let Some(token) = proposer.propose(least, draft)? else { break };
            if drafted + 1 < most {
                if !goes_on() {
                    return Ok(false);
                }
                let run = Run { sequence: *sequence, tokens: &[token], wanted: Wanted::Last };
                let rows = &mut proposer.rows;
                rows.fill(locked(session).step_reading(&[run], rows.reading)?);
            }
        }
        Ok(true)
    }
}

impl Drafter for DraftModel {
    fn begin(&mut self, options: &Options) -> Result<(), Error> {
        self.record.begin();
        self.ahead = Ahead::default();
        self.proposer.begin(&locked(&self.session), options)
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        self.record.look(text);
        let most = most.min(self.room(text)).min(self.bounds.draft_max);
        if most == 0 {
            return Ok(());
        }
        let mut whole = text.from(0).collect::<Vec<u32>>();
        let mut ahead = std::mem::take(&mut self.ahead);
        let was_ready = ahead.is_for(text);
        if was_ready {
            let drawn = (1..=most).map_while(|at| ahead.draft.get(at));
            drawn.for_each(|drawn| draft.push_drawn(drawn.token, drawn.chances));
            whole.extend_from_slice(draft.tokens());
            self.record.ready();
        }
        if !(was_ready && ahead.is_whole) && draft.tokens().len() < most {
            self.extend(&whole, (self.bounds.draft_min, most), draft, &mut || true)?;
        }
        self.record.drafted(text, draft.tokens());
        ahead.expect(text, draft, most);
        self.ahead = ahead;
        Ok(())
    }

    fn draft_ahead(&mut self, is_busy: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        // Where it runs on the host, as after the loss of a GPU, it would take the time that the model needs.
        let is_apart =
            self.bounds.draft_ahead && self.ahead.most > 0 && !self.session().computes_on_host();
        let Some((&last, held)) = self.ahead.after.split_last().filter(|_| is_apart) else {
            return Ok(());
        };
        // The token that the model is expected to select precedes the draft.
        let most = (self.ahead.most + 1).min(self.room(Text { held, last }));
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.most = 0;
        // How long a sampled draft is must not depend on time, or a seed would not give the same text again.
        let is_greedy = self.proposer.is_greedy();
        let mut goes_on = || !is_greedy || is_busy();
        let bounds = (self.bounds.draft_min + 1, most);
        ahead.is_whole = self.extend(&ahead.after, bounds, &mut ahead.draft, &mut goes_on)?;
        self.ahead = ahead;
        Ok(())
    }

    fn move_spent(&mut self, all: &mut Spent) {
        self.session().move_spent(all);
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        self.session().take_warnings()
    }
}

impl DrafterSource for DraftModel {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        let mut session = locked(&self.session);
        let Ok(sequence) = session.open() else { return Ok(None) };
        session.keep_all_states(sequence);
        let proposer = self.proposer.another(&session)?;
        drop(session);
        Ok(Some(Box::new(DraftModel {
            session: self.session.clone(),
            sequence,
            bounds: self.bounds,
            proposer,
            rest: Vec::new(),
            record: self.record.another(),
            ahead: Ahead::default(),
        })))
    }
}

impl Drop for DraftModel {
    fn drop(&mut self) {
        self.record.store();
        locked(&self.session).close(self.sequence);
    }
}

/// Number of tokens that two models share, which must be all but padding.
fn shared(draft: &Model, model: &Model) -> Result<usize, Error> {
    let differ = |what: String| Error::Vocabularies {
        draft: draft.file().name().to_owned(),
        model: model.file().name().to_owned(),
        what,
    };
    let (a, b) = (draft.tokenizer(), model.tokenizer());
    let lengths = (a.len(), b.len());
    if lengths.0.abs_diff(lengths.1) > PADDING_MAX {
        return Err(differ(format!("it has {} tokens, not {}", lengths.0, lengths.1)));
    }
    if (a.bos(), a.eos()) != (b.bos(), b.eos()) {
        return Err(differ("texts begin or end with other tokens".to_owned()));
    }
    let text =
        |piece: Option<&[u8]>| String::from_utf8_lossy(piece.unwrap_or_default()).into_owned();
    let shared = lengths.0.min(lengths.1).min(draft.config().vocab).min(model.config().vocab);
    match (0..shared as u32).find(|&id| a.piece(id) != b.piece(id)) {
        Some(id) => {
            let (ours, theirs) = (text(a.piece(id)), text(b.piece(id)));
            Err(differ(format!("token {id} is {ours:?}, not {theirs:?}")))
        }
        None => Ok(shared),
    }
}
