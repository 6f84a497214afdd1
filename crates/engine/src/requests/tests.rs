//! Which rows the scheduler gives to a step, case by case, with page and row counts worked out by hand.

use std::time::Duration;

use super::request::{Arrival, Deterministic, Item, Policy, Progress, Refused, RequestId};
use super::scheduler::Scheduler;
use crate::session::{Pages, SequenceId, Wanted};

mod leaving;
mod prefixes;
mod revisions;

/// A scheduler with its cache.
struct Desk {
    scheduler: Scheduler,
    cache: Pages,
    families: u32,
}

/// The request of an item by number, and its rows.
type StepRows = (u64, usize, usize);

pub(super) fn policy() -> Policy {
    Policy {
        rows: 64,
        outputs: 24,
        sequences: 6,
        waiting: 64,
        waiting_per_key: 40,
        step: Duration::from_millis(100),
        deterministic: None,
    }
}

fn fixed(chunk: usize, rows: usize) -> Policy {
    Policy { deterministic: Some(Deterministic { chunk, rows }), ..policy() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A prompt of so many tokens that begins like no other family's.
fn text(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| 1000 * family + at).collect()
}

fn asking(prompt: Vec<u32>) -> Arrival {
    Arrival { prompt, reuse: true, ..Arrival::default() }
}

fn rows(items: &[Item]) -> Vec<StepRows> {
    items.iter().map(|item| (item.request.0, item.start, item.end)).collect()
}

/// The requests of a step.
fn rows_of(step: &[StepRows]) -> Vec<u64> {
    step.iter().map(|(request, ..)| *request).collect()
}

impl Desk {
    fn new(policy: Policy, pages: usize) -> Desk {
        let cache = Pages::new(pages, 12, 1000);
        Desk { scheduler: Scheduler::new(policy), cache, families: 0 }
    }

    fn submit(&mut self, arrival: Arrival) -> RequestId {
        self.scheduler.submit(Duration::ZERO, arrival).expect("there is room")
    }

    /// Submits a prompt of a family of its own.
    fn ask(&mut self, len: u32) -> RequestId {
        self.families += 1;
        self.submit(asking(text(self.families, len)))
    }

    /// The next step of so many groups, with its tokens in the cache.
    fn begin(&mut self, groups: usize) -> Vec<Item> {
        let items = self.scheduler.next_of_groups(groups, Duration::ZERO, &mut self.cache);
        self.cache.begin();
        for item in &items {
            let tokens = &self.scheduler.tokens(item.request)[item.start..item.end];
            let first = self.cache.append(item.sequence, tokens, &mut Vec::new());
            assert_eq!(first, Ok(item.start), "{item:?}");
        }
        items
    }

    /// Ends a step: each item that selects gets a token.
    fn finish(&mut self, items: &[Item], took: Duration) {
        self.scheduler.finish_step(items, took, &mut self.cache);
        for item in items.iter().filter(|item| item.selects) {
            self.scheduler.push(item.request, &[7], &mut self.cache);
        }
    }

    /// A step and its rows.
    fn step(&mut self) -> Vec<StepRows> {
        let items = self.begin(1);
        self.finish(&items, ms(1));
        rows(&items)
    }

    fn end(&mut self, request: RequestId) {
        assert!(self.scheduler.end(request, &mut self.cache), "{request:?} is known");
    }

    /// Serves a request alone up to its first token. Returns how much was cached, and its slot.
    fn serve(&mut self, arrival: Arrival) -> (usize, u32) {
        let id = self.submit(arrival);
        let selects = (0..99).any(|_| self.begin(1).iter().any(|item| item.selects));
        assert!(selects, "{id:?} is stuck");
        let Progress { cached, slot, .. } = self.scheduler.progress(id).expect("it runs");
        self.end(id);
        (cached, slot)
    }

    fn running(&self) -> Vec<u64> {
        self.scheduler.running().map(|(id, _)| id.0).collect()
    }

    fn sequence(&self, request: RequestId) -> SequenceId {
        let mut running = self.scheduler.running();
        running.find(|(id, _)| *id == request).expect("it runs").1
    }
}

#[test]
fn rows_with_logits_are_those_wanted() {
    let mut desk = Desk::new(policy(), 8);
    desk.ask(20);
    let item = Item { start: 3, end: 8, ..desk.begin(1)[0] };
    let of = |wanted| Item { wanted, ..item }.outputs();
    let all = [Wanted::None, Wanted::First, Wanted::Last, Wanted::All, Wanted::Verified];
    assert_eq!(all.map(of), [0, 1, 1, 5, 5]);
}

#[test]
fn full_queues_refuse() {
    let small = Policy { waiting: 3, waiting_per_key: 2, ..policy() };
    let mut desk = Desk::new(small, 8);
    let mut of = |key| desk.scheduler.submit(Duration::ZERO, Arrival { key, ..asking(text(1, 9)) });
    assert_eq!([of(1), of(1)], [Ok(RequestId(0)), Ok(RequestId(1))]);
    assert_eq!(of(1), Err(Refused::Key { waiting: 2 }));
    assert_eq!([of(2), of(3)], [Ok(RequestId(2)), Err(Refused::Full { waiting: 3 })]);
    // Those that wait for the prompt of another wait too, but not in the queue of their key.
    let mut desk = Desk::new(small, 8);
    let leader = desk.ask(40);
    let follower = Arrival { after: Some(leader), ..asking(text(1, 40)) };
    let [second, third] = [(); 2].map(|()| desk.submit(follower.clone()));
    assert_eq!(desk.scheduler.waiting(), 3);
    let refused = desk.scheduler.submit(Duration::ZERO, asking(text(2, 9)));
    assert_eq!(refused, Err(Refused::Full { waiting: 3 }));
    desk.end(second);
    assert_eq!(desk.scheduler.waiting(), 2);
    desk.end(leader);
    assert_eq!(desk.scheduler.waiting(), 1);
    assert!(!desk.scheduler.end(leader, &mut desk.cache));
    assert_eq!((desk.step(), desk.scheduler.waiting()), (vec![(third.0, 0, 40)], 0));
}

#[test]
fn followers_start_when_the_prompt_before_theirs_is_computed() {
    let mut desk = Desk::new(Policy { rows: 30, ..policy() }, 16);
    let first = desk.ask(40);
    let after = |id| Arrival { after: Some(id), ..asking(text(1, 40)) };
    let second = desk.submit(after(first));
    let third = desk.submit(after(second));
    assert_eq!(desk.step(), [(0, 0, 30)]);
    // From its leader it takes the prompt over in any case.
    let own = desk.submit(Arrival { reuse: false, ..after(first) });
    assert_eq!((desk.step(), desk.scheduler.waiting()), (vec![(0, 30, 40)], 3));
    assert_eq!(desk.step(), [(0, 40, 41), (1, 39, 40), (3, 39, 40)]);
    assert_eq!(desk.step(), [(0, 41, 42), (1, 40, 41), (2, 39, 40), (3, 40, 41)]);
    assert_eq!(desk.running(), [first, second, third, own].map(|id| id.0));
    // One whose leader has begun its answer waits for nothing.
    let late = desk.submit(Arrival { reuse: false, ..after(first) });
    assert_eq!(desk.step()[4..], [(late.0, 39, 40)]);
    // From others it takes nothing over.
    let other = desk.submit(Arrival { reuse: false, ..asking(text(1, 40)) });
    assert_eq!(desk.step()[5..], [(other.0, 0, 25)]);
    // The last token of the prompt is not waited for.
    let mut desk = Desk::new(Policy { rows: 39, ..policy() }, 16);
    let first = desk.ask(40);
    desk.submit(after(first));
    assert_eq!(desk.step(), [(0, 0, 39)]);
    assert_eq!(desk.step(), [(0, 39, 40), (1, 39, 40)]);
}

#[test]
fn keys_are_served_by_the_tokens_that_were_computed_for_them() {
    // The longer prompts take two steps.
    let mut desk = Desk::new(Policy { sequences: 1, rows: 20, ..policy() }, 8);
    for (key, len) in [(1, 30), (1, 30), (2, 10), (2, 10), (2, 10), (2, 10)] {
        desk.submit(Arrival { key, prompt: text(key as u32, len), ..Arrival::default() });
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        let items = desk.begin(1);
        let [item] = items[..] else { panic!("{items:?} after {order:?}") };
        desk.finish(&items, ms(1));
        if item.selects {
            order.push(item.request.0);
            desk.end(item.request);
        }
    }
    // 30 of the first key, then 10, 20 and 30 of the second; of equals the earlier one.
    assert_eq!(order, [0, 2, 3, 4, 1, 5]);
}

#[test]
fn counters_of_keys_last_as_long_as_they_run_or_wait() {
    for has_another in [false, true] {
        let mut desk = Desk::new(Policy { sequences: 3, ..policy() }, 16);
        let of = |key, len| Arrival { key, prompt: text(key as u32, len), ..Arrival::default() };
        let first = desk.submit(of(1, 50));
        desk.submit(of(if has_another { 1 } else { 9 }, 3));
        desk.step();
        desk.end(first);
        let [two, one, three] = [2, 1, 3].map(|key| desk.submit(of(key, 5)).0);
        desk.step();
        // With a request that still runs, the first key was served more than those that come.
        let next = if has_another { three } else { one };
        let mut expected = [1, two, next];
        expected.sort_unstable();
        assert_eq!(desk.running(), expected);
    }
}

#[test]
fn requests_are_admitted_while_pages_are_free() {
    // One runs and holds a page: as many as its tokens and the next one take, and one for each that runs.
    for (len, pages, is_admitted) in [(63, 4, true), (64, 4, false), (64, 5, true)] {
        let mut desk = Desk::new(policy(), pages);
        desk.ask(20);
        desk.step();
        desk.ask(len);
        desk.step();
        let is_running = desk.running().len() == 2;
        assert_eq!(is_running, is_admitted, "{len} tokens, {pages} pages");
    }
    // Two of three pages are those of a common prefix.
    for (pages, is_admitted) in [(4, true), (3, false)] {
        let mut desk = Desk::new(policy(), pages);
        desk.submit(asking(text(1, 64)));
        desk.step();
        desk.submit(asking([text(1, 64), text(2, 10)].concat()));
        desk.begin(1);
        assert_eq!(desk.running().len() == 2, is_admitted, "{pages} pages");
    }
    // Alone, a request runs as far as pages go.
    let mut desk = Desk::new(policy(), 2);
    desk.ask(100);
    assert_eq!((desk.step(), desk.step()), (vec![(0, 0, 64)], vec![]));
    assert_eq!((desk.running(), desk.scheduler.waiting()), (vec![0], 0));
    // No more than may run at once.
    let mut desk = Desk::new(Policy { sequences: 2, ..policy() }, 32);
    for len in [5; 3] {
        desk.ask(len);
    }
    assert_eq!((desk.step().len(), desk.scheduler.waiting()), (2, 1));
}

#[test]
fn the_time_in_the_queue_ends_with_the_first_admission() {
    let mut desk = Desk::new(policy(), 2);
    let at = |seconds| Duration::from_secs(seconds);
    let of = |family, len| asking(text(family, len));
    let first = desk.scheduler.submit(at(3), of(1, 32)).expect("there is room");
    let second = desk.scheduler.submit(at(4), of(2, 20)).expect("there is room");
    let items = desk.scheduler.next_step(at(10), &mut desk.cache);
    assert_eq!(rows(&items), [(0, 0, 32), (1, 0, 20)]);
    for item in &items {
        let tokens = &desk.scheduler.tokens(item.request)[..item.end];
        desk.cache.append(item.sequence, tokens, &mut Vec::new()).expect("pages");
    }
    desk.finish(&items, ms(1));
    let queued = |desk: &Desk, id| desk.scheduler.progress(id).map(|progress| progress.queued);
    assert_eq!([first, second].map(|id| queued(&desk, id)), [Some(at(7)), Some(at(6))]);
    // The second gives its page to the first, and is computed again when that has ended.
    assert_eq!(desk.step(), [(0, 32, 33)]);
    assert_eq!((desk.running(), desk.scheduler.waiting()), (vec![0], 1));
    assert_eq!(desk.scheduler.progress(second), None);
    desk.end(first);
    let items = desk.scheduler.next_step(at(20), &mut desk.cache);
    assert_eq!((rows(&items), items[0].is_prefill), (vec![(1, 0, 21)], true));
    let progress = desk.scheduler.progress(second).expect("it runs");
    let expected =
        Progress { prompt: 20, cached: 0, queued: at(6), preempted: 1, slot: progress.slot };
    assert_eq!(progress, expected);
}

#[test]
fn prefill_rows_fill_the_time_of_a_step() {
    let mut desk = Desk::new(policy(), 64);
    let first = desk.ask(20);
    let items = desk.begin(1);
    desk.finish(&items, ms(20));
    assert_eq!(desk.scheduler.decode_time(), None);
    let items = desk.begin(1);
    assert_eq!((rows(&items), items[0].is_prefill), (vec![(0, 20, 21)], false));
    desk.finish(&items, ms(10));
    assert_eq!(desk.scheduler.decode_time(), Some(ms(10)));
    // A decode row took 10 ms and a prefill row one: 85 / 1.485 - 10, and 85 / 1.47045 - 10 as none was late.
    desk.ask(200);
    let items = desk.begin(1);
    assert_eq!(rows(&items), [(0, 21, 22), (1, 0, 47)]);
    assert_eq!([0, 1].map(|at| items[at].is_prefill), [false, true]);
    assert_eq!([0, 1].map(|at| items[at].wanted), [Wanted::Last, Wanted::None]);
    assert_eq!([0, 1].map(|at| items[at].selects), [true, false]);
    desk.finish(&items, ms(57));
    let items = desk.begin(1);
    assert_eq!(rows(&items), [(0, 22, 23), (1, 47, 94)]);
    desk.finish(&items, ms(57));
    // 85 / 1.45634 - 10
    assert_eq!(desk.step(), [(0, 23, 24), (1, 94, 142)]);
    assert_eq!(desk.scheduler.decode_time(), Some(ms(10)));
    // Alone it has all rows that are left.
    desk.end(first);
    assert_eq!(desk.step(), [(1, 142, 200)]);
}

#[test]
fn the_rest_of_a_cached_prompt_is_prefill() {
    let mut desk = Desk::new(policy(), 8);
    desk.serve(asking(text(1, 20)));
    desk.submit(asking(text(1, 20)));
    let found = [(); 2].map(|()| {
        let items = desk.begin(1);
        desk.finish(&items, ms(1));
        (rows(&items), items[0].is_prefill)
    });
    assert_eq!(found, [(vec![(1, 19, 20)], true), (vec![(1, 20, 21)], false)]);
}

#[test]
fn a_prompt_advances_in_the_shortest_step_and_leaves_rows_to_answers() {
    // Not measured yet: all rows but that of the answer.
    let mut desk = Desk::new(policy(), 64);
    desk.ask(20);
    desk.step();
    desk.ask(200);
    assert_eq!(desk.step(), [(0, 20, 21), (1, 0, 63)]);
    // A row takes 1 ms, as long as the step may take.
    let mut desk = Desk::new(Policy { step: ms(1), ..policy() }, 64);
    desk.ask(20);
    for _ in 0..2 {
        let items = desk.begin(1);
        desk.finish(&items, ms(20));
    }
    desk.ask(200);
    assert_eq!(desk.step(), [(0, 21, 22), (1, 0, 8)]);
    // The oldest prompt has half of them, and the shortest of much shorter ones the rest.
    desk.ask(50);
    desk.ask(5);
    assert_eq!(desk.step(), [(0, 22, 23), (1, 8, 12), (3, 0, 4)]);
    assert_eq!(desk.step(), [(0, 23, 24), (1, 12, 16), (2, 0, 3), (3, 4, 5)]);
}

#[test]
fn steps_are_bounded_while_a_short_prompt_waits() {
    let mut desk = Desk::new(Policy { step: ms(10), ..policy() }, 64);
    desk.ask(600);
    let items = desk.begin(1);
    desk.finish(&items, ms(64));
    assert_eq!(rows(&items), [(0, 0, 64)]);
    // Of a similar length: it waits, and steps are as long as they may be.
    desk.ask(400);
    assert_eq!(desk.step(), [(0, 64, 128)]);
    // The first predictions count as late by half: 8.5 / 1.455, but at least 8 rows.
    let short = desk.ask(6).0;
    assert_eq!(desk.step(), [(0, 128, 132), (short, 0, 4)]);
}

#[test]
fn groups_have_times_of_their_own() {
    let mut desk = Desk::new(policy(), 64);
    desk.ask(20);
    for took in [20, 10] {
        let items = desk.begin(2);
        desk.scheduler.begin_step(&items);
        desk.finish(&items, ms(took));
    }
    assert_eq!(desk.scheduler.decode_time(), None);
    let first = desk.begin(2);
    desk.scheduler.begin_step(&first);
    assert_eq!(desk.scheduler.decode_time(), Some(ms(10)));
    // Beside a step in progress, a prompt has no more rows than the time allows: 85 / 1.485.
    desk.ask(200);
    let second = desk.begin(2);
    assert_eq!((rows(&first), rows(&second)), (vec![(0, 21, 22)], vec![(1, 0, 57)]));
    // One of two groups of three has two requests, in the order of arrival.
    let mut desk = Desk::new(policy(), 64);
    for len in [5; 3] {
        desk.ask(len);
    }
    assert_eq!(rows(&desk.begin(2)), [(0, 0, 5), (1, 0, 5)]);
}

#[test]
fn logits_of_all_prompt_tokens_take_several_steps() {
    let mut desk = Desk::new(policy(), 8);
    let arrival = Arrival { all_logits: true, ..asking(text(1, 30)) };
    desk.submit(arrival.clone());
    let mut found = Vec::new();
    for _ in 0..3 {
        let items = desk.begin(1);
        let [item] = items[..] else { panic!("{items:?}") };
        found.push((item.start, item.end, item.wanted, item.selects));
        desk.finish(&items, ms(1));
    }
    let expected =
        [(0, 24, Wanted::All, false), (24, 30, Wanted::All, true), (30, 31, Wanted::Last, true)];
    assert_eq!(found, expected);
    // Nothing is reused then, nor left behind.
    desk.end(RequestId(0));
    assert_eq!(desk.scheduler.idle(), 0);
    assert_eq!(desk.serve(asking(text(1, 30))).0, 0);
    assert_eq!((desk.serve(arrival).0, desk.scheduler.idle()), (0, 1));
    assert_eq!(desk.serve(asking(text(1, 30))).0, 29);
}

#[test]
fn a_prompt_with_all_logits_leaves_an_output_to_each_request_behind() {
    let mut desk = Desk::new(policy(), 32);
    desk.submit(Arrival { all_logits: true, ..asking(text(9, 200)) });
    assert_eq!(desk.step(), [(0, 0, 24)]);
    desk.ask(20);
    assert_eq!(desk.step(), [(0, 24, 47), (1, 0, 20)]);
    desk.ask(20);
    assert_eq!(desk.step(), [(0, 47, 69), (1, 20, 21), (2, 0, 20)]);
}

#[test]
fn a_step_has_no_more_rows_with_logits_than_its_bound() {
    let mut desk = Desk::new(Policy { outputs: 2, ..policy() }, 16);
    for len in [5; 3] {
        desk.ask(len);
    }
    assert_eq!(desk.step(), [(0, 0, 5), (1, 0, 5)]);
    assert_eq!(desk.step(), [(0, 5, 6), (1, 5, 6)]);
    desk.end(RequestId(0));
    assert_eq!(desk.step(), [(1, 6, 7), (2, 0, 5)]);
    // A part of a prompt has none.
    desk.ask(200);
    assert_eq!(desk.step(), [(1, 7, 8), (2, 5, 6), (3, 0, 62)]);
}

#[test]
fn fixed_steps_are_chunks_and_groups_in_turn() {
    let mut desk = Desk::new(fixed(32, 2), 32);
    for len in [5; 3] {
        desk.ask(len);
    }
    let mut found = Vec::new();
    for _ in 0..9 {
        let items = desk.begin(1);
        let is_prompt = items[0].start == 0;
        let wanted = if is_prompt { Wanted::Last } else { Wanted::Verified };
        assert!(items.iter().all(|item| item.wanted == wanted && item.selects), "{items:?}");
        found.push(rows(&items));
        desk.finish(&items, ms(1));
    }
    let expected: [&[StepRows]; 9] = [
        &[(0, 0, 5)],
        &[(0, 5, 6)],
        &[(1, 0, 5)],
        &[(1, 5, 6), (0, 6, 7)],
        &[(2, 0, 5)],
        &[(1, 6, 7), (2, 5, 6)],
        &[(0, 7, 8), (1, 7, 8)],
        &[(2, 6, 7), (0, 8, 9)],
        &[(1, 8, 9), (2, 7, 8)],
    ];
    assert_eq!(found, expected);
    // Chunks end at multiples, and at the end of the prompt.
    let mut desk = Desk::new(fixed(32, 4), 32);
    desk.ask(70);
    let found = [(); 4].map(|()| desk.step());
    let expected: [&[StepRows]; 4] =
        [&[(0, 0, 32)], &[(0, 32, 64)], &[(0, 64, 70)], &[(0, 70, 71)]];
    assert_eq!(found, expected);
    // Groups of three are of at most two.
    let mut desk = Desk::new(fixed(32, 4), 32);
    for len in [5; 3] {
        desk.ask(len);
    }
    for () in [(); 6] {
        desk.step();
    }
    let first = desk.begin(2);
    desk.scheduler.begin_step(&first);
    assert_eq!((first.len(), desk.begin(2).len()), (2, 1));
}

#[test]
fn a_prompt_is_computed_while_another_request_waits_for_its_first_row() {
    let mut desk = Desk::new(fixed(32, 2), 32);
    for len in [5, 5, 40, 70, 40] {
        desk.ask(len);
    }
    let found = [(); 15].map(|()| desk.step());
    assert_eq!(found[12], [(3, 64, 70)]);
    // Two others are before it, and then it is the turn of a prompt.
    assert_eq!(rows_of(&found[13]), [1, 2]);
    assert_eq!(found[14], [(4, 0, 32)]);
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one_nor_it_for_many_of_them() {
    // Half of the rows of 20 steps, or of ten chunks between steps of answers.
    for (policy, least) in [(policy(), 20 * 32), (fixed(32, 2), 5 * 32)] {
        let mut desk = Desk::new(policy, 400);
        let long = desk.ask(960).0;
        desk.step();
        let short = desk.ask(20);
        let begun = (1..).find(|_| rows_of(&desk.step()).contains(&short.0));
        assert!(begun <= Some(2), "{begun:?}");
        desk.end(short);
        let mut computed = 0;
        for _ in 0..20 {
            while desk.running().len() + desk.scheduler.waiting() < 4 {
                desk.ask(20);
            }
            for (request, start, end) in desk.step() {
                match request == long {
                    true => computed += end - start,
                    false if start >= 20 => desk.end(RequestId(request)),
                    false => {}
                }
            }
        }
        assert!(computed >= least, "{computed}");
    }
}

#[test]
fn steps_in_progress_keep_their_requests() {
    let mut desk = Desk::new(policy(), 16);
    let [first, second] = [5, 6].map(|len| desk.ask(len));
    assert_eq!((desk.scheduler.begun(), desk.scheduler.decoding()), (0, 0));
    let begun = desk.begin(2);
    desk.scheduler.begin_step(&begun);
    let state = |desk: &Desk| [first, second].map(|id| desk.scheduler.is_begun(id));
    assert_eq!((desk.scheduler.begun(), state(&desk)), (1, [true, false]));
    let other = desk.begin(2);
    desk.scheduler.begin_step(&other);
    assert_eq!((desk.scheduler.begun(), state(&desk)), (2, [true, true]));
    assert!(desk.begin(2).is_empty());
    desk.finish(&begun, ms(1));
    assert_eq!((desk.scheduler.begun(), state(&desk)), (1, [false, true]));
    assert_eq!(desk.scheduler.decoding(), 1);
    // A step that is not computed is released too.
    desk.scheduler.release(&other, &mut desk.cache);
    assert_eq!((desk.scheduler.begun(), desk.scheduler.decoding()), (0, 1));
    // One that ends meanwhile is gone for its client, and its sequence is kept when the step ends.
    let begun = desk.begin(2);
    desk.scheduler.begin_step(&begun);
    desk.end(first);
    assert!(!desk.scheduler.end(first, &mut desk.cache));
    assert_eq!((desk.running(), desk.scheduler.decoding()), (vec![second.0], 0));
    assert_eq!((desk.scheduler.idle(), desk.scheduler.begun()), (0, 1));
    desk.scheduler.finish_step(&begun, ms(1), &mut desk.cache);
    assert_eq!((desk.scheduler.idle(), desk.scheduler.begun()), (1, 0));
}

#[test]
fn what_ends_is_kept_unless_it_must_not_be() {
    let mut desk = Desk::new(policy(), 16);
    let none = desk.ask(5);
    // Nothing is computed yet.
    desk.scheduler.next_step(Duration::ZERO, &mut desk.cache);
    desk.end(none);
    assert_eq!((desk.scheduler.idle(), desk.cache.sequences().count()), (0, 0));
    let broken = desk.ask(40);
    desk.step();
    assert!(desk.scheduler.discard(broken, &mut desk.cache));
    assert!(!desk.scheduler.discard(broken, &mut desk.cache));
    assert_eq!((desk.scheduler.idle(), desk.cache.free_pages()), (0, 16));
    for (family, namespace) in [(1, 0), (2, 5), (3, 0)] {
        desk.serve(Arrival { namespace, ..asking(text(family, 40)) });
    }
    assert_eq!((desk.scheduler.idle(), desk.cache.free_pages()), (3, 10));
    desk.scheduler.clear_cache(Some(0), &mut desk.cache);
    assert_eq!((desk.scheduler.idle(), desk.cache.free_pages()), (1, 14));
    desk.scheduler.clear_cache(Some(1), &mut desk.cache);
    assert_eq!(desk.scheduler.idle(), 1);
    desk.scheduler.clear_cache(None, &mut desk.cache);
    assert_eq!((desk.scheduler.idle(), desk.cache.free_pages()), (0, 16));
}
