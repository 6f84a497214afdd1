//! Why there is no plan.

use crate::Bytes;

/// Errors of planning; nothing was loaded yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The machine has no device.
    #[error("there is no device to place the model on")]
    NoDevice,
    /// A device would hold more than it has.
    #[error(
        "{device} has room for {} but would hold {}: {} too much (weights {}, cache {}, activations {}); \
         a shorter context, a smaller batch or a smaller quantization needs less",
        Bytes(*.budget_bytes), Bytes(*.used_bytes), Bytes(.used_bytes - .budget_bytes),
        Bytes(*.weight_bytes), Bytes(*.kv_bytes), Bytes(*.activation_bytes)
    )]
    DoesNotFit {
        /// The device's label in the map.
        device: String,
        /// What it may hold.
        budget_bytes: u64,
        /// What it would hold.
        used_bytes: u64,
        /// Its weights.
        weight_bytes: u64,
        /// Its caches.
        kv_bytes: u64,
        /// Its activations and staging.
        activation_bytes: u64,
    },
    /// A device cannot run what was placed on it.
    #[error("{device} cannot run {what} (`{label}`); place it on another device")]
    Unsupported {
        /// The device's label in the map.
        device: String,
        /// The op and, where that is the reason, the weight type.
        what: String,
        /// The node.
        label: String,
    },
}
