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

    /// The number that [`HashIndex::find`] asks for first, if there is one under `hash`.
    pub fn first(&self, hash: u64) -> Option<u32> {
        Some(self.slots[hash as usize & (self.slots.len() - 1)]).filter(|&number| number != FREE)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of as many buckets as hashes, the share that is hit; of random numbers 63 in 100 are.
    fn spread(hashes: impl Iterator<Item = u64>, count: u64) -> f64 {
        let mut hit = vec![false; count as usize];
        hashes.for_each(|hash| hit[(hash % count) as usize] = true);
        hit.iter().filter(|hit| **hit).count() as f64 / count as f64
    }

    /// Numbers and texts that differ little have hashes that differ in their last bits.
    #[test]
    fn hashes_of_similar_keys_are_spread() {
        const COUNT: u64 = 1 << 10;
        let index = HashIndex::new(0);
        let pair = |left: u64, right: u64| index.of_pair(left as u32, right as u32);
        let of_text = |text: String| index.of_text(&text);
        let spreads = [
            spread((0..COUNT).map(|n| pair(n, 7)), COUNT),
            spread((0..COUNT).map(|n| pair(7, n)), COUNT),
            spread((0..COUNT).map(|n| pair(n << 22, 7)), COUNT),
            spread((0..COUNT).map(|n| pair(7, n << 22)), COUNT),
            spread((0..COUNT).map(|n| pair(n >> 5, n & 31)), COUNT),
            spread((0..COUNT).map(|n| of_text(format!("{n:04}"))), COUNT),
            spread((0..COUNT).map(|n| of_text(format!("{n:04} and more"))), COUNT),
            spread((0..COUNT).map(|n| of_text(format!("as long as it {n:04}"))), COUNT),
            spread((0..COUNT).map(|n| of_text("a".repeat(n as usize))), COUNT),
        ];
        assert!(spreads.iter().all(|share| *share > 0.5), "{spreads:?}");
    }

    /// Two indices of one process have different hashes, so that no file can choose colliding keys.
    #[test]
    fn hashes_are_random() {
        let [a, b] = [(); 2].map(|()| HashIndex::new(0));
        assert_ne!((a.of_pair(1, 2), a.of_text("a")), (b.of_pair(1, 2), b.of_text("a")));
    }

    #[test]
    fn numbers_are_found_by_what_they_stand_for() {
        for count in [0, 1, 2, 3, 100, 1000] {
            let mut index = HashIndex::new(count);
            assert!(index.slots.len().is_power_of_two());
            assert!(count * 4 <= index.slots.len() * 3 && index.slots.len() <= 3 * count + 1);
            // All collide.
            for number in 0..count as u32 {
                let slot = index.find_mut(u64::MAX, |_| false);
                assert!(HashIndex::is_free(*slot));
                *slot = number;
            }
            for number in 0..count as u32 {
                assert_eq!(index.find(u64::MAX, |found| found == number), Some(number));
                assert_eq!(index.first(u64::MAX), Some(0));
                assert!(!HashIndex::is_free(*index.find_mut(u64::MAX, |found| found == number)));
            }
            assert_eq!(index.find(u64::MAX, |_| false), None);
        }
    }
}
