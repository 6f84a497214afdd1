//! Numbers found by a hash of what they number: four bytes a slot, the keys stay where their owner has them.

use std::hash::{BuildHasher, RandomState};

/// A slot without a number.
const FREE: u32 = u32::MAX;

/// An odd number without a pattern: the fraction of the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Open addressing, at most three quarters full.
#[derive(Debug)]
pub(crate) struct Places {
    slots: Box<[u32]>,
    /// Other in each process, so that no file can choose which keys collide.
    seed: u64,
}

impl Places {
    /// Room for so many numbers.
    pub fn new(entries: usize) -> Places {
        let slots = (entries + entries / 3 + 1).next_power_of_two();
        let seed = RandomState::new().hash_one(FACTOR);
        Places { slots: vec![FREE; slots].into(), seed }
    }

    /// The number at the hash that `is` the right one.
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        Some(self.slots[self.slot(hash, is)]).filter(|&number| number != FREE)
    }

    /// The number at the hash that `is` the right one, to be set; [`Places::is_free`] where there is none.
    pub fn find_mut(&mut self, hash: u64, is: impl Fn(u32) -> bool) -> &mut u32 {
        let slot = self.slot(hash, is);
        &mut self.slots[slot]
    }

    /// Whether a slot has no number.
    pub fn is_free(number: u32) -> bool {
        number == FREE
    }

    fn slot(&self, hash: u64, is: impl Fn(u32) -> bool) -> usize {
        let last = self.slots.len() - 1;
        let mut slot = hash as usize & last;
        // Ends, for a quarter of the slots is free.
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

/// Both halves of the product: every bit of the result depends on every bit of the word.
fn fold(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}
