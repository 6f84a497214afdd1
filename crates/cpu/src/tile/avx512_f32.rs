//! The float tile at 512 bits: 32 rows x up to 6 tokens of fused multiply-adds; up to 8 of another instruction.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::panel::avx512::{load_floats, store_rows, transpose};
use crate::panel::{FloatPanel, ROWS};
use crate::tile::{FloatActivations, FloatTiles, check_strip, in_order};

pub(super) const TILES: FloatTiles = FloatTiles { cols: 128, interleave, tile: any_tile };

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "avx512f")]
pub(super) fn interleave(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    for (part, panel) in panel[..cols.len()].chunks_mut(16).enumerate() {
        let start = cols.start + 16 * part;
        let mut values = [_mm512_setzero_si512(); 16];
        for (value, row) in values.iter_mut().zip(rows) {
            *value = _mm512_castps_si512(load_floats(&row[start..]));
        }
        store_rows(&transpose(values), first, panel);
    }
}

/// Makes `any_tile` of a level's features and of the function that adds products: `sums + weights * x`.
macro_rules! float_tile {
    ($features:literal, $add:ident) => {
        /// See `FloatTile`.
        #[target_feature(enable = $features)]
        fn any_tile(
            panel: &[[f32; ROWS]],
            columns: FloatActivations<'_>,
            strip: &mut [f32],
            stride: usize,
        ) {
            columns.fetch();
            match columns.tokens {
                1 => tile::<1>(panel, columns, strip, stride),
                2 => tile::<2>(panel, columns, strip, stride),
                3 => tile::<3>(panel, columns, strip, stride),
                4 => tile::<4>(panel, columns, strip, stride),
                5 => tile::<5>(panel, columns, strip, stride),
                6 => tile::<6>(panel, columns, strip, stride),
                7 => tile::<7>(panel, columns, strip, stride),
                8 => tile::<8>(panel, columns, strip, stride),
                tokens => unreachable!("{tokens} tokens in a chunk of at most 8"),
            }
        }

        #[target_feature(enable = $features)]
        fn tile<const N: usize>(
            panel: &[[f32; ROWS]],
            columns: FloatActivations<'_>,
            strip: &mut [f32],
            stride: usize,
        ) {
            assert!(columns.values.len() == panel.len() * N);
            check_strip(strip, stride, N, ROWS);
            let (mut x, strip) = (columns.values.as_ptr(), strip.as_mut_ptr());
            let mut acc = [[_mm512_setzero_ps(); 2]; N];
            for (t, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the strip was checked.
                *acc = unsafe {
                    let from = strip.add(t * stride);
                    [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16))]
                };
            }
            let mut w = panel.as_ptr().cast::<f32>();
            for _ in 0..panel.len() {
                (w, x) = in_order(w, x);
                // SAFETY: the panel has 32 weights a column, and there are `panel.len()` x N values.
                unsafe {
                    let column = [_mm512_loadu_ps(w), _mm512_loadu_ps(w.add(16))];
                    for (t, acc) in acc.iter_mut().enumerate() {
                        let x = _mm512_set1_ps(*x.add(t));
                        acc[0] = $add(column[0], x, acc[0]);
                        acc[1] = $add(column[1], x, acc[1]);
                    }
                }
                (w, x) = (w.wrapping_add(ROWS), x.wrapping_add(N));
            }
            for (t, acc) in acc.iter().enumerate() {
                // SAFETY: the strip was checked.
                unsafe {
                    let to = strip.add(t * stride);
                    _mm512_storeu_ps(to, acc[0]);
                    _mm512_storeu_ps(to.add(16), acc[1]);
                }
            }
        }
    };
}
pub(super) use float_tile;

float_tile!("avx512f", add);

#[inline]
#[target_feature(enable = "avx512f")]
fn add(weights: __m512, x: __m512, sums: __m512) -> __m512 {
    _mm512_fmadd_ps(weights, x, sums)
}
