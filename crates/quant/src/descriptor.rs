//! The descriptor of a type, and the checks around its functions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::{Error, first_not_finite};

/// Writes the rows of `values` (whole blocks, all finite) into `blocks` (exactly their bytes).
///
/// `importance` has one entry per value: the cost of a squared error there, usually the mean square of the column's
/// activations. Negative entries and NaN count as zero. Types with a fixed rule (floats, `Q8_0`) ignore it.
pub type Quantize = fn(values: &[f32], importance: Option<&[f32]>, blocks: &mut [u8]);

/// Reads all of `blocks` (whole blocks, any alignment) into `values` (exactly their weights).
pub type Dequantize = fn(blocks: &[u8], values: &mut [f32]);

/// Everything the program knows about a type.
#[derive(Debug)]
pub struct Descriptor {
    /// The GGUF name, upper case: `Q4_K`.
    pub name: &'static str,
    /// The type's number in a GGUF tensor directory.
    pub gguf_id: u32,
    /// Weights in a block; a row is a whole number of blocks.
    pub block_weights: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes before the blocks of each row, at most [`ROW_HEADER_MAX`]: what all blocks of the row share, such as a
    /// scale. A header followed by some of its row's blocks is a shorter row. Most types have none.
    pub row_header_bytes: usize,
    /// The fields of a block, in order and without gaps; a GPU upload may gather each field of all blocks into an
    /// aligned plane.
    pub planes: &'static [Plane],
    /// The scalar quantizer; `None` for types that can only be read. Called through [`Type::quantize`].
    pub quantize: Option<Quantize>,
    /// The scalar dequantizer, the reference for all others. Called through [`Type::dequantize`].
    pub dequantize: Dequantize,
    /// Bound on √(Σw(x - x')² / Σwx²) over a round trip of Gaussian weights, where w is the importance or 1; infinite
    /// without `quantize`.
    pub error_max: f32,
    /// Whether a weight of 0 is read back as 0, whatever the other weights of its block are. Types with an offset per block,
    /// and codebooks without a 0, do not hold zeros.
    pub holds_zero: bool,
}

/// The largest [`Descriptor::row_header_bytes`].
pub const ROW_HEADER_MAX: usize = 16;

/// One field of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The field's name.
    pub name: &'static str,
    /// Offset from the start of the block, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub len: usize,
}

impl Plane {
    /// Lays out fields of the given sizes (bytes) one after another.
    pub(crate) const fn split<const N: usize>(parts: [(&'static str, usize); N]) -> [Plane; N] {
        let mut planes = [Plane { name: "", offset: 0, len: 0 }; N];
        let (mut index, mut offset) = (0, 0);
        while index < N {
            let (name, len) = parts[index];
            planes[index] = Plane { name, offset, len };
            offset += len;
            index += 1;
        }
        planes
    }
}

/// Bytes of blocks that are read at a time from rows with a header.
const PIECE_BYTES: usize = 1024;

/// A quantization type: an entry of the table, compared by its GGUF id.
#[derive(Clone, Copy)]
pub struct Type(&'static Descriptor);

impl Type {
    pub(crate) const fn new(descriptor: &'static Descriptor) -> Self {
        Self(descriptor)
    }

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

    /// Whether each block can be read without the rest of its row.
    #[must_use]
    pub fn has_lone_blocks(self) -> bool {
        self.row_header_bytes == 0
    }

    /// Writes `values`, one row or several of equal length, as rows of blocks; see [`Quantize`] for `importance`. The
    /// length of `blocks` tells how many rows of a type with row headers they are.
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
        (self.0.dequantize)(blocks, values);
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
            return (self.0.dequantize)(blocks, values);
        }
        // A short row with the header of the long one, piece by piece.
        let mut piece = [0; ROW_HEADER_MAX + PIECE_BYTES];
        piece[..header.len()].copy_from_slice(header);
        let count = PIECE_BYTES / self.block_bytes;
        let values = values.chunks_mut(count * self.block_weights);
        for (blocks, values) in blocks.chunks(count * self.block_bytes).zip(values) {
            let end = header.len() + blocks.len();
            piece[header.len()..end].copy_from_slice(blocks);
            (self.0.dequantize)(&piece[..end], values);
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

impl Deref for Type {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        self.0
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        self.gguf_id == other.gguf_id
    }
}

impl Eq for Type {}

impl Hash for Type {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.gguf_id.hash(state);
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
