//! A smaller model with the same vocabulary as drafter.

use super::{Bounds, Draft, Drafter, Text};
use crate::sampling::{Options, Row, Sampler};
use crate::session::SequenceId;
use crate::session::{Rows, Run, Session, Settings, Spent, Wanted};
use crate::{Error, Model};

/// Best tokens that are read at least, where the head's device finds them: what the share of the best one is taken of.
const BEST: usize = 10;

/// By how many tokens vocabularies of one kind may differ in length: some are padded with tokens that are never used.
const PADDING_MAX: usize = 128;

/// Sets the drafter's random numbers apart from those that decide on its guesses, which must know nothing of them.
const APART: u64 = 0x9E37_79B9_7F4A_7C15;

/// Guesses with a session of its own. Its sequence follows the text by itself: what both have in common stays.
pub struct DraftModel {
    session: Session,
    sequence: SequenceId,
    bounds: Bounds,
    sampler: Sampler,
    rows: Rows,
    /// Tokens of the text that the sequence lacks.
    rest: Vec<u32>,
    /// Tokens that both models have.
    shared: usize,
}

impl DraftModel {
    /// A model to draft for `model`, placed by the settings.
    ///
    /// # Errors
    /// Another vocabulary; those of [`Session::new`].
    pub fn new(
        draft: &Model,
        model: &Model,
        settings: Settings<'_>,
        bounds: Bounds,
    ) -> Result<DraftModel, Error> {
        let shared = shared(draft, model)?;
        let top_k = Some(settings.top_k.map_or(BEST, |k| k.max(BEST)));
        let mut session = Session::new(draft, Settings { top_k, ..settings })?;
        let sequence = session.open()?;
        let options = Options::default();
        let rows = Rows::new(&session, &options, 1);
        let sampler = Sampler::new(options, session.vocab(), session.context(), Vec::new())?;
        Ok(DraftModel { session, sequence, bounds, sampler, rows, rest: Vec::new(), shared })
    }

    /// The session, to say where it lies.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The same, to take its warnings.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Brings the sequence to the text and runs what is new. False where the text is none for this model.
    fn catch_up(&mut self, text: Text<'_>) -> Result<bool, Error> {
        let DraftModel { session, sequence, rows, rest, .. } = self;
        let held = session.tokens(*sequence);
        let common = held.iter().zip(text.from(0)).take_while(|(a, b)| **a == *b).count();
        // The last token is run in any case: its logits are what the draft begins with.
        let common = common.min(text.len() - 1);
        session.truncate(*sequence, common);
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
    /// Tokens are drawn by the same options, for the more alike two distributions are, the more guesses are right.
    /// Mirostat's state is the text's alone, so the drafter goes without.
    fn begin(&mut self, options: &Options) -> Result<(), Error> {
        let logit_bias = options.logit_bias.iter().filter(|(id, _)| (*id as usize) < self.shared);
        let options = Options {
            seed: options.seed ^ APART,
            mirostat: None,
            logit_bias: logit_bias.copied().collect(),
            ..options.clone()
        };
        self.rows = Rows::new(&self.session, &options, 1);
        let (vocab, context) = (self.session.vocab(), self.session.context());
        self.sampler = Sampler::new(options, vocab, context, Vec::new())?;
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        let room = self.session.context().saturating_sub(text.len());
        let most = most.min(room).min(self.bounds.draft_max);
        if most == 0 || !self.catch_up(text)? {
            return Ok(());
        }
        self.sampler.follow(text.from(0));
        for drafted in 0..most {
            let DraftModel { session, sequence, bounds, sampler, rows, shared, .. } = self;
            // Whether there is another guess is settled before it is drawn, see the module.
            if drafted >= bounds.draft_min && share_of_best(rows.row(0)) < bounds.draft_p_min {
                break;
            }
            let Ok(chances) = sampler.distribute(rows.row(0)) else { break };
            if chances.iter().any(|c| c.id as usize >= *shared) {
                break;
            }
            let token = sampler.draw(None);
            draft.push_drawn(token, sampler.candidates());
            if drafted + 1 < most {
                let run = Run { sequence: *sequence, tokens: &[token], wanted: Wanted::Last };
                rows.fill(session.step_reading(&[run], rows.reading)?);
            }
        }
        Ok(())
    }

    fn move_spent(&mut self, all: &mut Spent) {
        self.session.move_spent(all);
    }
}

/// The probability of the best token at temperature 1, among the tokens that are known; sums in f64.
fn share_of_best(row: Row<'_>) -> f32 {
    let share = |logits: &mut dyn Iterator<Item = f32>| {
        // A new best one rescales the sum.
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

/// How many tokens two models have in common, which must be all but padding.
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
