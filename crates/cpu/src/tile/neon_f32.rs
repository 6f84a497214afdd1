//! The float tile of NEON: 16 rows x up to 6 tokens of fused multiply-adds, a panel in two passes.

use crate::neon::intrinsics::*;
use std::ops::Range;

use crate::activations::SPAN;
use crate::neon::{load_floats, store_floats};
use crate::panel::neon::columns;
use crate::panel::{FloatPanel, ROWS};
use crate::tile::{FloatActivations, FloatTiles, check_strip, in_order};

/// Maximum tokens per tile.
pub(super) const TOKENS: usize = 6;

/// Rows per pass.
const PASS_ROWS: usize = 16;

pub(super) const TILES: FloatTiles = FloatTiles { cols: 128, interleave, tile: any_tile };

/// See [`crate::tile::FloatInterleave`].
fn interleave(rows: &[[f32; SPAN]], cols: Range<usize>, first: usize, panel: &mut FloatPanel) {
    // Whole multiples of four columns: a span extends beyond the range, and the panel has space.
    let end = cols.start + cols.len().next_multiple_of(4);
    for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        let rows = rows.each_ref().map(|row| &row[cols.start..end]);
        columns(rows.map(|row| (row, 1.0)), first + 4 * four, &mut panel[..end - cols.start]);
    }
}

/// See [`crate::tile::FloatTile`].
fn any_tile(
    panel: &[[f32; ROWS]],
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    columns.fetch();
    for first in [0, PASS_ROWS] {
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
fn tile<const N: usize>(
    panel: &[[f32; ROWS]],
    first: usize,
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    assert!(columns.values.len() == panel.len() * N && first <= PASS_ROWS);
    check_strip(strip, stride, N, PASS_ROWS);
    let mut acc = [[vdupq_n_f32(0.0); 4]; N];
    for (t, acc) in acc.iter_mut().enumerate() {
        let from = strip[t * stride..].as_chunks().0;
        *acc = std::array::from_fn(|v| load_floats(&from[v]));
    }
    let mut x = columns.values.as_ptr();
    let mut w = panel.as_ptr().cast::<f32>().wrapping_add(first);
    for _ in 0..panel.len() {
        (w, x) = in_order(w, x);
        for v in 0..4 {
            // SAFETY: the panel has 32 weights a column, 16 of them from `first` on.
            let column = unsafe { vld1q_f32(w.add(4 * v)) };
            for (t, acc) in acc.iter_mut().enumerate() {
                // SAFETY: there are `panel.len()` x N values.
                acc[v] = vfmaq_n_f32(acc[v], column, unsafe { *x.add(t) });
            }
        }
        (w, x) = (w.wrapping_add(ROWS), x.wrapping_add(N));
    }
    for (t, acc) in acc.iter().enumerate() {
        let to = strip[t * stride..].as_chunks_mut().0;
        for (to, acc) in to.iter_mut().zip(acc) {
            store_floats(to, *acc);
        }
    }
}
