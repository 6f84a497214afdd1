//! The devices of this machine, with what they read a second.

use bilayer_cpu::host::Topology;
use bilayer_cpu::{Cpu, Options, probe};
use bilayer_engine::placement::{Adapter, Measured, adapters, measured};
use bilayer_graph::Backend;

pub use bilayer_cpu::host::Node;

use crate::Error;

/// The CPU as this process may use it.
#[derive(Clone, Debug)]
pub struct Host {
    /// The instruction level of its kernels.
    pub level: String,
    /// Threads, one for each physical core.
    pub threads: usize,
    /// Free memory, bytes.
    pub memory_bytes: u64,
    /// What its threads read from memory, 10^9 bytes a second.
    pub read_gbps: f64,
    /// Its NUMA nodes.
    pub nodes: Vec<Node>,
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// What its driver says of it.
    pub adapter: Adapter,
    /// What was measured; `None` if that failed, or was not wanted.
    pub measured: Option<Measured>,
}

/// The devices of this machine.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The CPU.
    pub cpu: Host,
    /// The GPUs, in the order of their numbers.
    pub gpus: Vec<Gpu>,
}

/// Opens and measures the devices of this machine, which takes a second or two for each.
///
/// # Errors
/// Threads cannot be started.
pub fn devices() -> Result<Devices, Error> {
    let facts = Cpu::new(Options::default())?.facts().clone();
    let cpu = Host {
        level: facts.level,
        threads: facts.threads,
        memory_bytes: facts.memory_bytes,
        read_gbps: probe::read_gbps(facts.threads),
        nodes: Topology::of_this_process().nodes,
    };
    let gpu = |(number, adapter)| Gpu { adapter, measured: measured(number) };
    Ok(Devices { cpu, gpus: adapters().into_iter().enumerate().map(gpu).collect() })
}
