//! Resident experts while a model runs: what the parts of split mixtures read, what routers select, and exchanges.
//!
//! The router's result crosses to the host anyway. From it the host makes the route of each part: the residents' with
//! slots for indices, the others' without residents. It also counts the experts that are selected. Every
//! [`REVIEW_STEPS`] steps experts that were used more than residents of their layer take the place of these,
//! at most [`EXCHANGES`] after a step, so that no step waits for long.
//!
//! Results do not depend on which experts are resident, but for the last bits where devices' kernels differ in these.

use std::collections::VecDeque;

use bilayer_graph::{
    Backend, Graph, NO_EXPERT, Part, ResidentStack, SharedBytes, SplitMixture, WeightId,
};
use bilayer_scheduler::Plan;

use super::Session;
use super::failed::is_recoverable;
use super::warning::Warning;
use crate::Model;
use crate::expert_counts::Learned;

/// Steps after which residents are chosen again.
pub const REVIEW_STEPS: u64 = 64;

/// Steps after which counts are stored.
const STORE_STEPS: u64 = 64 * REVIEW_STEPS;

/// Exchanged experts after a step, at most.
pub const EXCHANGES: usize = 2;

/// Exchanged experts of a layer at a review, at most.
const LAYER_EXCHANGES: usize = 4;

/// How much more an expert must be used than the resident whose place it takes, so that chance does not move them.
const ADVANTAGE: f32 = 1.5;
const ADVANTAGE_USES: f32 = 4.0;

/// How often tokens found their experts resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertHits {
    /// Experts that routers selected, in all layers with residents.
    pub routed: u64,
    /// Of these, the resident ones.
    pub resident: u64,
    /// Experts that became resident since the session began.
    pub exchanged: u64,
}

impl ExpertHits {
    /// What was added since earlier ones.
    pub fn since(&self, before: ExpertHits) -> ExpertHits {
        ExpertHits {
            routed: self.routed - before.routed,
            resident: self.resident - before.resident,
            exchanged: self.exchanged - before.exchanged,
        }
    }

    /// The share of resident experts; `None` if none was routed.
    pub fn rate(&self) -> Option<f64> {
        (self.routed > 0).then(|| self.resident as f64 / self.routed as f64)
    }
}

/// The residents of all split mixtures of a session's graph.
#[derive(Clone, Debug)]
pub struct Experts {
    mixtures: Vec<Mixture>,
    /// The device with the slots; `None` if it was lost, so that the host computes all experts.
    device: Option<usize>,
    /// Whether residents are exchanged by what is learned.
    learns: bool,
    /// Where counts are stored.
    learned: Option<Learned>,
    steps: u64,
    queue: VecDeque<Exchange>,
    hits: ExpertHits,
}

/// The residents of a mixture.
#[derive(Clone, Debug)]
struct Mixture {
    layer: Option<u32>,
    /// The slot of each expert.
    slots: Vec<Option<u32>>,
    /// The expert in each slot.
    residents: Vec<u32>,
    /// Uses of each expert, of which those before a review count half.
    recent: Vec<f32>,
    /// All uses, with those of earlier runs.
    total: Vec<f64>,
}

/// An expert that becomes resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The split mixture.
    pub split: usize,
    /// The slot.
    pub slot: usize,
    /// The expert.
    pub expert: u32,
}

/// When experts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Residents on their device, the others with the host.
    Parts,
    /// All as those of the host, whose weights are streamed.
    Whole,
}

impl Experts {
    /// The residents of a graph; `None` if no mixture is split. They stay, unless the session `learns` others.
    pub fn new(
        graph: &Graph,
        plan: &Plan,
        (learns, learned): (bool, Option<Learned>),
    ) -> Option<Experts> {
        if graph.splits.is_empty() {
            return None;
        }
        let before = learned.as_ref().and_then(Learned::uses);
        let mixture = |split: &SplitMixture| {
            let experts = split.uses.len();
            let mut slots = vec![None; experts];
            for (slot, &expert) in split.residents.iter().enumerate() {
                slots[expert as usize] = Some(slot as u32);
            }
            let known = before.as_ref().zip(split.layer);
            let known = known.and_then(|(uses, layer)| uses.layers.get(&layer));
            let total = known.filter(|counts| counts.len() == experts);
            Mixture {
                layer: split.layer,
                slots,
                residents: split.residents.clone(),
                recent: split.uses.iter().map(|uses| uses * REVIEW_STEPS as f32).collect(),
                total: total.cloned().unwrap_or_else(|| vec![0.0; experts]),
            }
        };
        let mixtures: Vec<Mixture> = graph.splits.iter().map(mixture).collect();
        Some(Experts {
            queue: VecDeque::with_capacity(LAYER_EXCHANGES * mixtures.len()),
            mixtures,
            device: plan.experts.as_ref().map(|experts| experts.device),
            learns,
            learned,
            steps: 0,
            hits: ExpertHits::default(),
        })
    }

    /// Adopts another plan of the graph: residents may have another device, or none.
    pub fn adopt(&mut self, plan: &Plan) {
        self.device = plan.experts.as_ref().map(|experts| experts.device);
        self.queue.clear();
    }

    /// How often tokens found their experts resident.
    pub fn hits(&self) -> ExpertHits {
        self.hits
    }

    /// Makes the route of a part, `[rows, 2 used]`, from the router's result. Selections are counted with the residents'.
    pub fn give(
        &mut self,
        (split, part): (usize, Part),
        routing: Routing,
        (route, width): (&[f32], usize),
        out: &mut [f32],
    ) {
        let Experts { mixtures, device, hits, .. } = self;
        let mixture = &mut mixtures[split];
        let is_split = device.is_some() && routing == Routing::Parts;
        let used = width / 2;
        out.copy_from_slice(route);
        for row in out.chunks_exact_mut(width) {
            for number in &mut row[used..] {
                let expert = (*number as usize).min(mixture.slots.len() - 1);
                let slot = mixture.slots[expert].filter(|_| is_split);
                *number = match (part, slot) {
                    (Part::Resident, Some(slot)) => slot as f32,
                    (Part::Rest, None) => *number,
                    _ => NO_EXPERT,
                };
                if part == Part::Resident {
                    mixture.recent[expert] += 1.0;
                    mixture.total[expert] += 1.0;
                    if is_split {
                        hits.routed += 1;
                        hits.resident += u64::from(slot.is_some());
                    }
                }
            }
        }
    }

    /// Counts a step, and returns how many experts may be exchanged after it.
    fn stepped(&mut self) -> usize {
        self.steps += 1;
        if !self.learns || self.device.is_none() {
            return 0;
        }
        if self.steps.is_multiple_of(REVIEW_STEPS) {
            self.review();
        }
        if self.steps.is_multiple_of(STORE_STEPS) {
            self.store();
        }
        self.queue.len().min(EXCHANGES)
    }

    /// Chooses the exchanges of the next steps.
    fn review(&mut self) {
        self.queue.clear();
        for (split, mixture) in self.mixtures.iter_mut().enumerate() {
            let first = self.queue.len();
            for _ in 0..LAYER_EXCHANGES {
                let queued = self.queue.range(first..).copied();
                let Some(exchange) = mixture.best_exchange(split, &queued) else {
                    break;
                };
                self.queue.push_back(exchange);
            }
            mixture.recent.iter_mut().for_each(|uses| *uses /= 2.0);
        }
    }

    /// Notes an exchange that was done.
    fn exchanged(&mut self, Exchange { split, slot, expert }: Exchange) {
        let Mixture { slots, residents, .. } = &mut self.mixtures[split];
        let before = std::mem::replace(&mut residents[slot], expert);
        slots[before as usize] = None;
        slots[expert as usize] = Some(slot as u32);
        self.hits.exchanged += 1;
    }

    /// Exchanges no more, after a device took some or none of the matrices of the first exchange of the queue: nothing is
    /// routed to its slot.
    fn stop(&mut self) {
        if let Some(Exchange { split, slot, .. }) = self.queue.pop_front() {
            let Mixture { slots, residents, .. } = &mut self.mixtures[split];
            slots[residents[slot] as usize] = None;
        }
        self.learns = false;
        self.queue.clear();
    }

    /// Stores what was learned. Layers that are not split keep what earlier runs have learned of them.
    fn store(&self) {
        let Some(learned) = self.learned.as_ref().filter(|_| self.hits.routed > 0) else { return };
        let mut layers = learned.uses().map(|uses| uses.layers).unwrap_or_default();
        let layer = |mixture: &Mixture| Some((mixture.layer?, mixture.total.clone()));
        layers.extend(self.mixtures.iter().filter_map(layer));
        learned.store(layers);
    }
}

impl Drop for Experts {
    fn drop(&mut self) {
        self.store();
    }
}

impl Mixture {
    /// The expert with the most uses that is not resident, in place of the resident with the fewest, if that is worth it.
    /// Those in `queued` stay out of it.
    fn best_exchange(
        &self,
        split: usize,
        queued: &(impl Iterator<Item = Exchange> + Clone),
    ) -> Option<Exchange> {
        let waits = |expert: u32| queued.clone().any(|exchange| exchange.expert == expert);
        let leaves = |slot: usize| queued.clone().any(|exchange| exchange.slot == slot);
        let uses = |expert: u32| self.recent[expert as usize];
        let others = (0..self.recent.len() as u32)
            .filter(|&expert| self.slots[expert as usize].is_none() && !waits(expert));
        let best = others.max_by(|&a, &b| uses(a).total_cmp(&uses(b)))?;
        let slots = (0..self.residents.len()).filter(|&slot| !leaves(slot));
        let least = |&slot: &usize| uses(self.residents[slot]);
        let slot = slots.min_by(|a, b| least(a).total_cmp(&least(b)))?;
        let is_worth_it = uses(best) > ADVANTAGE * least(&slot) + ADVANTAGE_USES;
        is_worth_it.then_some(Exchange { split, slot, expert: best })
    }
}

/// Exchanges experts after a step, and keeps the graph's residents up to date. An exchange that fails stays the first of the
/// queue, and its slot may have matrices of two experts.
fn exchange(
    experts: &mut Experts,
    model: &Model,
    graph: &mut Graph,
    backends: &mut [Box<dyn Backend>],
) -> Result<(), (usize, bilayer_graph::Error)> {
    for _ in 0..experts.stepped() {
        let (Some(next), Some(device)) = (experts.queue.front().copied(), experts.device) else {
            break;
        };
        let mut stacks = graph.splits[next.split].stacks.iter();
        let done = stacks.try_for_each(|stack| {
            let bytes = matrix(model, graph, stack, next.expert)?;
            backends[device].exchange(graph.weight(stack.slots), next.slot, &bytes)
        });
        done.map_err(|error| (device, error))?;
        experts.queue.pop_front();
        experts.exchanged(next);
        graph.splits[next.split].residents[next.slot] = next.expert;
    }
    Ok(())
}

impl Session {
    /// Exchanges resident experts after a step, which has succeeded whatever comes of it. A device that is lost then is left
    /// before the next step; after another failure the residents stay, but for one whose place may have matrices of two experts.
    pub(super) fn exchange_experts(&mut self) {
        let Session { model, graph, pipeline, .. } = self;
        let Some(experts) = &mut pipeline.experts else { return };
        let Err((device, error)) = exchange(experts, model, graph, &mut pipeline.backends) else {
            return;
        };
        match is_recoverable(pipeline.backends[device].as_ref(), &error) {
            true => self.lost = Some((device, error)),
            false => {
                experts.stop();
                self.warnings.push(Warning::NotExchanged { error });
            }
        }
    }

    /// How often tokens found their experts resident on a GPU; `None` if none are.
    pub fn expert_hits(&self) -> Option<ExpertHits> {
        self.pipeline.experts.as_ref().map(Experts::hits)
    }
}

/// The bytes of an expert's matrix in the file.
pub fn matrix(
    model: &Model,
    graph: &Graph,
    stack: &ResidentStack,
    expert: u32,
) -> Result<SharedBytes, bilayer_graph::Error> {
    let mut number = expert as usize;
    let of = |id: &WeightId| graph.weight(*id).stacked;
    let holder = stack.whole.iter().find(|id| match number.checked_sub(of(id)) {
        Some(rest) => {
            number = rest;
            false
        }
        None => true,
    });
    let weight = graph.weight(*holder.expect("residents are experts of the mixture"));
    let file = model.file();
    let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
    let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
    let (start, each) = (weight.range_in_tensor().start, weight.bytes() / weight.stacked);
    Ok(file.bytes(tensor).slice(start + number * each..start + (number + 1) * each))
}

/// Bytes for all slots of a weight before its residents are exchanged for those that are there: the first experts.
pub fn first(
    model: &Model,
    graph: &Graph,
    stack: &ResidentStack,
) -> Result<SharedBytes, bilayer_graph::Error> {
    let weight = graph.weight(stack.slots);
    if let [whole] = stack.whole[..] {
        let whole = graph.weight(whole);
        let missing = || bilayer_graph::Error::MissingTensor { name: whole.name.clone() };
        let tensor = model.file().tensor(&whole.name).ok_or_else(missing)?;
        let start = whole.range_in_tensor().start;
        return Ok(model.file().bytes(tensor).slice(start..start + weight.bytes()));
    }
    let mut all = Vec::with_capacity(weight.bytes());
    for expert in 0..weight.stacked as u32 {
        all.extend_from_slice(&matrix(model, graph, stack, expert)?);
    }
    Ok(all.into())
}
