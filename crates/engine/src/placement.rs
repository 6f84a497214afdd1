//! What the user asks of placement, resolved: which devices there are, which weights are pinned, and the plan.

use std::collections::HashSet;
use std::path::PathBuf;
#[cfg(feature = "gpu")]
use std::sync::Arc;

use bilayer_cpu::Cpu;
use bilayer_graph::{Backend, Facts, Graph, Op, WeightId};
use bilayer_scheduler::{Budget, Machine, Offload, Plan, Request, Side, Times, offload};
use regex::Regex;

use crate::kept::Kept;
use crate::session::{Settings, budget_of, limits_of};
use crate::times::Subject;
use crate::{Error, Model};

/// Kept free on an adapter where nothing else is asked: the desktop and the driver want some.
const MARGIN_BYTES: u64 = 1 << 30;

/// Bytes that are read to estimate a processor's speed.
const PROBE_BYTES: usize = 128 << 20;

/// The margin is at most this part of the adapter's memory.
const MARGIN_SHARE: u64 = 8;

/// What is asked of placement; names are the command line's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placing {
    /// How much goes to the adapter.
    pub gpu_layers: Offload,
    /// Tensors whose names match a regular expression run on a given side.
    pub overrides: Vec<(String, Side)>,
    /// Expert tensors of so many first layers stay on the processor.
    pub cpu_moe_layers: u32,
    /// Caches and attention stay on the processor.
    pub cache_on_cpu: bool,
    /// Which adapter: a number, `software`, or a part of a name. Without it the best that is no software adapter.
    pub device: Option<String>,
    /// Memory that the adapter counts as having.
    pub vram_bytes: Option<u64>,
    /// Memory left free on the adapter.
    pub margin_bytes: Option<u64>,
    /// Memory of the processor and of the adapter that others take.
    pub taken_bytes: [u64; 2],
    /// Folder of what is kept from run to run: what drivers compiled, what was measured. Without it nothing is.
    pub kept: Option<PathBuf>,
    /// Whether times that are kept are measured anew.
    pub remeasure: bool,
}

impl Placing {
    /// Everything on the processor.
    pub fn processor() -> Placing {
        Placing { gpu_layers: Offload::Count(0), ..Placing::default() }
    }

    /// The same for a model beside one that was placed already, when the adapter had `memory_bytes`: not every driver
    /// tells what is left by now.
    #[must_use]
    pub fn beside(self, other: &Plan, memory_bytes: Option<u64>) -> Placing {
        let mut taken_bytes = self.taken_bytes;
        for (taken, device) in taken_bytes.iter_mut().zip(&other.devices) {
            *taken += device.used_bytes;
        }
        Placing { vram_bytes: self.vram_bytes.or(memory_bytes), taken_bytes, ..self }
    }

    /// Whether an adapter is looked for at all.
    fn wants_adapter(&self) -> bool {
        let none = matches!(self.gpu_layers, Offload::Count(0) | Offload::Percent(0));
        !none || self.overrides.iter().any(|(_, side)| *side == Side::Device)
    }

    /// The request to the scheduler for a graph.
    ///
    /// # Errors
    /// An expression that is none.
    pub fn request(&self, graph: &Graph) -> Result<Request, Error> {
        let mut rules = Vec::new();
        for (pattern, side) in &self.overrides {
            let regex = Regex::new(pattern).map_err(|error| Error::Setting {
                name: "override-tensor",
                found: pattern.clone(),
                expected: format!("a regular expression ({})", last_line(&error.to_string())),
            })?;
            rules.push((regex, *side));
        }
        let experts: HashSet<WeightId> = graph
            .nodes
            .iter()
            .filter(|node| node.layer.is_some_and(|layer| layer < self.cpu_moe_layers))
            .filter(|node| matches!(node.op, Op::Experts(_)))
            .flat_map(|node| node.op.weights())
            .collect();
        let pins = graph.weights.iter().filter_map(|weight| {
            let rule = rules.iter().find(|(regex, _)| regex.is_match(&weight.name));
            rule.map(|(_, side)| *side)
                .or(experts.contains(&weight.id).then_some(Side::Host))
                .map(|side| (weight.id, side))
        });
        Ok(Request {
            offload: self.gpu_layers,
            pins: pins.collect(),
            cache_on_host: self.cache_on_cpu,
        })
    }

    /// The plan of a graph on devices, the first of which is the processor.
    ///
    /// # Errors
    /// As [`Placing::request`]; a plan that does not fit.
    pub fn plan(&self, graph: &Graph, machine: &Machine, budget: &Budget) -> Result<Plan, Error> {
        let mut machine = machine.clone();
        let mut budget = *budget;
        if let Some(adapter) = machine.devices.get_mut(1) {
            if let Some(bytes) = self.vram_bytes {
                adapter.memory_bytes = bytes;
            }
            let usual = MARGIN_BYTES.min(adapter.memory_bytes / MARGIN_SHARE);
            budget.margin_bytes = self.margin_bytes.unwrap_or(usual);
        }
        for (device, taken) in machine.devices.iter_mut().zip(self.taken_bytes) {
            device.memory_bytes = device.memory_bytes.saturating_sub(taken);
        }
        Ok(offload(graph, &machine, &budget, &self.request(graph)?)?)
    }
}

/// The adapter that is asked for, open; `None` with the reason where the processor does it all.
///
/// # Errors
/// An adapter was named, or layers were asked for by number, and there is none.
pub fn adapter(placing: &Placing) -> Result<Result<Box<dyn Backend>, String>, Error> {
    if !placing.wants_adapter() {
        return Ok(Err(String::new()));
    }
    match open(placing) {
        Ok(backend) => Ok(Ok(backend)),
        Err(error) if placing.device.is_some() => Err(error),
        Err(error) => Ok(Err(format!("{error}; all runs on the processor"))),
    }
}

#[cfg(feature = "gpu")]
fn open(placing: &Placing) -> Result<Box<dyn Backend>, Error> {
    let device = placing.device.clone();
    let keeper = placing
        .kept
        .as_deref()
        .map(|folder| -> Arc<dyn bilayer_gpu::Keep> { Arc::new(crate::kept::Kept::new(folder)) });
    let options = bilayer_gpu::Options { device, keeper, ..bilayer_gpu::Options::default() };
    Ok(Box::new(bilayer_gpu::Gpu::open(&options)?))
}

#[cfg(not(feature = "gpu"))]
fn open(_: &Placing) -> Result<Box<dyn Backend>, Error> {
    Err(Error::NoAdapters)
}

/// What is known of the adapter that is asked for, without opening it.
#[cfg(feature = "gpu")]
fn facts(placing: &Placing) -> Result<Facts, Error> {
    Ok(bilayer_gpu::facts(placing.device.as_deref())?)
}

#[cfg(not(feature = "gpu"))]
fn facts(_: &Placing) -> Result<Facts, Error> {
    Err(Error::NoAdapters)
}

/// Memory of the adapter that is asked for, free as far as its driver tells; `None` where there is none.
pub fn adapter_bytes(placing: &Placing) -> Option<u64> {
    let facts = placing.wants_adapter().then(|| facts(placing).ok())?;
    facts.map(|facts| facts.memory_bytes)
}

/// An adapter that only its memory is known of.
fn described(mut like: Facts) -> Facts {
    like.name = "an adapter described by --vram".to_owned();
    like.kind = bilayer_graph::Kind::Gpu;
    like
}

/// The plan that a session with these settings would have on this machine, or on one that is described; nothing is
/// opened or loaded. What it says of speed is what was measured before, or else an estimate where there is a base for
/// one.
///
/// # Errors
/// A setting out of range, an adapter that was named and is not there, a plan that does not fit.
pub fn plan(
    model: &Model,
    settings: &Settings<'_>,
    described: Option<Machine>,
) -> Result<Plan, Error> {
    let budget = budget_of(model, settings)?;
    let graph = settings.graph(model)?;
    let (mut machine, notes) = match described {
        Some(machine) => (machine, Vec::new()),
        None => this_machine(settings)?,
    };
    let kept = settings.placing.kept.as_deref().map(Kept::new);
    let subject = Subject { model, graph: &graph, limits: limits_of(settings, model) };
    let name = subject.name(machine.devices.iter());
    machine.times = kept
        .and_then(|kept| subject.known(machine.devices.len(), &name, &kept))
        .or_else(|| Times::estimated(&graph, &machine));
    let mut plan = settings.placing.plan(&graph, &machine, &budget)?;
    plan.notes.extend(notes);
    if plan.predicted.is_none() {
        plan.notes.push("speeds are not known yet: the first run measures them".to_owned());
    }
    Ok(plan)
}

/// What is known of this machine without opening an adapter.
fn this_machine(settings: &Settings<'_>) -> Result<(Machine, Vec<String>), Error> {
    let options = bilayer_cpu::Options { threads: settings.threads, level: settings.cpu_level };
    let cpu = Cpu::new(options)?;
    let mut devices = vec![cpu.facts().clone()];
    let mut notes = Vec::new();
    if settings.placing.wants_adapter() {
        match facts(&settings.placing) {
            Ok(facts) => devices.push(facts),
            Err(error) if settings.placing.device.is_some() => return Err(error),
            Err(_) if settings.placing.vram_bytes.is_some() => {
                devices.push(described(cpu.facts().clone()));
            }
            Err(error) => notes.push(format!("{error}; all runs on the processor")),
        }
    }
    if let [cpu] = &mut devices[..] {
        cpu.read_gbps = Some(bilayer_cpu::probe::read_gbps_of(cpu.threads, PROBE_BYTES));
    }
    Ok((Machine::new(devices), notes))
}

/// 10^9 bytes a second that kernels of an adapter read, by its number in [`adapters`]: opens it, which takes a second or
/// two. `None` where that fails.
#[cfg(feature = "gpu")]
pub fn read_gbps(number: usize) -> Option<f64> {
    bilayer_gpu::read_gbps(Some(&number.to_string())).ok()
}

/// Of no adapter.
#[cfg(not(feature = "gpu"))]
pub fn read_gbps(_number: usize) -> Option<f64> {
    None
}

/// Adapters, the best first; none without the feature `gpu`.
#[cfg(feature = "gpu")]
pub fn adapters() -> Vec<AdapterFacts> {
    let adapters = bilayer_gpu::adapters().into_iter();
    let known = adapters.map(|a| AdapterFacts {
        name: a.name,
        backend: a.api.to_owned(),
        kind: a.kind.name().to_owned(),
        driver: a.driver,
        memory_bytes: a.memory_bytes,
        free_bytes: a.free_bytes,
        unified: a.unified,
        features: a.features,
    });
    known.collect()
}

/// Adapters, the best first; none without the feature `gpu`.
#[cfg(not(feature = "gpu"))]
pub fn adapters() -> Vec<AdapterFacts> {
    Vec::new()
}

/// What is known of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFacts {
    /// The driver's name for it.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// `discrete`, `integrated`, `virtual`, `other` or `software`.
    pub kind: String,
    /// The driver with its version.
    pub driver: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of it that are free, where the driver tells.
    pub free_bytes: Option<u64>,
    /// Whether it shares the host's memory.
    pub unified: bool,
    /// Which features that we use it has.
    pub features: Vec<String>,
}

fn last_line(message: &str) -> &str {
    message.lines().last().unwrap_or_default().trim()
}
