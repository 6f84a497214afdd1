//! The float tile at 512 bits in pairs of bf16, 32 rows x up to 8 tokens: VDPBF16PS multiplies two columns at a time.
//!
//! For weights in BF16, which need no rounding; activations are rounded to bf16, as frameworks do that compute in the
//! type a model was trained in. On Zen 5 it is 1.8 times as fast as multiply-adds in f32, and eight tokens are 1.12
//! times as fast as six, whose twelve sums are too few to hide the latency.

use std::arch::x86_64::*;

use crate::activations::Format;
use crate::level::rows::{Avx512Bf16, Avx512Vnni};
use crate::panel::ROWS;
use crate::tile::avx512_f32::{float_tile, interleave};
use crate::tile::{FloatActivations, FloatTiles, Tiled, Tiling, check_strip, in_order};

impl Tiled for Avx512Bf16 {
    const TILING: Tiling = Tiling {
        names: ["int8 avx512vnni", "bf16 avx512"],
        tokens_max: |format| match format {
            Format::Bf16 => 8,
            format => (Avx512Vnni::TILING.tokens_max)(format),
        },
        pair_tiles: Some(FloatTiles { cols: 128, interleave, tile: any_tile }),
        ..Avx512Vnni::TILING
    };
}

float_tile!("avx512f,avx512bf16", add_pairs);

/// Adds the products of 16 pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_pairs(weights: __m512, x: __m512, sums: __m512) -> __m512 {
    let pairs = |bits: __m512| -> __m512bh {
        // SAFETY: both are 64 bytes, and all values are valid.
        unsafe { std::mem::transmute(bits) }
    };
    _mm512_dpbf16_ps(sums, pairs(weights), pairs(x))
}
