//! When a device fails: what was placed on it moves to the processor, and the session goes on.
//!
//! A device that refuses while the session is prepared gets half of its layers, then half of these, then none; one
//! that is lost gets none at once. A device that fails later gives all to the processor: the session keeps the
//! tokens of every sequence, so the cache is computed again from these, in the pages where it was.

use std::time::{Duration, Instant};

use bilayer_cpu::Cpu;
use bilayer_graph::{Backend, Kind, Limits, PAGE_TOKENS};
use bilayer_scheduler::{Machine, Placement, Plan, plan};

use super::batch::{Batch, Cut, Work};
use super::cache::Pages;
use super::lanes::Lanes;
use super::load::Change;
use super::pipeline::Pipeline;
use super::{Failed, Overlap, Run, Session, Wanted, prepare};
use crate::Error;

/// What the caller should be told though the session goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A device refused while the session was prepared, so less was placed on it.
    Reduced {
        /// What it said.
        error: bilayer_graph::Error,
        /// The placement that was tried, in one line.
        from: String,
        /// The one that is tried instead.
        to: String,
    },
    /// A device failed while the session ran; all runs on the processor now.
    Moved {
        /// What it said.
        error: bilayer_graph::Error,
        /// The placement until then, in one line.
        from: String,
        /// Tokens whose keys and values were computed again.
        tokens: usize,
        /// How long the move took.
        took: Duration,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Reduced { error, from, to } => {
                write!(f, "{error}; instead of {from} the placement is {to}")
            }
            Warning::Moved { error, from, tokens, took } => write!(
                f,
                "{error}; instead of {from} all runs on the processor now \
                 ({tokens} tokens computed again in {:.2} s)",
                took.as_secs_f64()
            ),
        }
    }
}

/// Whether a device's failure can be mended by placing its layers elsewhere.
pub fn is_mendable(backend: &dyn Backend, error: &bilayer_graph::Error) -> bool {
    use bilayer_graph::Error::{DeviceLost, OutOfMemory};
    backend.facts().kind == Kind::Gpu && matches!(error, DeviceLost { .. } | OutOfMemory { .. })
}

/// The place of a device that stands in for an adapter; a processor is added where there is none.
pub fn processor(
    backends: &mut Vec<Box<dyn Backend>>,
    options: bilayer_cpu::Options,
) -> Result<usize, Error> {
    let known = backends.iter().position(|backend| backend.facts().kind != Kind::Gpu);
    if let Some(place) = known {
        return Ok(place);
    }
    backends.push(Box::new(Cpu::new(options)?));
    Ok(backends.len() - 1)
}

/// The plan to try after a device failed under the plan `tried`: it keeps the last half of its layers, or none and
/// nothing else if there was one, or if it was lost; the `host` takes the rest. `None` when it had nothing.
pub fn reduced(
    tried: &Plan,
    failed: &Refusal<'_>,
    make: impl FnOnce(&Placement) -> Result<Plan, bilayer_scheduler::Error>,
) -> Result<Option<Plan>, Error> {
    let mut placement = tried.placement.clone();
    let Refusal { device, host, error } = *failed;
    let layers = placement.layers.iter().filter(|&&of| of == device).count();
    if layers == 0 && ![placement.embedding, placement.output].contains(&device) {
        return Ok(None);
    }
    let is_lost = matches!(error, bilayer_graph::Error::DeviceLost { .. });
    let keeps = if is_lost { 0 } else { layers / 2 };
    let mine = placement.layers.iter_mut().rev().filter(|of| **of == device);
    mine.skip(keeps).for_each(|of| *of = host);
    if keeps == 0 {
        let ends = [&mut placement.embedding, &mut placement.output];
        ends.into_iter().filter(|of| **of == device).for_each(|of| *of = host);
        placement.exceptions.values_mut().filter(|of| **of == device).for_each(|of| *of = host);
    }
    Ok(Some(make(&placement)?))
}

/// A device that failed while a plan was prepared.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    /// The device.
    pub device: usize,
    /// Who takes what it loses.
    pub host: usize,
    /// What it said.
    pub error: &'a bilayer_graph::Error,
}

impl Session {
    /// Moves all to the processor after an adapter failed: the plan's own, or a new one. The sequences keep their
    /// tokens and pages. If that fails too, nothing can be run, and the next step tries again.
    pub(super) fn move_to_processor(&mut self, error: bilayer_graph::Error) -> Result<(), Error> {
        let began = Instant::now();
        let host = match processor(&mut self.pipeline.backends, self.processor) {
            Ok(host) => host,
            Err(source) => return Err(self.stay(error, source)),
        };
        let mut alone = vec![self.pipeline.backends.remove(host)];
        let (plan, pipeline, tokens) = match self.alone(&mut alone) {
            Ok(moved) => moved,
            Err(source) => {
                self.pipeline.backends.splice(host..host, alone);
                return Err(self.stay(error, source));
            }
        };
        let from = std::mem::replace(&mut self.plan, plan).map;
        self.pipeline = pipeline;
        (self.divides, self.overlap) = (false, Overlap::Off);
        // What they would have copied was computed again where it belongs.
        self.copies.clear();
        self.warnings.push(Warning::Moved { error, from, tokens, took: began.elapsed() });
        Ok(())
    }

    /// Notes that nobody could take over.
    fn stay(&mut self, lost: bilayer_graph::Error, source: Error) -> Error {
        self.lost = Some(lost.clone());
        Error::Fallback { lost, source: Box::new(source) }
    }

    /// All of the model on the one device in `backends`, with the cache as it should be, and the number of tokens
    /// that were run for it. After an error the device is back in `backends`.
    fn alone(
        &self,
        backends: &mut Vec<Box<dyn Backend>>,
    ) -> Result<(Plan, Pipeline, usize), Error> {
        let machine = Machine::new(vec![backends[0].facts().clone()]);
        let mut plan = plan(&self.graph, &machine, &prepare::budget(&self.limits))?;
        self.read.add(&self.graph, &mut plan);
        let (model, graph, watched) = (&self.model, &self.graph, &self.read.watched[..]);
        let fresh = Change { model, graph, from: None, to: &plan, watched };
        let parts = prepare::equip(&fresh, backends, self.limits, &mut |_| ())?;
        let old = &self.pipeline;
        let mut pipeline = Pipeline {
            order: vec![0],
            batches: (0..2).map(|_| Batch::reserved(&self.limits)).collect(),
            lanes: Lanes::new(1, old.lanes.epoch()),
            trace: old.trace.as_ref().map(|trace| trace.alone("cpu")),
            spent: old.spent,
            overlap: false,
            results: vec![0.0; old.results.len()],
            backends: std::mem::take(backends),
            segments: parts.segments,
            carried: parts.carried,
            filled: 0,
            ..*old
        };
        match replay(&mut pipeline, &self.cache, &self.limits) {
            Ok(tokens) => Ok((plan, pipeline, tokens)),
            Err(failed) => {
                *backends = pipeline.backends;
                Err(failed.into())
            }
        }
    }
}

/// Computes the keys and values of all open sequences again, where the page tables say. What sequences share is
/// computed once. Answers the number of tokens run.
fn replay(pipeline: &mut Pipeline, cache: &Pages, limits: &Limits) -> Result<usize, Failed> {
    // How many of each page's positions hold what they should.
    let mut whole = vec![0; limits.pages];
    let mut count = 0;
    for sequence in cache.sequences() {
        let (tokens, table) = (cache.tokens(sequence), cache.table(sequence));
        let is_missing = |position: &usize| {
            whole[table[position / PAGE_TOKENS] as usize] <= position % PAGE_TOKENS
        };
        let start = (0..tokens.len()).find(is_missing).unwrap_or(tokens.len());
        if start == tokens.len() {
            continue;
        }
        let run = Run { sequence, tokens: &tokens[start..], wanted: Wanted::None };
        let cut = Cut { rows: limits.tokens, whole_runs: false };
        let (runs, starts) = (&[run], &[start]);
        pipeline.run(&Work { runs, starts, cache, copies: &[], cut }, &mut |_| true)?;
        count += run.tokens.len();
        for (place, &page) in table.iter().enumerate() {
            let held = (tokens.len() - place * PAGE_TOKENS).min(PAGE_TOKENS);
            whole[page as usize] = held.max(whole[page as usize]);
        }
    }
    Ok(count)
}
