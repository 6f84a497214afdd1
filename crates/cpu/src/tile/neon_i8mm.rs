//! The integer tile of NEON with matrix products: a vector of weights holds eight columns of two rows.
//!
//! SMMLA multiplies it with eight columns of two tokens to `[2 rows, 2 tokens]`, twice the products of SDOT. The
//! panel is interleaved accordingly; the activations are packed four columns per token, and two steps are zipped on
//! load. The f32 sums keep the 2 x 2 order, to which a group's scales are spread (8 instructions), and are reordered
//! once per block.

use crate::neon::intrinsics::*;

use crate::level::rows::{Neon, NeonI8mm};
use crate::neon::{load, load_floats, smmla};
use crate::panel::{Adjust, Panel, Quants, ROWS, Span};
use crate::tile::neon::{PASS_ROWS, Products, lines, passes, row_passes, row_tiles};
use crate::tile::whole_row::RowProduct;
use crate::tile::{Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, in_order};

impl Tiled for NeonI8mm {
    const TILING: Tiling = Tiling {
        names: ["int8 neon-i8mm", "f32 neon"],
        tiles,
        row_tiles: row_tiles::<8>(row_tile),
        ..Neon::TILING
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, tile);
    Tiles { adjust: Adjust::signed(quants.form, quants.bias), interleave, tile }
}

/// See [`Tile`].
#[target_feature(enable = "dotprod,i8mm")]
fn tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    passes::<_, S, 8>(I8mm(()), product, strip);
}

/// See [`RowTile`](crate::tile::whole_row::RowTile).
#[target_feature(enable = "dotprod,i8mm")]
fn row_tile(product: RowProduct<'_>, strip: &mut [f32]) {
    row_passes::<_, 8, 8>(I8mm(()), product, strip);
}

/// See [`crate::tile::Interleave`]; quants are `[columns / 8, rows / 2, 2, 8]`.
fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = vdupq_n_u8(adjust.quants);
    let quants = panel.quants.as_flattened_mut().as_flattened_mut();
    for (pair, rows) in spans.as_chunks::<2>().0.iter().enumerate() {
        for part in 0..16 {
            let [a, b] = rows.each_ref().map(|span| {
                let quants = load(&span.quants.as_chunks().0[part]);
                vreinterpretq_u64_u8(vaddq_u8(quants, bias))
            });
            for (half, value) in [vzip1q_u64(a, b), vzip2q_u64(a, b)].into_iter().enumerate() {
                let at = (2 * part + half) * 8 * ROWS + (first + 2 * pair) * 8;
                let to = &mut quants[at..at + 16];
                // SAFETY: 16 bytes are written to a slice of 16.
                unsafe { vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_u64(value)) };
            }
        }
    }
    lines(spans, first, adjust.mins, panel);
}

/// Proof that the features were detected: only the tiles create it. A vector holds two rows of two tokens: row 0 of
/// tokens 0 and 1, row 1 of both.
#[derive(Clone, Copy)]
struct I8mm(());

impl I8mm {
    /// Adds the products of row pair `V` with each pair of tokens.
    ///
    /// # Safety
    /// There are eight quants of the pair's rows.
    #[inline(always)]
    unsafe fn add<const V: usize, const U: usize>(
        self,
        quants: *const i8,
        pairs: &[int8x16_t; U],
        dots: &mut [[int32x4_t; 8]; U],
    ) {
        // SAFETY: guaranteed by the caller.
        let w = unsafe { vld1q_s8(quants.add(16 * V)) };
        for (dots, pair) in dots.iter_mut().zip(pairs) {
            // SAFETY: the token proves the features.
            dots[V] = unsafe { smmla(dots[V], w, *pair) };
        }
    }
}

impl Products<8> for I8mm {
    const TOKENS: usize = 2;
    const COLUMNS: usize = 8;

    #[inline(always)]
    unsafe fn dots<const U: usize>(
        self,
        steps: usize,
        mut quants: *const i8,
        mut x: *const i32,
        n: usize,
    ) -> [[int32x4_t; 8]; U] {
        let mut dots = [[vdupq_n_s32(0); 8]; U];
        for _ in 0..steps / 2 {
            (quants, x) = in_order(quants, x);
            let mut pairs = [vdupq_n_s8(0); U];
            for (u, pair) in pairs.iter_mut().enumerate() {
                // SAFETY: two steps have n times four activations each; if the last token is alone, the bytes read
                // beside it are the next step's first or the four bytes after the end.
                let [a, b] = unsafe { [vld1_s32(x.add(2 * u)), vld1_s32(x.add(n + 2 * u))] };
                *pair = vreinterpretq_s8_s32(vcombine_s32(vzip1_s32(a, b), vzip2_s32(a, b)));
            }
            // SAFETY: eight columns have 16 rows of eight quants; see [`interleave`]. Unrolled, since a loop would
            // spill the sums.
            unsafe {
                self.add::<0, U>(quants, &pairs, &mut dots);
                self.add::<1, U>(quants, &pairs, &mut dots);
                self.add::<2, U>(quants, &pairs, &mut dots);
                self.add::<3, U>(quants, &pairs, &mut dots);
                self.add::<4, U>(quants, &pairs, &mut dots);
                self.add::<5, U>(quants, &pairs, &mut dots);
                self.add::<6, U>(quants, &pairs, &mut dots);
                self.add::<7, U>(quants, &pairs, &mut dots);
            }
            (quants, x) = (quants.wrapping_add(8 * ROWS), x.wrapping_add(2 * n));
        }
        dots
    }

    #[inline(always)]
    fn rows(self, values: &[f32; PASS_ROWS]) -> [float32x4_t; 8] {
        let values = values.as_chunks().0;
        std::array::from_fn(|v| {
            let four = load_floats(&values[v / 2]);
            if v % 2 == 0 { vzip1q_f32(four, four) } else { vzip2q_f32(four, four) }
        })
    }

    #[inline(always)]
    fn tokens(self, value: impl Fn(usize) -> f32) -> float32x4_t {
        let [a, b] = [value(0), value(1)];
        load_floats(&[a, b, a, b])
    }

    #[inline(always)]
    fn of_token(self, sums: &[float32x4_t; 8], token: usize) -> [float32x4_t; 4] {
        std::array::from_fn(|four| {
            let (a, b) = (sums[2 * four], sums[2 * four + 1]);
            if token == 0 { vuzp1q_f32(a, b) } else { vuzp2q_f32(a, b) }
        })
    }
}
