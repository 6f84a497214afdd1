//! Unigrams (`t5`): of all ways to cut a word into pieces the one with the greatest sum of scores (Viterbi).
//!
//! From each character on, a trie gives the pieces that begin there, so the time is linear in the text for pieces of bounded
//! length. Scores are summed in f64.
//!
//! Source: Kudo, Subword Regularization (2018); constants from SentencePiece's `unigram_model.cc`.

use std::ops::Range;

use super::{Cut, Spelled};
use crate::Error;
use crate::hash_index::HashIndex;
use crate::pieces::SPACE;
use crate::vocabulary::TokenType;

/// How far the score of an unknown character is below that of the worst piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// What a user-defined token has less than the best piece's score for each of its bytes.
const USER_DEFINED_PENALTY: f64 = 0.1;

/// Characters of the longest piece. SentencePiece trains pieces of 16 unless told otherwise.
const PIECE_CHARS_MAX: usize = 512;

/// The pieces with their scores.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: Trie,
    /// Scores by id.
    scores: Vec<f64>,
    unknown_score: f64,
}

impl Unigram {
    pub fn new<'a>(
        tokens: impl Iterator<Item = Spelled<'a>>,
        scores: &[f32],
    ) -> Result<Unigram, Error> {
        let mut trie = Trie::new(scores.len());
        let mut scores: Vec<f64> = scores.iter().map(|&score| f64::from(score)).collect();
        let (mut worst, mut best) = (f64::INFINITY, 0f64);
        let mut user_defined = Vec::new();
        for (token, id) in tokens.zip(0..) {
            match token.kind {
                TokenType::Normal => {
                    let score = scores[id as usize];
                    (worst, best) = (worst.min(score), best.max(score));
                }
                TokenType::UserDefined => user_defined.push((id, token.text.len())),
                _ => continue,
            }
            let len = token.text.chars().count();
            if len > PIECE_CHARS_MAX {
                return Err(Error::LongPiece { id, len, max: PIECE_CHARS_MAX });
            }
            trie.insert(token.text, id);
        }
        for (id, len) in user_defined {
            scores[id as usize] = len as f64 * best - USER_DEFINED_PENALTY;
        }
        // A vocabulary without normal pieces has unknown characters alone.
        let worst = if worst.is_finite() { worst } else { 0.0 };
        Ok(Unigram { trie, scores, unknown_score: worst - UNKNOWN_PENALTY })
    }
}

/// The best way to a place in a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// The sum of scores.
    score: f64,
    /// Bytes of the last piece; 0 if there is no way.
    len: u32,
    /// The last piece, or [`NONE`] for an unknown character.
    id: u32,
}

impl Step {
    /// Takes another way if it is better. Of equal ways the one whose last piece is longest stays, as it comes first.
    fn offer(&mut self, way: Step) {
        if self.len == 0 || way.score > self.score {
            *self = way;
        }
    }
}

/// The best ways to each byte of a word, and the places at which the best way to its end is cut.
#[derive(Debug, Default)]
pub(super) struct Lattice {
    steps: Vec<Step>,
    ends: Vec<usize>,
}

impl Cut for Unigram {
    type Memory = Lattice;

    fn cut(
        &self,
        word: &str,
        memory: &mut Lattice,
        each: &mut impl FnMut(Range<usize>, Option<u32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Lattice { steps, ends } = memory;
        steps.clear();
        steps.resize(word.len() + 1, Step { score: 0.0, len: 0, id: NONE });
        for (start, first) in word.char_indices() {
            let score = steps[start].score;
            let mut node = ROOT;
            let mut is_known = false;
            for (at, character) in word[start..].char_indices() {
                let Some(next) = self.trie.child(node, character) else { break };
                node = next;
                let id = self.trie.piece(node);
                if id != NONE {
                    let len = at + character.len_utf8();
                    is_known |= at == 0;
                    let score = score + self.scores[id as usize];
                    steps[start + len].offer(Step { score, len: len as u32, id });
                }
            }
            if !is_known {
                let (score, len) = (score + self.unknown_score, first.len_utf8());
                steps[start + len].offer(Step { score, len: len as u32, id: NONE });
            }
        }
        ends.clear();
        let mut end = word.len();
        while end > 0 {
            ends.push(end);
            end -= steps[end].len as usize;
        }
        ends.iter().rev().try_for_each(|&end| {
            let Step { len, id, .. } = steps[end];
            each(end - len as usize..end, Some(id).filter(|&id| id != NONE))
        })
    }
}

/// No piece.
const NONE: u32 = u32::MAX;

/// The node of the empty text.
const ROOT: u32 = 0;

/// The characters of all pieces as a tree; the edges are in one list, found by hash.
#[derive(Debug)]
struct Trie {
    /// `edges[n]` leads to node `n + 1`.
    edges: Vec<Edge>,
    index: HashIndex,
    /// Edges that the index has room for.
    room: usize,
}

#[derive(Debug)]
struct Edge {
    parent: u32,
    character: char,
    /// The piece that ends here, or [`NONE`].
    piece: u32,
}

impl Trie {
    fn new(room: usize) -> Trie {
        let room = room.max(1);
        Trie { edges: Vec::with_capacity(room), index: HashIndex::new(room), room }
    }

    /// Adds a piece, whose spaces may be literal. Of equal pieces the first counts.
    fn insert(&mut self, piece: &str, id: u32) {
        let mut node = ROOT;
        for character in piece.chars() {
            let character = if character == ' ' { SPACE } else { character };
            node = self.child(node, character).unwrap_or_else(|| self.grow(node, character));
        }
        if let Some(edge) = (node as usize).checked_sub(1).map(|at| &mut self.edges[at])
            && edge.piece == NONE
        {
            edge.piece = id;
        }
    }

    fn child(&self, node: u32, character: char) -> Option<u32> {
        let is = |at: u32| {
            let edge = &self.edges[at as usize];
            (edge.parent, edge.character) == (node, character)
        };
        self.index.find(self.index.of_pair(node, character.into()), is).map(|at| at + 1)
    }

    /// Adds an edge and returns its node.
    fn grow(&mut self, parent: u32, character: char) -> u32 {
        if self.edges.len() == self.room {
            self.room *= 2;
            self.index = HashIndex::new(self.room);
            for (at, edge) in (0..).zip(&self.edges) {
                place(&mut self.index, edge, at);
            }
        }
        let edge = Edge { parent, character, piece: NONE };
        place(&mut self.index, &edge, self.edges.len() as u32);
        self.edges.push(edge);
        self.edges.len() as u32
    }

    /// The piece that ends at a node other than the root.
    fn piece(&self, node: u32) -> u32 {
        self.edges[node as usize - 1].piece
    }
}

/// Puts the number of a new edge into the index.
fn place(index: &mut HashIndex, edge: &Edge, at: u32) {
    *index.find_mut(index.of_pair(edge.parent, edge.character.into()), |_| false) = at;
}
