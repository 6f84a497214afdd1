//! Turns the user's placement options into a plan: devices, pinned weights, memory limits.

use std::collections::HashSet;

use bilayer_cpu::level::Level;
use bilayer_graph::{Facts, Graph, WeightId};
use bilayer_quant::Type;
use bilayer_scheduler::{
    Budget, Bytes, ExpertCache, Machine, Plan, Request, Times, mixtures, offload,
};
use bilayer_settings::Setting;
use regex::Regex;

use crate::expert_counts::{Learned, check_uses};
use crate::kept::Kept;
use crate::placing::of_gpu;
use crate::settings::{Settings, budget_of, limits_of};
use crate::times::Subject;
use crate::{Error, Model, devices};

pub use bilayer_cpu::level::Level as CpuLevel;
pub use bilayer_cpu::numa::Numa;

pub use crate::devices::{Adapter, Measured, Offloads, adapters, host, measured, open};
pub use crate::placing::{Placing, SplitMode};
pub use bilayer_simulate::{Error as SimulationError, Execution, Simulation, machine};

pub mod target;

/// Default memory left free on each GPU, for the desktop and the driver.
const MARGIN_BYTES: u64 = 1 << 30;

/// Bytes read to estimate the CPU's memory bandwidth.
const PROBE_BYTES: usize = 128 << 20;

/// The default margin is at most the device's memory divided by this.
const MARGIN_SHARE: u64 = 8;

impl Placing {
    /// Checks that no list names more GPUs than are in use, if there are any.
    fn check(&self, gpus: usize) -> Result<(), Error> {
        if gpus == 0 {
            return Ok(());
        }
        let lists = [
            (Setting::TensorSplit, self.tensor_split.len()),
            (Setting::GpuBytes, self.vram_bytes.len()),
            (Setting::MarginBytes, self.margin_bytes.len()),
        ];
        for (setting, len) in lists {
            if len > gpus.max(1) {
                let expected = format!("a list of at most {gpus}, one for each GPU in use");
                return Err(Error::setting(setting, format!("a list of {len}"), expected));
            }
        }
        if let Some((pattern, device)) = self.overrides.iter().find(|(_, device)| *device > gpus) {
            let found = format!("{pattern}=gpu{}", device - 1);
            let expected = format!("at most gpu{}: {gpus} in use", gpus - 1);
            return Err(Error::setting(Setting::OverrideTensor, found, expected));
        }
        Ok(())
    }

    /// The scheduler request for a graph.
    ///
    /// # Errors
    /// An invalid regular expression.
    pub fn request(&self, graph: &Graph) -> Result<Request, Error> {
        let rules = self.rules()?;
        let experts: HashSet<WeightId> = graph
            .nodes
            .iter()
            .filter(|node| node.layer.is_some_and(|layer| layer < self.cpu_moe_layers))
            .filter(|node| graph.is_sparse(node))
            .flat_map(|node| node.op.weights())
            .collect();
        let pins = graph.weights.iter().filter_map(|weight| {
            let rule = rules.iter().find(|(regex, _)| regex.is_match(&weight.name));
            let device = rule.map(|(_, device)| *device);
            Some((weight.id, device.or(experts.contains(&weight.id).then_some(0))?))
        });
        Ok(Request {
            offload: self.gpu_layers,
            shares: self.tensor_split.clone(),
            pins: pins.collect(),
            cache_on_host: self.cache_on_cpu,
            op_offload: self.op_offload,
            experts: self.expert_cache,
            uses: self.expert_uses.clone(),
        })
    }

    /// The overrides as regular expressions and devices.
    fn rules(&self) -> Result<Vec<(Regex, usize)>, Error> {
        let rule = |(pattern, device): &(String, usize)| match Regex::new(pattern) {
            Ok(regex) => Ok((regex, *device)),
            Err(error) => {
                let expected = format!("a regular expression ({})", last_line(&error.to_string()));
                Err(Error::setting(Setting::OverrideTensor, pattern, expected))
            }
        };
        self.overrides.iter().map(rule).collect()
    }

    /// With the counts of experts that earlier runs of a model have learned, if they are wanted and none are given. Layers of
    /// which nothing was learned count their experts alike.
    pub(crate) fn with_learned(&self, model: &Model) -> Placing {
        let mut placing = self.clone();
        if placing.expert_uses.is_some() || placing.expert_cache == ExpertCache::Off {
            return placing;
        }
        placing.expert_uses = Learned::of(model, self).and_then(|learned| learned.uses());
        if let Some(uses) = &mut placing.expert_uses {
            for mixture in mixtures(model.graph()) {
                let Some(layer) = mixture.layer else { continue };
                let counts = uses.layers.entry(layer).or_default();
                if counts.len() != mixture.experts {
                    *counts = vec![1.0; mixture.experts];
                }
            }
        }
        placing
    }

    /// Checks that a graph has mixtures for resident experts, and that the counts are of it.
    fn check_experts(&self, graph: &Graph) -> Result<(), Error> {
        if matches!(self.expert_cache, ExpertCache::Off | ExpertCache::Bytes(0)) {
            return Ok(());
        }
        if graph.splits.is_empty() && mixtures(graph).is_empty() {
            let found = match self.expert_cache {
                ExpertCache::Bytes(bytes) => Bytes(bytes).to_string(),
                _ => "auto".to_owned(),
            };
            let expected = match graph.has_experts() {
                true => "0: the model's experts cannot be computed apart from each other",
                false => "0: the model has no experts",
            };
            return Err(Error::setting(Setting::ExpertCache, found, expected));
        }
        match &self.expert_uses {
            Some(uses) if graph.splits.is_empty() => check_uses(graph, uses),
            _ => Ok(()),
        }
    }

    /// The options that have no effect on a graph, and why.
    fn idle(&self, graph: &Graph, gpus: usize) -> Result<Vec<String>, Error> {
        let mut notes = Vec::new();
        for (regex, device) in self.rules()? {
            if !graph.weights.iter().any(|weight| regex.is_match(&weight.name)) {
                notes.push(format!(
                    "override-tensor: no tensor of the model matches `{regex}`; `bilayer inspect` lists their names"
                ));
            } else if device > 0 && gpus == 0 {
                notes.push(format!(
                    "override-tensor: no GPU is in use, so tensors that match `{regex}` stay on the CPU"
                ));
            }
        }
        let has_experts = graph.has_experts();
        if self.expert_cache != ExpertCache::Off && gpus == 0 {
            notes.push("expert-cache has no effect: no GPU is in use".to_owned());
        }
        if self.cpu_moe_layers > 0 && !has_experts {
            notes.push("cpu-moe has no effect: the model has no experts".to_owned());
        }
        Ok(notes)
    }

    /// The plan of a graph on devices, the first of which is the CPU.
    ///
    /// # Errors
    /// Those of [`Placing::request`]; lists that name more GPUs than are in use; a plan that does not fit.
    pub fn plan(&self, graph: &Graph, machine: &Machine, budget: &Budget) -> Result<Plan, Error> {
        let mut machine = machine.clone();
        let gpus = machine.devices.len() - 1;
        self.check(gpus)?;
        let mut margins = vec![0; gpus + 1];
        for (gpu, device) in machine.devices[1..].iter_mut().enumerate() {
            device.memory_bytes = of_gpu(&self.vram_bytes, gpu).unwrap_or(device.memory_bytes);
            let usual = MARGIN_BYTES.min(device.memory_bytes / MARGIN_SHARE);
            margins[gpu + 1] = self.margin_of(gpu).unwrap_or(usual);
        }
        margins[0] = margins.iter().copied().max().unwrap_or(0);
        // What another model has on a device that shares memory with the host is missing there, too.
        let taken_on = |place: usize| self.taken_bytes.get(place).copied().unwrap_or(0);
        let sharing =
            machine.devices.iter().enumerate().filter(|(_, facts)| facts.uses_host_memory);
        let shared: u64 = sharing.map(|(place, _)| taken_on(place)).sum();
        for (place, device) in machine.devices.iter_mut().enumerate() {
            let taken = taken_on(place) + if place == 0 { shared } else { 0 };
            let less = taken.saturating_add(margins[place]);
            device.memory_bytes = device.memory_bytes.saturating_sub(less);
        }
        self.check_experts(graph)?;
        let mut plan = offload(graph, &machine, budget, &self.request(graph)?)?;
        plan.notes.extend(self.idle(graph, gpus)?);
        if self.main_gpu.is_some() && self.split_mode == SplitMode::Layer && gpus > 1 {
            plan.notes.push("main-gpu has an effect only with split-mode none".to_owned());
        }
        Ok(plan)
    }
}

/// Memory of the requested GPUs, bytes: free memory if the driver reports it, else total memory.
pub fn gpu_bytes(placing: &Placing) -> Vec<u64> {
    let known = devices::facts(placing).map(|found| found.devices).unwrap_or_default();
    known.iter().map(|facts| facts.memory_bytes).collect()
}

/// The plan that a session with these settings would have on this machine, or on the `described` one. Nothing is
/// opened or loaded. Predicted speeds are based on stored times of this machine, or else estimated from bandwidths if these
/// are known.
///
/// # Errors
/// A setting out of range, a named GPU that is unavailable, a plan that does not fit.
pub fn plan(
    model: &Model,
    settings: &Settings<'_>,
    described: Option<Machine>,
) -> Result<Plan, Error> {
    let budget = budget_of(model, settings)?;
    let graph = settings.graph(model)?;
    let is_described = described.is_some();
    let (machine, notes) = machine_of(model, settings, described, &graph, &[])?;
    let mut plan = settings.placing.with_learned(model).plan(&graph, &machine, &budget)?;
    plan.notes.extend(notes);
    if !is_described {
        plan.notes.extend(numa_note(&settings.placing, settings.cpu_options(), &plan));
    }
    if plan.predicted.is_none() {
        let measured = if machine.devices.len() > 1 { ": the first run measures them" } else { "" };
        plan.notes.push(format!("speeds are not known yet{measured}"));
    }
    Ok(plan)
}

/// The machine with what is known of a graph's times on it, and notes about its devices. `others` are graphs that may be
/// planned on it as well.
fn machine_of(
    model: &Model,
    settings: &Settings<'_>,
    described: Option<Machine>,
    graph: &Graph,
    others: &[Graph],
) -> Result<(Machine, Vec<String>), Error> {
    let folder = settings.placing.kept.as_deref().filter(|_| described.is_none());
    let kept = folder.map(Kept::new);
    let (mut machine, notes) = match described {
        Some(machine) => (machine, Vec::new()),
        None => this_machine(settings, std::iter::once(graph).chain(others))?,
    };
    let subject = Subject { model, graph, limits: limits_of(settings, model) };
    let name = subject.name(machine.devices.iter());
    machine.times = kept
        .and_then(|kept| subject.known(machine.devices.len(), &name, &kept))
        .or_else(|| Times::estimated(graph, &machine));
    Ok((machine, notes))
}

/// Describes this machine without opening a GPU, for some graphs.
fn this_machine<'a>(
    settings: &Settings<'_>,
    graphs: impl Iterator<Item = &'a Graph>,
) -> Result<(Machine, Vec<String>), Error> {
    let options = settings.cpu_options();
    let placing = &settings.placing;
    let mut devices = vec![devices::host(placing, options)?.facts().clone()];
    let found = devices::facts(placing)?;
    let (mut notes, mut gpus) = (found.notes(), found.devices);
    if gpus.is_empty() && placing.offloads() && !placing.vram_bytes.is_empty() {
        let described = |&bytes| Facts::offload("gpu", "a GPU described by --vram", bytes);
        gpus.extend(placing.vram_bytes.iter().map(described));
        notes.clear();
    }
    devices.append(&mut gpus);
    if let [cpu] = &mut devices[..]
        && cpu.read_gbps.is_none()
    {
        let threads = cpu.threads;
        cpu.read_gbps = Some(bilayer_cpu::probe::read_gbps_of(threads, PROBE_BYTES));
        let shapes = largest_of_types(graphs);
        let level = options.level.unwrap_or_else(Level::detect);
        let gbps = bilayer_cpu::probe::kernel_gbps(&shapes, level, threads, PROBE_BYTES);
        cpu.kernel_gbps = shapes.into_iter().map(|(ty, _)| ty).zip(gbps).collect();
    }
    Ok((Machine::new(devices), notes))
}

/// The types of the matrices of graphs, each with the columns of the largest one.
fn largest_of_types<'a>(graphs: impl Iterator<Item = &'a Graph>) -> Vec<(Type, usize)> {
    let mut largest: Vec<(Type, usize, usize)> = Vec::new();
    let weights = graphs.flat_map(|graph| &graph.weights);
    for weight in weights.filter(|weight| !weight.is_vector()) {
        let size = weight.rows * weight.cols;
        match largest.iter_mut().find(|(ty, ..)| *ty == weight.ty) {
            Some((_, cols, most)) if *most < size => (*cols, *most) = (weight.cols, size),
            Some(_) => {}
            None => largest.push((weight.ty, weight.cols, size)),
        }
    }
    largest.into_iter().map(|(ty, cols, _)| (ty, cols)).collect()
}

/// What a plan says of the NUMA nodes of this machine, if the options ask for them.
pub(crate) fn numa_note(
    placing: &Placing,
    options: bilayer_cpu::Options,
    plan: &Plan,
) -> Option<String> {
    if options.numa == Numa::Off || placing.simulated.is_some() {
        return None;
    }
    let nodes = options.nodes();
    if !nodes.is_divided() {
        let numa = options.numa;
        return Some(format!("numa {numa}: all threads are in one NUMA node, nothing is divided"));
    }
    let threads: usize = nodes.iter().map(|node| node.threads).sum();
    let weight_bytes = plan.devices.first().map_or(0, |host| host.weight_bytes);
    let each = nodes.iter().map(|node| {
        let bytes = weight_bytes / threads as u64 * node.threads as u64;
        let plural = if node.threads == 1 { "" } else { "s" };
        format!("node {} {}, {} thread{plural}", node.number, Bytes(bytes), node.threads)
    });
    let each: Vec<String> = each.collect();
    let simulated = if matches!(options.numa, Numa::Simulate(_)) { "simulated " } else { "" };
    Some(format!(
        "the CPU's weights are copied to {} {simulated}NUMA nodes: {}",
        nodes.count(),
        each.join("; ")
    ))
}

fn last_line(message: &str) -> &str {
    message.lines().last().unwrap_or_default().trim()
}
