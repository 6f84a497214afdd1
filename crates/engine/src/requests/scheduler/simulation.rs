//! The scheduler under random load in virtual time: nothing is lost, answered twice, starved or leaked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use bilayer_graph::PAGE_TOKENS;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::super::request::{Arrival, Deterministic, Item, Policy, RequestId};
use super::Scheduler;
use crate::session::{Pages, Wanted};

const CONTEXT: usize = 6 * PAGE_TOKENS;

/// A simulated server.
struct World {
    random: ChaCha8Rng,
    scheduler: Scheduler,
    cache: Pages,
    now: Duration,
    /// Number of steps in progress together.
    groups: usize,
    /// Those steps, oldest first, and when they began.
    begun: VecDeque<(Vec<Item>, Duration)>,
    /// Tokens that each open request has still to generate, its key and when it arrived.
    open: HashMap<RequestId, (usize, u64, Duration)>,
    /// The request of each key that was admitted last.
    order: HashMap<u64, RequestId>,
    /// Requests that were admitted.
    seen: HashSet<RequestId>,
    /// Requests that waited for tokens of another.
    followers: HashSet<RequestId>,
    finished: usize,
    cancelled: usize,
    refused: usize,
    preempted: usize,
    accepted: usize,
    longest: Duration,
}

impl World {
    fn new(seed: u64, policy: Policy, pages: usize) -> World {
        World {
            random: ChaCha8Rng::seed_from_u64(seed),
            scheduler: Scheduler::new(policy),
            cache: Pages::new(pages, policy.sequences + 8, CONTEXT),
            now: Duration::ZERO,
            groups: 1,
            begun: VecDeque::new(),
            open: HashMap::new(),
            order: HashMap::new(),
            seen: HashSet::new(),
            followers: HashSet::new(),
            finished: 0,
            cancelled: 0,
            refused: 0,
            preempted: 0,
            accepted: 0,
            longest: Duration::ZERO,
        }
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random.next_u64() % most
    }

    /// A request whose prompt begins like those of others of its family.
    fn arrive(&mut self) {
        let (key, family) = (self.below(5), self.below(4) as u32);
        let shared = self.below(80) as usize;
        let own = 1 + self.below(30) as usize;
        let mut prompt: Vec<u32> = (0..shared as u32).map(|at| family * 1000 + at).collect();
        prompt.extend((0..own).map(|_| self.random.next_u32() % 50_000));
        let room = CONTEXT - prompt.len();
        let predict = 1 + self.below(room.min(20) as u64) as usize;
        let samples = if self.below(20) == 0 { 3 } else { 1 };
        let slot = (self.below(10) == 0).then(|| self.below(policy().sequences as u64) as u32);
        let mut leader = None;
        for _ in 0..samples {
            let arrival = Arrival {
                key,
                namespace: key % 2,
                prompt: prompt.clone(),
                reuse: true,
                all_logits: shared == 0,
                after: leader,
                slot,
            };
            match self.scheduler.submit(self.now, arrival) {
                Ok(id) => {
                    leader = leader.or(Some(id));
                    self.open.insert(id, (predict, key, self.now));
                }
                Err(_) => self.refused += 1,
            }
        }
    }

    /// Drafts tokens for the running requests, as many as they may have.
    fn draft(&mut self) {
        let most = self.scheduler.most_drafted(self.groups, &self.cache);
        let free = self.scheduler.running().map(|(id, _)| id);
        let free = free.filter(|id| !self.scheduler.is_begun(*id));
        let of_step = self.scheduler.running().count().div_ceil(self.groups);
        let running: Vec<RequestId> = free.take(of_step).collect();
        for id in running.into_iter().filter(|_| most > 0) {
            let room = CONTEXT - self.scheduler.tokens(id).len();
            let count = self.below(most.min(room).min(self.open[&id].0 - 1) as u64 + 1);
            let draft: Vec<u32> = (0..count).map(|_| self.random.next_u32() % 50_000).collect();
            self.scheduler.draft(id, &draft);
        }
    }

    /// What clients do to slots and full contexts.
    fn disturb(&mut self) {
        let slot = self.below(policy().sequences as u64) as u32;
        match self.below(60) {
            0 => drop(self.scheduler.erase(slot, &mut self.cache)),
            1 => {
                let saved: Vec<u32> = (0..1 + self.below(40) as u32).collect();
                if let Ok(sequence) = self.cache.open() {
                    match self.cache.append(sequence, &saved, &mut Vec::new()) {
                        Ok(_) => self.scheduler.adopt(sequence, slot, 0),
                        Err(_) => self.cache.close(sequence),
                    }
                }
            }
            2 => {
                let is_free = |(id, _): &(RequestId, _)| !self.scheduler.is_begun(*id);
                let running: Vec<_> = self.scheduler.running().filter(is_free).take(1).collect();
                let (keep, discard) = (self.below(60) as usize, self.below(30) as usize);
                if let [(id, sequence)] = running[..] {
                    self.scheduler.shift(id, keep, discard, &mut self.cache);
                    let tokens = self.scheduler.tokens(id).len();
                    assert!(self.cache.len(sequence) < tokens, "the last token is to be run");
                }
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        self.disturb();
        while self.begun.len() < self.groups {
            self.draft();
            let items = self.scheduler.next_of_groups(self.groups, self.now, &mut self.cache);
            self.check(&items);
            if items.is_empty() {
                break;
            }
            self.cache.begin();
            for item in &items {
                let tokens = &self.scheduler.tokens(item.request)[item.start..item.end];
                let appended = self.cache.append(item.sequence, tokens, &mut Vec::new());
                assert_eq!(appended, Ok(item.start), "pages were made free for {item:?}");
                self.cache.hold(item.sequence);
            }
            if self.groups > 1 {
                self.scheduler.begin_step(&items);
            }
            self.begun.push_back((items, self.now));
        }
        // A device fault: the steps are repeated, and the cache is as before.
        if self.below(50) == 0 {
            for (items, _) in std::mem::take(&mut self.begun).into_iter().rev() {
                for item in &items {
                    self.cache.release(item.sequence);
                    self.cache.fail(item.sequence, item.start);
                }
                self.scheduler.release(&items, &mut self.cache);
            }
            return;
        }
        if let Some((items, began)) = self.begun.pop_front() {
            let rows: usize = items.iter().map(|item| item.end - item.start).sum();
            self.now += Duration::from_micros(2000 + 100 * rows as u64);
            self.finish(&items, self.now - began);
        }
    }

    fn finish(&mut self, items: &[Item], took: Duration) {
        items.iter().for_each(|item| self.cache.release(item.sequence));
        self.scheduler.finish_step(items, took, &mut self.cache);
        let is_open = |open: &HashMap<_, _>, item: &Item| open.contains_key(&item.request);
        for item in items.iter().filter(|item| item.selects) {
            if !is_open(&self.open, item) {
                // It was cancelled while its step was in progress.
                continue;
            }
            let drafted = match item.wanted {
                Wanted::Verified if item.end - item.start > 1 && !item.is_prefill => {
                    item.end - item.start - 1
                }
                _ => 0,
            };
            let accepted = self.below(drafted as u64 + 1) as usize;
            self.accepted += accepted;
            let first = item.end - drafted;
            let mut tokens = self.scheduler.tokens(item.request)[first..][..accepted].to_vec();
            tokens.push(self.random.next_u32() % 50_000);
            self.scheduler.push(item.request, &tokens, &mut self.cache);
            let held = self.cache.len(item.sequence);
            assert_eq!(held, item.end - drafted + accepted, "rejected tokens left the cache");
            let (left, _, arrived) = self.open.get_mut(&item.request).expect("it is open");
            *left -= tokens.len();
            if *left == 0 {
                self.longest = self.longest.max(self.now - *arrived);
                let progress = self.scheduler.progress(item.request).expect("it runs");
                self.preempted += progress.preempted;
                self.open.remove(&item.request);
                assert!(self.scheduler.end(item.request, &mut self.cache));
                assert!(!self.scheduler.end(item.request, &mut self.cache), "answered twice");
                self.finished += 1;
            }
        }
    }

    /// A step keeps its bounds, and each key's requests are admitted in order, except for followers.
    fn check(&mut self, items: &[Item]) {
        let policy = self.scheduler.policy;
        let rows: usize = items.iter().map(|item| item.end - item.start).sum();
        let outputs: usize = items.iter().map(Item::outputs).sum();
        assert!(rows <= policy.rows && outputs <= policy.outputs, "{items:?}");
        assert!(items.len() <= policy.sequences, "{items:?}");
        if let Some(fixed) = policy.deterministic {
            let is_chunk = items.len() == 1 && items[0].end - items[0].start <= fixed.chunk;
            assert!(is_chunk || rows <= fixed.rows, "{items:?}");
        }
        self.followers.extend(self.scheduler.followers.iter().map(|follower| follower.job.id));
        let admitted: Vec<RequestId> = self.scheduler.running().map(|(id, _)| id).collect();
        for id in admitted {
            // They may start late.
            if !self.seen.insert(id) || self.followers.contains(&id) {
                continue;
            }
            let (_, key, _) = self.open[&id];
            let last = self.order.insert(key, id).unwrap_or(id);
            assert!(last <= id, "{last:?} of key {key} was admitted before {id:?}");
        }
        for (other, _) in &self.begun {
            let is_there = |item: &Item| other.iter().any(|of| of.request == item.request);
            assert!(!items.iter().any(is_there), "{items:?} are in progress");
        }
        if items.is_empty() && self.begun.is_empty() {
            assert!(self.open.is_empty(), "{} requests are stuck", self.open.len());
        }
    }

    fn cancel_one(&mut self) {
        let chosen = self.open.keys().min().copied();
        let chosen = if self.below(2) == 0 { chosen } else { self.open.keys().max().copied() };
        if let Some(id) = chosen {
            self.open.remove(&id);
            assert!(self.scheduler.end(id, &mut self.cache), "an open request is known");
            self.cancelled += 1;
        }
    }

    /// Serves `count` arrivals, then what is left.
    fn run(mut self, count: usize) -> World {
        let mut arrived = 0;
        while arrived < count || !self.open.is_empty() {
            // Bursts, with pauses in which the queue drains.
            let many = if arrived / 500 % 2 == 0 { 4 } else { 1 };
            for _ in 0..self.below(many + 1) {
                if arrived < count {
                    self.arrive();
                    arrived += 1;
                }
            }
            if self.below(40) == 0 {
                self.cancel_one();
            }
            self.step();
            assert_eq!(self.scheduler.requests(), self.open.len(), "none is lost");
        }
        while let Some((items, _)) = self.begun.pop_front() {
            self.finish(&items, Duration::ZERO);
        }
        self.scheduler.clear_cache(None, &mut self.cache);
        assert_eq!(self.cache.free_pages(), self.cache.pages(), "all pages came back");
        assert_eq!(self.cache.sequences().count(), 0, "all sequences were closed");
        self
    }
}

fn policy() -> Policy {
    Policy { step: Duration::from_millis(5), ..crate::requests::tests::policy() }
}

#[test]
fn nothing_is_lost_in_a_million_requests() {
    for (seed, pages) in [(1, 12), (2, 64)] {
        let world = World::new(seed, policy(), pages).run(500_000);
        assert!(world.finished > 100_000 && world.cancelled > 1000, "seed {seed}");
        assert!(world.accepted > 1000, "seed {seed}: drafts");
        assert_eq!(world.preempted > 0, pages == 12, "seed {seed}: a small cache preempts");
        // The queue holds at most 64 requests of at most 130 tokens: none waits longer than it takes to compute
        // them all a few times.
        assert!(
            world.longest < Duration::from_secs(30),
            "seed {seed}: starved {:?}",
            world.longest
        );
    }
}

#[test]
fn groups_in_turn_lose_nothing() {
    for (seed, groups, pages) in [(4, 2, 12), (5, 3, 64), (6, 2, 64)] {
        let world = World { groups, ..World::new(seed, policy(), pages) }.run(50_000);
        let (finished, preempted) = (world.finished, world.preempted);
        assert!(finished > 5_000 && world.cancelled > 100, "seed {seed}: {finished}");
        assert_eq!(preempted > 0, pages == 12, "seed {seed}: {preempted}");
        assert!(world.accepted > 100, "seed {seed}: drafts");
        assert!(world.longest < Duration::from_secs(30), "seed {seed}: {:?}", world.longest);
    }
    let fixed = Deterministic { chunk: 32, rows: 1 };
    let policy = Policy { deterministic: Some(fixed), ..policy() };
    let world = World { groups: 2, ..World::new(7, policy, 16) }.run(10_000);
    assert!(world.finished > 300, "{}", world.finished);
}

#[test]
fn each_group_has_its_share_and_ends_are_kept_for_later() {
    let mut scheduler = Scheduler::new(policy());
    let mut cache = Pages::new(64, 10, CONTEXT);
    let ids: Vec<RequestId> = (0..5)
        .map(|token| {
            let arrival = Arrival { prompt: vec![token; 40], ..Arrival::default() };
            scheduler.submit(Duration::ZERO, arrival).expect("there is room")
        })
        .collect();
    let next = |scheduler: &mut Scheduler, cache: &mut Pages| {
        let items = scheduler.next_of_groups(2, Duration::ZERO, cache);
        for item in &items {
            let tokens = &scheduler.tokens(item.request)[item.start..item.end];
            cache.append(item.sequence, tokens, &mut Vec::new()).expect("pages");
            cache.hold(item.sequence);
        }
        scheduler.begin_step(&items);
        items
    };
    let (first, second) = (next(&mut scheduler, &mut cache), next(&mut scheduler, &mut cache));
    let requests = |items: &[Item]| items.iter().map(|item| item.request).collect::<Vec<_>>();
    // 64 rows are one prompt and part of another; the second step begins with the third request.
    assert_eq!(requests(&first), ids[..2]);
    assert_eq!(requests(&second), ids[2..4]);
    assert!(next(&mut scheduler, &mut cache).len() == 1, "the fifth is left");
    // One that ends while its step is in progress keeps its sequence until the step is finished.
    let used = cache.sequences().count();
    assert!(scheduler.end(ids[0], &mut cache) && !scheduler.end(ids[0], &mut cache));
    assert_eq!((cache.sequences().count(), scheduler.running().count()), (used, 4));
    first.iter().for_each(|item| cache.release(item.sequence));
    scheduler.finish_step(&first, Duration::from_millis(3), &mut cache);
    assert_eq!(cache.sequences().count(), used - 1);
    assert!(!scheduler.is_begun(ids[1]) && scheduler.is_begun(ids[2]));
}

#[test]
fn fixed_steps_lose_nothing_either() {
    let fixed = Deterministic { chunk: 32, rows: 4 };
    let policy = Policy { deterministic: Some(fixed), ..policy() };
    let world = World::new(3, policy, 16).run(50_000);
    assert!(world.finished > 10_000 && world.preempted > 0);
}

#[test]
fn a_key_that_floods_does_not_delay_others() {
    let mut scheduler = Scheduler::new(Policy { sequences: 2, ..policy() });
    let mut cache = Pages::new(64, 10, CONTEXT);
    let arrival = |key, token| Arrival { key, prompt: vec![token; 40], ..Arrival::default() };
    let submit = |scheduler: &mut Scheduler, key, token| {
        scheduler.submit(Duration::ZERO, arrival(key, token)).expect("there is room")
    };
    for token in 0..30 {
        submit(&mut scheduler, 1, token);
    }
    let other = submit(&mut scheduler, 2, 99);
    let mut finished_before = 0;
    loop {
        let items = scheduler.next_step(Duration::ZERO, &mut cache);
        for item in &items {
            let tokens = &scheduler.tokens(item.request)[item.start..item.end];
            cache.append(item.sequence, tokens, &mut Vec::new()).expect("pages");
        }
        scheduler.finish_step(&items, Duration::from_millis(1), &mut cache);
        for item in items.iter().filter(|item| item.selects) {
            if item.request == other {
                assert!(finished_before <= 4, "{finished_before} went before");
                return;
            }
            scheduler.end(item.request, &mut cache);
            finished_before += 1;
        }
    }
}

#[test]
fn requests_that_arrive_together_compute_a_common_prefix_once() {
    // Rows of a step: the common part takes several.
    let mut scheduler = Scheduler::new(Policy { rows: 40, ..policy() });
    let mut cache = Pages::new(64, 14, CONTEXT);
    let mut submit = |common: u32, own: u32| {
        let prompt: Vec<u32> = (0..common).chain((0..8).map(|i| 1000 * own + i)).collect();
        let arrival = Arrival { prompt, reuse: true, ..Arrival::default() };
        scheduler.submit(Duration::ZERO, arrival).expect("there is room")
    };
    let first = submit(100, 1);
    let [second, third] = [2, 3].map(|own| submit(100, own));
    let shorter = submit(70, 4);
    // Less than a page in common with the others.
    let other = submit(10, 5);
    let (mut rows, mut cached, mut ended) = (0, HashMap::new(), Vec::new());
    while ended.len() < 5 {
        let items = scheduler.next_step(Duration::ZERO, &mut cache);
        assert!(!items.is_empty(), "{ended:?} ended");
        for item in &items {
            rows += item.end - item.start;
            let tokens = &scheduler.tokens(item.request)[item.start..item.end];
            cache.append(item.sequence, tokens, &mut Vec::new()).expect("pages");
        }
        for item in items.iter().filter(|item| item.selects) {
            let progress = scheduler.progress(item.request).expect("it runs");
            cached.insert(item.request, progress.cached);
            ended.push(item.request);
            scheduler.end(item.request, &mut cache);
        }
    }
    let of = |request| cached[&request];
    assert_eq!([first, second, third, shorter].map(of), [0, 100, 100, 70]);
    assert_eq!(of(other), 0, "less than a page is not waited for");
    assert_eq!(rows, 108 + 3 * 8 + 18);
    assert_eq!(scheduler.waiting(), 0);
}

#[test]
fn a_common_prefix_is_computed_once() {
    let mut scheduler = Scheduler::new(policy());
    let mut cache = Pages::new(64, 14, CONTEXT);
    let prompt: Vec<u32> = (0..100).collect();
    let mut run = |prompt: Vec<u32>, namespace| {
        let arrival = Arrival { namespace, prompt, reuse: true, ..Arrival::default() };
        let id = scheduler.submit(Duration::ZERO, arrival).expect("there is room");
        loop {
            let items = scheduler.next_step(Duration::ZERO, &mut cache);
            for item in &items {
                let tokens = &scheduler.tokens(item.request)[item.start..item.end];
                cache.append(item.sequence, tokens, &mut Vec::new()).expect("pages");
            }
            if items.iter().any(|item| item.selects) {
                let cached = scheduler.progress(id).expect("it runs").cached;
                scheduler.end(id, &mut cache);
                return cached;
            }
        }
    };
    assert_eq!(run(prompt.clone(), 0), 0);
    assert_eq!(run(prompt.clone(), 0), 99, "all but the last token");
    let longer: Vec<u32> = (0..70).chain([7, 7, 7]).collect();
    assert_eq!(run(longer.clone(), 0), 70);
    assert_eq!(run(prompt, 1), 0, "another namespace shares nothing");
    assert_eq!(run(longer, 0), 72, "the other branch is still there");
}
