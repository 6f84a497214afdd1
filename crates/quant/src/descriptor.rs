//! The descriptor of a type, and the checks around its functions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::Error;

/// Writes the blocks of `values` (whole blocks, all finite) into `blocks` (exactly their bytes).
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
}

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
        (cols / self.block_weights)
            .checked_mul(self.block_bytes)
            .ok_or(Error::TooLarge { quant: self, weights: cols })
    }

    /// Writes `values` (whole blocks) as blocks; see [`Quantize`] for `importance`.
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
        self.check("bytes", self.row_bytes(values.len())?, blocks.len())?;
        if let Some(importance) = importance {
            self.check("importance", values.len(), importance.len())?;
        }
        if self.block_weights > 1
            && let Some(index) = values.iter().position(|value| !value.is_finite())
        {
            return Err(Error::NotFinite { quant: self, index, value: values[index].to_string() });
        }
        quantize(values, importance, blocks);
        Ok(())
    }

    /// Reads `blocks` into `values` (whole blocks).
    ///
    /// # Errors
    /// [`Error::PartialBlock`], [`Error::Length`] if `blocks` does not fit `values`.
    pub fn dequantize(self, blocks: &[u8], values: &mut [f32]) -> Result<(), Error> {
        self.check("bytes", self.row_bytes(values.len())?, blocks.len())?;
        (self.0.dequantize)(blocks, values);
        Ok(())
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
