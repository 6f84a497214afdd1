//! Random bits: SplitMix64, reproducible on every machine and as fast as memory.

use bilayer_files::hash::fnv;

/// SplitMix64 (Steele, Lea and Flood 2014). A number depends only on its position in the stream, so any part of
/// a tensor can be generated on any thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The stream of chunk `chunk` of the tensor `name`.
    pub fn of(seed: u64, name: &str, chunk: u64) -> Random {
        // Any portable hash would do.
        let name = fnv(name.as_bytes());
        let mut random = Random(seed);
        for part in [name, chunk] {
            random = Random(random.next() ^ part);
        }
        Random(random.next())
    }

    /// The next 64 bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = self.next().to_le_bytes());
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
