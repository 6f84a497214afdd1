//! GEMM on AMX tiles in bf16, for every type.

use std::ops::Range;

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};

use crate::activations::SPAN;
use crate::gemm::{Out, PanelProduct};
use crate::level::Level;
use crate::panel::amx::TileBytes;
use crate::panel::floats::Reader;
use crate::panel::{self, Quants, Span};
use crate::stream::PanelRows;
use crate::tile::amx::{self, Configured, TILE_COLS, TILE_ROWS};

/// Rows per call; many, because activations are read from the outer caches once per call.
pub(super) const RUN_ROWS: usize = 128;

/// Number of tokens from which tiles pay: a tile is 16 tokens wide regardless of their number, and unpacking for it
/// costs twice as much as for int8 panels.
pub(super) const TOKENS_MIN: usize = 24;

/// Columns per sweep: 32 tokens of them (32 KiB) stay in the first-level cache, the panel (128 KiB) and the results
/// (256 KiB at 512 tokens) in the second.
const SWEEP_COLS: usize = 512;

/// Tiles per sweep.
const STEPS: usize = SWEEP_COLS / TILE_COLS;

/// Rows and tokens of four tiles.
const PAIR: usize = 2 * TILE_ROWS;

/// The kernels of a tiled product.
#[derive(Clone, Copy)]
pub(super) struct Tiled {
    ty: Type,
    level: Level,
    reader: Reader,
    quants: Option<&'static Quants>,
}

/// Scratch memory of a call, without its results.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Scratch {
    spans: [Span; TILE_ROWS],
    floats: [[f32; SPAN]; TILE_ROWS],
    /// 16 rows each, rounded to bf16.
    tiles: [[TileBytes; STEPS]; RUN_ROWS / TILE_ROWS],
    /// Residuals of rounding.
    rests: [[TileBytes; STEPS]; RUN_ROWS / TILE_ROWS],
}

impl PanelProduct<'_> {
    /// Number of token groups two tiles wide.
    fn token_pairs(&self) -> usize {
        self.packed.tokens.div_ceil(PAIR)
    }

    fn row_pairs(&self) -> usize {
        self.rows().div_ceil(PAIR)
    }

    /// A chunk's tiles for some columns: the rounded activations (0), or the residuals (1).
    fn x(&self, chunk: usize, plane: usize, steps: Range<usize>) -> Option<&[TileBytes]> {
        let bytes = self.packing.chunk_bytes(self.packed.tokens);
        let chunk = self.packed.data.get(chunk * bytes..(chunk + 1) * bytes)?;
        let tiles: &[TileBytes] = bytemuck::cast_slice(chunk);
        let plane = plane * self.packing.cols.div_ceil(TILE_COLS);
        tiles.get(plane + steps.start..plane + steps.end)
    }
}

/// Number of bf16 planes per activation: float weights are precise enough to justify two.
pub(super) fn planes(ty: Type) -> usize {
    if ty.block_weights == 1 { 2 } else { 1 }
}

impl Tiled {
    pub fn new(ty: Type, level: Level) -> Tiled {
        Tiled { ty, level, reader: Reader::new(ty, level), quants: panel::quants(ty) }
    }

    /// Bytes of a call's results.
    pub fn strip_bytes(tokens: usize) -> usize {
        RUN_ROWS * tokens.next_multiple_of(PAIR) * 4
    }

    /// Overwrites `out`; `strip` has [`Tiled::strip_bytes`] and may be uninitialized.
    pub fn run(
        &self,
        run: &PanelProduct<'_>,
        scratch: &mut Scratch,
        strip: &mut [u8],
        out: &mut Out<'_>,
    ) {
        let (rows, tokens, cols) = (run.rows(), run.packed.tokens, run.packing.cols);
        let strip = bytemuck::cast_slice_mut::<u8, [TileBytes; 4]>(strip);
        let strip = &mut strip[..run.row_pairs() * run.token_pairs()];
        strip.fill(Zeroable::zeroed());
        // SAFETY: products are tiled only where level AMX is available.
        let unit = unsafe { Configured::new() };
        for col in (0..cols).step_by(SWEEP_COLS) {
            let cols = col..(col + SWEEP_COLS).min(cols);
            let mut has_rests = false;
            for tile in 0..2 * run.row_pairs() {
                has_rests |= self.fill(run, cols.clone(), tile, scratch);
            }
            self.sweep(run, cols, (scratch, has_rests), &unit, strip);
        }
        drop(unit);
        for (index, block) in strip.iter().enumerate() {
            let (token, row) = (index / run.row_pairs() * PAIR, index % run.row_pairs() * PAIR);
            for (part, tile) in block.iter().enumerate() {
                let (token, row) = (token + part % 2 * TILE_ROWS, row + part / 2 * TILE_ROWS);
                if token < tokens && row < rows {
                    let size = (rows - row, tokens - token);
                    // SAFETY: level AMX includes AVX-512.
                    unsafe {
                        amx::scatter(
                            tile,
                            size,
                            &mut out.values[token * out.stride + row..],
                            out.stride,
                        )
                    };
                }
            }
        }
    }

    /// Adds the product of the filled panel to the results.
    fn sweep(
        &self,
        run: &PanelProduct<'_>,
        cols: Range<usize>,
        (scratch, has_rests): (&Scratch, bool),
        unit: &Configured,
        strip: &mut [[TileBytes; 4]],
    ) {
        let steps = cols.start / TILE_COLS..cols.end.div_ceil(TILE_COLS);
        let count = steps.len();
        let x = |chunk, plane| run.x(chunk, plane, steps.clone());
        for (pair, strip) in strip.chunks_exact_mut(run.row_pairs()).enumerate() {
            self.prefetch(run, cols.end, pair);
            let Some(first) = x(2 * pair, 0) else { return };
            let (second, lost) = (x(2 * pair + 1, 0), x(2 * pair, 1));
            let second_lost = x(2 * pair + 1, 1);
            for (index, out) in strip.iter_mut().enumerate() {
                let tiles =
                    [&scratch.tiles[2 * index][..count], &scratch.tiles[2 * index + 1][..count]];
                amx::multiply(unit, tiles, (first, second), out);
                if let Some(lost) = lost {
                    amx::multiply(unit, tiles, (lost, second_lost), out);
                }
                if has_rests {
                    let rests = [
                        &scratch.rests[2 * index][..count],
                        &scratch.rests[2 * index + 1][..count],
                    ];
                    amx::multiply(unit, rests, (first, second), out);
                }
            }
        }
    }

    /// Unpacks columns of 16 rows; rows beyond the last are zero. Returns whether the residuals are large enough for
    /// a product of their own.
    fn fill(
        &self,
        run: &PanelProduct<'_>,
        cols: Range<usize>,
        tile: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let first = tile * TILE_ROWS;
        let count = run.rows().saturating_sub(first).min(TILE_ROWS);
        if count < TILE_ROWS {
            scratch.tiles[tile] = Zeroable::zeroed();
            scratch.rests[tile] = Zeroable::zeroed();
        }
        let mut has_rests = false;
        for col in cols.clone().step_by(SPAN).take_while(|_| count > 0) {
            let span = col..(col + SPAN).min(cols.end);
            let steps = (col - cols.start) / TILE_COLS..(span.end - cols.start).div_ceil(TILE_COLS);
            let source = self.source(run, first, span.clone());
            let tiles = &mut scratch.tiles[tile][steps.clone()];
            if let Some(fill) = self.quants.and_then(|quants| quants.fill_tiles) {
                let tiles = tiles.first_chunk_mut().expect("rows are whole blocks of 256");
                // SAFETY: level AMX is available.
                unsafe { fill(source, count, tiles) };
            } else if let Some(quants) = self.quants {
                let spans = &mut scratch.spans[..count];
                (quants.unpack)(self.level, source, spans);
                for (row, span) in spans.iter().enumerate() {
                    // SAFETY: level AMX includes AVX-512.
                    unsafe { amx::put_span(span, quants.form, quants.bias, row, tiles) };
                }
            } else {
                let rests: &mut [TileBytes] = match planes(self.ty) {
                    1 => &mut [],
                    _ => &mut scratch.rests[tile][steps],
                };
                for (row, floats) in scratch.floats[..count].iter_mut().enumerate() {
                    let floats = &mut floats[..span.len()];
                    let weights = &run.weights[(first + row) * run.row_bytes..][..run.row_bytes];
                    self.reader.read(weights, span.start, floats);
                    // SAFETY: level AMX is available, and includes AVX-512.
                    has_rests |= unsafe { amx::put_floats(floats, row, tiles, rests) };
                }
            }
        }
        has_rests
    }

    /// The bytes of columns `cols` of the rows from `first` on.
    fn source<'a>(
        &self,
        run: &PanelProduct<'a>,
        first: usize,
        cols: Range<usize>,
    ) -> PanelRows<'a> {
        let header = self.ty.row_header_bytes;
        let bytes = |cols: usize| header + cols / self.ty.block_weights * self.ty.block_bytes;
        let weights = &run.weights[first * run.row_bytes..];
        let (start, end) = (bytes(cols.start), bytes(cols.end));
        PanelRows { weights, row_bytes: run.row_bytes, start, len: end - start }
    }

    /// Prefetches a share of the weights that the next sweep unpacks, from column `col` on.
    fn prefetch(&self, run: &PanelProduct<'_>, col: usize, pair: usize) {
        let end = (col + SWEEP_COLS).min(run.packing.cols);
        let share = run.rows().div_ceil(run.token_pairs());
        let first = (pair * share).min(run.rows());
        self.source(run, first, col..end).prefetch(share);
    }
}
