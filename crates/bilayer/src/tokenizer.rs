//! A model's tokenizer as a handle for other threads.

use bilayer_engine::{Encode, Error as Engine, Model as Opened};

use crate::Error;

/// The tokenizer of an open model: a handle for threads that convert text while the model works. It keeps the model's file
/// open, but none of its devices.
///
/// ```
/// # let path = "crates/cli/assets/demo.gguf";
/// let model = bilayer::Model::open(path)?;
/// let tokenizer = model.tokenizer();
/// let converted = std::thread::spawn(move || {
///     let tokens = tokenizer.encode("ROMEO", bilayer::Encode::default())?;
///     tokenizer.decode(&tokens)
/// });
/// assert_eq!(converted.join().expect("no panic")?.trim(), "ROMEO");
/// # Ok::<(), bilayer::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer(Opened);

impl Tokenizer {
    pub(crate) fn new(model: &Opened) -> Tokenizer {
        Tokenizer(model.clone())
    }

    /// The tokens of a text, as [`Model::tokens_as`](crate::Model::tokens_as) gives them.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode(&self, text: &str, encode: Encode) -> Result<Vec<u32>, Error> {
        Ok(self.0.tokenizer().encode(text, encode).map_err(Engine::Text)?)
    }

    /// The text of some tokens, control tokens left out.
    ///
    /// # Errors
    /// The vocabulary has no such token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        self.0.check_tokens(tokens)?;
        Ok(self.0.tokenizer().decode(tokens))
    }

    /// The bytes of a token, a leading space included, not always whole characters, or the spelling of a control token;
    /// and whether it is a control token.
    ///
    /// # Errors
    /// The vocabulary has no such token.
    pub fn piece(&self, token: u32) -> Result<(&[u8], bool), Error> {
        self.0.check_tokens(&[token])?;
        let tokenizer = self.0.tokenizer();
        Ok((tokenizer.piece(token).unwrap_or_default(), tokenizer.is_control(token)))
    }
}
