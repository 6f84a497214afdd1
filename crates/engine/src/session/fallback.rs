//! Fallback when a device fails: its layers move to the other devices, and the session continues.
//!
//! All its layers move to the other GPUs as far as they fit, the rest to the host. The session stores the tokens of every
//! sequence, so the KV cache is recomputed from them, in the same pages.

use std::ops::{ControlFlow, Range};

use bilayer_graph::{Backend, Limits, PAGE_TOKENS};
use bilayer_scheduler::{Budget, Loss, Machine, Plan, Times, displaced, place_mapped};

use super::batch::{Batch, Cut, Work};
use super::cache::Pages;
use super::failed::{Failed, is_recoverable};
use super::hidden::Hidden;
use super::lanes::Lanes;
use super::load::Change;
use super::pipeline::{self, Calls, Pipeline};
use super::reduced::{host, machine};
use super::stream::Stream;
use super::strengths::Strengths;
use super::warning::{Relocated, Warning};
use super::{Run, SequenceId, Session, Spent, Wanted, prepare};
use crate::Error;
use crate::settings::Overlap;
use crate::times::Decoding;

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
        let (mut pipeline, stream, tokens) = match self.equipped(&plan, &mut split.kept) {
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
        (self.plan, self.pipeline, self.stream) = (plan, pipeline, stream);
        self.decoding = Decoding::default();
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
    ) -> Result<(Pipeline, Option<Stream>, usize), Failed> {
        let (model, graph, watched) = (&self.model, &self.graph, &self.read.watched[..]);
        let fresh = Change { model, graph, from: None, to: plan, watched };
        let parts =
            prepare::equip(&fresh, backends, self.limits, &mut |_| ControlFlow::Continue(()))?;
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
            Ok(tokens) => Ok((pipeline, parts.stream, tokens)),
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
