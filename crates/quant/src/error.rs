//! Errors about types, sizes and buffers.

use crate::Type;

/// An error of this crate. None depends on the contents of a block: any bytes are a valid block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A tensor directory names a type by a number that is not in the table.
    #[error("tensor type id {id} is not supported (removed, internal, or newer than this build)")]
    UnknownId {
        /// The number found.
        id: u32,
    },
    /// The type's name is not in the table.
    #[error("`{name}` is no quantization type; known are {}", names())]
    UnknownName {
        /// The requested name.
        name: String,
    },
    /// A row or buffer ends inside a block.
    #[error("{weights} weights are not whole {quant} blocks of {}", quant.block_weights)]
    PartialBlock {
        /// The type of the blocks.
        quant: Type,
        /// The number of weights given.
        weights: usize,
    },
    /// The size of a row in bytes exceeds the address space.
    #[error("a {quant} row of {weights} weights is larger than memory can address")]
    TooLarge {
        /// The type of the row.
        quant: Type,
        /// Its length in weights.
        weights: usize,
    },
    /// A buffer's length does not match the values.
    #[error("{quant}: the {what} buffer has length {found}, but {expected} is needed")]
    Length {
        /// The type being read or written.
        quant: Type,
        /// `bytes`, `values` or `importance`.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The length given.
        found: usize,
    },
    /// The type can be read but not quantized to.
    #[error("{0} can be read but not written; choose another type to quantize to")]
    ReadOnly(Type),
    /// A weight is infinite or NaN, which no block can represent.
    #[error("weight {index} is {value}, which {quant} cannot hold; the source tensor is damaged")]
    NotFinite {
        /// The type being written.
        quant: Type,
        /// Index of the weight.
        index: usize,
        /// The weight, as text.
        value: String,
    },
}

fn names() -> String {
    crate::all().iter().map(|t| t.name).collect::<Vec<_>>().join(", ")
}
