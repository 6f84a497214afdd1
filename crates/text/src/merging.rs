//! Merges adjacent symbols by rank: the core of BPE and SentencePiece.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The merge rules of a vocabulary.
pub(crate) trait Joins {
    /// An element of a word.
    type Symbol: Copy;
    /// The pair of greater rank is merged first.
    type Rank: Ord;

    /// The result of merging two neighbours, and its rank.
    fn join(&self, left: Self::Symbol, right: Self::Symbol) -> Option<(Self::Rank, Self::Symbol)>;

    /// Whether two neighbours still merge to `whole`, after one of them may have changed.
    fn makes(&self, left: Self::Symbol, right: Self::Symbol, whole: Self::Symbol) -> bool;
}

/// A word during merging, reused from word to word for its memory.
pub(crate) struct Word<P, R> {
    links: Vec<Link<P>>,
    heap: BinaryHeap<Candidate<P, R>>,
}

/// A symbol with the indices of its neighbours.
struct Link<P> {
    /// Absent if merged into its left neighbour.
    symbol: Option<P>,
    previous: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// A possible merge of two neighbours.
struct Candidate<P, R> {
    rank: R,
    left: usize,
    whole: P,
}

impl<P, R: Ord> Default for Word<P, R> {
    fn default() -> Self {
        Word { links: Vec::new(), heap: BinaryHeap::new() }
    }
}

impl<P: Copy, R: Ord> Word<P, R> {
    /// Clears the word.
    pub fn clear(&mut self) {
        self.links.clear();
    }

    /// Appends a symbol.
    pub fn push(&mut self, symbol: P) {
        let at = self.links.len();
        if let Some(last) = self.links.last_mut() {
            last.next = at;
        }
        let previous = at.checked_sub(1).unwrap_or(NONE);
        self.links.push(Link { symbol: Some(symbol), previous, next: NONE });
    }

    /// Merges until no pair is left: by greatest rank, then leftmost.
    pub fn merge(&mut self, joins: &impl Joins<Symbol = P, Rank = R>) {
        let Word { links, heap } = self;
        heap.clear();
        let pair = |links: &[Link<P>], left: usize| {
            let Link { symbol, next, .. } = links[left];
            Some((symbol?, links.get(next)?.symbol?))
        };
        let candidate = |links: &[Link<P>], left: usize| {
            let (a, b) = pair(links, left)?;
            joins.join(a, b).map(|(rank, whole)| Candidate { rank, left, whole })
        };
        heap.extend((0..links.len()).filter_map(|left| candidate(links, left)));
        while let Some(Candidate { left, whole, .. }) = heap.pop() {
            if pair(links, left).is_none_or(|(a, b)| !joins.makes(a, b, whole)) {
                continue;
            }
            let Link { previous, next: right, .. } = links[left];
            let after = links[right].next;
            links[left] = Link { symbol: Some(whole), previous, next: after };
            links[right].symbol = None;
            if let Some(after) = links.get_mut(after) {
                after.previous = left;
            }
            if previous != NONE {
                heap.extend(candidate(links, previous));
            }
            heap.extend(candidate(links, left));
        }
    }

    /// The remaining symbols.
    pub fn symbols(&self) -> impl Iterator<Item = P> {
        self.links.iter().filter_map(|link| link.symbol)
    }
}

/// Orders by greatest rank, then leftmost, for a max-heap.
impl<P, R: Ord> Ord for Candidate<P, R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then(Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl<P, R: Ord> PartialOrd for Candidate<P, R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P, R: Ord> PartialEq for Candidate<P, R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<P, R: Ord> Eq for Candidate<P, R> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_ordered_by_rank_then_from_left_to_right() {
        let candidate = |rank, left| Candidate { rank, left, whole: () };
        assert!(candidate(2, 5) > candidate(1, 0));
        assert!(candidate(1, 0) > candidate(1, 5));
        assert!(candidate(1, 5) == candidate(1, 5) && candidate(1, 5) != candidate(1, 4));
    }
}
