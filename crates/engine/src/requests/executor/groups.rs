//! Steps of groups of requests in progress together, where that is faster than one step for all.

use std::collections::BTreeMap;
use std::time::Instant;

use bilayer_scheduler::Demand;

use super::Executor;
use crate::Error;
use crate::generate::Token;
use crate::requests::answer::{Answer, ItemRows};
use crate::requests::report::Event;
use crate::requests::request::{Item, RequestId};
use crate::requests::scheduler::Scheduler;
use crate::session::{Reading, Run};

/// A step in progress.
pub(super) struct BegunStep {
    items: Vec<Item>,
    reading: Reading,
    began: Instant,
}

/// Selects tokens from the rows `data` of items. Those whose requests ended meanwhile have none.
pub(super) fn select<'i>(
    (reading, data): (Reading, &[f32]),
    items: &'i [Item],
    scheduler: &Scheduler,
    answers: &mut BTreeMap<RequestId, Answer>,
) -> Vec<(&'i Item, Result<Vec<Token>, Error>)> {
    let mut rest = data;
    let mut outcomes = Vec::with_capacity(items.len());
    for item in items {
        let (data, after) = rest.split_at(item.outputs() * reading.width);
        rest = after;
        let Some(answer) = answers.get_mut(&item.request) else { continue };
        let rows = ItemRows { data, reading };
        let tokens = scheduler.tokens(item.request);
        outcomes.push((item, answer.advance(item, tokens, &rows)));
    }
    outcomes
}

/// The runs of items.
pub(super) fn runs<'a>(items: &[Item], scheduler: &'a Scheduler) -> Vec<Run<'a>> {
    let run = |item: &Item| Run {
        sequence: item.sequence,
        tokens: &scheduler.tokens(item.request)[item.start..item.end],
        wanted: item.wanted,
    };
    items.iter().map(run).collect()
}

impl Executor {
    /// Number of groups of which steps shall be in progress together.
    pub(super) fn groups(&self) -> usize {
        let fixed = self.scheduler.policy.deterministic;
        let step_rows = fixed.map_or(self.session.limits().tokens, |fixed| fixed.rows);
        self.session.groups(Demand { rows: self.scheduler.decoding(), step_rows })
    }

    /// Begins steps until so many are in progress, and finishes the oldest one. False if there was nothing to do.
    pub(super) fn step_of_groups(
        &mut self,
        groups: usize,
        events: &mut Vec<(RequestId, Event)>,
    ) -> bool {
        while self.begun.len() < groups {
            let items = self.next_items(groups, events);
            if items.is_empty() {
                break;
            }
            if self.session.streams(&runs(&items, &self.scheduler)) {
                // Its rows are worth copying weights, which is a step alone.
                while !self.begun.is_empty() {
                    self.finish_oldest(events);
                }
                if let Err(error) = self.compute(&items, events) {
                    self.isolate(&items, error, events);
                }
                return true;
            }
            if let Err(error) = self.begin(&items) {
                self.repeat(Some(items), error, events);
                return true;
            }
        }
        if self.begun.is_empty() {
            return false;
        }
        self.finish_oldest(events);
        true
    }

    /// Finishes all steps in progress. Their events come with the next step.
    pub(super) fn finish_begun(&mut self) {
        let mut events = std::mem::take(&mut self.deferred);
        while !self.begun.is_empty() {
            self.finish_oldest(&mut events);
        }
        self.deferred = events;
    }

    fn begin(&mut self, items: &[Item]) -> Result<(), Error> {
        let reading = self.reading(items)?;
        let began = self.session.clock().now();
        self.session.begin_reading(&runs(items, &self.scheduler), reading)?;
        self.scheduler.begin_step(items);
        self.begun.push_back(BegunStep { items: items.to_vec(), reading, began });
        Ok(())
    }

    fn finish_oldest(&mut self, events: &mut Vec<(RequestId, Event)>) {
        let Executor { session, scheduler, answers, begun, .. } = self;
        let clock = session.clock().clone();
        match session.finish() {
            Ok(data) => {
                let BegunStep { items, reading, began } = begun.pop_front().expect("one is begun");
                let took = clock.since(began);
                let outcomes = select((reading, data), &items, scheduler, answers);
                self.conclude(&items, outcomes, took, events);
            }
            Err(error) => self.repeat(None, error, events),
        }
    }

    /// Runs the items of all steps in progress, which failed together, and those of one that could not be begun.
    fn repeat(
        &mut self,
        more: Option<Vec<Item>>,
        error: Error,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let steps: Vec<BegunStep> = self.begun.drain(..).collect();
        for step in &steps {
            self.scheduler.release(&step.items, &mut self.session);
        }
        let is_alone = steps.is_empty();
        let items: Vec<Item> = steps
            .into_iter()
            .flat_map(|step| step.items)
            .chain(more.into_iter().flatten())
            .collect();
        match is_alone {
            true => self.isolate(&items, error, events),
            false => self.each(&items, events),
        }
    }

    /// Runs the items of a failed step one by one: only those fail that fail alone.
    pub(super) fn isolate(
        &mut self,
        items: &[Item],
        error: Error,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        match items {
            [item] => self.fail(item.request, error, events),
            _ => self.each(items, events),
        }
    }

    fn each(&mut self, items: &[Item], events: &mut Vec<(RequestId, Event)>) {
        for item in items {
            // It may have ended while its step was in progress.
            if self.answers.contains_key(&item.request)
                && let Err(error) = self.compute(std::slice::from_ref(item), events)
            {
                self.fail(item.request, error, events);
            }
        }
    }
}
