//! What can go wrong between recording a graph and reading its result.

use bilayer_quant::Type;

use crate::OpKind;

/// Errors of recording and of backends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model file lacks a tensor the architecture needs.
    #[error("tensor `{name}` is missing: the file is not a complete model")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the metadata implies.
    #[error("tensor `{name}` has shape {found:?}, but the metadata implies {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// What the metadata implies, rightmost contiguous.
        expected: Vec<u64>,
        /// What the file holds.
        found: Vec<u64>,
    },
    /// A row does not consist of whole blocks.
    #[error("tensor `{name}` of type {ty} has rows of {cols} weights, which are not whole blocks")]
    TensorBlock {
        /// The tensor.
        name: String,
        /// Its type.
        ty: Type,
        /// Its row length.
        cols: u64,
    },
    /// The experts of a layer, each a tensor of its own, are not all of one type.
    #[error(
        "tensor `{name}` is of type {found}, but the other experts of its layer are {expected}"
    )]
    StackType {
        /// The first that differs.
        name: String,
        /// The type of the first.
        expected: Type,
        /// Its type.
        found: Type,
    },
    /// A gain or bias is block-quantized.
    #[error("tensor `{name}` is a vector and must be F32, F16 or BF16, not {found}")]
    VectorType {
        /// The tensor.
        name: String,
        /// Its type.
        found: Type,
    },
    /// A backend cannot run an op or a type.
    #[error("{device} cannot run {op:?} with {what}; place it on another device")]
    Unsupported {
        /// The device.
        device: String,
        /// The op.
        op: OpKind,
        /// The type or property it lacks.
        what: String,
    },
    /// A weight's bytes have another length than its shape needs.
    #[error("weight `{name}` needs {expected} bytes, got {found}")]
    WeightBytes {
        /// The weight.
        name: String,
        /// Bytes its shape and type need.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A segment was compiled before one of its weights was loaded.
    #[error("weight `{name}` was not loaded on {device}")]
    WeightNotLoaded {
        /// The weight.
        name: String,
        /// The device.
        device: String,
    },
    /// A step is larger than the segment was compiled for.
    #[error("a step with {found} {what} is over the limit of {limit}")]
    Limit {
        /// What is too many: tokens, outputs, pages, sequences.
        what: &'static str,
        /// The compiled limit.
        limit: usize,
        /// What the step has.
        found: usize,
    },
    /// The device has no room.
    #[error("{device} is out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was to be allocated.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// An op made a NaN or an infinity ([`crate::Limits::check`]).
    #[error("{op} (`{label}`) made a value that is not finite")]
    NotFinite {
        /// The node's label, with its layer.
        label: String,
        /// The op's stem.
        op: &'static str,
    },
    /// The device stopped working; its layers must move elsewhere.
    #[error("{device} was lost: {reason}")]
    DeviceLost {
        /// The device.
        device: String,
        /// What the driver says.
        reason: String,
    },
}
