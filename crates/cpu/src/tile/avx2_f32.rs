//! The float tile at 256 bits: 16 rows x up to 6 tokens of fused multiply-adds, a panel in two passes.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::panel::avx2::{load_floats, store_rows, transpose};
use crate::panel::{FloatPanel, ROWS};
use crate::stream::prefetch_lines;
use crate::tile::{FloatActivations, FloatTiles, check_strip, in_order};

/// Maximum tokens per tile. With fewer than five, the multipliers stall on their own results.
pub(super) const TOKENS: usize = 6;

pub(super) const TILES: FloatTiles = FloatTiles { cols: SPAN, interleave, tile: any_tile };

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "avx2")]
fn interleave(rows: &[[f32; SPAN]], cols: Range<usize>, first: usize, panel: &mut FloatPanel) {
    for (half, rows) in rows.as_chunks::<8>().0.iter().enumerate() {
        for (part, panel) in panel[..cols.len()].chunks_mut(8).enumerate() {
            let mut values = [_mm256_setzero_si256(); 8];
            for (value, row) in values.iter_mut().zip(rows) {
                *value = _mm256_castps_si256(load_floats(&row[cols.start + 8 * part..]));
            }
            store_rows(&transpose(values), 1.0, first + 8 * half, panel);
        }
    }
}

/// See [`crate::tile::FloatTile`].
#[target_feature(enable = "avx2,fma")]
fn any_tile(
    panel: &[[f32; ROWS]],
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    for first in [0, 16] {
        let strip = &mut strip[first..];
        match columns.tokens {
            1 => tile::<1>(panel, first, columns, strip, stride),
            2 => tile::<2>(panel, first, columns, strip, stride),
            3 => tile::<3>(panel, first, columns, strip, stride),
            4 => tile::<4>(panel, first, columns, strip, stride),
            5 => tile::<5>(panel, first, columns, strip, stride),
            6 => tile::<6>(panel, first, columns, strip, stride),
            tokens => unreachable!("{tokens} tokens in a chunk of at most {TOKENS}"),
        }
    }
}

/// Rows `first..first + 16` of a panel; `N` = tokens of the columns.
#[target_feature(enable = "avx2,fma")]
fn tile<const N: usize>(
    panel: &[[f32; ROWS]],
    first: usize,
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    assert!(columns.values.len() == panel.len() * N && first <= 16);
    check_strip(strip, stride, N, 16);
    let (mut x, strip) = (columns.values.as_ptr(), strip.as_mut_ptr());
    let mut acc = [[_mm256_setzero_ps(); 2]; N];
    for (t, acc) in acc.iter_mut().enumerate() {
        // SAFETY: the strip was checked.
        *acc = unsafe {
            let from = strip.add(t * stride);
            [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
        };
    }
    let mut w = panel.as_ptr().cast::<f32>().wrapping_add(first);
    // A macro, because a nested loop would spill the sums.
    macro_rules! column {
        () => {
            (w, x) = in_order(w, x);
            // SAFETY: the panel has 32 weights a column, 16 of them from `first` on.
            let column = unsafe { [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(8))] };
            for (t, acc) in acc.iter_mut().enumerate() {
                // SAFETY: there are `panel.len()` x N values.
                let x = _mm256_set1_ps(unsafe { *x.add(t) });
                acc[0] = _mm256_fmadd_ps(column[0], x, acc[0]);
                acc[1] = _mm256_fmadd_ps(column[1], x, acc[1]);
            }
            (w, x) = (w.wrapping_add(ROWS), x.wrapping_add(N));
        };
    }
    for _ in 0..panel.len() / 4 {
        // Four columns of 6 tokens are one and a half lines; the second pass prefetches the lines in between.
        let wanted = x.cast::<u8>().wrapping_add(columns.ahead + first * N / 2);
        prefetch_lines(wanted, 1);
        column!();
        column!();
        column!();
        column!();
    }
    for _ in 0..panel.len() % 4 {
        column!();
    }
    for (t, acc) in acc.iter().enumerate() {
        // SAFETY: the strip was checked.
        unsafe {
            let to = strip.add(t * stride);
            _mm256_storeu_ps(to, acc[0]);
            _mm256_storeu_ps(to.add(8), acc[1]);
        }
    }
}
