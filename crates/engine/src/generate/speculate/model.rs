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
        let session = Arc::new(Mutex::new(session));
        let rest = Vec::new();
        Ok(DraftModel { session, sequence, bounds, sampler, rows, rest, shared, record })
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
        let session = locked(&self.session);
        self.rows = OutputRows::new(&session, options.needs(), 1);
        let (vocab, context) = (session.vocab(), session.context());
        self.sampler = Sampler::new(options, vocab, context, Vec::new())?;
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        self.record.look(text);
        let room = self.session().context().saturating_sub(text.len());
        let most = most.min(room).min(self.bounds.draft_max);
        if most == 0 || !self.catch_up(text)? {
            return Ok(());
        }
        self.sampler.follow(text.from(0));
        for drafted in 0..most {
            let DraftModel { session, sequence, bounds, sampler, rows, shared, .. } = self;
            // Whether another token is drafted is decided before it is drawn; see the module.
            if drafted >= bounds.draft_min && share_of_best(rows.row(0)) < bounds.draft_p_min {
                break;
            }
            let Ok(chances) = sampler.distribute(rows.row(0)) else { break };
            if chances.iter().any(|c| c.id as usize >= *shared) {
                break;
            }
            let token = sampler.draw(None)?;
            draft.push_drawn(token, sampler.candidates());
            if drafted + 1 < most {
                let run = Run { sequence: *sequence, tokens: &[token], wanted: Wanted::Last };
                let reading = rows.reading;
                rows.fill(locked(session).step_reading(&[run], reading)?);
            }
        }
        self.record.drafted(text, draft.tokens());
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
        let (session, bounds, shared) = (self.session.clone(), self.bounds, self.shared);
        let (rest, record) = (Vec::new(), self.record.another());
        Ok(Some(Box::new(DraftModel {
            session,
            sequence,
            bounds,
            sampler,
            rows,
            rest,
            shared,
            record,
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
