//! Splits a text into windows of equal length, as llama.cpp's perplexity tool does.

use bilayer_settings::Setting;
use bilayer_text::Encode;

use super::Error;
use bilayer_engine::Model;

/// Tokens per window unless another number is asked for.
const LEN: usize = 512;

/// Minimum tokens per window: one is scored.
const LEAST: usize = 4;

/// Consecutive windows of equal length without overlap; the remainder at the end is not run.
///
/// If the model expects a begin-of-text token, it replaces the first token of each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    tokens: Vec<u32>,
    len: usize,
    first: Option<u32>,
}

impl Windows {
    /// How a text is tokenized: names of special tokens are text.
    pub const ENCODE: Encode = Encode { add_special: true, parse_special: false };

    /// Tokens of a window, as in llama.cpp: 512, or the context that the model was trained for if that is shorter or 0 are
    /// asked for.
    pub fn len_of(model: &Model, asked: Option<usize>) -> usize {
        let context = model.config().context;
        match asked {
            None => LEN.min(context),
            Some(0) => context,
            Some(tokens) => tokens,
        }
    }

    /// Splits tokens into windows of `len`.
    ///
    /// # Errors
    /// Windows are too short, or there are fewer tokens than two windows.
    pub fn new(model: &Model, mut tokens: Vec<u32>, len: usize) -> Result<Windows, crate::Error> {
        if len < LEAST {
            let expected = format!("at least {LEAST}");
            return Err(bilayer_engine::Error::setting(Setting::Context, len, expected).into());
        }
        if tokens.len() / len < 2 {
            return Err(Error::TooShort { found: tokens.len(), len }.into());
        }
        tokens.truncate(tokens.len() / len * len);
        Ok(Windows { tokens, len, first: first(model) })
    }

    /// Tokenizes and splits a text. A line break at its end is ignored, as in llama.cpp.
    ///
    /// # Errors
    /// Those of [`Windows::new`]; a text that the vocabulary cannot express.
    pub fn of_text(
        model: &Model,
        text: &str,
        len: usize,
        encode: Encode,
    ) -> Result<Windows, crate::Error> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let tokens = model.tokenizer().encode(text, encode).map_err(bilayer_engine::Error::Text)?;
        Windows::new(model, tokens, len)
    }

    /// The windows of a file, which may be few.
    pub(super) fn kept(model: &Model, tokens: Vec<u32>, len: usize) -> Windows {
        Windows { tokens, len, first: first(model) }
    }

    /// Keeps the first `count` windows.
    pub fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count.saturating_mul(self.len));
    }

    /// Removes the first `count` windows.
    pub fn skip(&mut self, count: usize) {
        self.tokens.drain(..count.saturating_mul(self.len).min(self.tokens.len()));
    }

    /// Number of windows.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.len
    }

    /// Tokens per window.
    pub fn window_len(&self) -> usize {
        self.len
    }

    /// The first position of a window whose logits count: its second half.
    pub fn first_scored(&self) -> usize {
        self.len / 2
    }

    /// Scored tokens per window: the second half except its first, which nothing predicts.
    pub fn scored(&self) -> usize {
        self.len - 1 - self.first_scored()
    }

    /// The text's tokens in order of windows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens that are run for a window.
    pub fn run(&self, window: usize) -> Vec<u32> {
        let mut tokens = self.own(window).to_vec();
        tokens[0] = self.first.unwrap_or(tokens[0]);
        tokens
    }

    /// The tokens that a window's rows of logits predict.
    pub fn targets(&self, window: usize) -> &[u32] {
        &self.own(window)[self.first_scored() + 1..]
    }

    fn own(&self, window: usize) -> &[u32] {
        &self.tokens[window * self.len..][..self.len]
    }
}

/// The model's begin-of-text token, if it expects one.
fn first(model: &Model) -> Option<u32> {
    let tokenizer = model.tokenizer();
    tokenizer.bos().filter(|_| tokenizer.adds_bos())
}
