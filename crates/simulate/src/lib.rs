//! A simulated machine: devices of given memory, bandwidth, compute and latencies, on a clock of their own.
//!
//! **Purpose.** A [`Device`] passes every call to a backend that computes, and charges what the call would take on the
//! described hardware to a [`Clock`](bilayer_graph::Clock) that only simulated devices advance. A session on such
//! devices runs the same code as on real ones, so schedules and predictions can be checked without the hardware,
//! exactly, and on any machine. With [`Execution::ScheduleOnly`] nothing is computed or stored, so a model of any size
//! can be scheduled.
//!
//! **What it does not know.** Models, sessions, real devices. It reads no file.
//!
//! **Read first.** [`Simulation`], [`Device`], [`machine`].
//!
//! ```
//! use bilayer_graph::Backend;
//! use bilayer_simulate::{Execution, Simulation, machine};
//!
//! let machine = machine(
//!     r#"
//!     [cpu]
//!     name = "16 cores"
//!     memory = "64GiB"
//!     read_gbps = 65
//!     tops = 2
//!     "#,
//! )?;
//! let simulation = Simulation::new(machine, Execution::ScheduleOnly)?;
//! let host = simulation.device(0, None);
//! assert_eq!(host.facts().name, "16 cores");
//! # Ok::<(), bilayer_simulate::Error>(())
//! ```

mod costs;
mod description;
mod device;
mod idle;
mod simulation;

pub use description::machine;
pub use device::Device;
pub use simulation::{Execution, Simulation};

/// Errors of describing a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a valid description; the message names the key.
    #[error("{0}")]
    Description(String),
    /// A figure without which a device cannot be simulated.
    #[error("{device} has no {key}, which a simulation needs")]
    Missing {
        /// The device's label: `cpu`, `gpu`, `gpu1`.
        device: String,
        /// The missing key of the description.
        key: &'static str,
    },
}
