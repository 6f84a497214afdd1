//! Rows of blocks: their bytes, and their conversion from and to floats, with the checks around a type's functions.

use crate::{Error, ROW_HEADER_MAX, Type, first_not_finite};

/// Bytes of blocks that are read at a time from rows with a header.
const PIECE_BYTES: usize = 1024;

impl Type {
    /// Bytes of a row of `cols` weights.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] if `cols` is not a whole number of blocks, [`Error::TooLarge`] if the product
    /// overflows.
    pub fn row_bytes(self, cols: usize) -> Result<usize, Error> {
        if !cols.is_multiple_of(self.block_weights) {
            return Err(Error::PartialBlock { quant: self, weights: cols });
        }
        let blocks = (cols / self.block_weights).checked_mul(self.block_bytes);
        let header = if cols == 0 { 0 } else { self.row_header_bytes };
        blocks
            .and_then(|blocks| blocks.checked_add(header))
            .ok_or(Error::TooLarge { quant: self, weights: cols })
    }

    /// Writes `values`, one row or several of equal length, as rows of blocks; see [`Quantize`](crate::Quantize) for
    /// `importance`. The length of `blocks` tells how many rows of a type with row headers they are.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PartialBlock`], [`Error::Length`] if `blocks` or `importance` does not fit
    /// `values`, [`Error::NotFinite`] (except for unquantized types, which store any value).
    pub fn quantize(
        self,
        values: &[f32],
        importance: Option<&[f32]>,
        blocks: &mut [u8],
    ) -> Result<(), Error> {
        let quantize = self.quantize.ok_or(Error::ReadOnly(self))?;
        self.check_rows(values.len(), blocks.len())?;
        if let Some(importance) = importance {
            self.check("importance", values.len(), importance.len())?;
        }
        if self.block_weights > 1
            && let Some(index) = first_not_finite(values)
        {
            return Err(Error::NotFinite { quant: self, index, value: values[index].to_string() });
        }
        quantize(values, importance, blocks);
        Ok(())
    }

    /// Reads `blocks`, one row or several of equal length, into `values`.
    ///
    /// # Errors
    /// [`Error::PartialBlock`], [`Error::Length`] if `blocks` does not fit `values`.
    pub fn dequantize(self, blocks: &[u8], values: &mut [f32]) -> Result<(), Error> {
        self.check_rows(values.len(), blocks.len())?;
        (self.dequantize)(blocks, values);
        Ok(())
    }

    /// Reads the weights of one `row` (all its bytes) from column `first` on into `values`, whole blocks of them.
    ///
    /// # Panics
    /// If a column is beyond the row, or a block is not whole.
    pub fn dequantize_cols(self, row: &[u8], first: usize, values: &mut [f32]) {
        let whole = |cols: usize| {
            assert!(cols.is_multiple_of(self.block_weights), "{self}: {cols} are not whole blocks");
            cols / self.block_weights * self.block_bytes
        };
        let (header, blocks) = row.split_at(self.row_header_bytes);
        let blocks = &blocks[whole(first)..][..whole(values.len())];
        if header.is_empty() {
            return (self.dequantize)(blocks, values);
        }
        // A short row with the header of the long one, piece by piece.
        let mut piece = [0; ROW_HEADER_MAX + PIECE_BYTES];
        piece[..header.len()].copy_from_slice(header);
        let count = PIECE_BYTES / self.block_bytes;
        let values = values.chunks_mut(count * self.block_weights);
        for (blocks, values) in blocks.chunks(count * self.block_bytes).zip(values) {
            let end = header.len() + blocks.len();
            piece[header.len()..end].copy_from_slice(blocks);
            (self.dequantize)(&piece[..end], values);
        }
    }

    /// Checks that this many weights are whole rows of this many bytes.
    fn check_rows(self, weights: usize, bytes: usize) -> Result<(), Error> {
        let row = self.row_bytes(weights)?;
        if self.row_header_bytes == 0 || weights == 0 {
            return self.check("bytes", row, bytes);
        }
        let headers = bytes.saturating_sub(row - self.row_header_bytes);
        let rows = headers / self.row_header_bytes;
        // No weights are a multiple of no rows.
        let is_whole = headers.is_multiple_of(self.row_header_bytes)
            && weights.is_multiple_of(rows)
            && (weights / rows).is_multiple_of(self.block_weights);
        if is_whole { Ok(()) } else { self.check("bytes", row, bytes) }
    }

    fn check(self, what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
        if expected == found {
            return Ok(());
        }
        Err(Error::Length { quant: self, what, expected, found })
    }
}
