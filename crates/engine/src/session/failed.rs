//! Failures of a step or of its preparation: which device failed, and whether the session can continue without it.

use bilayer_graph::Backend;

use crate::Error;

/// Why a device failed.
pub enum Failed {
    /// An error of a device.
    Device { device: usize, error: bilayer_graph::Error },
    /// Another error.
    Other(Error),
}

impl Failed {
    /// Marks an error as one of a device.
    pub fn on(device: usize) -> impl FnOnce(bilayer_graph::Error) -> Failed {
        move |error| Failed::Device { device, error }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Device { error, .. } => Error::Device(error),
            Failed::Other(error) => error,
        }
    }
}

/// Whether a device's failure can be handled by placing its layers elsewhere.
pub fn is_recoverable(backend: &dyn Backend, error: &bilayer_graph::Error) -> bool {
    use bilayer_graph::Error::{DeviceLost, OutOfMemory, StepTooLarge};
    let is_of_device =
        matches!(error, DeviceLost { .. } | OutOfMemory { .. } | StepTooLarge { .. });
    backend.facts().can_be_lost && is_of_device
}
