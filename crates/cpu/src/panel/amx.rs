//! AMX tiles of weights in bf16, as types write them.

use std::arch::x86_64::*;

use crate::stream::PanelRows;

/// Bytes per tile: 16 rows of 64.
pub(crate) const TILE_BYTES: usize = 1024;

/// A tile of weights `[rows, 32]` bf16, of activations `[16, tokens, 2]` bf16 or of results
/// `[rows, tokens]` f32.
pub(crate) type TileBytes = [u8; TILE_BYTES];

/// Unpacks 256 columns of up to 16 rows to eight tiles, rounded to bf16: equivalent to `tile::amx::put_span` of their spans.
pub(crate) type FillTiles =
    unsafe fn(rows: PanelRows<'_>, count: usize, tiles: &mut [TileBytes; 8]);

#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn bits(value: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes, and all values are valid.
    unsafe { std::mem::transmute(value) }
}

/// Writes 32 weights in bf16 as row `row` of a tile.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn put_bits(bits: __m512i, row: usize, tile: &mut TileBytes) {
    let to = &mut tile.as_chunks_mut::<64>().0[row];
    // SAFETY: 64 bytes are written to a reference to 64.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bits) }
}
