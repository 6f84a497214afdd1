//! What ops do by a token's position: RoPE, growing factors, windows.

use std::sync::Arc;

use crate::WeightId;

/// The pairing of a head's elements in RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// `(2i, 2i + 1)`: the order of GGUF's llama files.
    Interleaved,
    /// `(i, i + dims / 2)`: the order of most other checkpoints.
    Halves,
}

/// RoPE (Su et al. 2021) with all position-independent scaling folded in.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The pairing.
    pub pairs: Pairs,
    /// Angle per position of each pair, radians; the `dims = 2 * frequencies.len()` leading elements rotate.
    pub frequencies: Arc<[f32]>,
    /// Factor on cosine and sine (YaRN's attention factor); 1 for plain RoPE.
    pub magnitude: f32,
    /// `[1, dims / 2]` F32: divisors of the frequencies (`rope_freqs.weight`).
    pub factors: Option<WeightId>,
}

/// A factor that grows with a token's position: `1 + scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f32,
    /// Positions after which the factor grows; at least 1.
    pub length: u32,
    /// Added to the position.
    pub offset: u32,
}

impl Temperature {
    /// The factor at `position`, computed in f64.
    pub fn at(&self, position: u32) -> f32 {
        let times = (u64::from(position) + u64::from(self.offset)) / u64::from(self.length);
        (1.0 + f64::from(self.scale) * (times as f64).ln_1p()) as f32
    }
}

/// The earlier tokens that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Sliding window: itself and the `n - 1` tokens before it, and as many after it if attention is bidirectional.
    Last(u32),
    /// Those of its own chunk, which begins at a multiple of `n`; causal attention only.
    Chunk(u32),
}

impl Window {
    /// The first position that the token at `position` attends to.
    pub fn first(self, position: u32) -> u32 {
        match self {
            Window::Last(n) => (position + 1).saturating_sub(n),
            Window::Chunk(n) => position / n * n,
        }
    }
}
