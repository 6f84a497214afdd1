//! Tokens by their spelling, and the merging of neighbours by rank.
//!
//! A vocabulary has some 100 thousand tokens and twice as many merges, and is read before the first token is
//! computed. So there is one allocation for each table and none for each entry.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::places::Places;
use crate::Error;
use crate::merging::{self, Joins};

/// Token ids by spelling.
pub(super) struct Spellings {
    /// End to end.
    text: String,
    /// `ends[id]`: where the spelling of token `id` ends; it starts where that of `id - 1` ends.
    ends: Vec<usize>,
    places: Places,
}

impl Spellings {
    /// Room for so many tokens.
    pub fn new(tokens: usize) -> Spellings {
        let (text, ends) = (String::new(), Vec::with_capacity(tokens));
        Spellings { text, ends, places: Places::new(tokens) }
    }

    /// Adds the token of the next id. Of equal spellings the first counts.
    pub fn push(&mut self, spelling: &str) {
        let hash = self.places.of_text(spelling);
        let Spellings { text, ends, places } = self;
        let number = places.find_mut(hash, |id| get(text, ends, id) == spelling);
        if Places::is_free(*number) {
            *number = ends.len() as u32;
        }
        text.push_str(spelling);
        ends.push(text.len());
    }

    /// Passes over the next id, which no text becomes.
    pub fn skip(&mut self) {
        self.ends.push(self.text.len());
    }

    /// The token that is spelled so.
    pub fn find(&self, spelling: &str) -> Option<u32> {
        let is = |id| get(&self.text, &self.ends, id) == spelling;
        self.places.find(self.places.of_text(spelling), is)
    }
}

/// The spelling of a token that is there.
fn get<'a>(text: &'a str, ends: &[usize], id: u32) -> &'a str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &text[start..ends[id]]
}

/// The tokens of a word.
pub(super) type Word = merging::Word<u32, Reverse<u32>>;

/// The list of merges; its order is their rank.
pub(super) struct Merges {
    list: Vec<Merge>,
    places: Places,
}

#[derive(Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    /// What they become.
    token: u32,
}

impl Merges {
    /// Of two tokens each, with a space between.
    pub fn new(merges: &[Cow<'_, str>], spellings: &Spellings) -> Result<Merges, Error> {
        let mut list = Vec::with_capacity(merges.len());
        let mut places = Places::new(merges.len());
        let mut joined = String::new();
        for (rank, merge) in merges.iter().enumerate() {
            let merge = read(merge, spellings, &mut joined).map_err(|problem| {
                let merge = merge.clone().into_owned();
                Error::Merge { index: rank, merge, problem }
            })?;
            let hash = places.of_pair(merge.left, merge.right);
            // Of equal pairs the last counts, as with the makers' library.
            *places.find_mut(hash, |rank| is(&list, rank, merge.left, merge.right)) = rank as u32;
            list.push(merge);
        }
        Ok(Merges { list, places })
    }

    /// The rank of two neighbours' merge and the token they become.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let hash = self.places.of_pair(left, right);
        let rank = self.places.find(hash, |rank| is(&self.list, rank, left, right))?;
        Some((rank, self.list[rank as usize].token))
    }
}

impl Joins for Merges {
    type Part = u32;
    type Rank = Reverse<u32>;

    fn join(&self, left: u32, right: u32) -> Option<(Reverse<u32>, u32)> {
        self.find(left, right).map(|(rank, token)| (Reverse(rank), token))
    }

    fn makes(&self, left: u32, right: u32, whole: u32) -> bool {
        self.find(left, right).is_some_and(|(_, token)| token == whole)
    }
}

/// Whether the merge of that rank is of these two.
fn is(list: &[Merge], rank: u32, left: u32, right: u32) -> bool {
    let merge = &list[rank as usize];
    (merge.left, merge.right) == (left, right)
}

/// Takes a merge apart at the first space that is not its first character: it may begin with a space of its own.
/// `joined` is room to work in.
fn read(merge: &str, spellings: &Spellings, joined: &mut String) -> Result<Merge, &'static str> {
    const FORM: &str = "two tokens with a space between are due";
    let first = merge.chars().next().ok_or(FORM)?.len_utf8();
    let space = merge.as_bytes()[first..].iter().position(|&byte| byte == b' ').ok_or(FORM)?;
    let (left, right) = (&merge[..first + space], &merge[first + space + 1..]);
    if right.is_empty() {
        return Err(FORM);
    }
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    Ok(Merge {
        left: spellings.find(left).ok_or("the first is no token")?,
        right: spellings.find(right).ok_or("the second is no token")?,
        token: spellings.find(joined).ok_or("together they are no token")?,
    })
}
