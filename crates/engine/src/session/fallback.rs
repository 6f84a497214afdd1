//! Fallback when a device fails: its layers move to the other devices, and the session continues.
//!
//! A device that runs out of memory while the session is prepared keeps the share of its layers that its memory is of the
//! memory planned, or half of them if the memory is not known to be less, and so on, then none; a lost device keeps none.
//! If a device fails later, all its layers move to the other GPUs as far as they fit, the rest to the host. The session
//! stores the tokens of every sequence, so the KV cache is recomputed from them, in the same pages.

use std::ops::Range;
use std::time::Duration;

use bilayer_graph::{Backend, Limits, PAGE_TOKENS};
use bilayer_scheduler::{Budget, Loss, Machine, Placement, Plan, Times, displaced, place_mapped};

use super::batch::{Batch, Cut, Work};
use super::cache::Pages;
use super::hidden::Hidden;
use super::lanes::Lanes;
use super::load::Change;
use super::pipeline::{self, Calls, Pipeline};
use super::strengths::Strengths;
use super::{Failed, Overlap, Run, SequenceId, Session, Spent, Wanted, prepare};
use crate::placement::Placing;
use crate::times::Decoding;
use crate::{Error, devices};

/// Warnings to the caller when the session continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A device failed while the session was prepared, so less was placed on it.
    Reduced {
        /// Its error.
        error: bilayer_graph::Error,
        /// The placement tried, in one line.
        from: String,
        /// The placement tried instead.
        to: String,
    },
    /// The values of a step were too large for a device, so steps have fewer tokens.
    SmallerSteps {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device had no memory for streamed weights, or was lost before it had them, so prompts run where the layers are
    /// placed.
    NotStreamed {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device had no memory for resident experts, or was lost before it had them, so the CPU has all that are not on it by
    /// their layers.
    NotCached {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device did not take an expert's weights, so its resident experts stay as they are, and the CPU has the one whose place
    /// they should have taken.
    NotExchanged {
        /// Its error.
        error: bilayer_graph::Error,
    },
    /// A device's compiler rejected a kernel, so simpler ones compute.
    Simplified {
        /// Its name.
        device: String,
        /// The kernel, and the compiler's message.
        reason: String,
    },
    /// A device failed while the session ran, so its layers moved to other devices.
    Moved {
        /// Its error.
        error: bilayer_graph::Error,
        /// The previous placement, in one line.
        from: String,
        /// The placement now.
        to: Relocated,
        /// Tokens whose keys and values were recomputed.
        tokens: usize,
        /// Duration of the move.
        took: Duration,
    },
    /// A warning of the session that drafts.
    Draft(Box<Warning>),
    /// A drafter failed, so the rest of the answer is made without draft tokens.
    NotDrafted {
        /// Its error.
        reason: String,
    },
}

/// Takes streaming out of a plan whose device has failed; returns the warning. `None` if nothing is streamed there.
pub fn unstreamed(plan: &mut Plan, device: usize, error: &bilayer_graph::Error) -> Option<Warning> {
    let streams_there = plan.streaming.as_ref().is_some_and(|of| of.device == device);
    streams_there.then(|| {
        plan.without_streaming();
        Warning::NotStreamed { error: error.clone() }
    })
}

/// The plan with the residents' ops on the host, where they find none, if a device with residents has failed. `None` if it
/// has none.
pub fn uncached(
    plan: &Plan,
    device: usize,
    make: impl FnOnce(&Placement) -> Result<Plan, bilayer_scheduler::Error>,
) -> Option<Result<Plan, bilayer_scheduler::Error>> {
    let experts = plan.experts.as_ref().filter(|of| of.device == device)?;
    let mut placement = plan.placement.clone();
    for node in experts.nodes.iter().flat_map(Clone::clone) {
        placement.exceptions.insert(node, HOST);
    }
    Some(make(&placement))
}

/// The index of the host.
const HOST: usize = 0;

/// Where a session continues after it lost a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relocated {
    /// Only on the host.
    Host,
    /// On the host and the remaining devices, in the placement of this map.
    Others(String),
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Reduced { error, from, to } => {
                write!(f, "{error}; instead of {from} the placement is {to}")
            }
            Warning::SmallerSteps { error } => write!(f, "{error}; steps are no larger"),
            Warning::NotStreamed { error } => {
                write!(f, "{error}; weights are not streamed to it, so prompts take longer")
            }
            Warning::NotCached { error } => {
                write!(f, "{error}; no experts are resident there, so the CPU computes all of them")
            }
            Warning::NotExchanged { error } => {
                write!(f, "{error}; resident experts are not exchanged any further")
            }
            Warning::Simplified { device, reason } => {
                write!(
                    f,
                    "{device} rejected {reason}; simpler kernels, perhaps slower, compute instead"
                )
            }
            Warning::Moved { error, from, to, tokens, took } => {
                let now = match to {
                    Relocated::Host => "all runs on the CPU".to_owned(),
                    Relocated::Others(map) => format!("the placement is {map}"),
                };
                let seconds = took.as_secs_f64();
                write!(
                    f,
                    "{error}; instead of {from} {now} now ({tokens} tokens computed again in {seconds:.2} s)"
                )
            }
            Warning::Draft(warning) => write!(f, "draft: {warning}"),
            Warning::NotDrafted { reason } => {
                write!(f, "draft: {reason}; the rest of the answer is made without draft tokens")
            }
        }
    }
}

/// Whether a device's failure can be handled by placing its layers elsewhere.
pub fn is_recoverable(backend: &dyn Backend, error: &bilayer_graph::Error) -> bool {
    use bilayer_graph::Error::{DeviceLost, OutOfMemory, StepTooLarge};
    let is_of_device =
        matches!(error, DeviceLost { .. } | OutOfMemory { .. } | StepTooLarge { .. });
    backend.facts().can_be_lost && is_of_device
}

/// The index of the fallback device, which cannot be lost; a CPU backend is added if there is none.
pub fn host(
    backends: &mut Vec<Box<dyn Backend>>,
    options: bilayer_cpu::Options,
) -> Result<usize, Error> {
    let known = backends.iter().position(|backend| !backend.facts().can_be_lost);
    if let Some(place) = known {
        return Ok(place);
    }
    backends.push(devices::host(&Placing::cpu(), options)?);
    Ok(backends.len() - 1)
}

/// The machine on which parts of a plan are placed again: devices other than the host have the memory budgeted in the
/// plan.
pub fn machine(backends: &[Box<dyn Backend>], plan: &Plan, host: usize) -> Machine {
    let mut machine = prepare::machine(backends);
    let planned = machine.devices.iter_mut().zip(&plan.devices).enumerate();
    for (_, (facts, planned)) in planned.filter(|(place, _)| *place != host) {
        facts.memory_bytes = planned.budget_bytes;
    }
    machine
}

/// A device that failed while a plan was prepared.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    /// The device.
    pub device: usize,
    /// The device that takes what does not fit on the others.
    pub host: usize,
    /// All devices that have failed so far.
    pub refused: &'a [usize],
    /// Bytes of its memory that it holds or that are free, if its driver tells.
    pub available_bytes: Option<u64>,
    /// Its error.
    pub error: &'a bilayer_graph::Error,
}

/// The plan to try after a device failed with the plan `tried`: the device keeps some of the last of its layers ([`kept`]),
/// and nothing if it was lost; `make` places the rest. `None` if the device had nothing.
pub fn reduced(
    tried: &Plan,
    failed: &Refusal<'_>,
    make: impl FnOnce(&Placement, &Loss<'_>) -> Result<Plan, bilayer_scheduler::Error>,
) -> Result<Option<Plan>, Error> {
    let placement = &tried.placement;
    let Refusal { device, host, refused, available_bytes, error } = *failed;
    let layers = placement.layers.iter().filter(|&&of| of == device).count();
    let others = [placement.embedding, placement.output];
    let mut others = others.iter().chain(placement.exceptions.values());
    if layers == 0 && !others.any(|&of| of == device) {
        return Ok(None);
    }
    let is_lost = matches!(error, bilayer_graph::Error::DeviceLost { .. });
    let used_bytes = tried.devices[device].used_bytes;
    let keeps = if is_lost { 0 } else { kept(layers, used_bytes, available_bytes) };
    Ok(Some(make(placement, &Loss { device, keeps, host, closed: refused })?))
}

/// How many of its layers a device keeps that had no memory for what was planned: as many as fit in what it has, or half if that
/// is not known to be less.
fn kept(layers: usize, used_bytes: u64, available_bytes: Option<u64>) -> usize {
    match available_bytes {
        Some(available) if available < used_bytes => {
            let fit = layers as u128 * u128::from(available) / u128::from(used_bytes);
            (fit as usize).min(layers.saturating_sub(1))
        }
        _ => layers / 2,
    }
}

impl Session {
    /// Moves the layers of a failed device to the others, or to a new host. The sequences keep their tokens and pages. If
    /// that fails too, nothing can be run, and the next step tries again.
    pub(super) fn move_from(
        &mut self,
        device: usize,
        mut error: bilayer_graph::Error,
    ) -> Result<(), Error> {
        let began = self.clock().now();
        let from = self.plan.map.clone();
        let mut lost = vec![device];
        loop {
            match self.without(&lost) {
                Ok(tokens) => {
                    let to = match self.plan.devices.len() {
                        1 => Relocated::Host,
                        _ => Relocated::Others(self.plan.map.clone()),
                    };
                    let took = self.clock().since(began);
                    self.warnings.push(Warning::Moved { error, from, to, tokens, took });
                    self.moves += 1;
                    return Ok(());
                }
                // Another device failed meanwhile: the remaining ones take over from both.
                Err(Failed::Device { device, error: more })
                    if is_recoverable(self.pipeline.backends[device].as_ref(), &more) =>
                {
                    lost.push(device);
                    error = more;
                }
                Err(failed) => {
                    self.lost = Some((device, error.clone()));
                    return Err(Error::Fallback { lost: error, source: Box::new(failed.into()) });
                }
            }
        }
    }

    /// Continues without some devices: makes a plan for the others, the host first, and recomputes the cache. Returns the
    /// number of tokens run for that. After an error the devices are unchanged.
    fn without(&mut self, lost: &[usize]) -> Result<usize, Failed> {
        let backends = &mut self.pipeline.backends;
        let host = host(backends, self.host).map_err(Failed::Other)?;
        let others = (0..backends.len()).filter(|place| *place != host && !lost.contains(place));
        let kept: Vec<usize> = std::iter::once(host).chain(others).collect();
        let (mut plan, times) =
            self.plan_without(lost, &kept).map_err(|error| Failed::Other(error.into()))?;
        self.read.add(&self.graph, &mut plan);
        let mut split = Split::new(std::mem::take(&mut self.pipeline.backends), &kept);
        let (mut pipeline, tokens) = match self.equipped(&plan, &mut split.kept) {
            Ok(equipped) => equipped,
            Err(failed) => {
                self.pipeline.backends = split.joined(&kept);
                return Err(match failed {
                    Failed::Device { device, error } => {
                        Failed::Device { device: kept[device], error }
                    }
                    other => other,
                });
            }
        };
        pipeline.spent.add(&moved(&self.pipeline.spent, &kept));
        (self.divides, self.overlap) = (self.divides(&plan), self.overlap_of(&plan));
        self.timing = match (self.timing.take(), times) {
            (Some(timing), Some(times)) => Some(prepare::Timing { times, ..timing }),
            _ => None,
        };
        (self.plan, self.pipeline, self.decoding) = (plan, pipeline, Decoding::default());
        self.cache.regain_states();
        Ok(tokens)
    }

    /// Computes the states again that a failed step has lost, each from the checkpoint before it.
    pub(super) fn regain_states(&mut self) -> Result<(), Failed> {
        if self.cache.has_states() {
            return Ok(());
        }
        let Session { pipeline, cache, strengths, limits, .. } = self;
        let has_state = (0..limits.states as u32).map(|slot| cache.has_state(slot)).collect();
        let known = Known { positions: vec![PAGE_TOKENS; limits.pages], has_state };
        replay(pipeline, (cache, strengths), known, limits)?;
        self.check_file()?;
        self.cache.regain_states();
        Ok(())
    }

    /// The plan for the devices `kept`, renumbered, and their times if known.
    fn plan_without(
        &self,
        lost: &[usize],
        kept: &[usize],
    ) -> Result<(Plan, Option<Times>), bilayer_scheduler::Error> {
        let host = kept[0];
        let budget = Budget::of(&self.limits);
        let all = machine(&self.pipeline.backends, &self.plan, host);
        let mut placement = self.plan.placement.clone();
        for &device in lost {
            let loss = Loss { device, keeps: 0, host, closed: lost };
            placement = displaced(&self.graph, &all, &budget, &placement, &loss)?.placement;
        }
        let number = |old: &mut usize| {
            *old = kept.iter().position(|kept| kept == old).expect("nothing is left on the others");
        };
        let ends = [&mut placement.embedding, &mut placement.output];
        let layers = placement.layers.iter_mut();
        layers.chain(ends).chain(placement.exceptions.values_mut()).for_each(number);
        let times = self.timing.as_ref().and_then(|timing| {
            let of = |&old: &usize| timing.times.devices.get(old).cloned();
            let devices = kept.iter().map(of).collect::<Option<_>>()?;
            Some(Times { devices, ..timing.times.clone() })
        });
        let devices = kept.iter().map(|&old| all.devices[old].clone()).collect();
        let machine = Machine { devices, times: times.clone() };
        Ok((place_mapped(&self.graph, &machine, &budget, &placement)?, times))
    }

    /// The pipeline of a plan, with the caches of all sequences recomputed. Takes the devices out of `backends`; after an
    /// error they are back in it.
    fn equipped(
        &self,
        plan: &Plan,
        backends: &mut Vec<Box<dyn Backend>>,
    ) -> Result<(Pipeline, usize), Failed> {
        let (model, graph, watched) = (&self.model, &self.graph, &self.read.watched[..]);
        let fresh = Change { model, graph, from: None, to: plan, watched };
        let parts = prepare::equip(&fresh, backends, self.limits, &mut |_| ())?;
        let old = &self.pipeline;
        let mut experts = old.experts.clone();
        experts.iter_mut().for_each(|experts| experts.adopt(plan));
        let labels: Vec<String> = plan.devices.iter().map(|device| device.label.clone()).collect();
        let mut pipeline = Pipeline {
            order: pipeline::order(&parts.segments),
            batches: (0..=plan.segments.len()).map(|_| Batch::reserved(&self.limits)).collect(),
            lanes: Lanes::new(backends.len(), old.lanes.epoch()),
            trace: old.trace.as_ref().map(|trace| trace.anew(&labels)),
            spent: Spent::of(backends.len()),
            overlap: self.overlap_of(plan) != Overlap::Off,
            results: vec![0.0; old.results.len()],
            clock: old.clock.clone(),
            backends: std::mem::take(backends),
            segments: parts.segments,
            carried: parts.carried,
            stream: parts.stream,
            given: old.given.clone(),
            experts,
            given_hidden: old.given_hidden.clone(),
            hidden: Hidden::new(&self.graph, self.graph.hidden, &self.limits),
            filled: 0,
            ..*old
        };
        let Limits { pages, states, .. } = self.limits;
        let known = Known { positions: vec![0; pages], has_state: vec![false; states] };
        match replay(&mut pipeline, (&self.cache, &self.strengths), known, &self.limits) {
            Ok(tokens) => Ok((pipeline, tokens)),
            Err(failed) => {
                *backends = pipeline.backends;
                Err(failed)
            }
        }
    }
}

/// Reorders the time spent: the devices `kept` first.
fn moved(spent: &Spent, kept: &[usize]) -> Spent {
    let mine = kept.iter().map(|&old| spent.devices.get(old).copied().unwrap_or_default());
    let others = spent.devices.iter().enumerate().filter(|(old, _)| !kept.contains(old));
    let devices = mine.chain(others.map(|(_, busy)| *busy)).collect();
    Spent { devices, ..spent.clone() }
}

/// Devices, partitioned.
struct Split {
    /// The devices to keep, in the requested order.
    kept: Vec<Box<dyn Backend>>,
    /// The others, with their indices.
    others: Vec<(usize, Box<dyn Backend>)>,
}

impl Split {
    fn new(backends: Vec<Box<dyn Backend>>, kept: &[usize]) -> Split {
        let mut others: Vec<(usize, Box<dyn Backend>)> = backends.into_iter().enumerate().collect();
        let take = |place: &usize| {
            let at = others.iter().position(|(old, _)| old == place).expect("each is there once");
            others.remove(at).1
        };
        Split { kept: kept.iter().map(take).collect(), others }
    }

    /// All devices in their original order.
    fn joined(self, kept: &[usize]) -> Vec<Box<dyn Backend>> {
        let mut all = self.others;
        all.extend(kept.iter().copied().zip(self.kept));
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, backend)| backend).collect()
    }
}

/// What devices have of the contents of sequences.
struct Known {
    /// Number of valid positions of each page.
    positions: Vec<usize>,
    /// Whether each slot has its state.
    has_state: Vec<bool>,
}

impl Known {
    /// The number of tokens of a sequence after which its contents are not known.
    fn of(&self, cache: &Pages, sequence: SequenceId) -> usize {
        let (tokens, table) = (cache.tokens(sequence), cache.table(sequence));
        let is_missing = |position: &usize| {
            self.positions[table[position / PAGE_TOKENS] as usize] <= position % PAGE_TOKENS
        };
        let known = (0..tokens.len()).find(is_missing).unwrap_or(tokens.len());
        let checkpoints = cache.checkpoints(sequence);
        if checkpoints.is_empty() {
            return known;
        }
        let there = checkpoints.iter().take_while(|at| self.has_state[at.slot as usize]);
        there.map(|at| at.position).take_while(|&at| at <= known).last().unwrap_or(0)
    }

    /// Notes that a sequence was computed.
    fn add(&mut self, cache: &Pages, sequence: SequenceId) {
        let checkpoints = cache.checkpoints(sequence);
        checkpoints.iter().for_each(|at| self.has_state[at.slot as usize] = true);
        let tokens = cache.len(sequence);
        for (place, &page) in cache.table(sequence).iter().enumerate() {
            let held = (tokens - place * PAGE_TOKENS).min(PAGE_TOKENS);
            let known = &mut self.positions[page as usize];
            *known = held.max(*known);
        }
    }
}

/// Recomputes the unknown keys and values of all open sequences in their pages, and their states. What sequences share is
/// computed once. Returns the number of tokens run.
fn replay(
    pipeline: &mut Pipeline,
    (cache, strengths): (&Pages, &Strengths),
    mut known: Known,
    limits: &Limits,
) -> Result<usize, Failed> {
    // Earlier hidden states of another graph are not kept, so the drafter begins its sequences anew.
    if pipeline.given_hidden.value.is_some() {
        return Ok(0);
    }
    let mut count = 0;
    for sequence in cache.sequences() {
        let text = known.of(cache, sequence)..cache.len(sequence);
        if text.is_empty() {
            continue;
        }
        count += text.len();
        compute(pipeline, (cache, strengths), (sequence, text), limits)?;
        known.add(cache, sequence);
    }
    Ok(count)
}

/// Computes the keys and values of some tokens that a sequence has, and its states.
pub fn compute(
    pipeline: &mut Pipeline,
    (cache, strengths): (&Pages, &Strengths),
    (sequence, text): (SequenceId, Range<usize>),
    limits: &Limits,
) -> Result<(), Failed> {
    let starts = &[text.start];
    let runs = &[Run { sequence, tokens: &cache.tokens(sequence)[text], wanted: Wanted::None }];
    let cut = Cut { rows: limits.tokens, whole_runs: false };
    let work = Work { runs, starts, cache, copies: &[], strengths, cut, top_k: 0 };
    pipeline.run(&work, &mut Calls::each(&mut |_| true)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn layers_are_kept_as_far_as_there_is_memory() {
        let gib = |gib: u64| gib << 30;
        for (available, expected) in [(9, 28), (5, 16), (1, 3), (0, 0), (10, 16), (12, 16)] {
            assert_eq!(kept(32, gib(10), Some(gib(available))), expected, "{available} GiB");
        }
        assert_eq!(kept(32, gib(10), None), 16);
        assert_eq!(kept(1, 10, Some(9)), 0, "fewer each time");
        assert_eq!((kept(1, 10, None), kept(0, 10, Some(9)), kept(0, 0, Some(0))), (0, 0, 0));
    }
}
