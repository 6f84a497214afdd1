//! GEMM of quantized weights with int8 activations, panel by panel.

use crate::activations::{Block, SPAN};
use crate::gemm::packing::Packing;
use crate::gemm::{CHUNKS_AHEAD, PanelProduct};
use crate::level::Level;
use crate::panel::{Fill, Panel, Quants, ROWS, Span, UnpackRows};
use crate::stream::{self, Ahead, PanelRows, Split};
use crate::tile::fused::{self, Fused};
use crate::tile::{Product, Tiles, Tiling};

/// The kernels of an integer product.
#[derive(Clone, Copy)]
pub(super) struct Integer {
    level: Level,
    unpack: UnpackRows,
    /// The fast path, if there is one.
    fill: Option<Fill>,
    /// The kernel for few tokens, if there is one.
    fused: Option<Fused>,
    tiles: Tiles,
    /// Rows of a panel.
    panel_rows: usize,
}

/// Panels per call. A block of activations is then used twice each time it is read from the outer caches, and both
/// panels still fit the first-level cache.
const PANELS: usize = 2;

/// Scratch memory of a call.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Scratch {
    spans: [Span; 16],
    panels: [Panel; PANELS],
}

impl Integer {
    pub fn new(quants: &Quants, fused: Option<Fused>, packing: Packing) -> Integer {
        let level = packing.level;
        let tiling = Tiling::of(level);
        let (fill, tiles) = ((tiling.fill)(quants), (tiling.tiles)(quants));
        let panel_rows = tiling.panel_rows(quants);
        Integer { level, unpack: quants.unpack, fill, fused, tiles, panel_rows }
    }

    /// Rows per call.
    pub fn rows(&self) -> usize {
        PANELS * self.panel_rows
    }

    /// Adds the product of up to [`rows`](Self::rows) rows to `strip`, where a token's results are `stride` after those of the previous
    /// token and there is space for all rows of the panels.
    pub fn run(
        &self,
        run: &PanelProduct<'_>,
        scratch: &mut Scratch,
        strip: &mut [f32],
        stride: usize,
    ) {
        if let Some(fused) = self.fused
            && run.packed.tokens <= fused::TOKENS
            && run.rows().is_multiple_of(ROWS)
        {
            return few(fused, run, &mut scratch.panels[0], strip, stride);
        }
        self.many(run, scratch, strip, stride);
    }

    /// [`run`](Self::run) panel by panel.
    fn many(
        &self,
        run: &PanelProduct<'_>,
        scratch: &mut Scratch,
        strip: &mut [f32],
        stride: usize,
    ) {
        let PanelProduct { weights, row_bytes, packing, packed, cold } = *run;
        let rows = run.rows();
        let panels = rows.div_ceil(self.panel_rows);
        let chunk_bytes = packing.chunk_bytes(packed.tokens);
        // All spans but the last are complete.
        let span_bytes = row_bytes * SPAN / packing.cols;
        // Prefetches the next call's weights, in order, during this one.
        let mut spans = Ahead::of(weights).split(packing.cols.div_ceil(SPAN));
        let steps = self.fills(rows) + panels * packing.chunks(packed.tokens);
        for (span, col) in (0..packing.cols).step_by(SPAN).enumerate() {
            let start = span * span_bytes;
            let part =
                PanelRows { weights, row_bytes, start, len: span_bytes.min(row_bytes - start) };
            let mut steps = spans.part().split(steps);
            let fill = self.fill.filter(|_| col + SPAN <= packing.cols);
            self.fill(fill, part, rows, &mut steps, scratch);
            if cold {
                PanelRows { start: part.start + part.len, ..part }.prefetch(rows);
            }
            let cols = col..(col + SPAN).min(packing.cols);
            let chunks =
                packing.chunk_ranges(packed.tokens).zip(packed.data.chunks_exact(chunk_bytes));
            for (chunk, (range, bytes)) in chunks.enumerate() {
                let block = Block::of(packing.format, bytes, range.len(), cols.clone());
                let ahead = chunk * chunk_bytes..(chunk + 1 + CHUNKS_AHEAD) * chunk_bytes;
                if let Some(ahead) = packed.data.get(ahead) {
                    let ahead = &ahead[CHUNKS_AHEAD * chunk_bytes..];
                    let ahead = Block::of(packing.format, ahead, range.len(), cols.clone());
                    stream::prefetch(ahead.bytes);
                }
                for (index, panel) in scratch.panels[..panels].iter().enumerate() {
                    let ahead = steps.part();
                    let strip = &mut strip[range.start * stride + index * self.panel_rows..];
                    let product = Product { panel, block, ahead, stride };
                    // SAFETY: a packing's level is available on this CPU.
                    unsafe { (self.tiles.tile)(product, strip) };
                }
            }
        }
    }

    /// How often sixteen rows are unpacked.
    fn fills(&self, rows: usize) -> usize {
        rows.next_multiple_of(self.panel_rows) / 16
    }

    /// Unpacks the columns of `part`, by the fast path `fill` where there are 16 rows, and prefetches the next of
    /// `steps` with every 16 rows; a panel's rows beyond the last are zero.
    fn fill(
        &self,
        fill: Option<Fill>,
        part: PanelRows<'_>,
        rows: usize,
        steps: &mut Split,
        scratch: &mut Scratch,
    ) {
        for first in (0..self.fills(rows)).map(|fill| 16 * fill) {
            let count = rows.saturating_sub(first).min(16);
            let (panel, ahead) = (&mut scratch.panels[first / self.panel_rows], steps.part());
            if let (Some(fill), 16) = (fill, count) {
                let part = PanelRows { weights: &part.weights[first * part.row_bytes..], ..part };
                // SAFETY: a packing's level is available on this CPU.
                unsafe { fill(part, ahead, first % self.panel_rows, panel) };
                continue;
            }
            ahead.fetch();
            scratch.spans[count..].fill(bytemuck::Zeroable::zeroed());
            if count > 0 {
                let part = PanelRows { weights: &part.weights[first * part.row_bytes..], ..part };
                (self.unpack)(self.level, part, &mut scratch.spans[..count]);
            }
            // SAFETY: a packing's level is available on this CPU.
            unsafe {
                let first = first % self.panel_rows;
                (self.tiles.interleave)(&scratch.spans, first, self.tiles.adjust, panel);
            }
        }
    }
}

/// [`Integer::run`] of few tokens, sixteen rows at a time.
fn few(fused: Fused, run: &PanelProduct<'_>, panel: &mut Panel, strip: &mut [f32], stride: usize) {
    let PanelProduct { weights, row_bytes, packing, packed, cold } = *run;
    for (index, weights) in weights.chunks_exact(16 * row_bytes).enumerate() {
        let mut product = fused::Product {
            rows: PanelRows { weights, row_bytes, start: 0, len: row_bytes },
            cols: packing.cols,
            ahead: Ahead::of(weights),
            cold: cold && index == 0,
            packed: packed.data,
            tokens: packed.tokens,
            panel,
            stride,
        };
        // SAFETY: a packing's level is available on this CPU.
        unsafe { (fused.run)(&mut product, &mut strip[16 * index..]) };
    }
}
