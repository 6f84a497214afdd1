//! GEMM of rows with one scale, with activations of one scale per token: integer sums over whole rows.

use bilayer_quant::Type;
use bilayer_quant::w8a8::{HEADER, scale};
use bytemuck::{Pod, Zeroable};

use crate::activations::{Format, PackedRows};
use crate::gemm::packing::Packing;
use crate::gemm::{CHUNKS_AHEAD, Gemm, PanelProduct, Path};
use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::panel::ROWS;
use crate::stream::{Ahead, PanelRows};
use crate::tile::Tiling;
use crate::tile::whole_row::{COLS, PanelMut, RowPanel, RowProduct, RowScales, RowTiles};

/// The kernels of a level that this CPU has.
#[derive(Clone, Copy)]
pub(crate) struct WholeRow {
    tiles: RowTiles,
}

/// The zero points of tokens in all panels of a row but the last, where those of the tokens are multiplied.
const NO_ZEROS: [i32; 8] = [0; 8];

/// Number of tokens from which panels are faster than [`crate::dot`].
const TOKENS_MIN: usize = 5;

/// Scratch memory of a call.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Scratch {
    panel: RowPanel,
    scales: [f32; ROWS],
    row_sums: [i32; ROWS],
}

/// The kernel of a type whose rows have one scale.
///
/// # Panics
/// If this CPU does not have the level.
pub(super) fn gemm(ty: Type, cols: usize, level: Level) -> Gemm {
    let tiling = Tiling::of(level);
    let [integer_name, _] = tiling.names;
    Gemm {
        name: if tiling.has_matrix_unit { "int8 avx512vnni" } else { integer_name },
        panel_rows: ROWS,
        tokens_min: TOKENS_MIN,
        packing: Packing::new(Format::Q8Row, cols, level),
        row_bytes: ty.row_bytes(cols).expect("rows are whole blocks"),
        path: Path::WholeRow(WholeRow::of(level)),
        few: None,
        is_rounded: false,
    }
}

impl WholeRow {
    /// The kernels of a level.
    ///
    /// # Panics
    /// If this CPU does not have it.
    pub(crate) fn of(level: Level) -> WholeRow {
        assert!(level.is_available(), "level {level} does not run here");
        WholeRow { tiles: Tiling::of(level).row_tiles }
    }

    /// Writes columns of `count` rows into a panel: [`RowTiles::fill`].
    pub(crate) fn fill(
        self,
        rows: PanelRows<'_>,
        count: usize,
        first: usize,
        panel: &mut PanelMut<'_>,
    ) {
        // SAFETY: the CPU has the level, as `of` has checked.
        unsafe { (self.tiles.fill)(rows, count, first, panel) }
    }

    /// Multiplies a panel with a tile of tokens: [`RowTiles::tile`].
    pub(crate) fn tile(self, product: RowProduct<'_>, strip: &mut [f32]) {
        // SAFETY: as in `fill`.
        unsafe { (self.tiles.tile)(product, strip) }
    }

    /// Writes the product of up to 32 rows to `strip`, where a token's results are `stride` after those of the previous
    /// token and there is space for 32.
    pub(super) fn run(
        &self,
        run: &PanelProduct<'_>,
        scratch: &mut Scratch,
        strip: &mut [f32],
        stride: usize,
    ) {
        let PanelProduct { weights, row_bytes, packing, packed, cold } = *run;
        let (rows, cols) = (run.rows(), packing.cols);
        let chunk_bytes = packing.chunk_bytes(packed.tokens);
        for (scale_of_row, row) in scratch.scales.iter_mut().zip(weights.chunks_exact(row_bytes)) {
            *scale_of_row = scale(row);
        }
        let chunks = || {
            let chunks = packing.chunk_ranges(packed.tokens).zip(packed.data.chunks(chunk_bytes));
            chunks.map(|(range, bytes)| (range.start, PackedRows::of(bytes, cols, range.len())))
        };
        let mut is_summed = false;
        // Prefetches the next call's weights, in order, during this one.
        let mut panels = Ahead::of(weights).split(cols.div_ceil(COLS));
        for col in (0..cols).step_by(COLS) {
            let span = col..(col + COLS).min(cols);
            let part = PanelRows { weights, row_bytes, start: HEADER + col, len: span.len() };
            for first in (0..rows).step_by(16) {
                let rows_left = &weights[first * row_bytes..];
                let part = PanelRows { weights: rows_left, ..part };
                let count = (rows - first).min(16);
                self.fill(part, count, first, &mut scratch.panel.part());
            }
            if cold && span.end < cols {
                let len = (cols - span.end).min(COLS);
                PanelRows { start: part.start + part.len, len, ..part }.prefetch(rows);
            }
            let mut steps = panels.part().split(packing.chunks(packed.tokens));
            for (token, x) in chunks() {
                let tokens = x.scales.len();
                let zeros = if span.end == cols { x.zeros } else { &NO_ZEROS[..tokens] };
                if !is_summed && zeros.iter().any(|zero| *zero != 0) {
                    dispatch(
                        packing.level,
                        RowSums { weights, row_bytes, sums: &mut scratch.row_sums },
                    );
                    is_summed = true;
                }
                let last = RowScales { weights: &scratch.scales, x: x.scales };
                let product = RowProduct {
                    steps: &scratch.panel.steps,
                    negative: &scratch.panel.negative,
                    x: &x.quants[span.start * tokens..],
                    columns: span.len(),
                    x_ahead: CHUNKS_AHEAD * chunk_bytes,
                    tokens,
                    first: (col == 0).then_some(x.sums),
                    outliers: x.outliers,
                    zeros,
                    row_sums: &scratch.row_sums,
                    col,
                    last: (span.end == cols).then_some(last),
                    ahead: steps.part(),
                    stride,
                };
                self.tile(product, &mut strip[token * stride..]);
            }
        }
    }
}

/// Sums the weights of up to 32 rows, whose lengths are multiples of 32.
struct RowSums<'a> {
    weights: &'a [u8],
    row_bytes: usize,
    sums: &'a mut [i32; ROWS],
}

impl Kernel for RowSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (sum, row) in self.sums.iter_mut().zip(self.weights.chunks_exact(self.row_bytes)) {
            *sum = l.sum_quants(bytemuck::cast_slice(&row[HEADER..]));
        }
    }
}
