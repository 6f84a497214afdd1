//! One tensor on its way from the shards to the file, in pieces of whole rows.

use bilayer_gguf::SourceError;
use bilayer_models::{
    Tiled, interleaved_source, part_source, regrouped_source, tiled_source, ungrouped_source,
};
use bilayer_quant::{Type, first_beyond, mxfp4};

use super::tensors::{Done, From, Planned, SourceTensor, Tiling};
use crate::checkpoint::{Float, Shards, Stored};
use crate::stream::Pieces;

/// Weights of a piece, or a row where that has more: 1 MiB in single precision, so that with all pieces at once a file
/// is made in 64 MiB and three pieces for each thread.
const PIECE_WEIGHTS: usize = 1 << 18;

/// The largest number of half precision.
const F16_MAX: f32 = 65_504.0;

/// A weight that cannot be stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum Bad {
    /// Infinite, or no number.
    #[error("weight {index} of {name} is {value}; the checkpoint is damaged")]
    NotFinite { name: String, index: u64, value: f32 },
    /// Too large.
    #[error(
        "weight {index} of {name} is {value}, beyond what {ty} can hold; convert to bf16 or f32"
    )]
    TooLarge { name: String, index: u64, value: f32, ty: Type },
}

/// Matrices of `rows` rows that were every `step`-th of `width` columns from number `of` on, of matrices of `depth` rows.
struct Turned {
    rows: usize,
    width: usize,
    of: usize,
    step: usize,
    depth: usize,
}

impl Tiling {
    /// The checkpoint's row or column that becomes number `at`.
    fn source(self, at: usize) -> usize {
        let Tiling { before, head, groups, each } = self;
        match at.checked_sub(before) {
            Some(place) => before + tiled_source(place, head, groups, each),
            None => at,
        }
    }
}

/// A tensor and where its rows are.
pub(super) struct RowReader<'p> {
    shards: &'p Shards,
    planned: &'p Planned,
    /// Of all experts together.
    rows: usize,
    cols: usize,
}

impl<'p> RowReader<'p> {
    /// `planned` is checked: its sizes are those of the model.
    pub fn new(shards: &'p Shards, planned: &'p Planned) -> RowReader<'p> {
        let elements = planned.shape.iter().product::<u64>() as usize;
        let cols = match planned.permutes_elements() {
            true => 1,
            false => planned.shape[planned.shape.len() - 1] as usize,
        };
        RowReader { shards, planned, rows: elements / cols, cols }
    }

    /// The file's bytes.
    pub fn pieces(&self) -> Pieces<impl Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync + '_> {
        let ty = self.planned.ty;
        let row_bytes = ty.row_bytes(self.cols).expect("the plan fits types to rows");
        let piece_rows = (PIECE_WEIGHTS / self.cols).clamp(1, self.rows);
        Pieces {
            len: (self.rows * row_bytes) as u64,
            piece_bytes: piece_rows * row_bytes,
            make: move |number, bytes: &mut [u8]| {
                let first = number as usize * piece_rows;
                self.make(first, bytes.len() / row_bytes, bytes)
            },
        }
    }

    /// Makes `rows` rows from number `first` on.
    fn make(&self, first: usize, rows: usize, bytes: &mut [u8]) -> Result<(), SourceError> {
        let (parts, float, change) = match &self.planned.from {
            From::Made(values) => {
                let values = &values[first * self.cols..(first + rows) * self.cols];
                return Ok(self.planned.ty.quantize(values, None, bytes)?);
            }
            From::Packed { blocks, scales, first: of, step } => {
                return Ok(self.packed(
                    &blocks.stored,
                    &scales.stored,
                    (*of, *step),
                    first,
                    bytes,
                )?);
            }
            From::Stored { parts, float, change } => (parts, *float, *change),
        };
        let mut source = vec![0; rows * self.cols * float.bytes()];
        match change {
            Done::Transposed { rows, width, first: of, step, depth } => {
                let turned = Turned { rows, width, of, step, depth };
                self.columns(&parts[0], float, turned, first, &mut source)?
            }
            Done::Picked { first: of, step } => {
                self.picked(&parts[0], float, (of, step), first, &mut source)?
            }
            _ => self.gather(parts, float, change, first, &mut source)?,
        }
        let mut values = vec![0.0; rows * self.cols];
        float.ty.dequantize(&source, &mut values)?;
        self.check(&parts[first / (self.rows / parts.len())].name, first, &values)?;
        match change {
            Done::OneMore => values.iter_mut().for_each(|value| *value += 1.0),
            Done::Decay | Done::Tiled { tiled: Tiled::Decay, .. } => {
                values.iter_mut().for_each(|value| *value = -value.exp());
            }
            Done::Tiled { tiled: Tiled::Columns, tiling } => {
                for row in values.chunks_exact_mut(self.cols) {
                    let stored = row.to_vec();
                    (0..row.len()).for_each(|col| row[col] = stored[tiling.source(col)]);
                }
            }
            _ if float.ty == self.planned.ty => {
                bytes.copy_from_slice(&source);
                return Ok(());
            }
            _ => {}
        }
        Ok(self.planned.ty.quantize(&values, None, bytes)?)
    }

    /// Reads rows wherever they are: neighbours in one go.
    fn gather(
        &self,
        parts: &[SourceTensor],
        float: Float,
        change: Done,
        first: usize,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        let row_bytes = self.cols * float.bytes();
        let part_rows = self.rows / parts.len();
        let source = |row: usize| match change {
            Done::Interleaved { head_dim, dims } => interleaved_source(row, head_dim, dims),
            Done::Regrouped { head_dim, heads, kv_heads } => {
                regrouped_source(row, head_dim, heads, kv_heads)
            }
            Done::Strided { rows, first, of } => row / rows * of + first + row % rows,
            Done::After(unused) => row + unused,
            Done::Selected(rows) => rows[row] as usize,
            Done::RowPart { rows, part, parts } => part_source(row, rows, part, parts),
            Done::Ungrouped { groups, group, parts } => {
                ungrouped_source(row, groups, group, &parts)
            }
            Done::Tiled { tiled: Tiled::Rows | Tiled::Decay, tiling } => tiling.source(row),
            _ => row,
        };
        let mut row = first;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, from) = (row / part_rows, source(row));
            let most = (rest.len() / row_bytes).min((part + 1) * part_rows - row);
            let run = (1..most).take_while(|&i| source(row + i) == from + i).count() + 1;
            let (now, later) = rest.split_at_mut(run * row_bytes);
            let from = (from - part * part_rows) * row_bytes;
            self.shards.read(&parts[part].stored, from as u64, now)?;
            rest = later;
            row += run;
        }
        Ok(())
    }

    /// Reads rows that the checkpoint has as columns, `[.., cols, width]`: of each of its rows the part that is wanted.
    fn columns(
        &self,
        part: &SourceTensor,
        float: Float,
        Turned { rows, width, of, step, depth }: Turned,
        first: usize,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        let (size, row_bytes) = (float.bytes(), self.cols * float.bytes());
        let mut column = Vec::new();
        let (mut row, mut rest) = (first, bytes);
        while !rest.is_empty() {
            let (matrix, from) = (row / rows, row % rows);
            let count = (rest.len() / row_bytes).min(rows - from);
            let (now, later) = rest.split_at_mut(count * row_bytes);
            column.resize((step * (count - 1) + 1) * size, 0);
            for col in 0..self.cols {
                let start = (matrix * depth + col) * width + of + step * from;
                self.shards.read(&part.stored, (start * size) as u64, &mut column)?;
                for (place, weight) in column.chunks_exact(size).step_by(step).enumerate() {
                    now[(place * self.cols + col) * size..][..size].copy_from_slice(weight);
                }
            }
            rest = later;
            row += count;
        }
        Ok(())
    }

    /// Reads every `step`-th element of the checkpoint's rows, `[rows, step * cols]`, from number `of` on.
    fn picked(
        &self,
        part: &SourceTensor,
        float: Float,
        (of, step): (usize, usize),
        first: usize,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        let size = float.bytes();
        let mut whole = vec![0; step * self.cols * size];
        for (row, out) in bytes.chunks_exact_mut(self.cols * size).enumerate() {
            let start = (first + row) * whole.len();
            self.shards.read(&part.stored, start as u64, &mut whole)?;
            let wanted = whole.chunks_exact(size).skip(of).step_by(step);
            for (out, weight) in out.chunks_exact_mut(size).zip(wanted) {
                out.copy_from_slice(weight);
            }
        }
        Ok(())
    }

    /// Reads rows of MXFP4, in which a byte has two weights that follow one another, in the order of a file, in which it
    /// has those 16 apart.
    fn packed(
        &self,
        blocks: &Stored,
        scales: &Stored,
        (of, step): (usize, usize),
        first: usize,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        const BYTES: usize = size_of::<mxfp4::Block>();
        // Rows of a matrix, and groups of 32 weights in a row.
        let (rows, groups) = (self.planned.shape[1] as usize, self.cols / 32);
        let (mut codes, mut exponents) = (Vec::new(), Vec::new());
        let (mut row, mut rest) = (first, bytes);
        while !rest.is_empty() {
            let (matrix, from) = (row / rows, row % rows);
            let count = (rest.len() / (groups * BYTES)).min(rows - from);
            let (now, later) = rest.split_at_mut(count * groups * BYTES);
            let start = ((matrix * rows + from) * step * groups) as u64;
            exponents.resize(count * step * groups, 0);
            codes.resize(16 * exponents.len(), 0);
            self.shards.read(scales, start, &mut exponents)?;
            self.shards.read(blocks, 16 * start, &mut codes)?;
            for (place, out) in now.chunks_exact_mut(groups * BYTES).enumerate() {
                let source = (place * step + of) * groups;
                for (group, out) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
                    let codes = &codes.as_chunks::<16>().0[source + group];
                    out[0] = exponents[source + group];
                    for i in 0..16 {
                        let code = |at: usize| codes[at / 2] >> (4 * (at % 2)) & 15;
                        out[1 + i] = code(i) | code(16 + i) << 4;
                    }
                }
            }
            rest = later;
            row += count;
        }
        Ok(())
    }

    fn check(&self, name: &str, first: usize, values: &[f32]) -> Result<(), Bad> {
        let ty = self.planned.ty;
        let most = if ty == Type::F16 { F16_MAX } else { f32::MAX };
        let Some(at) = first_beyond(values, most) else { return Ok(()) };
        let (name, index, value) = (name.to_owned(), (first * self.cols + at) as u64, values[at]);
        Err(match value.is_finite() {
            true => Bad::TooLarge { name, index, value, ty },
            false => Bad::NotFinite { name, index, value },
        })
    }
}
