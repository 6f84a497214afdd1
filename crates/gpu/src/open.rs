//! Opens an adapter: its device with what the probes found, the self-check, and the kernels that are chosen by measuring.

use std::sync::Arc;

use bilayer_graph::{Error as GraphError, Facts};
use bilayer_quant::Type;

use crate::Error;
use crate::adapter::{Adapter, find};
use crate::attention::ChosenAttention;
use crate::backend::{Gpu, Opened};
use crate::device::{Device, DeviceOptions};
use crate::kernels::weights::stored;
use crate::kernels::{self, matmul::takes_ints};
use crate::pipeline_cache::Keep;
use crate::rate::{DeviceRates, RATE_MIN};
use crate::{attention, decode, probe, tiles};

/// Options for opening a GPU backend.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The adapter: an index, `software`, or a part of a name. By default the best one that is not a software
    /// adapter.
    pub device: Option<String>,
    /// Restrictions on its kernels.
    pub kernels: DeviceOptions,
    /// Whether to skip the self-check at start.
    pub unchecked: bool,
    /// Storage for the driver's compiled pipelines across runs.
    pub keeper: Option<Arc<dyn Keep>>,
}

/// Opens an adapter's device and determines its capabilities.
///
/// # Errors
/// No adapter matches, or its driver refuses.
pub fn open(wanted: Option<&str>, options: DeviceOptions) -> Result<Device, Error> {
    open_adapter(&find(wanted)?, options, None)
}

/// Opens the device of an adapter found before; `keeper` stores its driver's compiled pipelines.
///
/// # Errors
/// Its driver refuses.
pub fn open_adapter(
    adapter: &Adapter,
    options: DeviceOptions,
    keeper: Option<Arc<dyn Keep>>,
) -> Result<Device, Error> {
    let device = Device::open(adapter, options, keeper)?;
    let device = match device.caps().dot4 && !probe::has_dot4(&device) {
        true => device.without_dot4(),
        false => device,
    };
    let subgroup = match options.subgroups {
        true => probe::subgroup(adapter, &device),
        false => Ok(None),
    };
    let refused = |error: GraphError| Error::Open {
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

impl Opened {
    /// Opens an adapter and runs the self-check.
    ///
    /// # Errors
    /// No adapter matches, its driver refuses, or its results are wrong.
    pub fn open(options: &Options) -> Result<Opened, Error> {
        let adapter = find(options.device.as_deref())?;
        let device = open_adapter(&adapter, options.kernels, options.keeper.clone())?;
        let facts = facts_of(&adapter);
        let keeper = options.keeper.as_deref();
        let kept = keeper.map(|keeper| (keeper, facts.identity.as_str()));
        let failed = |error: GraphError| Error::SelfCheck {
            adapter: facts.name.clone(),
            reason: error.to_string(),
        };
        let (device, rates) = match options.unchecked {
            true => (device, DeviceRates::of_products(RATE_MIN)),
            false => {
                probe::check(&device)?;
                let (tile, products) = tiles::choose(&device, options.kernels, kept)?;
                with_attention(device.with_tile(tile), products, kept).map_err(failed)?
            }
        };
        let opened = Opened::new(device, facts.clone(), rates, options.kernels.rate);
        let device = opened.device();
        let caps = device.caps();
        if options.unchecked || !device.is_hardware() || !(caps.few.emits || caps.dot4) {
            return Ok(opened);
        }
        let choice = decode::choose(&opened, kept).map_err(failed)?;
        Ok(opened.with(choice))
    }
}

/// A device with the attention that is chosen for it, and its rates.
fn with_attention(
    device: Device,
    products: f64,
    kept: Option<(&dyn Keep, &str)>,
) -> Result<(Device, DeviceRates), GraphError> {
    let device = if probe::attends(&device) { device } else { device.without_coop_attention() };
    let assumed = DeviceRates::of_products(products);
    let choice = match device.is_hardware() {
        true => attention::choose(&device, kept)?,
        false => None,
    };
    let Some(ChosenAttention { coop, rates }) = choice else { return Ok((device, assumed)) };
    let device = if coop { device } else { device.without_coop_attention() };
    Ok((device, DeviceRates { attention: rates, ..assumed }))
}

impl Gpu {
    /// Opens an adapter for a single backend.
    ///
    /// # Errors
    /// Those of [`Opened::open`].
    pub fn open(options: &Options) -> Result<Gpu, Error> {
        Ok(Opened::open(options)?.backend())
    }
}

/// Properties of an adapter before it is opened.
///
/// # Errors
/// There is no such adapter.
pub fn facts(device: Option<&str>) -> Result<Facts, Error> {
    Ok(facts_of(&find(device)?))
}

fn facts_of(adapter: &Adapter) -> Facts {
    let (facts, caps) = (adapter.facts(), adapter.caps());
    let types = bilayer_quant::all().iter().copied();
    Facts {
        level: facts.api.to_owned(),
        ops: kernels::ops(),
        converted: converted(),
        quantized: types.filter(|&ty| takes_ints(&caps, stored(ty))).collect(),
        shares_memory: caps.unified
            && adapter.raw().features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
        uses_host_memory: caps.unified && facts.is_of_host(caps.vendor),
        identity: format!("{} {}", facts.name, facts.driver),
        ..Facts::offload("gpu", facts.name.clone(), facts.free_bytes.unwrap_or(facts.memory_bytes))
    }
}

/// Types without a shader, and what they are stored as.
fn converted() -> Vec<(Type, Type)> {
    let types = bilayer_quant::all().iter().map(|&ty| (ty, stored(ty)));
    types.filter(|(ty, stored)| ty != stored).collect()
}
