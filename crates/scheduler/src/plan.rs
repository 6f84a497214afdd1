//! The plan: what runs where, the memory of each device, and its printed form.

use std::collections::BTreeSet;
use std::fmt;

use bilayer_graph::{CacheId, Facts, Graph, Op, StateId, Value};
use serde::Serialize;

use crate::bytes::sum;
use crate::machine::HOST;
use crate::memory::{activation_bytes, staging_bytes, weight_bytes, weights};
use crate::{
    Budget, Bytes, Error, Excess, ExpertPlan, Machine, Placement, PlannedSegment, Predicted,
    Streaming, cut,
};

/// A placed model that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The placement in one line: `out:gpu 31-12:gpu 11-0:cpu`.
    pub map: String,
    /// Label of the device of the embedding.
    pub embedding: String,
    /// Label of the device of the head.
    pub output: String,
    /// Each layer.
    pub layers: Vec<LayerPlan>,
    /// Each device of the machine, in its order.
    pub devices: Vec<DevicePlan>,
    /// The segments, in order.
    pub segments: Vec<PlannedSegment>,
    /// Offloaded parts, as `-ngl` counts them.
    pub gpu_layers: u32,
    /// The largest number that fits.
    pub max_gpu_layers: u32,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Why weights are read from the file again and again, if the host has too little memory for them; one of the notes.
    /// Predictions assume that it has enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rereads: Option<String>,
    /// Predicted step times, if known.
    pub predicted: Option<Predicted>,
    /// Prefill with streamed weights, if planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<Streaming>,
    /// Experts on a device beside those with the host, if planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertPlan>,
    /// The input of the plan.
    #[serde(skip)]
    pub placement: Placement,
    /// The model's result, an output of the last segment.
    #[serde(skip)]
    pub logits: Value,
}

/// One layer's placement and size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerPlan {
    /// Its number, from 0.
    pub index: u32,
    /// Label of its device.
    pub device: String,
    /// Its weights as stored.
    pub weight_bytes: u64,
    /// Its cache at the budgeted context.
    pub kv_bytes: u64,
    /// Its states of sequences.
    pub state_bytes: u64,
    /// Predicted time in a step of one token, milliseconds.
    pub ms: Option<f64>,
}

/// The memory required on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// Its short name in the map.
    pub label: String,
    /// Its own name.
    pub name: String,
    /// Layers placed on it, and the head.
    pub parts: u32,
    /// Its memory minus the margin.
    pub budget_bytes: u64,
    /// The sum of the following.
    pub used_bytes: u64,
    /// Weights as stored, each once.
    pub weight_bytes: u64,
    /// Caches at the budgeted context.
    pub kv_bytes: u64,
    /// States of sequences and their checkpoints.
    pub state_bytes: u64,
    /// Activations alive at the same time in each segment, in the largest step; summed over segments.
    pub activation_bytes: u64,
    /// Values transferred to and from the device, f32.
    pub staging_bytes: u64,
    /// Resident experts ([`Plan::experts`]).
    #[serde(skip_serializing_if = "is_zero")]
    pub expert_bytes: u64,
    /// What streaming takes ([`Plan::streaming`]).
    #[serde(skip_serializing_if = "is_zero")]
    pub stream_bytes: u64,
}

/// Whether nothing is to be told.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Places all of `graph` on the machine's first device.
///
/// # Errors
/// There is no device, it cannot run an op or type, or it does not fit.
pub fn plan(graph: &Graph, machine: &Machine, budget: &Budget) -> Result<Plan, Error> {
    place(graph, machine, budget, &Placement::single(graph.layers(), 0))
}

/// Plans a given placement, whose device indices are those of `machine`.
///
/// # Errors
/// Those of [`plan`], for each device.
pub fn place(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    placement: &Placement,
) -> Result<Plan, Error> {
    placed(graph, machine, budget, placement, Strictness::Everything)
}

/// Plans a given placement as [`place`] does, but weights that a device reads in the file's map may exceed its memory, which
/// is slow; the plan's notes say so.
///
/// # Errors
/// Those of [`plan`], for each device.
pub fn place_mapped(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    placement: &Placement,
) -> Result<Plan, Error> {
    placed(graph, machine, budget, placement, Strictness::MappedHost)
}

/// Which memory must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Everything on every device.
    Everything,
    /// All but the weights that are read in the file's map.
    MappedHost,
}

/// Plans a placement.
pub(crate) fn placed(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    placement: &Placement,
    strictness: Strictness,
) -> Result<Plan, Error> {
    if placement.devices(graph).iter().any(|&device| device >= machine.devices.len()) {
        return Err(Error::NoDevice);
    }
    let labels = machine.labels();
    let segments = cut(graph, placement);
    for segment in &segments {
        check_support(graph, segment, &machine.devices[segment.device], &labels[segment.device])?;
    }
    let (mut devices, mut rereads) = (Vec::with_capacity(labels.len()), None);
    // Memory of the host that devices beside it may use, too.
    let mut rest = 0;
    for (index, label) in labels.iter().enumerate() {
        let facts = &machine.devices[index];
        let mine = segments.iter().filter(|segment| segment.device == index);
        let mut device = device(graph, budget, facts, label, &mine);
        device.parts = placement.parts(index);
        let is_mapped = !facts.copies_weights && strictness == Strictness::MappedHost;
        let least_bytes = device.used_bytes - if is_mapped { device.weight_bytes } else { 0 };
        if index > HOST && facts.uses_host_memory {
            device.budget_bytes = device.budget_bytes.min(rest);
            rest = rest.saturating_sub(device.used_bytes);
        }
        if let Err(what) = device.check() {
            if least_bytes > device.budget_bytes {
                return Err(Error::DoesNotFit { what, largest: None });
            }
            rereads = Some(format!("{what}; weights are read from the file again and again"));
        }
        if index == HOST {
            rest = device.budget_bytes.saturating_sub(least_bytes);
        }
        devices.push(device);
    }
    let rereads = rereads.or_else(|| note_on_shared_memory(machine, &devices));
    let times = machine.times.as_ref();
    let predicted = times.and_then(|times| times.predict(graph, machine, placement, &segments));
    let experts = ExpertPlan::of(graph, machine, &segments);
    let layers = (0..).zip(graph.layer_nodes());
    let layers = layers.map(|own| layer(graph, budget, placement, machine, own));
    Ok(Plan {
        map: placement.map_of(graph, &labels),
        embedding: labels[placement.embedding].clone(),
        output: labels[placement.output].clone(),
        layers: layers.collect(),
        devices,
        segments,
        gpu_layers: 0,
        max_gpu_layers: 0,
        notes: rereads.iter().cloned().collect(),
        rereads,
        predicted,
        streaming: None,
        experts,
        placement: placement.clone(),
        logits: graph.logits,
    })
}

/// What to say where devices fit one by one, but not together in the memory that they share with the host.
fn note_on_shared_memory(machine: &Machine, devices: &[DevicePlan]) -> Option<String> {
    let host = &devices[HOST];
    let beside = devices.iter().zip(&machine.devices).skip(HOST + 1);
    let sharing = beside.filter(|(device, facts)| facts.uses_host_memory && device.used_bytes > 0);
    let (labels, used): (Vec<&str>, Vec<u64>) =
        sharing.map(|(device, _)| (&*device.label, device.used_bytes)).unzip();
    let bytes = sum(used.into_iter().chain([host.used_bytes]));
    (!labels.is_empty() && host.used_bytes <= host.budget_bytes && bytes > host.budget_bytes).then(|| {
        format!(
            "{} and {} share memory, and {} of {} are needed; weights are read from the file again and again",
            host.label,
            labels.join(", "),
            Bytes(bytes),
            Bytes(host.budget_bytes)
        )
    })
}

/// Refuses a segment with an op or weight type that its device does not support.
fn check_support(
    graph: &Graph,
    segment: &PlannedSegment,
    facts: &Facts,
    device: &str,
) -> Result<(), Error> {
    for number in segment.nodes.clone() {
        if let Some(what) = lacks(graph, number, facts) {
            let label = graph.nodes[number].label();
            return Err(Error::Unsupported { device: device.to_owned(), what, label });
        }
    }
    Ok(())
}

/// What of a node a device cannot run.
pub(crate) fn lacks(graph: &Graph, node: usize, facts: &Facts) -> Option<String> {
    let op = &graph.nodes[node].op;
    let stem = op.kind().stem();
    if !facts.ops.contains(&op.kind()) {
        return Some(stem.to_owned());
    }
    let ty = op.weights().map(|id| graph.weight(id).ty).find(|ty| !facts.types.contains(ty))?;
    Some(format!("{stem} with weights of {ty}"))
}

fn device<'s>(
    graph: &Graph,
    budget: &Budget,
    facts: &Facts,
    label: &str,
    segments: &(impl Iterator<Item = &'s PlannedSegment> + Clone),
) -> DevicePlan {
    let nodes = segments.clone().flat_map(|segment| segment.nodes.clone());
    let caches: BTreeSet<CacheId> =
        nodes.clone().filter_map(|node| cache(&graph.nodes[node].op)).collect();
    let (residents, others) =
        weights(graph, nodes.clone()).into_iter().partition(|&id| graph.weight(id).is_resident);
    let (expert_bytes, weight_bytes) =
        (weight_bytes(graph, &residents, facts), weight_bytes(graph, &others, facts));
    let kv_bytes = sum(caches.iter().map(|&id| budget.kv_bytes(graph.cache(id))));
    let states: BTreeSet<StateId> =
        nodes.clone().filter_map(|node| graph.nodes[node].op.state()).collect();
    let state_bytes = sum(states.iter().map(|&id| budget.state_bytes(graph.state(id))));
    // Segments of residents share their activations.
    let all = |of: &dyn Fn(&PlannedSegment) -> u64| {
        let (pooled, own): (Vec<_>, Vec<_>) =
            segments.clone().partition(|segment| graph.reads_residents(segment.nodes.clone()));
        let pooled = if facts.copies_weights { pooled.into_iter().map(of).max() } else { None };
        sum(own.into_iter().map(of).chain(pooled))
    };
    let activation_bytes = all(&|segment| activation_bytes(graph, segment, budget, facts));
    let staging_bytes = all(&|segment| staging_bytes(graph, segment, budget, facts));
    DevicePlan {
        label: label.to_owned(),
        name: facts.name.clone(),
        parts: 0,
        budget_bytes: facts.memory_bytes.saturating_sub(budget.margin_bytes),
        used_bytes: sum([
            weight_bytes,
            kv_bytes,
            state_bytes,
            activation_bytes,
            staging_bytes,
            expert_bytes,
        ]),
        weight_bytes,
        kv_bytes,
        state_bytes,
        activation_bytes,
        staging_bytes,
        expert_bytes,
        stream_bytes: 0,
    }
}

impl Plan {
    /// Takes streaming out of the plan.
    pub fn without_streaming(&mut self) {
        let Some(streaming) = self.streaming.take() else { return };
        for device in &mut self.devices {
            device.used_bytes -= std::mem::take(&mut device.stream_bytes);
        }
        if let Some(predicted) = &mut self.predicted
            && streaming.without_ms_per_token.is_some()
        {
            predicted.prefill_ms_per_token = streaming.without_ms_per_token;
        }
    }

    /// Milliseconds of a usual question with its answer, as [`Predicted::answer_ms`]; the largest number where times are
    /// not known.
    pub(crate) fn answer_ms(&self) -> f64 {
        self.predicted.as_ref().map_or(f64::MAX, Predicted::answer_ms)
    }
}

impl LayerPlan {
    /// Bytes of cache and states.
    fn kept_bytes(&self) -> u64 {
        sum([self.kv_bytes, self.state_bytes])
    }
}

impl DevicePlan {
    /// Whether it fits.
    fn check(&self) -> Result<(), Excess> {
        if self.used_bytes <= self.budget_bytes {
            return Ok(());
        }
        Err(Excess {
            device: self.label.clone(),
            budget_bytes: self.budget_bytes,
            used_bytes: self.used_bytes,
            weight_bytes: self.weight_bytes.saturating_add(self.expert_bytes),
            kv_bytes: self.kv_bytes,
            state_bytes: self.state_bytes,
            activation_bytes: self.activation_bytes.saturating_add(self.staging_bytes),
        })
    }
}

/// The cache of an op.
fn cache(op: &Op) -> Option<CacheId> {
    match op {
        Op::Attend(attend) => attend.cache,
        _ => None,
    }
}

fn layer(
    graph: &Graph,
    budget: &Budget,
    placement: &Placement,
    machine: &Machine,
    (index, nodes): (u32, Vec<usize>),
) -> LayerPlan {
    let labels = machine.labels();
    let mut ids = weights(graph, nodes);
    ids.retain(|&id| !graph.weight(id).is_resident);
    let caches = graph.caches.iter().filter(|cache| cache.layer == index);
    let states = graph.states.iter().filter(|state| state.layer == index);
    let device = placement.layers[index as usize];
    LayerPlan {
        index,
        device: labels[device].clone(),
        weight_bytes: weight_bytes(graph, &ids, &machine.devices[device]),
        kv_bytes: sum(caches.map(|cache| budget.kv_bytes(cache))),
        state_bytes: sum(states.map(|state| budget.state_bytes(state))),
        ms: machine
            .times
            .as_ref()
            .and_then(|times| times.layer(device, index))
            .map(|c| c.decode_ms),
    }
}

/// A size of a device's memory.
type Size = fn(&DevicePlan) -> u64;

impl fmt::Display for Plan {
    /// The map, one line per device in use, one line per group of equal layers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.map)?;
        writeln!(f)?;
        let has_states = self.devices.iter().any(|device| device.state_bytes > 0);
        let has_experts = self.devices.iter().any(|device| device.expert_bytes > 0);
        let streams = self.devices.iter().any(|device| device.stream_bytes > 0);
        // What not every plan has has a column where there is any.
        let columns: [(&str, bool, Size); 9] = [
            ("budget", true, |device| device.budget_bytes),
            ("used", true, |device| device.used_bytes),
            ("weights", true, |device| device.weight_bytes),
            ("experts", has_experts, |device| device.expert_bytes),
            ("cache", true, |device| device.kv_bytes),
            ("states", has_states, |device| device.state_bytes),
            ("activations", true, |device| device.activation_bytes),
            ("staging", true, |device| device.staging_bytes),
            ("streaming", streams, |device| device.stream_bytes),
        ];
        let columns = || columns.iter().filter(|(_, is_shown, _)| *is_shown);
        write!(f, "{:<10}", "device")?;
        columns().try_for_each(|(head, ..)| write!(f, " {head:>11}"))?;
        writeln!(f)?;
        for device in self.devices.iter().filter(|device| device.used_bytes > 0) {
            write!(f, "{:<10}", device.label)?;
            for (.., size) in columns() {
                match size(device) {
                    u64::MAX => write!(f, " {:>11}", "unlimited")?,
                    size => write!(f, " {:>11}", Bytes(size))?,
                }
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        let kept = if has_states { "cache, state" } else { "cache" };
        writeln!(f, "{:<10} {:<10} {:>11} {kept:>11}", "layers", "device", "weights")?;
        let alike = |a: &LayerPlan, b: &LayerPlan| {
            (&a.device, a.weight_bytes, a.kept_bytes())
                == (&b.device, b.weight_bytes, b.kept_bytes())
        };
        for run in self.layers.chunk_by(alike) {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let range = match run.len() {
                1 => format!("{}", first.index),
                _ => format!("{}-{} each", first.index, last.index),
            };
            let (weights, cache) = (Bytes(first.weight_bytes), Bytes(first.kept_bytes()));
            write!(f, "{range:<10} {:<10} {weights:>11} {cache:>11}", first.device)?;
            match mean(run.iter().filter_map(|layer| layer.ms)) {
                Some(ms) => writeln!(f, " {ms:>8.3} ms")?,
                None => writeln!(f)?,
            }
        }
        if let Some(predicted) = &self.predicted {
            write!(f, "\n{predicted}")?;
        }
        if let Some(experts) = &self.experts {
            write!(f, "\n{}", experts.text(&self.devices[experts.device].label))?;
        }
        if let Some(streaming) = &self.streaming {
            let label = &self.devices[streaming.device].label;
            write!(f, "\n{}", streaming.text(label))?;
        }
        Ok(())
    }
}

/// The mean of the known values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}
