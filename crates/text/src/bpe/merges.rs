//! BPE merges by rank.

use std::borrow::Cow;
use std::cmp::Reverse;

use crate::Error;
use crate::hash_index::HashIndex;
use crate::merging::{self, Joins};
use crate::spellings::Spellings;

/// Merges whose tokens are looked up together.
const BLOCK: usize = 64;

/// The tokens of a word.
pub(super) type Word = merging::Word<u32, Reverse<u32>>;

/// The list of merges in order of rank.
pub(super) struct Merges {
    list: Vec<Merge>,
    index: HashIndex,
}

#[derive(Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    /// The resulting token.
    token: u32,
}

impl Merges {
    /// Parses merges of two tokens separated by a space.
    pub fn new(merges: &[Cow<'_, str>], spellings: &Spellings) -> Result<Merges, Error> {
        let mut list = Vec::with_capacity(merges.len());
        let mut joined = String::new();
        for block in merges.chunks(BLOCK) {
            for merge in read(block, spellings, &mut joined).into_iter().take(block.len()) {
                list.push(merge.map_err(|problem| {
                    let (index, merge) = (list.len(), merges[list.len()].clone().into_owned());
                    Error::Merge { index, merge, problem }
                })?);
            }
        }
        let mut index = HashIndex::new(merges.len());
        for (rank, merge) in list.iter().enumerate() {
            let hash = index.of_pair(merge.left, merge.right);
            // Of duplicate pairs the last one counts, as in Hugging Face's library.
            *index.find_mut(hash, |rank| is(&list, rank, merge.left, merge.right)) = rank as u32;
        }
        Ok(Merges { list, index })
    }

    /// The rank of the merge of two neighbours and the resulting token.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let hash = self.index.of_pair(left, right);
        let rank = self.index.find(hash, |rank| is(&self.list, rank, left, right))?;
        Some((rank, self.list[rank as usize].token))
    }
}

impl Joins for Merges {
    type Symbol = u32;
    type Rank = Reverse<u32>;

    fn join(&self, left: u32, right: u32) -> Option<(Reverse<u32>, u32)> {
        self.find(left, right).map(|(rank, token)| (Reverse(rank), token))
    }

    fn makes(&self, left: u32, right: u32, whole: u32) -> bool {
        self.find(left, right).is_some_and(|(_, token)| token == whole)
    }
}

/// Whether the merge of that rank joins these two tokens.
fn is(list: &[Merge], rank: u32, left: u32, right: u32) -> bool {
    let merge = &list[rank as usize];
    (merge.left, merge.right) == (left, right)
}

/// The merges of at most [`BLOCK`] lines; behind them errors. `joined` is a scratch buffer.
fn read(
    lines: &[Cow<'_, str>],
    spellings: &Spellings,
    joined: &mut String,
) -> [Result<Merge, &'static str>; BLOCK] {
    let parts: [_; BLOCK] = std::array::from_fn(|at| split(lines.get(at).map_or("", |line| line)));
    joined.clear();
    let ends = parts.map(|part| {
        let (left, right) = part.unwrap_or_default();
        joined.push_str(left);
        joined.push_str(right);
        joined.len()
    });
    let whole = |at: usize| &joined[at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]];
    let left = spellings.find_each(parts.map(|part| part.unwrap_or_default().0));
    let right = spellings.find_each(parts.map(|part| part.unwrap_or_default().1));
    let token: [_; BLOCK] = spellings.find_each(std::array::from_fn(whole));
    std::array::from_fn(|at| {
        parts[at].and_then(|_| {
            Ok(Merge {
                left: left[at].ok_or("the first is no token")?,
                right: right[at].ok_or("the second is no token")?,
                token: token[at].ok_or("together they are no token")?,
            })
        })
    })
}

/// Splits a merge at the first space that is not its first character, since the left token may begin with a space.
fn split(merge: &str) -> Result<(&str, &str), &'static str> {
    const FORM: &str = "two tokens with a space between are due";
    let first = merge.chars().next().ok_or(FORM)?.len_utf8();
    let space = merge.as_bytes()[first..].iter().position(|&byte| byte == b' ').ok_or(FORM)?;
    let (left, right) = (&merge[..first + space], &merge[first + space + 1..]);
    if right.is_empty() { Err(FORM) } else { Ok((left, right)) }
}
