//! One answer's own state: from a row of logits to the next token, its text, and whether the answer ends there.

use std::sync::Arc;

use bilayer_text::{Decode, Decoder, Tokenizer};

use super::{Request, Stop, Token};
use crate::sampling::{self, Guess, Row, Sampler};
use crate::{Error, Model};

/// An answer without the session that computes it.
pub(super) struct Reply<'r> {
    pub request: Request<'r>,
    pub sampler: Sampler,
    pub stop: Option<Stop>,
    /// Tokens chosen.
    pub generated: usize,
    decoder: Decoder,
    tokenizer: Arc<Tokenizer>,
}

/// What the next token is chosen from.
pub(super) struct Choice<'a> {
    pub row: Row<'a>,
    /// All logits `[vocab]`, where log-probabilities are reported.
    pub logits: Option<&'a [f32]>,
    /// The draft token at this place.
    pub draft: Option<Guess<'a>>,
    /// Tokens that the context still has room for.
    pub room: usize,
}

impl<'r> Reply<'r> {
    pub fn new(model: &Model, sampler: Sampler, request: Request<'r>) -> Reply<'r> {
        let decode = Decode { stops: request.stops.clone(), show_control: request.show_control };
        Reply {
            decoder: Decoder::new(model.tokenizer(), decode).continuing(),
            tokenizer: model.tokenizer().clone(),
            request,
            sampler,
            stop: None,
            generated: 0,
        }
    }

    /// Why no token may be asked for: the answer was cancelled, or wants none.
    pub fn ends_before_a_token(&self) -> Option<Stop> {
        match self.request.cancel.is_cancelled() {
            true => Some(Stop::Interrupted),
            false => self.is_long_enough().then_some(Stop::Length),
        }
    }

    /// Chooses the next token. Where none can follow it, or none is wanted, it has all text that was withheld.
    pub fn choose(&mut self, choice: &Choice<'_>) -> Result<Token, Error> {
        let id = self.sampler.sample_row(choice.row, choice.draft)?;
        let logprobs = self.request.logprobs.zip(choice.logits);
        let logprobs = logprobs.map(|(top, logits)| sampling::logprobs(logits, id, top));
        self.generated += 1;
        if self.tokenizer.is_end(id) && !self.request.ignore_eos {
            self.stop = Some(Stop::EndOfText);
            return Ok(Token { id, text: self.decoder.finish(), logprobs });
        }
        let piece = self.decoder.push(id);
        let mut text = piece.text;
        self.stop = match piece.stop {
            Some(which) => Some(Stop::Text(which)),
            None if self.is_long_enough() => Some(Stop::Length),
            None => (choice.room == 0).then_some(Stop::Context),
        };
        if matches!(self.stop, Some(Stop::Length | Stop::Context)) {
            text += &self.decoder.finish();
        }
        Ok(Token { id, text, logprobs })
    }

    /// Text that is still withheld.
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
