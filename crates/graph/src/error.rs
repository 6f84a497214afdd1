//! Errors between recording a graph and reading its result.

use std::any::Any;

use bilayer_quant::Type;

use crate::OpKind;

/// Errors of recording and of backends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model file lacks a required tensor.
    #[error("tensor `{name}` is missing: the file is not a complete model")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor `{name}` has shape {found:?}, but the metadata implies {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// The shape implied by the metadata, rightmost contiguous.
        expected: Vec<u64>,
        /// The shape in the file.
        found: Vec<u64>,
    },
    /// A row is not a whole number of blocks.
    #[error("tensor `{name}` of type {ty} has rows of {cols} weights, which are not whole blocks")]
    TensorBlock {
        /// The tensor.
        name: String,
        /// Its type.
        ty: Type,
        /// Its row length.
        cols: u64,
    },
    /// The experts of a layer are separate tensors of different types.
    #[error(
        "tensor `{name}` is of type {found}, but the other experts of its layer are {expected}"
    )]
    StackType {
        /// The first differing tensor.
        name: String,
        /// The type of the first tensor.
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
    /// A part of a vector does not begin at a multiple of its length.
    #[error(
        "tensor `{name}`: a bias of fused matrices with different numbers of rows is not \
         supported (elements {first} to {end})"
    )]
    VectorPart {
        /// The tensor.
        name: String,
        /// First element of the part.
        first: usize,
        /// Its end.
        end: usize,
    },
    /// A backend does not support an op or a type.
    #[error("{device} cannot run {op:?} with {what}; place it on another device")]
    Unsupported {
        /// The device.
        device: String,
        /// The op.
        op: OpKind,
        /// The unsupported type or property.
        what: String,
    },
    /// A weight's bytes do not match its shape.
    #[error("weight `{name}` needs {expected} bytes, got {found}")]
    WeightBytes {
        /// The weight.
        name: String,
        /// The expected number of bytes.
        expected: usize,
        /// The number of bytes passed.
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
    /// A segment has more steps than a device can run.
    #[error(
        "the model has too many layers for {device}: {found} steps, where at most {most} can run"
    )]
    TooDeep {
        /// The device.
        device: String,
        /// The number of its steps.
        found: usize,
        /// The most that it can run.
        most: usize,
    },
    /// A step exceeds the limits that the segment was compiled for.
    #[error("a step with {found} {what} is over the limit of {limit}")]
    Limit {
        /// The exceeded quantity: tokens, outputs, pages, sequences.
        what: &'static str,
        /// The compiled limit.
        limit: usize,
        /// The number in the step.
        found: usize,
    },
    /// The values of a step are more than a kernel of the device can read or write at once.
    #[error("a step of {found} tokens is too large for {device}, which computes at most {most}")]
    StepTooLarge {
        /// The device.
        device: String,
        /// The limit that the segment should be compiled for.
        found: usize,
        /// A limit that it can be compiled for.
        most: usize,
    },
    /// The device is out of memory.
    #[error("{device} is out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The purpose of the allocation.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// An op computed a NaN or infinity ([`crate::Limits::check`]).
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
        /// The driver's message.
        reason: String,
    },
}

/// The message of a panic that [`std::panic::catch_unwind`] caught.
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_has_the_text_of_either_kind_or_none() {
        let of = |work: fn()| std::panic::catch_unwind(work).unwrap_err();
        assert_eq!(panic_text(of(|| panic!("plain")).as_ref()), "plain");
        assert_eq!(panic_text(of(|| panic!("{} parts", 2)).as_ref()), "2 parts");
        assert_eq!(panic_text(of(|| std::panic::panic_any(7)).as_ref()), "no message");
    }
}
