//! The descriptor of a type, and the type as its entry in the table.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

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

/// A quantization type: an entry of the table, compared by its GGUF id.
#[derive(Clone, Copy)]
pub struct Type(&'static Descriptor);

impl Type {
    pub(crate) const fn new(descriptor: &'static Descriptor) -> Self {
        Self(descriptor)
    }

    /// Whether each block can be read without the rest of its row.
    #[must_use]
    pub fn has_lone_blocks(self) -> bool {
        self.row_header_bytes == 0
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
