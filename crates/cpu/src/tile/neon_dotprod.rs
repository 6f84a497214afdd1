//! The integer tile of NEON with dot products: a lane holds a row's four columns, and 24 sums fill the registers.
//!
//! SDOT selects one token's four activations by lane, so nothing is broadcast: four loads of weights and six of
//! activations serve 24 products of 64 each.

use crate::neon::intrinsics::*;

use crate::level::rows::{Neon, NeonDotprod};
use crate::neon::sdot_four;
use crate::panel::{Adjust, Quants, ROWS};
use crate::tile::neon::{PASS_ROWS, Products, in_rows, interleave, passes, row_passes, row_tiles};
use crate::tile::whole_row::RowProduct;
use crate::tile::{Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, in_order};

impl Tiled for NeonDotprod {
    const TILING: Tiling = Tiling {
        names: ["int8 neon-dotprod", "f32 neon"],
        tiles,
        row_tiles: row_tiles::<4>(row_tile),
        ..Neon::TILING
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, tile);
    Tiles { adjust: Adjust::signed(quants.form, quants.bias), interleave, tile }
}

/// See [`Tile`].
#[target_feature(enable = "dotprod")]
fn tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    passes::<_, S, 4>(Dotprod(()), product, strip);
}

/// See [`RowTile`](crate::tile::whole_row::RowTile).
#[target_feature(enable = "dotprod")]
fn row_tile(product: RowProduct<'_>, strip: &mut [f32]) {
    row_passes::<_, 4, 4>(Dotprod(()), product, strip);
}

/// Proof that the feature was detected: only the tiles create it. A vector holds four rows of one token.
#[derive(Clone, Copy)]
struct Dotprod(());

impl Products<4> for Dotprod {
    const TOKENS: usize = 1;
    const COLUMNS: usize = 4;

    #[inline(always)]
    unsafe fn dots<const U: usize>(
        self,
        steps: usize,
        mut quants: *const i8,
        mut x: *const i32,
        n: usize,
    ) -> [[int32x4_t; 4]; U] {
        let mut dots = [[vdupq_n_s32(0); 4]; U];
        for _ in 0..steps {
            (quants, x) = in_order(quants, x);
            for v in 0..4 {
                // SAFETY: a step has 16 rows of four quants and n times four activations.
                let w = unsafe { vld1q_s8(quants.add(16 * v)) };
                for (u, dots) in dots.iter_mut().enumerate() {
                    // SAFETY: as above; the token proves the feature.
                    dots[v] = unsafe { sdot_four(dots[v], w, *x.add(u).cast()) };
                }
            }
            (quants, x) = (quants.wrapping_add(4 * ROWS), x.wrapping_add(n));
        }
        dots
    }

    #[inline(always)]
    fn rows(self, values: &[f32; PASS_ROWS]) -> [float32x4_t; 4] {
        in_rows(values)
    }

    #[inline(always)]
    fn tokens(self, value: impl Fn(usize) -> f32) -> float32x4_t {
        vdupq_n_f32(value(0))
    }

    #[inline(always)]
    fn of_token(self, sums: &[float32x4_t; 4], _token: usize) -> [float32x4_t; 4] {
        *sums
    }
}
