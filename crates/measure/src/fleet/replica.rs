//! One replica: the scheduler and the cache's book-keeping of a server, without its devices.

use std::collections::HashMap;
use std::time::Duration;

use bilayer_engine::requests::{Arrival, Item, Policy, RequestId, Scheduler};
use bilayer_engine::session::Pages;
use bilayer_graph::PAGE_TOKENS;

use super::request::{Request, Served};
use super::{Fleet, StepTimes};

/// A request that is not finished.
struct Open {
    request: Request,
    arrived: Duration,
    ready: Vec<Duration>,
}

/// A replica in simulation.
pub(super) struct Replica {
    scheduler: Scheduler,
    cache: Pages,
    overhead: Duration,
    open: HashMap<RequestId, Open>,
    /// Whether it is about to begin a step after it was idle.
    wakes: bool,
    /// The step that runs, and how long it takes.
    running: Option<(Vec<Item>, Duration)>,
    /// Time in which steps ran.
    pub busy: Duration,
    /// The most pages that running and waiting requests held.
    pub pages_peak: usize,
    pub pages: usize,
}

impl Replica {
    pub fn new(fleet: &Fleet) -> Replica {
        let policy = Policy {
            rows: fleet.rows,
            outputs: fleet.rows,
            sequences: fleet.sequences,
            waiting: fleet.waiting,
            waiting_per_key: fleet.waiting,
            step: Duration::from_secs_f64(fleet.max_step_ms / 1e3),
            deterministic: None,
        };
        let pages = fleet.context.div_ceil(PAGE_TOKENS);
        Replica {
            scheduler: Scheduler::new(policy),
            // Finished sequences stay until their pages are needed: there may be one in each page.
            cache: Pages::new(pages, fleet.sequences + pages, fleet.context),
            overhead: Duration::from_secs_f64(fleet.overhead_ms / 1e3),
            open: HashMap::new(),
            wakes: false,
            running: None,
            busy: Duration::ZERO,
            pages_peak: 0,
            pages,
        }
    }

    /// Requests that are not finished.
    pub fn requests(&self) -> usize {
        self.open.len()
    }

    /// Accepts a request; false if the queue is full.
    pub fn submit(&mut self, now: Duration, request: Request) -> bool {
        let arrival = Arrival { prompt: request.prompt.clone(), reuse: true, ..Arrival::default() };
        let Ok(id) = self.scheduler.submit(now, arrival) else { return false };
        self.open.insert(id, Open { request, arrived: now, ready: Vec::new() });
        true
    }

    /// Wakes it; false if a step runs or it wakes already.
    pub fn wake(&mut self) -> bool {
        self.running.is_none() && !std::mem::replace(&mut self.wakes, true)
    }

    /// Begins a step unless one runs or there is nothing to do. Returns how long it takes.
    pub fn begin_step(&mut self, now: Duration, times: &StepTimes) -> Option<Duration> {
        self.wakes = false;
        if self.running.is_some() {
            return None;
        }
        let items = self.scheduler.next_step(now, &mut self.cache);
        if items.is_empty() {
            return None;
        }
        for item in &items {
            let tokens = &self.scheduler.tokens(item.request)[item.start..item.end];
            let appended = self.cache.append(item.sequence, tokens, &mut Vec::new());
            assert_eq!(appended, Ok(item.start), "pages were made free for {item:?}");
        }
        let held: usize =
            self.scheduler.running().map(|(_, sequence)| self.cache.table(sequence).len()).sum();
        self.pages_peak = self.pages_peak.max(held);
        let took = times.step(&items) + self.overhead;
        self.running = Some((items, took));
        Some(took)
    }

    /// Ends the step that runs. Returns the requests that are answered.
    pub fn end_step(&mut self, now: Duration) -> Vec<Served> {
        let Some((items, took)) = self.running.take() else { return Vec::new() };
        self.busy += took;
        self.scheduler.finish_step(&items, took, &mut self.cache);
        let mut served = Vec::new();
        for item in items.iter().filter(|item| item.selects) {
            let open = self.open.get_mut(&item.request).expect("a running request is open");
            open.ready.push(now);
            // Answers differ from each other and from all prompts.
            let token =
                1 << 30 | (open.request.conversation as u32) << 12 ^ open.ready.len() as u32;
            let is_last = open.ready.len() == open.request.answer_tokens;
            self.scheduler.push(item.request, &[token], &mut self.cache);
            if is_last {
                served.push(self.end(item.request));
            }
        }
        served
    }

    fn end(&mut self, id: RequestId) -> Served {
        let progress = self.scheduler.progress(id).unwrap_or_default();
        let tokens = self.scheduler.tokens(id).to_vec();
        self.scheduler.end(id, &mut self.cache);
        let Open { request, arrived, ready } = self.open.remove(&id).expect("it is open");
        Served {
            conversation: request.conversation,
            turn: request.turn,
            tokens,
            prompt: request.prompt.len(),
            cached: progress.cached,
            preempted: progress.preempted,
            arrived,
            ready,
        }
    }
}
