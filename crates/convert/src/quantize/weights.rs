//! Converts one tensor from one type to another, piece by piece.

use bilayer_gguf::{SourceError, TensorLayout};
use bilayer_quant::{Error, Type, first_not_finite};
use bytes::Bytes;

use crate::stream::Pieces;

/// Weights per piece (or one row, if longer): small enough to stay in a core's cache.
const PIECE_WEIGHTS: usize = 1 << 15;

/// A tensor and its target type.
pub(super) struct Weights {
    bytes: Bytes,
    from: Type,
    to: Type,
    rows: usize,
    cols: usize,
    /// Rows of one expert.
    expert_rows: usize,
    /// `[experts, cols]`.
    importance: Option<Vec<f32>>,
}

impl Weights {
    /// `importance` is `[experts, cols]` of the tensor's layout.
    pub fn new(
        bytes: Bytes,
        layout: &TensorLayout,
        to: Type,
        importance: Option<Vec<f32>>,
    ) -> Weights {
        let shape = layout.shape();
        // The tensor is in memory, so its sizes fit a usize.
        let expert_rows = if shape.len() > 1 { shape[shape.len() - 2] as usize } else { 1 };
        let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
        let importance = importance.filter(|_| layout.ty() != to);
        Weights { bytes, from: layout.ty(), to, rows, cols, expert_rows, importance }
    }

    /// The converted bytes, in pieces.
    pub fn pieces(&self) -> Pieces<impl Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync + '_> {
        let row_bytes = self.row_bytes();
        let piece_rows = (PIECE_WEIGHTS / self.cols).max(1);
        Pieces {
            len: (self.rows * row_bytes) as u64,
            piece_bytes: piece_rows * row_bytes,
            make: move |number, bytes: &mut [u8]| {
                let first = number as usize * piece_rows;
                Ok(self.make(first, bytes.len() / row_bytes, bytes)?)
            },
        }
    }

    /// Bytes of a converted row. The plan has checked that rows are whole blocks.
    fn row_bytes(&self) -> usize {
        self.to.row_bytes(self.cols).expect("rows of whole blocks")
    }

    /// All converted bytes at once, computed on the threads of the current pool.
    pub fn all(&self) -> Result<Vec<u8>, SourceError> {
        let pieces = self.pieces();
        // The source is in memory and larger.
        let mut bytes = vec![0; pieces.len as usize];
        pieces.fill(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Converts `rows` rows from row `first` on.
    fn make(&self, first: usize, rows: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let from_bytes = self.bytes.len() / self.rows;
        let source = &self.bytes[first * from_bytes..(first + rows) * from_bytes];
        if self.from == self.to {
            bytes.copy_from_slice(source);
            // Only unquantized weights are cheap to validate; blocks are copied unchecked.
            if self.from.block_weights > 1 || self.from.quantize.is_none() {
                return Ok(());
            }
        }
        let mut values = vec![0.0; rows * self.cols];
        self.from.dequantize(source, &mut values)?;
        if let Some(at) = first_not_finite(&values) {
            let (index, value) = (first * self.cols + at, values[at].to_string());
            return Err(Error::NotFinite { quant: self.to, index, value });
        }
        let Some(importance) = &self.importance else {
            return match self.from == self.to {
                true => Ok(()),
                false => self.to.quantize(&values, None, bytes),
            };
        };
        let values = values.chunks_exact(self.cols);
        let bytes = bytes.chunks_exact_mut(self.row_bytes());
        for (row, (values, bytes)) in values.zip(bytes).enumerate() {
            let expert = (first + row) / self.expert_rows;
            let importance = &importance[expert * self.cols..][..self.cols];
            self.to.quantize(values, Some(importance), bytes)?;
        }
        Ok(())
    }
}
