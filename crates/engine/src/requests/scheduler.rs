//! Decides which rows the next step computes: a pure state machine over arrivals, tokens, cancels and the KV cache.
//!
//! **The idea.** Each step runs one decode row of every running request and fills up with prefill rows, as many as keep
//! the step within a bound measured online, of the oldest prompt and of short ones. Requests are admitted while pages are
//! free; when pages run out, the latest request gives its pages back and is computed again later, so a running request
//! never fails for lack of memory. Finished sequences stay in the cache until their pages are needed, and a new request
//! starts from the longest common prefix of any sequence with its namespace. If a running request is about to compute more
//! of its prompt, it waits for that.
//!
//! Invariants: a request is in exactly one of the waiting queue, the followers or the running list until it ends; every
//! open sequence belongs to one running request or is idle; running requests are in the order of their arrival.

use std::collections::HashMap;
use std::time::Duration;

use bilayer_graph::PAGE_TOKENS;

use super::fairness::{KeyId, Queue};
use super::pace::Pace;
use super::prompts;
use super::request::{Arrival, Item, Policy, Progress, Refused, RequestId};
use super::sequences::Sequences;
use crate::session::{SequenceId, Wanted};
use prefix::Prefix;

mod begun;
mod fixed;
mod prefix;
mod revise;
mod slots;

#[derive(Debug)]
pub(super) struct Job {
    pub id: RequestId,
    arrival: u64,
    arrived: Duration,
    key: KeyId,
    pub namespace: u64,
    /// The slot that it must continue, if it named one.
    pub slot: Option<u32>,
    /// Prompt and generated tokens, then draft tokens.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    /// Number of draft tokens.
    pub drafted: usize,
    pub reuse: bool,
    /// The request with the same prompt, from whose sequence it may start in any case.
    pub leader: Option<RequestId>,
    all_logits: bool,
    is_admitted: bool,
    pub progress: Progress,
}

#[derive(Debug)]
pub(super) struct Active {
    pub job: Job,
    pub sequence: SequenceId,
    /// Whether a step with rows of it is in progress.
    pub is_begun: bool,
    /// Whether it ended meanwhile.
    pub has_ended: bool,
}

/// A finished sequence whose contents may be reused.
#[derive(Debug)]
pub(super) struct Idle {
    pub sequence: SequenceId,
    pub namespace: u64,
    /// The slot whose last request it belonged to.
    pub slot: Option<u32>,
    /// Tokens that were computed as parts of a prompt.
    pub prompt: usize,
    pub used: u64,
}

/// A request that waits until another has computed the first tokens of both prompts.
#[derive(Debug)]
struct Follower {
    leader: RequestId,
    /// Tokens of the leader that it waits for.
    common: usize,
    job: Job,
}

/// The scheduler. Time is a parameter: `now` counts from any fixed point.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) policy: Policy,
    /// Of steps one after the other, and of groups in turn.
    paces: [Pace; 2],
    queue: Queue,
    waiting: HashMap<usize, Job>,
    followers: Vec<Follower>,
    pub(super) running: Vec<Active>,
    pub(super) idle: Vec<Idle>,
    next: u64,
    clock: u64,
    /// Whether the last step was a prompt chunk.
    was_prefill: bool,
    /// Whether the last prompt chunk was the oldest prompt's turn.
    was_oldest: bool,
    /// Number of the last request of the last decode group.
    turn: u64,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(policy: Policy) -> Scheduler {
        Scheduler {
            policy,
            paces: Default::default(),
            queue: Queue::default(),
            waiting: HashMap::new(),
            followers: Vec::new(),
            running: Vec::new(),
            idle: Vec::new(),
            next: 0,
            clock: 0,
            was_prefill: false,
            was_oldest: false,
            turn: 0,
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// A queue is full.
    pub fn submit(&mut self, now: Duration, arrival: Arrival) -> Result<RequestId, Refused> {
        let waiting = self.queue.len() + self.followers.len();
        if waiting >= self.policy.waiting {
            return Err(Refused::Full { waiting });
        }
        let of_key = self.queue.len_of(arrival.key);
        if of_key >= self.policy.waiting_per_key {
            return Err(Refused::Key { waiting: of_key });
        }
        let id = RequestId(self.next);
        self.next += 1;
        let prompt = arrival.prompt.len();
        let job = Job {
            id,
            arrival: id.0,
            arrived: now,
            key: arrival.key,
            namespace: arrival.namespace,
            slot: arrival.slot,
            tokens: arrival.prompt,
            prompt,
            drafted: 0,
            reuse: arrival.reuse && !arrival.all_logits,
            leader: arrival.after.filter(|_| !arrival.all_logits),
            all_logits: arrival.all_logits,
            is_admitted: false,
            progress: Progress { prompt, ..Progress::default() },
        };
        match arrival.after.filter(|&leader| self.is_before_its_answer(leader)) {
            Some(leader) => self.followers.push(Follower { leader, common: prompt - 1, job }),
            None => self.enqueue(job),
        }
        Ok(id)
    }

    /// The rows of the next step; empty if nothing can run.
    pub fn next_step(&mut self, now: Duration, cache: &mut impl Sequences) -> Vec<Item> {
        self.next_of_groups(1, now, cache)
    }

    /// The rows of the next step, if requests are divided into `groups` whose steps are in progress together: those of
    /// so many requests without a step in progress; empty if none can run now.
    pub fn next_of_groups(
        &mut self,
        groups: usize,
        now: Duration,
        cache: &mut impl Sequences,
    ) -> Vec<Item> {
        self.release_followers(cache);
        self.admit(now, cache);
        match self.policy.deterministic {
            Some(fixed) => self.fixed_step(fixed, groups, cache),
            None => self.mixed_step(groups, cache),
        }
    }

    /// Records that a step was computed, and how long it took from its beginning.
    pub fn finish_step(&mut self, items: &[Item], took: Duration, cache: &mut impl Sequences) {
        let rows = |is_prefill| -> usize {
            let of_kind = items.iter().filter(|item| item.is_prefill == is_prefill);
            of_kind.map(|item| item.end - item.start).sum()
        };
        let has_turns = items.iter().any(|item| self.is_begun(item.request));
        self.paces[usize::from(has_turns)].observe(rows(false), rows(true), took);
        for item in items {
            if let Some(key) = self.find(item.request).map(|active| active.job.key) {
                self.queue.serve(key, item.end - item.start);
            }
        }
        self.release(items, cache);
    }

    /// Ends a request, finished or not. False if there is no such request.
    pub fn end(&mut self, request: RequestId, cache: &mut impl Sequences) -> bool {
        if let Some(at) = self.running.iter().position(|active| active.job.id == request) {
            if self.running[at].is_begun {
                return !std::mem::replace(&mut self.running[at].has_ended, true);
            }
            let Active { job, sequence, .. } = self.running.remove(at);
            if job.reuse && cache.pages().len(sequence) > 0 {
                self.keep(
                    job.progress.slot,
                    Idle {
                        sequence,
                        namespace: job.namespace,
                        slot: None,
                        prompt: job.prompt,
                        used: 0,
                    },
                );
            } else {
                cache.close(sequence);
            }
            let runs = |key| self.running.iter().any(|active| active.job.key == key);
            self.queue.forget(runs);
            return true;
        }
        if let Some(at) = self.followers.iter().position(|follower| follower.job.id == request) {
            self.followers.remove(at);
            return true;
        }
        match self.waiting.remove(&(request.0 as usize)) {
            Some(job) => {
                self.queue.remove(job.key, job.arrival);
                true
            }
            None => false,
        }
    }

    /// Ends a request whose sequence must not be reused. False if there is no such request.
    pub fn discard(&mut self, request: RequestId, cache: &mut impl Sequences) -> bool {
        let running = self.running.iter_mut().find(|active| active.job.id == request);
        running.into_iter().for_each(|active| active.job.reuse = false);
        self.end(request, cache)
    }

    /// Closes all idle sequences, or those of a namespace.
    pub fn clear_cache(&mut self, namespace: Option<u64>, cache: &mut impl Sequences) {
        let clears = |idle: &Idle| namespace.is_none_or(|namespace| idle.namespace == namespace);
        self.idle.iter().filter(|idle| clears(idle)).for_each(|idle| cache.close(idle.sequence));
        self.idle.retain(|idle| !clears(idle));
    }

    /// Prompt and generated tokens of a running request.
    pub fn tokens(&self, request: RequestId) -> &[u32] {
        self.find(request).map_or(&[], |active| &active.job.tokens)
    }

    /// How a running request came along.
    pub fn progress(&self, request: RequestId) -> Option<Progress> {
        self.find(request).map(|active| active.job.progress)
    }

    /// The running requests with their sequences, in the order of arrival.
    pub fn running(&self) -> impl Iterator<Item = (RequestId, SequenceId)> + '_ {
        let running = self.running.iter().filter(|active| !active.has_ended);
        running.map(|active| (active.job.id, active.sequence))
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.followers.len()
    }

    /// Number of idle sequences kept for their prefixes.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Predicted duration of a step without prefill rows, if steps were measured.
    pub fn decode_time(&self) -> Option<Duration> {
        self.paces[usize::from(self.running.iter().any(|active| active.is_begun))]
            .decode()
            .map(Duration::from_secs_f64)
    }

    fn find(&self, request: RequestId) -> Option<&Active> {
        self.running.iter().find(|active| active.job.id == request)
    }

    fn enqueue(&mut self, job: Job) {
        self.queue.push(job.key, job.arrival, job.id.0 as usize);
        self.waiting.insert(job.id.0 as usize, job);
    }

    /// Whether a request has still to compute its prompt.
    fn is_before_its_answer(&self, request: RequestId) -> bool {
        self.waiting.contains_key(&(request.0 as usize))
            || self.followers.iter().any(|follower| follower.job.id == request)
            || self.find(request).is_some_and(|active| active.job.tokens.len() == active.job.prompt)
    }

    /// Enqueues the followers whose leaders have computed the common tokens.
    fn release_followers(&mut self, cache: &impl Sequences) {
        let followers = std::mem::take(&mut self.followers);
        let following: Vec<RequestId> = followers.iter().map(|follower| follower.job.id).collect();
        let waits = |follower: &Follower| match self.find(follower.leader) {
            Some(active) => cache.pages().len(active.sequence) < follower.common,
            None => {
                self.waiting.contains_key(&(follower.leader.0 as usize))
                    || following.contains(&follower.leader)
            }
        };
        let (waiting, ready): (Vec<_>, Vec<_>) = followers.into_iter().partition(waits);
        self.followers = waiting;
        ready.into_iter().for_each(|follower| self.enqueue(follower.job));
    }

    /// Starts waiting requests while sequences and pages are free.
    fn admit(&mut self, now: Duration, cache: &mut impl Sequences) {
        while self.running.len() < self.policy.sequences
            && let Some((key, arrival, number)) = self.queue.first()
        {
            let job = &self.waiting[&number];
            let mut found = self.prefix(job, cache);
            let of_prefix = found.as_ref().map(|found| found.sequence);
            if self.running.iter().any(|of| of.is_begun && Some(of.sequence) == of_prefix) {
                // Its step ends soon.
                return;
            }
            let common = found.as_ref().map_or(0, |found| found.common);
            if let Some((leader, common)) = self.computing(job, common, cache) {
                self.queue.remove(key, arrival);
                let job = self.waiting.remove(&number).expect("it is queued");
                self.followers.push(Follower { leader, common, job });
                continue;
            }
            // Whole pages of the prefix are shared; each running request may need a page soon.
            let needed = (job.tokens.len() + 1).div_ceil(PAGE_TOKENS) - common / PAGE_TOKENS;
            let needed = needed + self.running.len();
            let protected = found.as_ref().map(|found| found.sequence);
            self.evict(needed, protected, cache);
            let lacking = needed.saturating_sub(cache.pages().free_pages());
            if lacking > 0 && !self.running.is_empty() {
                // What an idle sequence has behind the prefix gives way, too.
                let behind = |of: &Prefix| cache.pages().pages_behind(of.sequence, of.common);
                match found.as_mut().filter(|of| of.is_idle() && lacking <= behind(of)) {
                    Some(prefix) => prefix.is_whole = true,
                    None => return,
                }
            }
            let Some(sequence) = self.take_sequence(found, cache) else { return };
            self.queue.take(key, arrival);
            let mut job = self.waiting.remove(&number).expect("it is queued");
            job.progress.slot = job.slot.unwrap_or_else(|| self.free_slot());
            if !job.is_admitted {
                job.is_admitted = true;
                job.progress.cached = cache.pages().len(sequence);
                job.progress.queued = now.saturating_sub(job.arrived);
            }
            let at = self.running.partition_point(|active| active.job.arrival < job.arrival);
            let active = Active { job, sequence, is_begun: false, has_ended: false };
            self.running.insert(at, active);
        }
    }

    /// Closes idle sequences, least recently used first, until so many pages are free.
    pub(super) fn evict(
        &mut self,
        pages: usize,
        protected: Option<SequenceId>,
        cache: &mut impl Sequences,
    ) {
        while cache.pages().free_pages() < pages && self.evict_one(protected, cache) {}
    }

    pub(super) fn evict_one(
        &mut self,
        protected: Option<SequenceId>,
        cache: &mut impl Sequences,
    ) -> bool {
        let idle = self.idle.iter().enumerate();
        let free = idle.filter(|(_, idle)| Some(idle.sequence) != protected);
        let Some(at) = free.min_by_key(|(_, idle)| idle.used).map(|(at, _)| at) else {
            return false;
        };
        cache.close(self.idle.swap_remove(at).sequence);
        true
    }

    /// One decode row of each running request, and prefill rows: as many as the step's time allows, if another request is
    /// waiting for its end.
    fn mixed_step(&mut self, groups: usize, cache: &mut impl Sequences) -> Vec<Item> {
        let free = self.running.iter().filter(|active| !active.is_begun);
        let decoding = free.clone().filter(|active| active.decodes(cache)).count();
        let most = self.running.len().div_ceil(groups);
        let prompts = free.take(most).filter(|active| !active.decodes(cache));
        let prompts: Vec<&Active> = prompts.collect();
        let left = self.left(&prompts, |job| job.tokens.len(), cache);
        let ids: Vec<RequestId> = prompts.iter().map(|active| active.job.id).collect();
        let budget = if decoding == 0 && self.begun() == 0 && prompts::short(&left).is_empty() {
            self.policy.rows
        } else {
            let pace = &self.paces[usize::from(groups > 1)];
            let of_time = pace.prefill_rows(decoding, self.policy.step).unwrap_or(self.policy.rows);
            // A prompt always advances, else it would never start.
            of_time.max(MIN_PREFILL).min(self.policy.rows.saturating_sub(decoding))
        };
        let shares: HashMap<RequestId, usize> =
            ids.into_iter().zip(prompts::divide(budget, &left)).collect();
        let mut step = Filling { rows: self.policy.rows, ..Filling::default() };
        step.outputs = self.policy.outputs;
        let mut at = 0;
        while at < self.running.len() && step.items.len() < most {
            step.prefill = shares.get(&self.running[at].job.id).copied().unwrap_or(0);
            step.behind = self.running.len() - at - 1;
            at = self.add(at, &mut step, cache);
        }
        step.items
    }

    /// Adds rows of the running request `at`, making room for their pages. Returns the place of the next one.
    fn add(&mut self, at: usize, step: &mut Filling, cache: &mut impl Sequences) -> usize {
        let active = &self.running[at];
        if active.is_begun {
            return at + 1;
        }
        let (job, sequence) = (&active.job, active.sequence);
        let start = cache.pages().len(sequence);
        let left = job.tokens.len() - start;
        let is_prefill = !active.decodes(cache);
        let mut rows = left.min(step.rows);
        if is_prefill {
            rows = rows.min(step.prefill);
        }
        if job.all_logits || job.drafted > 0 {
            let behind = if is_prefill { step.behind } else { 0 };
            rows = rows.min(step.outputs.saturating_sub(behind).max(1));
        }
        // Draft tokens take no pages from others.
        let free = cache.pages().free_pages().saturating_sub(step.pages);
        if job.drafted > 0 && cache.pages().pages_needed(sequence, rows) > free {
            rows = rows.min(1);
        }
        let ends = rows == left;
        let wanted = match (job.all_logits && start < job.prompt, ends) {
            _ if job.drafted > 0 => Wanted::Verified,
            (true, _) => Wanted::All,
            (false, true) => Wanted::Last,
            (false, false) => Wanted::None,
        };
        let request = job.id;
        let end = start + rows;
        // Draft tokens that find no place are left out.
        let selects = ends || job.drafted > 0;
        let item = Item { request, sequence, start, end, wanted, selects, is_prefill };
        if rows == 0 || item.outputs() > step.outputs {
            return at + 1;
        }
        let needed = cache.pages().pages_needed(sequence, rows);
        self.evict(step.pages + needed, None, cache);
        while cache.pages().free_pages() < step.pages + needed {
            let last = self.running.iter().rposition(|active| !active.is_begun).unwrap_or(at);
            if last == at {
                // It is the latest one itself: it waits, unless nobody else would ever give pages back.
                if at > 0 && last + 1 == self.running.len() {
                    self.preempt(at, cache);
                }
                return at + 1;
            }
            // What it had in this step is void.
            let id = self.running[last].job.id;
            if let Some(place) = step.items.iter().position(|item| item.request == id) {
                let item = step.items.remove(place);
                step.rows += item.end - item.start;
                step.outputs += item.outputs();
                step.pages -= cache.pages().pages_needed(item.sequence, item.end - item.start);
            }
            self.preempt(last, cache);
        }
        step.pages += needed;
        step.rows -= rows;
        step.outputs -= item.outputs();
        if is_prefill {
            step.prefill -= rows;
        }
        step.items.push(item);
        at + 1
    }

    /// Gives a running request's pages back and lets it wait; its tokens are kept.
    fn preempt(&mut self, at: usize, cache: &mut impl Sequences) {
        let Active { mut job, sequence, .. } = self.running.remove(at);
        cache.close(sequence);
        job.clear_draft();
        job.progress.preempted += 1;
        self.enqueue(job);
    }

    /// Number of requests that have not ended, for tests.
    #[cfg(test)]
    fn requests(&self) -> usize {
        let queued = self.queue.items().count();
        assert_eq!(queued, self.waiting.len(), "the queue names each waiting request once");
        queued + self.followers.len() + self.running().count()
    }
}

impl Active {
    /// Whether only its last token, and draft tokens after it, are to be run.
    pub fn decodes(&self, cache: &impl Sequences) -> bool {
        let Job { tokens, drafted, prompt, .. } = &self.job;
        let known = tokens.len() - drafted;
        known > *prompt && cache.pages().len(self.sequence) + 1 == known
    }
}

impl Job {
    /// Removes its draft tokens.
    pub fn clear_draft(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.drafted);
        self.drafted = 0;
    }
}

/// Prefill rows that a step always takes if there are any.
const MIN_PREFILL: usize = 8;

/// A step being filled: what is left of its bounds, and the pages that its items take.
#[derive(Default)]
struct Filling {
    items: Vec<Item>,
    rows: usize,
    prefill: usize,
    outputs: usize,
    /// Number of later requests: a prompt with all logits leaves an output for each.
    behind: usize,
    pages: usize,
}

#[cfg(test)]
mod simulation;
