//! The state of one answer: from a row of logits to the next token, its text, and whether the answer ends.

use std::sync::Arc;
use std::time::Duration;

use bilayer_text::{Decode, Decoder, Tokenizer};

use super::lines::Lines;
use super::{Distribution, Request, Stop, Token};
use crate::sampling::{self, DraftToken, Row, Sampler};
use crate::{Error, Model};

/// An answer without the session that computes it.
pub(crate) struct Reply<'r> {
    pub request: Request<'r>,
    pub sampler: Sampler,
    pub stop: Option<Stop>,
    /// Number of selected tokens.
    pub generated: usize,
    decoder: Decoder,
    lines: Lines,
    tokenizer: Arc<Tokenizer>,
}

/// The input for selecting the next token.
pub(crate) struct Choice<'a> {
    pub row: Row<'a>,
    /// All logits `[vocab]`, if log-probabilities are reported.
    pub logits: Option<&'a [f32]>,
    /// The draft token at this position.
    pub draft: Option<DraftToken<'a>>,
    /// Tokens of context left.
    pub room: usize,
    /// Time since the first token.
    pub elapsed: Duration,
}

impl<'r> Reply<'r> {
    pub fn new(model: &Model, sampler: Sampler, request: Request<'r>) -> Reply<'r> {
        let decode = Decode { stops: request.stops.clone(), show_control: request.show_control };
        Reply {
            decoder: Decoder::new(model.tokenizer(), decode).continuing(),
            lines: Lines::new(request.indent),
            tokenizer: model.tokenizer().clone(),
            request,
            sampler,
            stop: None,
            generated: 0,
        }
    }

    /// Why no token can be requested: the answer was cancelled, or has length 0.
    pub fn ends_before_a_token(&self) -> Option<Stop> {
        match self.request.cancel.is_cancelled() {
            true => Some(Stop::Interrupted),
            false => self.is_long_enough().then_some(Stop::Length),
        }
    }

    /// Selects the next token. If it is the last one, it includes all withheld text.
    pub fn choose(&mut self, choice: &Choice<'_>) -> Result<Token, Error> {
        let id = self.sampler.sample_row(choice.row, choice.draft)?;
        let logprobs = self.request.logprobs.zip(choice.logits);
        let logprobs = logprobs.map(|(top, logits)| match self.request.distribution {
            Distribution::Raw => sampling::logprobs(logits, id, top),
            Distribution::Sampled => self.sampler.sampled_logprobs(id, top),
        });
        self.generated += 1;
        let is_complete = self.sampler.is_complete();
        if self.tokenizer.is_end(id) && (!self.request.ignore_eos || is_complete) {
            self.stop = Some(Stop::EndOfText);
            let rest = self.decoder.finish();
            return Ok(Token { id, text: self.indented(rest), logprobs });
        }
        let piece = self.decoder.push(id);
        let mut text = piece.text;
        let is_late = self.request.predict_time.is_some_and(|most| choice.elapsed > most);
        self.stop = match piece.stop {
            Some(which) => Some(Stop::Text(which)),
            None if is_complete => Some(Stop::EndOfText),
            None if self.is_long_enough() => Some(Stop::Length),
            None if is_late && text.contains('\n') => Some(Stop::Length),
            None => (choice.room == 0).then_some(Stop::Context),
        };
        if matches!(self.stop, Some(Stop::EndOfText | Stop::Length | Stop::Context)) {
            text += &self.decoder.finish();
        }
        Ok(Token { id, text: self.indented(text), logprobs })
    }

    /// The part of `text` before a line that is not indented enough; such a line ends the answer.
    fn indented(&mut self, mut text: String) -> String {
        if let Some(end) = self.lines.push(&text) {
            text.truncate(end);
            // What is withheld follows that line.
            self.decoder.finish();
            self.stop = Some(Stop::Length);
        }
        text
    }

    /// The withheld text.
    pub fn finish(&mut self) -> String {
        match self.stop {
            Some(Stop::Text(_)) => String::new(),
            _ => self.decoder.finish(),
        }
    }

    fn is_long_enough(&self) -> bool {
        self.request.predict.is_some_and(|most| self.generated >= most)
    }
}
