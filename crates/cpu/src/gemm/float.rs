//! GEMM in f32: float weights, and every type without its own unpacking.

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};

use crate::activations::SPAN;
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
        Float { ty, reader, tiles: tiling.float_tiles }
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
        // Prefetches the next call's weights, in order, during this one.
        let mut parts = Ahead::of(weights).split(packing.cols.div_ceil(self.tiles.cols));
        scratch.rows[rows..].fill([0.0; SPAN]);
        for col in (0..packing.cols).step_by(SPAN) {
            let cols = (packing.cols - col).min(SPAN);
            let header = self.ty.row_header_bytes;
            let bytes = |cols: usize| header + cols / self.ty.block_weights * self.ty.block_bytes;
            for (row, out) in weights.chunks_exact(row_bytes).zip(&mut scratch.rows) {
                self.reader.read(row, col, &mut out[..cols]);
            }
            if cold {
                let (start, end) = (bytes(col + cols), bytes((col + 2 * SPAN).min(packing.cols)));
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
}
