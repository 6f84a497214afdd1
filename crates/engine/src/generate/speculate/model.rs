//! A drafter that is a smaller model with the same vocabulary.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::weigh::Record;
use super::{Bounds, Draft, Drafter, DrafterSource, Text};
use crate::sampling::{Options, Row, Sampler};
use crate::session::SequenceId;
use crate::session::{OutputRows, Run, Session, Settings, Spent, Wanted};
use crate::{Error, Model};

/// Minimum number of best tokens that are read if the device selects them; the best one's share is computed among
/// them.
const BEST: usize = 10;

/// Tolerated difference in vocabulary length: some vocabularies are padded with unused tokens.
const PADDING_MAX: usize = 128;

/// Separates the drafter's random numbers from those that verify its tokens, which must be independent.
const APART: u64 = 0x9E37_79B9_7F4A_7C15;

/// Drafts with a session of its own model, which the drafters of several answers share. Its sequence follows the text:
/// the common prefix is kept.
pub struct DraftModel {
    session: Arc<Mutex<Session>>,
    sequence: SequenceId,
    bounds: Bounds,
    sampler: Sampler,
    rows: OutputRows,
    /// Tokens of the text missing in the sequence.
    rest: Vec<u32>,
    /// Number of tokens that both models share.
    shared: usize,
    record: Record,
    ahead: Ahead,
    /// Whether its weights are on devices other than the host.
    is_apart: bool,
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
        let options = Options::default();
        let rows = OutputRows::new(&session, options.needs(), 1);
        let sampler = Sampler::new(options, session.vocab(), session.context(), Vec::new())?;
        let is_apart = !session.computes_on_host();
        Ok(DraftModel {
            session: Arc::new(Mutex::new(session)),
            sequence,
            bounds,
            sampler,
            rows,
            rest: Vec::new(),
            shared,
            record,
            ahead: Ahead::default(),
            is_apart,
        })
    }

    /// The session, for its placement and its warnings.
    pub fn session(&self) -> MutexGuard<'_, Session> {
        locked(&self.session)
    }

    /// Updates the sequence to the text and runs new tokens. False if the text is impossible for this model.
    fn catch_up(&mut self, text: Text<'_>) -> Result<bool, Error> {
        let DraftModel { session, sequence, rows, rest, .. } = self;
        let session = &mut *locked(session);
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
        self.sampler.follow(text.iter().copied());
        for drafted in draft.tokens().len()..most {
            let DraftModel { session, sequence, bounds, sampler, rows, shared, .. } = self;
            // Whether another token is drafted is decided before it is drawn; see the module.
            if drafted >= least && share_of_best(rows.row(0)) < bounds.draft_p_min {
                break;
            }
            let Ok(chances) = sampler.distribute(rows.row(0)) else { break };
            if chances.iter().any(|c| c.id as usize >= *shared) {
                break;
            }
            let token = sampler.draw(None)?;
            draft.push_drawn(token, sampler.candidates());
            if drafted + 1 < most {
                if !goes_on() {
                    return Ok(false);
                }
                let run = Run { sequence: *sequence, tokens: &[token], wanted: Wanted::Last };
                let reading = rows.reading;
                rows.fill(locked(session).step_reading(&[run], reading)?);
            }
        }
        Ok(true)
    }
}

impl Drafter for DraftModel {
    /// Tokens are drawn with the same options, since more similar distributions mean more accepted tokens. Mirostat's
    /// state belongs to the text, so the drafter does not use it.
    fn begin(&mut self, options: &Options) -> Result<(), Error> {
        let logit_bias = options.logit_bias.iter().filter(|(id, _)| (*id as usize) < self.shared);
        let options = Options {
            seed: options.seed ^ APART,
            mirostat: None,
            logit_bias: logit_bias.copied().collect(),
            ..options.clone()
        };
        self.record.begin();
        self.ahead = Ahead::default();
        let session = locked(&self.session);
        self.rows = OutputRows::new(&session, options.needs(), 1);
        let (vocab, context) = (session.vocab(), session.context());
        self.sampler = Sampler::new(options, vocab, context, Vec::new())?;
        Ok(())
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
        let is_apart = self.bounds.draft_ahead && self.is_apart && self.ahead.most > 0;
        let Some((&last, held)) = self.ahead.after.split_last().filter(|_| is_apart) else {
            return Ok(());
        };
        // The token that the model is expected to select precedes the draft.
        let most = (self.ahead.most + 1).min(self.room(Text { held, last }));
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.most = 0;
        // How long a sampled draft is must not depend on time, or a seed would not give the same text again.
        let is_greedy = self.sampler.options().temperature <= 0.0;
        let mut goes_on = || !is_greedy || is_busy();
        let bounds = (self.bounds.draft_min + 1, most);
        ahead.is_whole = self.extend(&ahead.after, bounds, &mut ahead.draft, &mut goes_on)?;
        self.ahead = ahead;
        Ok(())
    }

    fn move_spent(&mut self, all: &mut Spent) {
        self.session().move_spent(all);
    }
}

impl DrafterSource for DraftModel {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        let mut session = locked(&self.session);
        let Ok(sequence) = session.open() else { return Ok(None) };
        let options = Options::default();
        let rows = OutputRows::new(&session, options.needs(), 1);
        let sampler = Sampler::new(options, session.vocab(), session.context(), Vec::new())?;
        drop(session);
        Ok(Some(Box::new(DraftModel {
            session: self.session.clone(),
            sequence,
            bounds: self.bounds,
            sampler,
            rows,
            rest: Vec::new(),
            shared: self.shared,
            record: self.record.another(),
            ahead: Ahead::default(),
            is_apart: self.is_apart,
        })))
    }
}

impl Drop for DraftModel {
    fn drop(&mut self) {
        self.record.store();
        locked(&self.session).close(self.sequence);
    }
}

/// The session. After a panic of another drafter its step has been undone, as after an error.
fn locked(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
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
