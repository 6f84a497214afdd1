//! Errors of planning.

use std::fmt::{self, Display};

use bilayer_settings::{Phrase, Setting};

use crate::Bytes;

/// Errors of planning, before anything is loaded: `{:#}` names settings as programs do, in place of flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The machine has no device, or lacks the one that a part is placed on.
    #[error("there is no device to place the model on")]
    NoDevice,
    /// The placement exceeds a device's memory.
    #[error(fmt = does_not_fit)]
    DoesNotFit {
        /// The device and its sizes.
        what: Excess,
        /// The largest number of parts that fits on the GPU; `None` if not computed.
        largest: Option<u32>,
    },
    /// The experts that are asked for exceed a device's memory.
    #[error(fmt = cache_does_not_fit)]
    CacheDoesNotFit {
        /// The device and its sizes.
        what: Excess,
        /// The largest cache that fits, bytes; 0 if none does.
        largest: u64,
    },
    /// A device does not support an op placed on it.
    #[error("{device} cannot run {what} (`{label}`); place it on another device")]
    Unsupported {
        /// The device's label in the map.
        device: String,
        /// The op and, if that is the reason, the weight type.
        what: String,
        /// The node.
        label: String,
    },
}

/// Memory required and available on one device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} has room for {} but would hold {}: {} too much (weights {}, cache {}, {}activations {})",
    Bytes(*.budget_bytes), Bytes(*.used_bytes), Bytes(.used_bytes - .budget_bytes),
    Bytes(*.weight_bytes), Bytes(*.kv_bytes), of_states(*.state_bytes),
    Bytes(*.activation_bytes)
)]
pub struct Excess {
    /// The device's label in the map.
    pub device: String,
    /// Its budget.
    pub budget_bytes: u64,
    /// The memory required.
    pub used_bytes: u64,
    /// Its weights.
    pub weight_bytes: u64,
    /// Its caches.
    pub kv_bytes: u64,
    /// Its states of sequences.
    pub state_bytes: u64,
    /// Its activations and staging.
    pub activation_bytes: u64,
}

/// The size of states, if there are any.
fn of_states(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!("states {}, ", Bytes(bytes)),
    }
}

fn does_not_fit(what: &Excess, largest: &Option<u32>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shorter = |phrase: Phrase| {
        let phrase = phrase.noun("context", Setting::Context).text(" or a smaller ");
        phrase.noun("batch", Setting::UbatchSize)
    };
    let advice = match largest {
        Some(0) => {
            let none = Phrase::from("nothing fits there: use ").value(Setting::GpuLayers, 0);
            shorter(none.text(", a shorter "))
        }
        Some(count) => {
            let most = Phrase::default().value(Setting::GpuLayers, count);
            shorter(most.text(" fits, as does more with a shorter "))
        }
        None => "a shorter context, a smaller batch or a smaller quantization needs less".into(),
    };
    write!(f, "{what}; ")?;
    advice.fmt(f)
}

fn cache_does_not_fit(what: &Excess, largest: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let cache = |before: &str| Phrase::from(before).setting(Setting::ExpertCache);
    let advice = match largest {
        0 => cache("no ").text(" fits beside what else is placed there"),
        // Rounded down.
        bytes => cache("").text(&format!(" {}MiB fits", bytes >> 20)),
    };
    write!(f, "{what}; ")?;
    advice.fmt(f)
}
