//! Why there is no plan.

use crate::Bytes;

/// Errors of planning; nothing was loaded yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The machine has no device, or not the one that a part is placed on.
    #[error("there is no device to place the model on")]
    NoDevice,
    /// A device would hold more than it has.
    #[error("{what}; {}", advice(.largest))]
    DoesNotFit {
        /// The device and its sizes.
        what: Excess,
        /// The most parts that fit on the adapter; `None` where that was not asked.
        largest: Option<u32>,
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

/// What one device would hold, and what it has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} has room for {} but would hold {}: {} too much (weights {}, cache {}, activations {})",
    Bytes(*.budget_bytes), Bytes(*.used_bytes), Bytes(.used_bytes - .budget_bytes),
    Bytes(*.weight_bytes), Bytes(*.kv_bytes), Bytes(*.activation_bytes)
)]
pub struct Excess {
    /// The device's label in the map.
    pub device: String,
    /// What it may hold.
    pub budget_bytes: u64,
    /// What it would hold.
    pub used_bytes: u64,
    /// Its weights.
    pub weight_bytes: u64,
    /// Its caches.
    pub kv_bytes: u64,
    /// Its activations and staging.
    pub activation_bytes: u64,
}

fn advice(largest: &Option<u32>) -> String {
    match largest {
        Some(0) => {
            "nothing fits there: use -ngl 0, a shorter context (-c) or a smaller batch (-ub)"
                .to_owned()
        }
        Some(count) => format!(
            "-ngl {count} fits, as does more with a shorter context (-c) or a smaller batch (-ub)"
        ),
        None => {
            "a shorter context, a smaller batch or a smaller quantization needs less".to_owned()
        }
    }
}
