//! Warnings to the caller: what happened while the session continues.

use std::time::Duration;

/// Warnings to the caller when the session continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A device failed while the session was prepared, so less was placed on it.
    Reduced {
        /// Its error.
        error: bilayer_graph::Error,
        /// The placement tried, in one line.
        from: String,
        /// The placement tried instead.
        to: String,
    },
    /// The values of a step were too large for a device, so steps have fewer tokens.
    SmallerSteps {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device had no memory for streamed weights, or was lost before it had them, so prompts run where the layers are
    /// placed.
    NotStreamed {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device had no memory for resident experts, or was lost before it had them, so the CPU has all that are not on it by
    /// their layers.
    NotCached {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device did not take an expert's weights, so its resident experts stay as they are, and the CPU has the one whose place
    /// they should have taken.
    NotExchanged {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device's compiler rejected a kernel, so simpler ones compute.
    Simplified {
        /// Its name.
        device: String,
        /// The kernel, and the compiler's message.
        reason: String,
    },
    /// A device failed while the session ran, so its layers moved to other devices.
    Moved {
        /// Its error.
        error: bilayer_graph::Error,
        /// The previous placement, in one line.
        from: String,
        /// The placement now.
        to: Relocated,
        /// Tokens whose keys and values were recomputed.
        tokens: usize,
        /// Duration of the move.
        took: Duration,
    },
    /// A warning of the session that drafts.
    Draft(Box<Warning>),
    /// A drafter failed, so the rest of the answer is made without draft tokens.
    NotDrafted {
        /// Its error.
        reason: String,
    },
}

/// Where a session continues after it lost a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relocated {
    /// Only on the host.
    Host,
    /// On the host and the remaining devices, in the placement of this map.
    Others(String),
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Reduced { error, from, to } => {
                write!(f, "{error}; instead of {from} the placement is {to}")
            }
            Warning::SmallerSteps { error } => write!(f, "{error}; steps are no larger"),
            Warning::NotStreamed { error } => {
                write!(f, "{error}; weights are not streamed to it, so prompts take longer")
            }
            Warning::NotCached { error } => {
                write!(f, "{error}; no experts are resident there, so the CPU computes all of them")
            }
            Warning::NotExchanged { error } => {
                write!(f, "{error}; resident experts are not exchanged any further")
            }
            Warning::Simplified { device, reason } => {
                write!(
                    f,
                    "{device} rejected {reason}; simpler kernels, perhaps slower, compute instead"
                )
            }
            Warning::Moved { error, from, to, tokens, took } => {
                let now = match to {
                    Relocated::Host => "all runs on the CPU".to_owned(),
                    Relocated::Others(map) => format!("the placement is {map}"),
                };
                let seconds = took.as_secs_f64();
                write!(
                    f,
                    "{error}; instead of {from} {now} now ({tokens} tokens computed again in {seconds:.2} s)"
                )
            }
            Warning::Draft(warning) => write!(f, "draft: {warning}"),
            Warning::NotDrafted { reason } => {
                write!(f, "draft: {reason}; the rest of the answer is made without draft tokens")
            }
        }
    }
}
