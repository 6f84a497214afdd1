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

    /// The tokens with these spellings. Each lookup waits for memory three times, one read after the other; here those of all
    /// are under way together, step by step.
    pub fn find_each<const N: usize>(&self, spellings: [&str; N]) -> [Option<u32>; N] {
        let first = spellings.map(|spelling| self.index.first(self.index.of_text(spelling)));
        let texts = first.map(|id| id.map(|id| get(&self.text, &self.ends, id)));
        std::array::from_fn(|at| match texts[at] {
            Some(text) if text != spellings[at] => self.find(spellings[at]),
            _ => first[at],
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_found_together_as_one_by_one() {
        let texts: Vec<String> = (0..1000).map(|n| format!("word {}", n % 900)).collect();
        let mut spellings = Spellings::new(texts.len());
        spellings.skip();
        texts.iter().for_each(|text| spellings.push(text));
        let asked: Vec<String> = (0..1200).map(|n| format!("word {n}")).collect();
        for block in asked.as_chunks::<8>().0 {
            let found = spellings.find_each(block.each_ref().map(String::as_str));
            assert_eq!(found, block.each_ref().map(|text| spellings.find(text)), "{block:?}");
        }
        assert_eq!(spellings.find_each(["word 7", "word 907", ""]), [Some(8), None, None]);
    }
}
