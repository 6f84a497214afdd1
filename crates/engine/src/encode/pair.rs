//! The tokens of a text or a pair of texts, and what a query's pair with a document scores.
//!
//! Most models have tokens before, between and behind the texts. Rerankers made of decoders read both in a template of the
//! file, which is a chat template to llama.cpp's converter (`tokenizer.chat_template.rerank`) but has only two places.

use bilayer_text::{Encode, Tokenizer};

use super::{Input, probabilities};
use crate::{Error, Model};

/// The places of the texts in a template.
pub const PLACES: [&str; 2] = ["{query}", "{document}"];

/// Whether a template has a place for the query, and one for the document, which may be cut.
pub fn has_places(template: &str) -> bool {
    let [queries, documents] = places(template);
    queries > 0 && documents == 1
}

/// How often each place is in a template.
fn places(template: &str) -> [usize; 2] {
    PLACES.map(|place| template.matches(place).count())
}

/// The tokens of an input, including special tokens around it, however many. A pair is in a model's [`template`], if it has
/// one.
///
/// # Errors
/// The vocabulary cannot express the text.
pub fn tokens(
    tokenizer: &Tokenizer,
    template: Option<&str>,
    input: Input<'_>,
) -> Result<Vec<u32>, Error> {
    Parts::new(tokenizer, template, input).map(|parts| parts.ids)
}

/// The template for pairs of a model that scores them, if it has one.
///
/// # Errors
/// It lacks a place, or has that of the document, which may be cut, more than once.
pub fn template(model: &Model) -> Result<Option<&str>, Error> {
    const KEY: &str = "tokenizer.chat_template.rerank";
    if !model.config().encoder.as_ref().is_some_and(|encoder| encoder.scores) {
        return Ok(None);
    }
    let Some(text) = model.file().metadata().opt_str(KEY).map_err(Error::File)? else {
        return Ok(None);
    };
    if !has_places(text) {
        let [queries, documents] = places(text);
        let found =
            format!("a text with {queries} times {{query}} and {documents} times {{document}}");
        return Err(Error::setting(KEY, found, "one with {query}, and once {document}"));
    }
    Ok(Some(text))
}

/// The tokens of an input.
pub(super) struct Parts {
    pub ids: Vec<u32>,
    /// How many there are before the text that may be cut: a single one, or the second of a pair.
    pub before: usize,
    /// Those behind it, if it is cut.
    pub after: Vec<u32>,
}

impl Parts {
    pub fn new(
        tokenizer: &Tokenizer,
        template: Option<&str>,
        input: Input<'_>,
    ) -> Result<Parts, Error> {
        if let (Some(document), Some(template)) = (input.pair, template) {
            return in_template(tokenizer, template, [input.text, document]);
        }
        let whole = Encode { add_special: true, parse_special: false };
        let mut ids = tokenizer.encode(input.text, whole).map_err(Error::Text)?;
        let last = ids.last().copied().filter(|_| tokenizer.adds_eos());
        let mut before = 0;
        if let Some(second) = input.pair {
            ids.extend(tokenizer.sep().filter(|_| tokenizer.adds_sep()));
            before = ids.len();
            ids.extend(tokenizer.encode(second, Encode::default()).map_err(Error::Text)?);
            ids.extend(last);
        }
        Ok(Parts { ids, before, after: last.into_iter().collect() })
    }
}

/// Both texts in their places. Special tokens are those of the template only, and text beside a place is tokenized with it.
fn in_template(tokenizer: &Tokenizer, template: &str, texts: [&str; 2]) -> Result<Parts, Error> {
    let mut pieces = Pieces { list: vec![Piece::Text(String::new())], tokenizer };
    let (mut rest, mut document) = (template, (0, 0));
    while let Some((at, which)) =
        (0..2).filter_map(|which| Some((rest.find(PLACES[which])?, which))).min()
    {
        pieces.literal(&rest[..at]);
        rest = &rest[at + PLACES[which].len()..];
        if which == 1 {
            document = pieces.end();
        }
        pieces.text(texts[which]);
    }
    pieces.literal(rest);
    let (piece, offset) = document;
    let (through, behind) = pieces.list.split_at(piece + 1);
    let mut ids = encoded(tokenizer, &pieces.list[..piece])?;
    let (mut before, mut after) = (ids.len(), Vec::new());
    if let Some(Piece::Text(text)) = through.last() {
        before += plain(tokenizer, &text[..offset])?.len();
        let (through, rest) = text.split_at(offset + texts[1].len());
        let (through, all) = (plain(tokenizer, through)?, plain(tokenizer, text)?);
        // Text alone may get a space before it; a token may join both sides of the place.
        after = match all.strip_prefix(&*through) {
            Some(after) => after.to_vec(),
            None => plain(tokenizer, rest)?,
        };
        ids.extend(all);
    }
    let behind = encoded(tokenizer, behind)?;
    ids.extend(&behind);
    after.extend(behind);
    Ok(Parts { ids, before, after })
}

/// A text, or a special token that the template spells.
enum Piece {
    Text(String),
    Token(u32),
}

/// What a template is made of; the last piece is text.
struct Pieces<'t> {
    list: Vec<Piece>,
    tokenizer: &'t Tokenizer,
}

impl Pieces<'_> {
    fn text(&mut self, text: &str) {
        if let Some(Piece::Text(last)) = self.list.last_mut() {
            last.push_str(text);
        }
    }

    /// The number of the last piece, and its bytes so far.
    fn end(&self) -> (usize, usize) {
        let len = match self.list.last() {
            Some(Piece::Text(last)) => last.len(),
            _ => 0,
        };
        (self.list.len() - 1, len)
    }

    /// Adds text of the template, with the special tokens in it; of those at one place the longest.
    fn literal(&mut self, mut text: &str) {
        let controls: Vec<(&str, u32)> =
            self.tokenizer.controls().filter(|(token, _)| text.contains(token)).collect();
        let first = |text: &str| {
            let found =
                controls.iter().filter_map(|&(token, id)| Some((text.find(token)?, token, id)));
            found.min_by_key(|(at, token, _)| (*at, usize::MAX - token.len()))
        };
        while let Some((at, token, id)) = first(text) {
            self.text(&text[..at]);
            self.list.extend([Piece::Token(id), Piece::Text(String::new())]);
            text = &text[at + token.len()..];
        }
        self.text(text);
    }
}

fn encoded(tokenizer: &Tokenizer, pieces: &[Piece]) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Token(id) => ids.push(*id),
            Piece::Text(text) => ids.extend(plain(tokenizer, text)?),
        }
    }
    Ok(ids)
}

/// The tokens of a text alone, none of an empty one.
fn plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    match text.is_empty() {
        true => Ok(Vec::new()),
        false => tokenizer.encode(text, Encode::default()).map_err(Error::Text),
    }
}

/// How a query's pair with a document is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// By the only score, which may be any number.
    Score,
    /// By the probability of the first of two labels, `yes` and `no`.
    Yes,
}

impl Relevance {
    /// How the scores of these names are one of relevance; `None` if they are not.
    pub fn of(labels: &[String]) -> Option<Relevance> {
        match labels {
            [_] => Some(Relevance::Score),
            [yes, no] if yes == "yes" && no == "no" => Some(Relevance::Yes),
            _ => None,
        }
    }

    /// The relevance: the higher, the more relevant.
    pub fn score(self, row: &[f32]) -> f32 {
        match self {
            Relevance::Score => row[0],
            Relevance::Yes => probabilities(row)[0],
        }
    }

    /// The relevance as a probability.
    pub fn probability(self, row: &[f32]) -> f32 {
        probabilities(row)[0]
    }
}
