//! The float tile at 512 bits in pairs of bf16, 32 rows x up to 8 tokens: VDPBF16PS multiplies two columns at a time.
//!
//! For weights in BF16, which need no rounding; activations are rounded to bf16, as frameworks do that compute in the
//! type a model was trained in. On Zen 5 it is 1.8 times as fast as multiply-adds in f32, and eight tokens are 1.12
//! times as fast as six, whose twelve sums are too few to hide the latency.

use std::arch::x86_64::*;
use std::mem::transmute;

use crate::activations::Format;
use crate::lanes::x86::Avx512;
use crate::level::rows::{Avx512Bf16, Avx512Vnni};
use crate::panel::ROWS;
use crate::tile::avx512::interleave_floats;
use crate::tile::float::{FloatProduct, Multiply};
use crate::tile::{FloatActivations, FloatTiles, Tiled, Tiling};

/// Maximum tokens per tile of pairs.
const TOKENS: usize = 8;

impl Tiled for Avx512Bf16 {
    const TILING: Tiling = Tiling {
        names: ["int8 avx512vnni", "bf16 avx512"],
        tokens_max: |format| match format {
            Format::Bf16 => TOKENS,
            format => (Avx512Vnni::TILING.tokens_max)(format),
        },
        pair_tiles: Some(FloatTiles { cols: 128, interleave: interleave_floats, tile }),
        ..Avx512Vnni::TILING
    };
}

/// See [`crate::tile::FloatTile`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn tile(panel: &[[f32; ROWS]], columns: FloatActivations<'_>, strip: &mut [f32], stride: usize) {
    // SAFETY: the function enables the features.
    let lanes = unsafe { Avx512::new() };
    FloatProduct::<2, TOKENS, false> { panel, columns: &columns, stride }.add(
        lanes,
        Pairs(()),
        strip,
    );
}

/// Products of 16 pairs of bf16. A value proves that the feature was detected: only [`tile`] creates it.
#[derive(Clone, Copy)]
struct Pairs(());

impl Multiply<Avx512> for Pairs {
    #[inline(always)]
    fn add(self, _: Avx512, weights: __m512, x: __m512, sums: __m512) -> __m512 {
        // SAFETY: both are 64 bytes, and all values are valid.
        let [weights, x] = [weights, x].map(|bits| unsafe { transmute::<__m512, __m512bh>(bits) });
        // SAFETY: the token proves the feature.
        unsafe { _mm512_dpbf16_ps(sums, weights, x) }
    }
}
