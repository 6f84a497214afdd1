//! Runs texts through an encoder: many in one step, whatever their lengths, independent of each other.
//!
//! **The idea.** A step is filled with whole texts, without padding: each is a separate sequence, and attention does
//! not cross its bounds. A short text costs only its own tokens, and its result does not depend on the others.

use std::sync::Arc;

pub use bilayer_models::Pooling;
use bilayer_settings::{Phrase, Setting};
use bilayer_text::Tokenizer;

use crate::encode::pair::Parts;
use crate::encode::prompt::Prompts;
use crate::session::SequenceId;
use crate::session::{Run, Session, Settings, Wanted};
use crate::{Cancel, Error, Model};

pub mod extract;
pub mod pair;
pub mod prompt;
pub mod route;

/// An encoder on its devices.
pub struct Encoder {
    session: Session,
    tokenizer: Arc<Tokenizer>,
    sequences: Vec<SequenceId>,
    wanted: Wanted,
    labels: Vec<String>,
    /// Which of them may hold together.
    labelling: Labelling,
    /// Most tokens of a text.
    longest: usize,
    prompts: Prompts,
    /// The text that comes before each one that is embedded.
    prompt: String,
    norm: Norm,
    cancel: Cancel,
}

/// A text or a pair of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'t> {
    /// The text.
    pub text: &'t str,
    /// A second text, which is evaluated together with it.
    pub pair: Option<&'t str>,
}

/// Callback with each input's number, tokens and rows.
pub type Each<'e, E> = dyn FnMut(usize, &[u32], &[f32]) -> Result<(), E> + 'e;

/// Texts of a step, at most. A model with recurrent layers has memory for the states of each.
pub fn texts_max(model: &Model) -> usize {
    if model.graph().states.is_empty() { 64 } else { 8 }
}

/// What to do with a text longer than the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Refuse it.
    Refuse,
    /// Truncate it; of a pair, truncate the second text.
    Truncate,
}

impl Encoder {
    /// Places an encoder by the settings, whose purpose selects its output.
    ///
    /// # Errors
    /// The model is a decoder; those of [`Session::new`].
    pub fn new(model: &Model, settings: Settings<'_>) -> Result<Encoder, Error> {
        if model.config().encoder.is_none() {
            return Err(Error::NoEncoder { name: model.name() });
        }
        Encoder::over(Session::new(model, settings)?)
    }

    /// Uses a session without sequences.
    ///
    /// # Errors
    /// The model is a decoder; the session has sequences.
    pub fn over(mut session: Session) -> Result<Encoder, Error> {
        let model = session.model().clone();
        let no_encoder = || Error::NoEncoder { name: model.name() };
        let mut config = model.config().encoder.clone().ok_or_else(no_encoder)?;
        session.purpose().apply(&mut config);
        let rows = config.pooling_recorded();
        let most = session.limits().sequences;
        let most_tokens = match config.takes_whole_texts() {
            true => session.context().min(session.limits().tokens),
            false => session.context(),
        };
        let sequences = (0..most).map(|_| session.open()).collect::<Result<_, _>>()?;
        let metadata = model.file().metadata();
        let key = |name: &str| format!("{}.{name}", model.config().architecture);
        let longest = metadata.opt_count(&key("max_seq_length")).map_err(Error::File)?;
        let scales = metadata.opt_bool(&key("normalize_embeddings")).map_err(Error::File)?;
        pair::template(&model)?;
        let prompts = Prompts::read(metadata, model.config().architecture)?;
        let prompt = prompts.find(None)?.to_owned();
        Ok(Encoder {
            prompts,
            prompt,
            longest: longest.map_or(most_tokens, |longest| longest.min(most_tokens)),
            norm: if scales == Some(false) { Norm::None } else { Norm::P(2) },
            session,
            tokenizer: model.tokenizer().clone(),
            sequences,
            wanted: match rows {
                Pooling::None => Wanted::All,
                Pooling::Cls => Wanted::First,
                Pooling::Mean | Pooling::Last => Wanted::Last,
            },
            labelling: match config.head.multi_label {
                true => Labelling::AnyOf,
                false => Labelling::OneOf,
            },
            labels: if config.scores { config.head.labels } else { Vec::new() },
            cancel: Cancel::new(),
        })
    }

    /// Sets the handle that ends [`Encoder::run`] and what is built on it.
    pub fn set_cancel(&mut self, cancel: &Cancel) {
        self.cancel = cancel.clone();
    }

    /// Sets the text that comes before each one that is embedded: the model's prompt of that name, or its default.
    ///
    /// # Errors
    /// The model has no such prompt.
    pub fn set_prompt(&mut self, name: Option<&str>) -> Result<(), Error> {
        self.prompt = self.prompts.find(name)?.to_owned();
        Ok(())
    }

    /// The model's prompts.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Whether the work may go on.
    ///
    /// # Errors
    /// [`Error::Interrupted`], if the handle is cancelled.
    pub fn check_cancel(&self) -> Result<(), Error> {
        if self.cancel.is_cancelled() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// The tokens of an input, including special tokens around it.
    ///
    /// # Errors
    /// The vocabulary cannot express the text; [`Error::TooLong`], [`Error::QueryTooLong`], [`Error::NoTokens`].
    pub fn tokens(&self, input: Input<'_>, excess: Excess) -> Result<Vec<u32>, Error> {
        let template = pair::template(self.session.model())?;
        let prompted = format!("{}{}", self.prompt, input.text);
        let is_embedded = self.labels.is_empty() && input.pair.is_none();
        let text = if is_embedded { &prompted } else { input.text };
        let input = Input { text, ..input };
        let Parts { mut ids, before, after } = Parts::new(&self.tokenizer, template, input)?;
        let (tokens, context) = (ids.len(), self.longest);
        if tokens > context {
            // Of a pair the second text is cut, of which something must be left.
            let around = before + after.len();
            if excess == Excess::Refuse || input.pair.is_none() && after.len() > context {
                return Err(Error::TooLong { tokens, context });
            }
            if input.pair.is_some() && around >= context {
                return Err(Error::QueryTooLong { tokens: around, context });
            }
            ids.truncate(context - after.len());
            ids.extend(after);
        }
        if ids.is_empty() && self.is_pooled() {
            return Err(Error::NoTokens);
        }
        Ok(ids)
    }

    /// Runs tokenized inputs in as few steps as possible. `each` receives every input's number and rows `[rows,
    /// width]` in order: one row, or one per token without pooling.
    ///
    /// # Errors
    /// Errors of `inputs` or `each`; [`Error::NoTokens`]; those of [`Session::step`]; [`Error::Interrupted`], before a step.
    pub fn run<E: From<Error>>(
        &mut self,
        inputs: impl Iterator<Item = Result<Vec<u32>, E>>,
        each: &mut Each<'_, E>,
    ) -> Result<(), E> {
        self.run_while(inputs, each, &mut || true)
    }

    /// Like [`Encoder::run`], while `goes_on`, which is asked before every step.
    ///
    /// # Errors
    /// As there; [`Error::Interrupted`] if the work shall not go on.
    pub fn run_while<E: From<Error>>(
        &mut self,
        inputs: impl Iterator<Item = Result<Vec<u32>, E>>,
        each: &mut Each<'_, E>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), E> {
        let (most, tokens_max) = self.step_limits();
        let mut batch: Vec<Vec<u32>> = Vec::with_capacity(most);
        let (mut done, mut tokens) = (0, 0);
        for input in inputs {
            let input = input?;
            if input.is_empty() && self.is_pooled() {
                return Err(Error::NoTokens.into());
            }
            if batch.len() == most || tokens + input.len() > tokens_max {
                self.step((&batch, done), each, goes_on)?;
                done += batch.len();
                batch.clear();
                tokens = 0;
            }
            tokens += input.len();
            batch.push(input);
        }
        self.step((&batch, done), each, goes_on)
    }

    /// Runs some inputs, the first of which has that number, in one step, or one that is longer in several.
    fn step<E: From<Error>>(
        &mut self,
        (batch, first): (&[Vec<u32>], usize),
        each: &mut Each<'_, E>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), E> {
        if batch.is_empty() {
            return Ok(());
        }
        self.check_cancel()?;
        if !goes_on() {
            return Err(Error::Interrupted.into());
        }
        let Encoder { session, sequences, wanted, .. } = self;
        for &sequence in sequences.iter() {
            session.truncate(sequence, 0);
        }
        if let ([text], &[sequence, ..]) = (batch, &sequences[..])
            && text.len() > session.limits().tokens
        {
            let cancel = self.cancel.clone();
            let mut each_step = |_| !cancel.is_cancelled() && goes_on();
            let row = session.prefill(sequence, text, &mut each_step)?;
            return each(first, text, row.ok_or(Error::Interrupted)?);
        }
        let runs = sequences.iter().zip(batch);
        let runs: Vec<Run<'_>> =
            runs.map(|(&sequence, tokens)| Run { sequence, tokens, wanted: *wanted }).collect();
        let width = session.width();
        let mut rest = session.step(&runs)?;
        for (number, tokens) in batch.iter().enumerate() {
            let rows = if *wanted == Wanted::All { tokens.len() } else { 1 };
            let (rows, after) = rest.split_at(rows * width);
            each(first + number, tokens, rows)?;
            rest = after;
        }
        Ok(())
    }

    /// Whether a text yields one row instead of one per token.
    pub fn is_pooled(&self) -> bool {
        self.wanted != Wanted::All
    }

    /// How the model's own code scales embeddings: to length 1, unless the file says otherwise.
    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// Most texts and most tokens of a step; a longer text has one or more steps alone.
    pub fn step_limits(&self) -> (usize, usize) {
        (self.sequences.len(), self.session.limits().tokens)
    }

    /// Most tokens of a text.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Names of the scores; empty if rows are not scores.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether a text gives one embedding.
    ///
    /// # Errors
    /// Rows are scores, or there is one for each token.
    pub fn check_embeds(&self) -> Result<(), Error> {
        if !self.labels.is_empty() {
            let expected = Phrase::from("embeddings; open it with ")
                .either("`Builder::embeddings`", "`embeddings`");
            return Err(Error::setting("output of the model", "scores", expected));
        }
        if !self.is_pooled() {
            let expected = "cls, mean or last, for one vector per text";
            return Err(Error::setting(Setting::Pooling, "none", expected));
        }
        Ok(())
    }

    /// Whether every token has scores of its own.
    pub fn labels_tokens(&self) -> bool {
        !self.labels.is_empty() && !self.is_pooled()
    }

    /// Names of the scores of a text; empty if rows are embeddings.
    ///
    /// # Errors
    /// The model labels tokens.
    pub fn text_labels(&self) -> Result<&[String], Error> {
        match self.labels_tokens() {
            true => Err(Error::TokenHead { name: self.session.model().name() }),
            false => Ok(&self.labels),
        }
    }

    /// Which labels of a text may hold together.
    pub fn labelling(&self) -> Labelling {
        self.labelling
    }

    /// The underlying session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The underlying session, for its records.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// Scales a row to length 1; a row of zeros is unchanged.
pub fn normalize(row: &mut [f32]) {
    let square: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    if square > 0.0 {
        let factor = 1.0 / square.sqrt();
        row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
}

/// How a vector is scaled, as llama.cpp's `--embd-normalize` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Not at all.
    None,
    /// The largest absolute value becomes 32760, for 16-bit integers.
    Max,
    /// The P-norm becomes 1: 1 is the sum of absolute values, 2 the length.
    P(u32),
}

impl Norm {
    /// The norm with a number: -1 is none, 0 the largest value, any other that P-norm.
    pub fn numbered(number: i64) -> Norm {
        match number {
            ..0 => Norm::None,
            0 => Norm::Max,
            p => Norm::P(u32::try_from(p).unwrap_or(u32::MAX)),
        }
    }

    /// Scales a row; a row of zeros is unchanged. Sums are f64.
    pub fn apply(self, row: &mut [f32]) {
        let absolute = row.iter().map(|&x| f64::from(x).abs());
        let most = absolute.clone().fold(0.0, f64::max);
        let norm = match self {
            Norm::None => 1.0,
            Norm::Max => most / 32760.0,
            Norm::P(2) => return normalize(row),
            _ if most == 0.0 => return,
            Norm::P(p) => {
                // High powers of the elements themselves would be 0 or infinite.
                let power = f64::from(p);
                most * absolute.map(|x| (x / most).powf(power)).sum::<f64>().powf(1.0 / power)
            }
        };
        if norm > 0.0 {
            row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
        }
    }
}

/// Which labels of a text may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelling {
    /// One of them holds: their probabilities sum to 1.
    OneOf,
    /// Any number of them: each has a probability of its own.
    AnyOf,
}

impl Labelling {
    /// Converts scores to the probabilities of their labels.
    pub fn probabilities(self, scores: &[f32]) -> Vec<f32> {
        match self {
            Labelling::OneOf => probabilities(scores),
            Labelling::AnyOf => scores.iter().copied().map(sigmoid).collect(),
        }
    }
}

/// The probability of a label by its own score.
fn sigmoid(score: f32) -> f32 {
    1.0 / (1.0 + (-score).exp())
}

/// Converts scores to probabilities of exclusive labels; a single score to that of its label alone.
pub fn probabilities(scores: &[f32]) -> Vec<f32> {
    if let [score] = *scores {
        return vec![sigmoid(score)];
    }
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let parts: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f32 = parts.iter().sum();
    parts.iter().map(|part| part / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::{Labelling, Norm, normalize, probabilities};

    #[test]
    fn norms_are_numbered_as_in_llama_cpp() {
        let scaled = |number: i64| {
            let mut row = [3.0, -4.0];
            Norm::numbered(number).apply(&mut row);
            row
        };
        assert_eq!(scaled(-1), [3.0, -4.0]);
        assert_eq!(scaled(0), [24570.0, -32760.0]);
        assert_eq!(scaled(2), [0.6, -0.8]);
        for large in [3.0, 0.003, 3e6] {
            let mut row = [0.5 * large, -large];
            Norm::numbered(1000).apply(&mut row);
            assert!((row[1] + 1.0).abs() < 1e-6 && (row[0] - 0.5).abs() < 1e-6, "{large}: {row:?}");
        }
        let sum: f32 = scaled(1).iter().map(|x| x.abs()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn rows_come_to_length_one_and_scores_to_a_sum_of_one() {
        let mut row = [3.0, -4.0];
        normalize(&mut row);
        assert_eq!(row, [0.6, -0.8]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
        let scaled = |norm: Norm| {
            let mut row = [3.0, -4.0];
            norm.apply(&mut row);
            row
        };
        assert_eq!(scaled(Norm::None), [3.0, -4.0]);
        assert_eq!(scaled(Norm::Max), [24570.0, -32760.0]);
        assert_eq!(scaled(Norm::P(1)), [3.0 / 7.0, -4.0 / 7.0]);
        assert_eq!(scaled(Norm::P(2)), [0.6, -0.8]);
        let cubes = 91f64.powf(1.0 / 3.0);
        assert_eq!(scaled(Norm::P(3)), [3.0 / cubes, -4.0 / cubes].map(|x| x as f32));
        Norm::P(1).apply(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
        let ln3 = 3f32.ln();
        assert_eq!(probabilities(&[0.0]), [0.5]);
        assert_eq!(Labelling::AnyOf.probabilities(&[0.0, 100.0]), [0.5, 1.0]);
        let found = probabilities(&[100.0 + ln3, 100.0]);
        assert!((found[0] - 0.75).abs() < 1e-5 && (found[1] - 0.25).abs() < 1e-5, "{found:?}");
    }
}
