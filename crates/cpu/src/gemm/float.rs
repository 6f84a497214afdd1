//! Products in f32: float weights, and every type without an unpacking of its own.

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};

use crate::gemm::packing::{Packed, Packing};
use crate::panel::SPAN;
use crate::tile::{self, Columns, FLOAT_COLS, FloatPanel, FloatTiles, ROWS};

/// The parts of a float product.
#[derive(Clone, Copy)]
pub(super) struct Float {
    ty: Type,
    tiles: FloatTiles,
}

/// What a run works in.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Scratch {
    rows: [[f32; SPAN]; ROWS],
    panel: FloatPanel,
}

impl Float {
    pub fn new(ty: Type, packing: Packing) -> Float {
        Float { ty, tiles: tile::float_tiles(packing.level) }
    }

    /// Adds the product of up to 32 rows to `strip` `[tokens, 32]`.
    pub fn run(
        &self,
        packing: Packing,
        (weights, row_bytes): (&[u8], usize),
        packed: Packed<'_>,
        scratch: &mut Scratch,
        strip: &mut [f32],
    ) {
        let rows = weights.len() / row_bytes;
        scratch.rows[rows..].fill([0.0; SPAN]);
        for col in (0..packing.cols).step_by(SPAN) {
            let cols = (packing.cols - col).min(SPAN);
            let bytes = |cols: usize| cols / self.ty.block_weights * self.ty.block_bytes;
            for (row, out) in weights.chunks_exact(row_bytes).zip(&mut scratch.rows) {
                let blocks = &row[bytes(col)..bytes(col + cols)];
                (self.ty.dequantize)(blocks, &mut out[..cols]);
            }
            for part in (0..cols).step_by(FLOAT_COLS) {
                let part = part..(part + FLOAT_COLS).min(cols);
                for first in [0, 16] {
                    // SAFETY: a packing's level is one that the processor runs.
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
                self.sweep(packing, panel, col + part.start, packed, strip);
            }
        }
    }

    /// Multiplies the panel, whose first column is `col`, with all chunks.
    fn sweep(
        &self,
        packing: Packing,
        panel: &[[f32; ROWS]],
        col: usize,
        packed: Packed<'_>,
        strip: &mut [f32],
    ) {
        let chunks = packed.data.chunks_exact(packing.chunk_bytes(packed.tokens));
        for (chunk, bytes) in chunks.enumerate() {
            let range = packing.chunk_range(chunk, packed.tokens);
            let columns = bytemuck::cast_slice::<u8, f32>(bytes);
            let columns = &columns[col * range.len()..(col + panel.len()) * range.len()];
            let strip = &mut strip[range.start * ROWS..range.end * ROWS];
            let columns = Columns { values: columns, tokens: range.len() };
            // SAFETY: a packing's level is one that the processor runs.
            unsafe { (self.tiles.tile)(panel, columns, strip, ROWS) };
        }
    }
}
