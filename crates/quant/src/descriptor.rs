//! What a type is to the rest of the program: a row of the table, and the checks around it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::Error;

/// Writes the blocks of `values` (whole blocks, all finite) into `blocks` (exactly their bytes).
///
/// `importance` has one weight per value: how much a squared error there costs, usually the mean
/// square of the activation that meets the column. Negative or undefined entries count as zero.
/// Types that follow a fixed rule (the floats, `Q8_0`) ignore it.
pub type Quantize = fn(values: &[f32], importance: Option<&[f32]>, blocks: &mut [u8]);

/// Reads all of `blocks` (whole blocks, any alignment) into `values` (exactly their weights).
pub type Dequantize = fn(blocks: &[u8], values: &mut [f32]);

/// Everything the program knows about a type.
#[derive(Debug)]
pub struct Descriptor {
    /// The GGUF name, upper case: `Q4_K`.
    pub name: &'static str,
    /// The number in a GGUF tensor directory.
    pub gguf_id: u32,
    /// Weights in a block; a row is always whole blocks.
    pub block_weights: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// How the bytes of a block divide, in order and without gaps; a GPU upload may gather each
    /// part of all blocks into an aligned plane of its own.
    pub planes: &'static [Plane],
    /// The scalar quantizer, absent where a type is only read. Called through [`Type::quantize`].
    pub quantize: Option<Quantize>,
    /// The scalar dequantizer, the oracle. Called through [`Type::dequantize`].
    pub dequantize: Dequantize,
    /// Bound on √(Σw(x - x')² / Σwx²) over a round trip of gaussian weights, w the importance or 1;
    /// infinite where there is no `quantize`.
    pub error_max: f32,
}

/// One part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The part's name, that of the field of the block.
    pub name: &'static str,
    /// Where it starts, in bytes from the start of the block.
    pub offset: usize,
    /// Its size in bytes.
    pub len: usize,
}

impl Plane {
    /// Lays parts of the given sizes (bytes) one after the other.
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

/// A quantization type: a line of the table, compared by its GGUF id.
#[derive(Clone, Copy)]
pub struct Type(&'static Descriptor);

impl Type {
    pub(crate) const fn new(descriptor: &'static Descriptor) -> Self {
        Self(descriptor)
    }

    /// Bytes of a row of `cols` weights.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] where `cols` is not whole blocks, [`Error::TooLarge`] where the
    /// product overflows.
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
    /// [`Error::ReadOnly`], [`Error::PartialBlock`], [`Error::Length`] where `blocks` or
    /// `importance` does not fit `values`, [`Error::NotFinite`] (types of single weights excepted:
    /// they keep what they are given).
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
    /// [`Error::PartialBlock`], [`Error::Length`] where `blocks` does not fit `values`.
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
