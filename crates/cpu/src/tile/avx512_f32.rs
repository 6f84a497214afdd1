//! The float tile at 512 bits: 32 rows x up to 6 tokens of fused multiply-adds.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::panel::SPAN;
use crate::tile::avx512::{load_floats, store_floats, transpose};
use crate::tile::{FloatPanel, FloatTiles, ROWS};

pub(super) const TILES: FloatTiles = FloatTiles { interleave, tile: any_tile };

/// See [`crate::tile::FloatInterleave`].
#[target_feature(enable = "avx512f")]
fn interleave(rows: &[[f32; SPAN]], cols: Range<usize>, first: usize, panel: &mut FloatPanel) {
    for (part, panel) in panel[..cols.len()].chunks_mut(16).enumerate() {
        let start = cols.start + 16 * part;
        let mut values = [_mm512_setzero_si512(); 16];
        for (value, row) in values.iter_mut().zip(rows) {
            *value = _mm512_castps_si512(load_floats(&row[start..]));
        }
        for (to, value) in panel.iter_mut().zip(transpose(values)) {
            store_floats(&mut to[first..], _mm512_castsi512_ps(value));
        }
    }
}

/// See [`crate::tile::FloatTile`].
#[target_feature(enable = "avx512f")]
fn any_tile(panel: &[[f32; ROWS]], columns: &[f32], tokens: usize, strip: &mut [f32]) {
    match tokens {
        1 => tile::<1>(panel, columns, strip),
        2 => tile::<2>(panel, columns, strip),
        3 => tile::<3>(panel, columns, strip),
        4 => tile::<4>(panel, columns, strip),
        5 => tile::<5>(panel, columns, strip),
        6 => tile::<6>(panel, columns, strip),
        tokens => unreachable!("{tokens} tokens in a chunk of at most 6"),
    }
}

#[target_feature(enable = "avx512f")]
fn tile<const N: usize>(panel: &[[f32; ROWS]], columns: &[f32], strip: &mut [f32]) {
    let (strip, _) = strip.as_chunks_mut::<ROWS>();
    let strip: &mut [[f32; ROWS]; N] = strip.try_into().expect("one row of the strip a token");
    let mut acc = [[_mm512_setzero_ps(); 2]; N];
    for (acc, strip) in acc.iter_mut().zip(&*strip) {
        *acc = [load_floats(strip), load_floats(&strip[16..])];
    }
    for (w, x) in panel.iter().zip(columns.as_chunks::<N>().0) {
        let w = [load_floats(w), load_floats(&w[16..])];
        for t in 0..N {
            let x = _mm512_set1_ps(x[t]);
            acc[t][0] = _mm512_fmadd_ps(w[0], x, acc[t][0]);
            acc[t][1] = _mm512_fmadd_ps(w[1], x, acc[t][1]);
        }
    }
    for (acc, strip) in acc.iter().zip(strip) {
        store_floats(strip, acc[0]);
        store_floats(&mut strip[16..], acc[1]);
    }
}
