//! What can go wrong with types, sizes and buffers.

use crate::Type;

/// An error of this crate. None of them comes from the contents of a block: any bytes are a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A tensor directory names a type by a number that is not in the table.
    #[error("tensor type id {id} is not supported (removed, internal, or newer than this build)")]
    UnknownId {
        /// The number found.
        id: u32,
    },
    /// Somebody asked for a type by a name that is not in the table.
    #[error("`{name}` is no quantization type; known are {}", names())]
    UnknownName {
        /// The name asked for.
        name: String,
    },
    /// A row or buffer ends inside a block.
    #[error("{weights} weights are not whole {quant} blocks of {}", quant.block_weights)]
    PartialBlock {
        /// The type whose blocks were to be filled.
        quant: Type,
        /// How many weights were given.
        weights: usize,
    },
    /// A row whose size in bytes does not fit the address space.
    #[error("a {quant} row of {weights} weights is larger than memory can address")]
    TooLarge {
        /// The type of the row.
        quant: Type,
        /// Its length in weights.
        weights: usize,
    },
    /// A buffer that does not fit the values beside it.
    #[error("{quant}: the {what} buffer has length {found}, but {expected} is needed")]
    Length {
        /// The type being read or written.
        quant: Type,
        /// `bytes`, `values` or `importance`.
        what: &'static str,
        /// The length that fits.
        expected: usize,
        /// The length given.
        found: usize,
    },
    /// The type can be read but not made.
    #[error("{0} can be read but not written; choose another type to quantize to")]
    ReadOnly(Type),
    /// A weight that no block can hold: infinite, or not a number.
    #[error("weight {index} is {value}, which {quant} cannot hold; the source tensor is damaged")]
    NotFinite {
        /// The type being written.
        quant: Type,
        /// Where the weight stands in the slice.
        index: usize,
        /// The weight, as text.
        value: String,
    },
}

fn names() -> String {
    crate::all().iter().map(|t| t.name).collect::<Vec<_>>().join(", ")
}
