//! Looks up tokens by their spelling.
//!
//! A vocabulary has some 100 thousand tokens, often twice as many merges, and is read before the first token is
//! computed. Therefore each table is one allocation, with none per entry.

use crate::hash_index::HashIndex;

/// Token ids by spelling.
#[derive(Debug)]
pub(crate) struct Spellings {
    /// All spellings, concatenated.
    text: String,
    /// `ends[id]`: where the spelling of token `id` ends; it starts where that of `id - 1` ends.
    ends: Vec<usize>,
    index: HashIndex,
}

impl Spellings {
    /// An empty table with capacity for `tokens` tokens.
    pub fn new(tokens: usize) -> Spellings {
        let (text, ends) = (String::new(), Vec::with_capacity(tokens));
        Spellings { text, ends, index: HashIndex::new(tokens) }
    }

    /// Adds the token of the next id. Of duplicate spellings the first counts.
    pub fn push(&mut self, spelling: &str) {
        let hash = self.index.of_text(spelling);
        let Spellings { text, ends, index } = self;
        let number = index.find_mut(hash, |id| get(text, ends, id) == spelling);
        if HashIndex::is_free(*number) {
            *number = ends.len() as u32;
        }
        text.push_str(spelling);
        ends.push(text.len());
    }

    /// Skips the next id, which no text becomes.
    pub fn skip(&mut self) {
        self.ends.push(self.text.len());
    }

    /// The token with this spelling.
    pub fn find(&self, spelling: &str) -> Option<u32> {
        let is = |id| get(&self.text, &self.ends, id) == spelling;
        self.index.find(self.index.of_text(spelling), is)
    }
}

/// The spelling of an existing token.
fn get<'a>(text: &'a str, ends: &[usize], id: u32) -> &'a str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &text[start..ends[id]]
}
