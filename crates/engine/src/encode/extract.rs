//! Entities in texts, from an encoder that labels each token.
//!
//! **The idea.** Labels of neighbouring tokens are merged to entities by the rules of transformers' pipeline for token
//! classification. A text with more tokens than the encoder takes is run in overlapping windows, and each token is labelled
//! by the window in which it is farthest from where the text was cut, so no entity is cut by a window.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use bilayer_settings::Setting;
use bilayer_text::{Encode, TokenSpan, Tokenizer};

use super::{Encoder, Excess, probabilities};
use crate::Error;

mod merge;

/// How labels of tokens become entities; the names are those of transformers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Not at all: each token is an entity, with its whole label.
    None,
    /// Neighbouring tokens of one type are an entity.
    #[default]
    Simple,
    /// As `Simple`, of whole words: a word has the label of its first token.
    First,
    /// As `First`, with the likeliest label of the mean of its tokens' probabilities.
    Average,
    /// As `First`, with the label of its most certain token.
    Max,
}

impl Aggregation {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Aggregation); 5] = [
        ("none", Aggregation::None),
        ("simple", Aggregation::Simple),
        ("first", Aggregation::First),
        ("average", Aggregation::Average),
        ("max", Aggregation::Max),
    ];
}

impl FromStr for Aggregation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Aggregation::ALL.iter().find(|(name, _)| *name == text);
        found.map(|&(_, how)| how).ok_or_else(|| {
            let expected = Aggregation::ALL.map(|(name, _)| name).join(", ");
            Error::setting(Setting::Aggregation, text, expected)
        })
    }
}

/// How entities are extracted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How labels are merged.
    pub aggregation: Aggregation,
    /// Tokens that neighbouring windows of a long text share; `None` is a quarter of a window.
    pub stride: Option<usize>,
    /// Labels, or types of entities, that are left out.
    pub ignored: Vec<String>,
}

impl Default for Options {
    /// Merges as `simple`, and leaves out `O`.
    fn default() -> Self {
        let ignored = vec!["O".to_owned()];
        Options { aggregation: Aggregation::default(), stride: None, ignored }
    }
}

/// A part of a text with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// Its type, which is the label without a prefix such as `B-`; without aggregation the whole label.
    pub label: String,
    /// The mean of the probabilities of its tokens' or words' labels.
    pub score: f32,
    /// The part of the text.
    pub text: String,
    /// Where it is in the text's UTF-8 bytes.
    pub bytes: Range<usize>,
    /// Where it is in the text's Unicode code points, as Python counts them.
    pub chars: Range<usize>,
}

/// Turns texts into inputs of an encoder that labels tokens, and its rows into entities.
#[derive(Clone, Debug)]
pub struct Extractor {
    tokenizer: Arc<Tokenizer>,
    labels: Vec<merge::Tag>,
    options: Options,
    /// Most tokens of a window, without the special ones around it.
    window: usize,
    stride: usize,
    /// Special tokens before and after a text.
    around: (Vec<u32>, Vec<u32>),
}

/// A tokenized text, whose windows are to be run.
#[derive(Clone, Debug)]
pub struct Document<'t> {
    text: &'t str,
    tokens: Vec<TokenSpan>,
    windows: Vec<Window>,
}

/// A part of a text that the encoder takes at once.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its tokens with special ones around them: an input of [`Encoder::run`].
    pub ids: Vec<u32>,
    /// Which of the text's tokens it has.
    tokens: Range<usize>,
    /// Special tokens before them.
    before: usize,
}

impl Encoder {
    /// What extracts entities with this encoder.
    ///
    /// # Errors
    /// The model does not label tokens; those of [`Extractor::new`].
    pub fn extractor(&self, options: Options) -> Result<Extractor, Error> {
        let name = || self.session().model().name();
        if !self.labels_tokens() {
            return Err(Error::NoTokenHead { name: name() });
        }
        Extractor::new(self.tokenizer.clone(), self.labels(), self.longest(), options)
    }

    /// Runs documents in as few steps as possible. `each` receives every document's number and entities in order.
    ///
    /// # Errors
    /// Errors of `each`; those of [`Encoder::run`].
    pub fn extract<E: From<Error>>(
        &mut self,
        extractor: &Extractor,
        documents: &[Document<'_>],
        each: &mut dyn FnMut(usize, Vec<Entity>) -> Result<(), E>,
    ) -> Result<(), E> {
        let windows = documents.iter().flat_map(Document::windows);
        let inputs = windows.map(|window| Ok(window.ids.clone()));
        let (mut number, mut rows) = (0, Vec::new());
        self.run(inputs, &mut |_, _, window| {
            rows.push(window.to_vec());
            let document = &documents[number];
            if rows.len() == document.windows.len() {
                each(number, extractor.entities(document, &rows))?;
                number += 1;
                rows.clear();
            }
            Ok(())
        })
    }
}

impl Extractor {
    /// What extracts entities with an encoder that gives a row of `labels` for each of at most `longest` tokens.
    ///
    /// # Errors
    /// The vocabulary has no tokenizer; `longest` leaves no room for a text; the stride is not less than a window.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        labels: &[String],
        longest: usize,
        options: Options,
    ) -> Result<Extractor, Error> {
        let whole = Encode { add_special: true, parse_special: false };
        let mut before = tokenizer.encode("", whole).map_err(Error::Text)?;
        let after = before.split_off(usize::from(tokenizer.adds_bos()));
        let special = before.len() + after.len();
        let window =
            longest.checked_sub(special).filter(|&window| window > 0).ok_or_else(|| {
                let expected = format!("more than {special}, for tokens of a text");
                Error::setting(Setting::Context, longest, expected)
            })?;
        let stride = options.stride.unwrap_or(window / 4);
        if stride >= window {
            let expected = format!("less than the {window} tokens of a window");
            return Err(Error::setting(Setting::Stride, stride, expected));
        }
        let labels = merge::tags(labels, &options.ignored);
        Ok(Extractor { tokenizer, labels, options, window, stride, around: (before, after) })
    }

    /// Tokenizes a text and divides it into windows; a short one has a single window, as has a long one to be truncated.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn document<'t>(&self, text: &'t str, excess: Excess) -> Result<Document<'t>, Error> {
        let mut tokens = self.tokens(text)?;
        if excess == Excess::Truncate {
            tokens.truncate(self.window);
        }
        Ok(self.divided(text, tokens))
    }

    /// The tokens of a text, for [`divided`](Extractor::divided).
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn tokens(&self, text: &str) -> Result<Vec<TokenSpan>, Error> {
        self.tokenizer.spans(text).map_err(Error::Text)
    }

    /// Number of windows of a text with so many tokens, and of the tokens in them, special ones included.
    pub fn windows(&self, tokens: usize) -> (usize, usize) {
        let more = tokens.saturating_sub(self.window).div_ceil(self.window - self.stride);
        let special = self.around.0.len() + self.around.1.len();
        (1 + more, tokens + more * self.stride + (1 + more) * special)
    }

    /// Divides a text with these tokens into windows.
    pub fn divided<'t>(&self, text: &'t str, tokens: Vec<TokenSpan>) -> Document<'t> {
        let mut windows = Vec::new();
        let mut start = 0;
        loop {
            let end = tokens.len().min(start + self.window);
            let inner = tokens[start..end].iter().map(|token| token.id);
            let (before, after) = &self.around;
            let ids = before.iter().copied().chain(inner).chain(after.iter().copied()).collect();
            windows.push(Window { ids, tokens: start..end, before: before.len() });
            if end == tokens.len() {
                return Document { text, tokens, windows };
            }
            start += self.window - self.stride;
        }
    }

    /// The entities of a document in their order, from the rows `[tokens, labels]` f32 of each of its windows.
    pub fn entities(&self, document: &Document<'_>, rows: &[impl AsRef<[f32]>]) -> Vec<Entity> {
        let width = self.labels.len();
        let tokens = document.tokens.iter().zip(document.owners());
        let tokens = tokens.filter_map(|(token, (window, row))| {
            let row = rows.get(window)?.as_ref().get(row * width..(row + 1) * width)?;
            let probabilities = probabilities(row);
            Some(merge::Token { span: token, probabilities })
        });
        let tokens: Vec<merge::Token<'_>> = tokens.collect();
        let groups = merge::groups(&tokens, &self.labels, self.options.aggregation);
        let mut chars = Counter { text: document.text, bytes: 0, chars: 0 };
        let mut entity = |group: merge::Group<'_>| {
            // Tokens of white space may be at its ends.
            let rest = document.text[group.bytes.clone()].trim_start();
            let (start, text) = (group.bytes.end - rest.len(), rest.trim_end());
            let bytes = start..start + text.len();
            let chars = chars.until(bytes.start)..chars.until(bytes.end);
            Entity {
                label: group.label.to_owned(),
                score: group.score,
                text: text.to_owned(),
                bytes,
                chars,
            }
        };
        groups.into_iter().map(&mut entity).filter(|entity| !entity.text.is_empty()).collect()
    }
}

impl Document<'_> {
    /// The windows, in order.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// For each token the window that labels it, and its row there.
    fn owners(&self) -> impl Iterator<Item = (usize, usize)> {
        let count = self.tokens.len();
        // Tokens between `at` and where the text was cut; its own ends are no cuts.
        let distance = move |window: &Window, at: usize| {
            let Range { start, end } = window.tokens;
            let left = if start > 0 { at - start } else { count };
            let right = if end < count { end - 1 - at } else { count };
            left.min(right)
        };
        let mut first = 0;
        (0..count).map(move |at| {
            while self.windows[first].tokens.end <= at {
                first += 1;
            }
            let candidates = self.windows.iter().enumerate().skip(first);
            let candidates = candidates.take_while(|(_, window)| window.tokens.start <= at);
            // Of equals the first.
            let owner = candidates.reduce(|best, next| {
                if distance(next.1, at) > distance(best.1, at) { next } else { best }
            });
            owner.map_or((first, 0), |(number, window)| {
                (number, window.before + at - window.tokens.start)
            })
        })
    }
}

/// Counts code points up to rising positions.
struct Counter<'t> {
    text: &'t str,
    bytes: usize,
    chars: usize,
}

impl Counter<'_> {
    fn until(&mut self, bytes: usize) -> usize {
        // Tokens that divide a character have the same bytes, so that a position may come again, or the one before.
        if bytes < self.bytes {
            (self.bytes, self.chars) = (0, 0);
        }
        self.chars += self.text[self.bytes..bytes].chars().count();
        self.bytes = bytes;
        self.chars
    }
}
