//! A hash index: maps hashes to indices into the owner's storage, four bytes per slot.

use std::hash::{BuildHasher, RandomState};

/// An empty slot.
const FREE: u32 = u32::MAX;

/// A multiplier: the fraction of the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Open addressing, at most three quarters full.
#[derive(Debug)]
pub(crate) struct HashIndex {
    slots: Box<[u32]>,
    /// Random per process, so that no file can choose colliding keys.
    seed: u64,
}

impl HashIndex {
    /// An index with capacity for `entries` numbers.
    pub fn new(entries: usize) -> HashIndex {
        let slots = (entries + entries / 3 + 1).next_power_of_two();
        let seed = RandomState::new().hash_one(FACTOR);
        HashIndex { slots: vec![FREE; slots].into(), seed }
    }

    /// The number under `hash` for which `is` returns true.
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        Some(self.slots[self.slot(hash, is)]).filter(|&number| number != FREE)
    }

    /// The slot of the number under `hash` for which `is` returns true, or an empty slot to fill; see
    /// [`HashIndex::is_free`].
    pub fn find_mut(&mut self, hash: u64, is: impl Fn(u32) -> bool) -> &mut u32 {
        let slot = self.slot(hash, is);
        &mut self.slots[slot]
    }

    /// Whether a slot is empty.
    pub fn is_free(number: u32) -> bool {
        number == FREE
    }

    fn slot(&self, hash: u64, is: impl Fn(u32) -> bool) -> usize {
        let last = self.slots.len() - 1;
        let mut slot = hash as usize & last;
        // Terminates, since a quarter of the slots is empty.
        while self.slots[slot] != FREE && !is(self.slots[slot]) {
            slot = (slot + 1) & last;
        }
        slot
    }

    /// The hash of two numbers.
    pub fn of_pair(&self, left: u32, right: u32) -> u64 {
        fold(self.seed ^ (u64::from(left) << 32 | u64::from(right)))
    }

    /// The hash of a text.
    pub fn of_text(&self, text: &str) -> u64 {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        let mut hash = self.seed ^ text.len() as u64;
        for &word in words {
            hash = fold(hash ^ u64::from_le_bytes(word));
        }
        let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        fold(hash ^ rest)
    }
}

/// Combines both halves of the product, so every bit of the result depends on every bit of the word.
fn fold(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}
