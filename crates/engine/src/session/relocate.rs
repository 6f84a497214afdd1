//! Moves layers between devices during a session: unchanged weights are not loaded again, caches are transferred.

use std::ops::ControlFlow;

use bilayer_graph::{CacheId, CachePages, StateId};
use bilayer_scheduler::{Budget, Machine, Plan, overlaps};
use bilayer_settings::Setting;

use super::Session;
use super::batch::Batch;
use super::failed::{Failed, is_recoverable};
use super::load::{self, Change};
use super::pipeline::{self, Pipeline};
use super::prepare::{self, Planner};
use crate::settings::Overlap;
use crate::times::Decoding;
use crate::{Error, devices};

/// The pages of a cache in transfer.
struct Cargo {
    cache: CacheId,
    to: usize,
    data: CachePages,
}

/// The slots of a state in transfer.
struct StateCargo {
    state: StateId,
    to: usize,
    data: Vec<f32>,
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Segments only.
    Segment,
    /// Every op too, which delays devices between kernels.
    Op,
}

impl Session {
    /// Places the model again on the session's devices, by a planner as in [`Session::on`]. Sequences continue: moved
    /// layers take their weights, keys and values along, and unmoved ones are not loaded again.
    ///
    /// If a device fails meanwhile, its layers move to the others, as in a step; see [`Session::take_warnings`].
    ///
    /// # Errors
    /// A plan that does not fit: then nothing changes. An unrecoverable failure.
    pub fn place(&mut self, planner: &Planner<'_>) -> Result<(), Error> {
        self.assert_none_begun();
        if let Some((device, error)) = self.lost.take() {
            return self.move_from(device, error);
        }
        let times = self.times().cloned();
        let machine = Machine { times, ..devices::machine(&self.pipeline.backends) };
        let budget = Budget::of(&self.limits);
        let mut plan = planner(&self.graph, &machine, &budget)?;
        self.keep_experts(&mut plan)?;
        self.read.add(&self.graph, &mut plan);
        if plan.placement == self.plan.placement && plan.streaming == self.plan.streaming {
            self.plan = plan;
            self.decoding = Decoding::default();
            return Ok(());
        }
        self.adopt(plan)
    }

    /// Checks that a plan is one of the session's graph, in which mixtures are split or not, and names its counts.
    fn keep_experts(&self, plan: &mut Plan) -> Result<(), Error> {
        if plan.experts.is_some() && self.graph.splits.is_empty() {
            let expected = "what it was when the model was loaded: none";
            return Err(Error::setting(Setting::ExpertCache, "changed", expected));
        }
        if let (Some(experts), Some(known)) = (&mut plan.experts, &self.plan.experts) {
            experts.counts.clone_from(&known.counts);
        }
        Ok(())
    }

    /// Selects what traces record from now on. Recompiles the segments.
    ///
    /// # Errors
    /// Those of [`Session::place`].
    pub fn time_each(&mut self, what: Timed) -> Result<(), Error> {
        self.assert_none_begun();
        let timings = what == Timed::Op;
        if self.limits.timings == timings {
            return Ok(());
        }
        self.limits.timings = timings;
        if let Some((device, error)) = self.lost.take() {
            return self.move_from(device, error);
        }
        self.adopt(self.plan.clone())
    }

    /// Whether devices of a plan can work at the same time.
    pub(super) fn divides(&self, plan: &Plan) -> bool {
        self.read.watched.is_empty() && overlaps(&self.graph, &plan.segments)
    }

    /// When devices of a plan work at the same time.
    pub(super) fn overlap_of(&self, plan: &Plan) -> Overlap {
        if self.divides(plan) { self.overlap_wanted } else { Overlap::Off }
    }

    /// Switches to another plan; without a device that fails during the switch.
    fn adopt(&mut self, plan: Plan) -> Result<(), Error> {
        match self.relocate(&plan) {
            Ok(()) => {
                self.plan = plan;
                self.decoding = Decoding::default();
                Ok(())
            }
            Err(Failed::Device { device, error })
                if is_recoverable(self.pipeline.backends[device].as_ref(), &error) =>
            {
                self.move_from(device, error)
            }
            Err(failed) => Err(failed.into()),
        }
    }

    fn relocate(&mut self, plan: &Plan) -> Result<(), Failed> {
        let (model, graph, watched) = (&self.model, &self.graph, &self.read.watched[..]);
        let change = Change { model, graph, from: Some(&self.plan), to: plan, watched };
        let pages = self.cache.pages_in_use();
        let backends = &mut self.pipeline.backends;
        let mut cargo = Vec::new();
        for (cache, from, to) in change.moved(load::caches) {
            let data = backends[from].save(cache, &pages).map_err(Failed::on(from))?;
            cargo.push(Cargo { cache, to, data });
        }
        let slots = self.cache.slots_in_use();
        let mut states = Vec::new();
        for (state, from, to) in change.moved(load::states) {
            let data = backends[from].save_state(state, &slots).map_err(Failed::on(from))?;
            states.push(StateCargo { state, to, data });
        }
        let parts =
            prepare::equip(&change, backends, self.limits, &mut |_| ControlFlow::Continue(()))?;
        for Cargo { cache, to, data } in cargo {
            backends[to].restore(cache, &pages, &data).map_err(Failed::on(to))?;
        }
        for StateCargo { state, to, data } in states {
            backends[to].restore_state(state, &slots, &data).map_err(Failed::on(to))?;
        }
        self.divides = self.divides(plan);
        self.overlap = self.overlap_of(plan);
        let Pipeline { segments, carried, order, batches, overlap, experts, .. } =
            &mut self.pipeline;
        experts.iter_mut().for_each(|experts| experts.adopt(plan));
        *order = pipeline::order(&parts.segments);
        *batches = (0..=plan.segments.len()).map(|_| Batch::reserved(&self.limits)).collect();
        *overlap = self.overlap != Overlap::Off;
        (*segments, *carried, self.stream) = (parts.segments, parts.carried, parts.stream);
        Ok(())
    }
}
