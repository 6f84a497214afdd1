//! Streaming decoder: emits whole characters only and withholds stop strings.

use std::sync::Arc;

use crate::Tokenizer;
use crate::pieces::Pieces;
use crate::stops::{StopStrings, Stops};
use crate::view::View;

/// Options of decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decode {
    /// Stop strings; neither they nor the text after them is ever emitted. Empty ones never match. A control token that is
    /// spelled as one completes it, whether or not such tokens are shown.
    pub stops: StopStrings,
    /// Whether control and unknown tokens are spelled out; otherwise they are omitted.
    pub show_control: bool,
}

/// The output for one token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// The text that is final; may be empty.
    pub text: String,
    /// Index of the completed entry of [`Decode::stops`]; no text follows.
    pub stop: Option<usize>,
}

/// Decodes tokens one by one, in time independent of the text so far.
///
/// The concatenated output of all pushes and of [`finish`](Self::finish) is [`Tokenizer::decode`] of the tokens,
/// however they are split. Bytes that are not UTF-8 become U+FFFD, one per maximal part of a character, as soon as no
/// further byte can complete them.
///
/// ```
/// # use bilayer_text::{Decode, Decoder, Tokenizer, Vocabulary};
/// # let tokens: Vec<_> = ["<s>", "Hi", "St", "op", "!"].map(Into::into).to_vec();
/// # let merges = ["H i", "S t", "o p"].map(Into::into).to_vec();
/// # let letters = "HiStop".chars().map(|letter| letter.to_string().into());
/// # let tokenizer = Tokenizer::new(Vocabulary { model: "gpt2".into(), pre: Some("gpt-2".into()),
/// #     tokens: tokens.into_iter().chain(letters).collect(), merges, ..Vocabulary::default() })?;
/// let options = Decode { stops: vec!["Stop".to_owned()].into(), ..Decode::default() };
/// let mut decoder = Decoder::new(&tokenizer, options);
/// assert_eq!(decoder.push(1).text, "Hi");
/// assert_eq!(decoder.push(2).text, "", "St may begin the stop string");
/// assert_eq!(decoder.push(3).stop, Some(0));
/// # Ok::<(), bilayer_text::Error>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    pieces: Arc<Pieces>,
    view: View,
    stops: Stops,
    /// Bytes of an incomplete character.
    pending: Vec<u8>,
}

impl Decoder {
    /// A decoder at the start of a text: the space added by encoding is dropped.
    pub fn new(tokenizer: &Tokenizer, options: Decode) -> Self {
        let pieces = Arc::clone(tokenizer.pieces());
        Self {
            view: View { show_control: options.show_control, drops_space: pieces.adds_space },
            stops: Stops::new(options.stops),
            pending: Vec::new(),
            pieces,
        }
    }

    /// Continues an existing text, such as a prompt that the model completes: a leading space belongs to the text.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.view.drops_space = false;
        self
    }

    /// Decodes the next token; ids outside the vocabulary produce nothing.
    pub fn push(&mut self, id: u32) -> Piece {
        let Some(bytes) = self.view.bytes(&self.pieces, id) else { return self.hidden(id) };
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let read = whole(&self.pending, &mut text);
        self.pending.drain(..read);
        Piece { text: self.stops.push(&text), stop: self.stops.found() }
    }

    /// The output for a token without text, which may be spelled as a stop string.
    fn hidden(&mut self, id: u32) -> Piece {
        let stop = self.pieces.get(id).and_then(|spelling| self.stops.index(spelling));
        let text = stop.map(|stop| {
            let text = self.finish();
            self.stops.end(stop);
            text
        });
        Piece { text: text.unwrap_or_default(), stop: self.stops.found() }
    }

    /// Ends the text and returns what was withheld. An incomplete character becomes U+FFFD. Afterwards the decoder is
    /// empty.
    pub fn finish(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        let text = self.stops.push(&String::from_utf8_lossy(&pending));
        text + &self.stops.finish()
    }
}

/// Appends the characters in `bytes`, and U+FFFD for invalid ones, to `text`; returns the number of bytes consumed.
/// An incomplete character may remain.
fn whole(bytes: &[u8], text: &mut String) -> usize {
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => {
                let valid = &bytes[used..][..error.valid_up_to()];
                text.push_str(&String::from_utf8_lossy(valid));
                used += valid.len();
                let Some(invalid) = error.error_len() else { return used };
                text.push(char::REPLACEMENT_CHARACTER);
                used += invalid;
            }
        }
    }
}
