//! Which experts become resident: those that are used most, as many as are asked for, fit, or make answers faster.

use std::collections::BTreeMap;

use bilayer_graph::Graph;

use crate::counts::layered;
use crate::experts::device;
use crate::machine::HOST;
use crate::{
    Budget, Error, Excess, ExpertCache, Machine, Mixture, Offload, Plan, Request, SplitChoice,
    mixtures, split_experts,
};

/// The plan of a request with resident experts.
///
/// # Errors
/// Those of [`crate::offload()`]; [`Error::CacheDoesNotFit`].
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
