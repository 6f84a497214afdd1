//! Tokens by their spelling, and the merging of neighbours by rank.
//!
//! A vocabulary has some 100 thousand tokens and twice as many merges, and is read before the first token is
//! computed. So there is one allocation for each table and none for each entry.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::places::Places;
use crate::Error;

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

    /// Merges the tokens of `word` until no neighbours can be, those of the lowest rank first, then the leftmost.
    pub fn apply(&self, word: &mut Word) {
        let Word { symbols, heap } = word;
        heap.clear();
        let candidate = |symbols: &[Symbol], left: usize| {
            let right = symbols[left].next;
            let (rank, token) = self.find(symbols[left].token, symbols.get(right)?.token)?;
            Some(Reverse(Candidate { rank, left, token }))
        };
        heap.extend((0..symbols.len()).filter_map(|left| candidate(symbols, left)));
        while let Some(Reverse(Candidate { left, token, .. })) = heap.pop() {
            let Symbol { token: first, next: right, previous } = symbols[left];
            let Some(&Symbol { token: second, next: after, .. }) = symbols.get(right) else {
                continue;
            };
            // Stale where either has been merged since.
            if first == GONE || self.find(first, second).is_none_or(|(_, now)| now != token) {
                continue;
            }
            symbols[left] = Symbol { token, next: after, previous };
            symbols[right].token = GONE;
            if let Some(after) = symbols.get_mut(after) {
                after.previous = left;
            }
            if previous != NONE {
                heap.extend(candidate(symbols, previous));
            }
            heap.extend(candidate(symbols, left));
        }
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

/// A word on its way to tokens; kept from word to word for its memory.
#[derive(Default)]
pub(super) struct Word {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// A token with its neighbours' places.
struct Symbol {
    token: u32,
    previous: usize,
    next: usize,
}

/// The token of a symbol that went into the one before.
const GONE: u32 = u32::MAX;

/// No neighbour.
const NONE: usize = usize::MAX;

/// Two neighbours that a merge joins. The least is merged first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    token: u32,
}

impl Word {
    /// Forgets the last word.
    pub fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        let at = self.symbols.len();
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        let previous = at.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { token, previous, next: NONE });
    }

    /// The tokens that are left.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        self.symbols.iter().map(|symbol| symbol.token).filter(|&token| token != GONE)
    }
}
