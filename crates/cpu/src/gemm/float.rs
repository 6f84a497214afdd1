//! GEMM in f32: float weights, and every type without its own unpacking; and in pairs of bf16, the bits of which are
//! moved as those of an f32.

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};

use crate::activations::{Format, SPAN};
use crate::gemm::packing::Packing;
use crate::gemm::{CHUNKS_AHEAD, PanelProduct};
use crate::panel::floats::Reader;
use crate::panel::{FloatPanel, ROWS};
use crate::stream::{Ahead, PanelRows};
use crate::tile::{FloatActivations, FloatTiles, Tiling};

/// The kernels of a float product.
#[derive(Clone, Copy)]
pub(super) struct Float {
    ty: Type,
    reader: Reader,
    tiles: FloatTiles,
    /// Weights per value of a panel: two if it is a pair.
    width: usize,
}

/// Scratch memory of a call.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Scratch {
    rows: [[f32; SPAN]; ROWS],
    panel: FloatPanel,
}

impl Float {
    pub fn new(ty: Type, packing: Packing) -> Float {
        let (reader, tiling) = (Reader::new(ty, packing.level), Tiling::of(packing.level));
        let (tiles, width) = match (packing.format, tiling.pair_tiles) {
            (Format::F32, _) | (_, None) => (tiling.float_tiles, 1),
            (_, Some(tiles)) => (tiles, 2),
        };
        Float { ty, reader, tiles, width }
    }

    /// Adds the product of up to 32 rows to `strip`, where a token's 32 results are `stride` after those of the
    /// previous token.
    pub fn run(
        &self,
        run: &PanelProduct<'_>,
        scratch: &mut Scratch,
        strip: &mut [f32],
        stride: usize,
    ) {
        let PanelProduct { weights, row_bytes, packing, packed, cold } = *run;
        let rows = run.rows();
        let chunk_bytes = packing.chunk_bytes(packed.tokens);
        let values = packing.cols.div_ceil(self.width);
        // Prefetches the next call's weights, in order, during this one.
        let mut parts = Ahead::of(weights).split(values.div_ceil(self.tiles.cols));
        scratch.rows[rows..].fill([0.0; SPAN]);
        for col in (0..values).step_by(SPAN) {
            let cols = (values - col).min(SPAN);
            for (row, out) in weights.chunks_exact(row_bytes).zip(&mut scratch.rows) {
                self.read(row, col, &mut out[..cols]);
            }
            if cold {
                let bytes = |values: usize| {
                    let cols = (values * self.width).min(packing.cols);
                    let header = self.ty.row_header_bytes;
                    header + cols / self.ty.block_weights * self.ty.block_bytes
                };
                let (start, end) = (bytes(col + cols), bytes((col + 2 * SPAN).min(values)));
                let len = end.saturating_sub(start);
                PanelRows { weights, row_bytes, start, len }.prefetch(rows);
            }
            for part in (0..cols).step_by(self.tiles.cols) {
                let part = part..(part + self.tiles.cols).min(cols);
                for first in [0, 16] {
                    // SAFETY: a packing's level is available on this CPU.
                    unsafe {
                        (self.tiles.interleave)(
                            &scratch.rows[first..first + 16],
                            part.clone(),
                            first,
                            &mut scratch.panel,
                        );
                    }
                }
                let panel = &scratch.panel[..part.len()];
                let col = col + part.start;
                let mut steps = parts.part().split(packing.chunks(packed.tokens));
                let chunks =
                    packing.chunk_ranges(packed.tokens).zip(packed.data.chunks_exact(chunk_bytes));
                for (range, bytes) in chunks {
                    let tokens = range.len();
                    let place = 4 * col * tokens..4 * (col + panel.len()) * tokens;
                    steps.part().fetch();
                    let values = bytemuck::cast_slice::<u8, f32>(&bytes[place]);
                    let strip = &mut strip[range.start * stride..];
                    let ahead = CHUNKS_AHEAD * chunk_bytes;
                    let columns = FloatActivations { values, tokens, ahead };
                    // SAFETY: a packing's level is available on this CPU.
                    unsafe { (self.tiles.tile)(panel, columns, strip, stride) };
                }
            }
        }
    }

    /// Reads the values of a row from `first` on.
    fn read(&self, row: &[u8], first: usize, values: &mut [f32]) {
        if self.width == 1 {
            return self.reader.read(row, first, values);
        }
        let (pairs, last) = row[4 * first..].as_chunks::<4>();
        for (value, pair) in values.iter_mut().zip(pairs) {
            *value = f32::from_le_bytes(*pair);
        }
        // The last of an odd number of columns.
        if let (&[low, high], Some(value)) = (last, values.get_mut(pairs.len())) {
            *value = f32::from_le_bytes([low, high, 0, 0]);
        }
    }
}
