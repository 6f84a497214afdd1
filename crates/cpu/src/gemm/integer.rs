//! Products of quantized weights with int8 activations, panel by panel.

use crate::gemm::packing::{Block, Packed, Packing};
use crate::panel::{Quants, Rows, SPAN, Span};
use crate::tile::{self, Panel, ROWS, Tiles};

/// The parts of an integer product.
#[derive(Clone, Copy)]
pub(super) struct Integer {
    unpack: crate::panel::UnpackRows,
    tiles: Tiles,
}

/// What a run works in.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Scratch {
    spans: [Span; 16],
    panel: Panel,
}

impl Integer {
    pub fn new(quants: &Quants, packing: Packing) -> Integer {
        let level = packing.level;
        let tiles = tile::tiles(level, quants.form, quants.bias);
        Integer { unpack: quants.unpack(level), tiles }
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
        let span_bytes = |cols: usize| row_bytes * cols / packing.cols;
        for col in (0..packing.cols).step_by(SPAN) {
            let cols = (packing.cols - col).min(SPAN);
            let part = Rows { weights, row_bytes, start: span_bytes(col), len: span_bytes(cols) };
            self.fill(part, rows, scratch);
            Rows { start: part.start + part.len, ..part }.prefetch(rows);
            let chunks = packed.data.chunks_exact(packing.chunk_bytes(packed.tokens));
            for (chunk, bytes) in chunks.enumerate() {
                let range = packing.chunk_range(chunk, packed.tokens);
                let block = Block::of(packing, bytes, range.len(), col);
                let strip = &mut strip[range.start * ROWS..range.end * ROWS];
                // SAFETY: a packing's level is one that the processor runs.
                unsafe { (self.tiles.tile)(&scratch.panel, block, strip) };
            }
        }
    }

    /// Unpacks the columns of `part`; rows beyond the last are zero.
    fn fill(&self, part: Rows<'_>, rows: usize, scratch: &mut Scratch) {
        for first in [0, 16] {
            let count = rows.saturating_sub(first).min(16);
            if count < 16 {
                scratch.spans[count..].fill(bytemuck::Zeroable::zeroed());
            }
            if count > 0 {
                let part = Rows { weights: &part.weights[first * part.row_bytes..], ..part };
                // SAFETY: a packing's level is one that the processor runs.
                unsafe { (self.unpack)(part, &mut scratch.spans[..count]) };
            }
            // SAFETY: as above.
            unsafe {
                (self.tiles.interleave)(
                    &scratch.spans,
                    first,
                    self.tiles.adjust,
                    &mut scratch.panel,
                );
            }
        }
    }
}
