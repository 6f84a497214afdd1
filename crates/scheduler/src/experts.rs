//! Experts in hybrid placement: those that tokens use most are resident on an offload device, and the host has all others.
//!
//! **The idea.** A token uses a few of a layer's experts, and not all equally often. With the experts of whole layers on
//! the device, as `-ncmoe` places them, a token finds there the share of its experts that the device has room for. With
//! the most used experts of every layer it finds more, and both devices compute a layer's experts at the same time.
//!
//! A mixture is split in two ([`split_experts`]); which experts are resident is a choice by expected uses, and may change
//! while the model runs.

use std::collections::BTreeMap;
use std::ops::Range;

use bilayer_graph::Graph;
use serde::Serialize;

use crate::offload::{HOST, layered};
use crate::{Budget, Bytes, Error, Excess, Machine, Offload, Plan, PlannedSegment, Request};

mod apart;

pub use apart::{Mixture, SplitChoice, mixtures, split_experts};

/// Device memory for experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertCache {
    /// None: experts are where their layers are.
    #[default]
    Off,
    /// What is left, if that is predicted to be faster.
    Auto,
    /// So many bytes at most.
    Bytes(u64),
}

/// How often experts are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUses {
    /// Where the counts are from, for people.
    pub source: String,
    /// Of each layer, how often each expert was used, in any unit.
    pub layers: BTreeMap<u32, Vec<f64>>,
}

/// Resident experts, as part of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertPlan {
    /// Index of their device.
    pub device: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The expected share of a token's experts that are resident.
    pub hit_rate: f64,
    /// Where the counts are from by which they were chosen; `None` if nothing is known.
    pub counts: Option<String>,
    /// Each layer with residents.
    pub layers: Vec<ExpertLayer>,
    /// The nodes of the residents in the plan's graph.
    #[serde(skip)]
    pub nodes: Vec<Range<usize>>,
    /// The choice, by which [`split_experts`] makes the plan's graph of the model's.
    #[serde(skip)]
    pub choices: Vec<SplitChoice>,
}

/// A layer's resident experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertLayer {
    /// The layer.
    pub index: u32,
    /// How many are resident.
    pub resident: usize,
    /// Of how many.
    pub experts: usize,
    /// The expected share of a token's experts that are resident.
    pub hit_rate: f64,
}

impl ExpertPlan {
    /// The residents of a graph whose split mixtures are cut into `segments`; `None` if they are on the host.
    pub(crate) fn of(
        graph: &Graph,
        machine: &Machine,
        segments: &[PlannedSegment],
    ) -> Option<ExpertPlan> {
        let first = graph.splits.first()?.resident_nodes.start;
        let device = segments.iter().find(|segment| segment.nodes.contains(&first))?.device;
        let facts = &machine.devices[device];
        if device == HOST || !facts.copies_weights {
            return None;
        }
        let layer = |split: &bilayer_graph::SplitMixture| ExpertLayer {
            index: split.layer.unwrap_or(0),
            resident: split.residents.len(),
            experts: split.uses.len(),
            hit_rate: split.hit_rate(),
        };
        let layers: Vec<ExpertLayer> = graph.splits.iter().map(layer).collect();
        let residents = graph.weights.iter().filter(|weight| weight.is_resident);
        let choice = |split: &bilayer_graph::SplitMixture| SplitChoice {
            route: split.route,
            residents: split.residents.clone(),
            uses: split.uses.clone(),
        };
        // Layers without residents find none of theirs.
        let all = layers.len() + mixtures(graph).len();
        Some(ExpertPlan {
            device,
            bytes: residents.map(|weight| weight.rows as u64 * facts.row_bytes(weight)).sum(),
            hit_rate: layers.iter().map(|layer| layer.hit_rate).sum::<f64>() / all.max(1) as f64,
            counts: None,
            layers,
            nodes: graph.splits.iter().map(|split| split.resident_nodes.clone()).collect(),
            choices: graph.splits.iter().map(choice).collect(),
        })
    }

    /// Lines for the plan of a machine on which its device has a label.
    pub(crate) fn text(&self, label: &str) -> String {
        let counts = |layer: &ExpertLayer| layer.resident;
        let least = self.layers.iter().map(counts).min().unwrap_or(0);
        let most = self.layers.iter().map(counts).max().unwrap_or(0);
        let experts = self.layers.iter().map(|layer| layer.experts).max().unwrap_or(0);
        let each = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        let basis = match &self.counts {
            Some(source) => format!("by {source}"),
            None => "if all were used alike; counts are learned while the model runs".to_owned(),
        };
        format!(
            "experts: {} on {label}, {each} of {experts} in each of {} layers; {:.0} % of a token's experts are \
             expected there ({basis})\n",
            Bytes(self.bytes),
            self.layers.len(),
            100.0 * self.hit_rate
        )
    }
}

/// The offload device that has the residents: the one with most memory.
pub(crate) fn device(machine: &Machine) -> usize {
    let devices = HOST + 1..machine.devices.len();
    let memory = |device: &usize| machine.devices[*device].memory_bytes;
    devices.rev().max_by_key(memory).unwrap_or(HOST)
}

/// The plan of a request with resident experts.
///
/// # Errors
/// Those of [`crate::offload`]; [`Error::CacheDoesNotFit`].
pub(crate) fn cached(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    request: &Request,
) -> Result<Plan, Error> {
    let plain = || layered(graph, machine, budget, request);
    if machine.devices.len() < 2 {
        return plain();
    }
    let cache = Cache::new(graph, machine, budget, request);
    match request.experts {
        ExpertCache::Off | ExpertCache::Bytes(0) => plain(),
        _ if cache.mixtures.is_empty() => plain(),
        ExpertCache::Bytes(bytes) => cache.of(bytes).map_err(|error| match error {
            Error::DoesNotFit { what, .. } => {
                let offload = match request.offload {
                    Offload::Auto => Offload::Count(0),
                    asked => asked,
                };
                let largest = cache.largest(bytes, &what, offload).map_or(0, |(bytes, _)| bytes);
                Error::CacheDoesNotFit { what, largest }
            }
            error => error,
        }),
        ExpertCache::Auto => {
            let plain = plain();
            let Some(found) = cache.most() else { return plain };
            // What does not fit with whole layers may fit with residents.
            let Ok(plain) = plain else { return Ok(found) };
            let is_whole = plain.gpu_layers == plain.max_gpu_layers
                && plain.devices[HOST].weight_bytes < found.devices[HOST].weight_bytes / 2;
            let is_better = match (&plain.predicted, &found.predicted) {
                (Some(plain), Some(found)) => found.answer_ms() < plain.answer_ms(),
                _ => !is_whole,
            };
            Ok(if is_better { found } else { noted(plain) })
        }
    }
}

fn noted(mut plan: Plan) -> Plan {
    plan.notes.push("expert-cache auto: the model is expected to be faster without".to_owned());
    plan
}

/// A search for residents.
struct Cache<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    budget: &'a Budget,
    /// The request, with all experts of the mixtures on the host.
    request: Request,
    device: usize,
    mixtures: Vec<Mixture>,
    /// Of each mixture the bytes of an expert on the device, and the expected uses of each by a token.
    expert_bytes: Vec<u64>,
    uses: Vec<Vec<f32>>,
}

impl<'a> Cache<'a> {
    fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        budget: &'a Budget,
        request: &Request,
    ) -> Cache<'a> {
        let pinned: BTreeMap<_, _> = request.pins.iter().copied().collect();
        let place =
            |mixture: &Mixture| mixture.weights(graph).find_map(|id| pinned.get(&id).copied());
        let mut mixtures = mixtures(graph);
        // Those that are kept on the host, if any are; all, if none is.
        let are_kept = mixtures.iter().any(|mixture| place(mixture) == Some(HOST));
        let wanted = if are_kept { Some(HOST) } else { None };
        mixtures.retain(|mixture| place(mixture) == wanted);
        let device = device(machine);
        let facts = &machine.devices[device];
        let bytes = |mixture: &Mixture| {
            let of = |id| {
                let weight = graph.weight(id);
                weight.rows as u64 * facts.row_bytes(weight) / mixture.experts as u64
            };
            mixture.weights(graph).map(of).sum()
        };
        let expert_bytes = mixtures.iter().map(bytes).collect();
        let uses = mixtures.iter().map(|mixture| uses(mixture, request)).collect();
        let weights = mixtures.iter().flat_map(|mixture| mixture.weights(graph));
        let kept = weights.map(|id| (id, HOST));
        let request =
            Request { pins: request.pins.iter().copied().chain(kept).collect(), ..request.clone() };
        Cache { graph, machine, budget, request, device, mixtures, expert_bytes, uses }
    }

    /// The experts that are used most, in so many bytes, and the bytes that they take.
    fn choose(&self, bytes: u64) -> (Vec<SplitChoice>, u64) {
        let all = self.uses.iter().enumerate();
        let mut ranked: Vec<(f32, usize, usize)> = all
            .flat_map(|(at, uses)| uses.iter().enumerate().map(move |(e, &of)| (of, e, at)))
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut residents = vec![Vec::new(); self.mixtures.len()];
        let mut left = bytes;
        for (_, expert, at) in ranked {
            if self.expert_bytes[at] <= left {
                left -= self.expert_bytes[at];
                residents[at].push(expert as u32);
            }
        }
        let chosen = residents.into_iter().enumerate().filter(|(_, of)| !of.is_empty());
        let choice = |(at, residents): (usize, Vec<u32>)| SplitChoice {
            route: self.mixtures[at].route,
            residents,
            uses: self.uses[at].clone(),
        };
        (chosen.map(choice).collect(), bytes - left)
    }

    /// The plan with residents of so many bytes.
    fn of(&self, bytes: u64) -> Result<Plan, Error> {
        self.with(bytes, self.request.offload)
    }

    fn with(&self, bytes: u64, offload: Offload) -> Result<Plan, Error> {
        let graph = split_experts(self.graph, &self.choose(bytes).0);
        let request = Request { offload, ..self.request.clone() };
        let mut plan = layered(&graph, self.machine, self.budget, &request)?;
        if let Some(experts) = &mut plan.experts {
            experts.counts = request.uses.as_ref().map(|uses| uses.source.clone());
        }
        Ok(plan)
    }

    /// The largest plan that fits with fewer bytes than those that exceed the device's memory by `what`.
    fn largest(&self, mut bytes: u64, what: &Excess, offload: Offload) -> Option<(u64, Plan)> {
        let mut excess = what.used_bytes.saturating_sub(what.budget_bytes);
        // What is chosen for fewer bytes takes that much less, but for rounding.
        for _ in 0..8 {
            bytes = self.choose(bytes).1.checked_sub(excess.max(1)).filter(|&bytes| bytes > 0)?;
            match self.with(bytes, offload) {
                Ok(plan) => return Some((bytes, plan)),
                Err(Error::DoesNotFit { what, .. }) => {
                    excess = what.used_bytes.saturating_sub(what.budget_bytes);
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// The plan whose residents take what other parts leave.
    fn most(&self) -> Option<Plan> {
        let without = layered(self.graph, self.machine, self.budget, &self.request).ok()?;
        let device = &without.devices[self.device];
        let every = self.expert_bytes.iter().zip(&self.mixtures);
        let every: u64 = every.map(|(bytes, mixture)| bytes * mixture.experts as u64).sum();
        let free = device.budget_bytes.saturating_sub(device.used_bytes).min(every);
        let offload = Offload::Count(without.gpu_layers);
        let found = match self.with(free, offload) {
            Ok(plan) => Some(plan),
            Err(Error::DoesNotFit { what, .. }) => {
                self.largest(free, &what, offload).map(|(_, plan)| plan)
            }
            Err(_) => None,
        };
        found.filter(|plan| plan.experts.is_some())
    }
}

/// Expected uses of a mixture's experts by a token: in proportion to their counts, or alike if nothing is known.
fn uses(mixture: &Mixture, request: &Request) -> Vec<f32> {
    let alike = mixture.used as f64 / mixture.experts as f64;
    let known = request.uses.as_ref().zip(mixture.layer);
    let counts = known.and_then(|(uses, layer)| uses.layers.get(&layer));
    let counts = counts.filter(|counts| counts.len() == mixture.experts);
    let all: f64 = counts.map_or(0.0, |counts| counts.iter().sum());
    match counts {
        // A token uses an expert at most once.
        Some(counts) if all > 0.0 => {
            counts.iter().map(|count| (mixture.used as f64 * count / all).min(1.0) as f32).collect()
        }
        _ => vec![alike as f32; mixture.experts],
    }
}

/// Bytes that a part of a split mixture reads in a step of so many tokens.
pub(crate) fn part_bytes(graph: &Graph, nodes: &Range<usize>, tokens: usize) -> f64 {
    nodes.clone().map(|node| graph.matrix_bytes(node, tokens)).sum()
}
