//! The GPU backend: WGSL kernels on Vulkan, Metal and DX12 through wgpu.
//!
//! **Purpose.** Runs segments of the graph on a GPU.
//!
//! **What it does not know.** Models, files, other devices, and the reasons for a placement.
//!
//! **Read first.** [`Caps`](caps::Caps), [`Device`](device::Device), [`kernels`].

mod adapter;
mod backend;
mod bandwidth;
mod cache;
pub mod caps;
mod counter;
pub mod decode;
pub mod device;
mod error;
pub mod kernel;
pub mod kernels;
mod memory;
mod patience;
mod pipeline_cache;
mod probe;
pub mod profiles;
mod program;
mod rate;
pub mod render;
#[cfg(test)]
#[path = "../../../tests/support/required.rs"]
mod required;
mod slots;
mod staging;
mod tiles;
mod unified;
mod vulkan;
mod weights;

pub use adapter::{Adapter, AdapterFacts, AdapterKind, adapters, find};
pub use backend::{Gpu, Opened, Options, facts};
pub use error::Error;
pub use pipeline_cache::Keep;
pub use weights::device_bytes;

/// Opens an adapter's device and determines its capabilities.
///
/// # Errors
/// No adapter matches, or its driver refuses.
pub fn open(wanted: Option<&str>, options: device::DeviceOptions) -> Result<device::Device, Error> {
    open_adapter(&find(wanted)?, options, None)
}

/// Opens the device of an adapter found before; `keeper` stores its driver's compiled pipelines.
///
/// # Errors
/// Its driver refuses.
pub fn open_adapter(
    adapter: &Adapter,
    options: device::DeviceOptions,
    keeper: Option<std::sync::Arc<dyn Keep>>,
) -> Result<device::Device, Error> {
    let device = device::Device::open(adapter, options, keeper)?;
    let device = match device.caps().dot4 && !probe::has_dot4(&device) {
        true => device.without_dot4(),
        false => device,
    };
    let subgroup = match options.subgroups {
        true => probe::subgroup(adapter, &device),
        false => Ok(None),
    };
    let refused = |error: bilayer_graph::Error| Error::Open {
        adapter: adapter.facts().name.clone(),
        reason: error.to_string(),
    };
    // A driver that refuses the probe alone has a device that goes on without subgroups.
    let subgroup = match subgroup {
        Err(_) if device.check().is_ok() => None,
        found => found.map_err(refused)?,
    };
    let device = device.with_subgroup(subgroup).with_counter().map_err(refused)?;
    // A software adapter computes matrices in no fewer instructions than other products.
    let edge = adapter.coop_edge().filter(|_| options.subgroups && !device.caps().software);
    let coop = edge.and_then(|edge| probe::coop(&device, options.coop_edge.unwrap_or(edge)));
    Ok(device.with_coop(coop))
}
