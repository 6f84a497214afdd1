//! Pages and states under random operations, compared with what each sequence should hold, and exact cases by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

const PAGES: usize = 24;
const SEQUENCES: usize = 5;
const CONTEXT: usize = 200;
/// For each sequence before and after a step, and a few more.
const SLOTS: usize = 2 * SEQUENCES + 6;

/// What a lost or unknown state holds.
const UNKNOWN: &[u32] = &[u32::MAX];

/// A sequence with the tokens it should hold.
#[derive(Clone)]
struct Text {
    id: SequenceId,
    tokens: Vec<u32>,
    keeps_all: bool,
    /// Where the step in progress began, and whether it updates the state there.
    begun: Option<(usize, bool)>,
}

/// Pages and states with their contents, as in a backend's memory.
struct Memory {
    random: ChaCha8Rng,
    pages: Pages,
    contents: Vec<[u32; PAGE_TOKENS]>,
    /// The tokens after which the state in each slot is; none if the model has no states.
    states: Vec<Vec<u32>>,
    texts: Vec<Text>,
    stamp: u32,
    /// How often each kind of step was seen.
    seen: BTreeMap<&'static str, usize>,
}

impl Memory {
    fn new(seed: u64, slots: usize) -> Memory {
        let pages = Pages::new(PAGES, SEQUENCES, CONTEXT);
        Memory {
            random: ChaCha8Rng::seed_from_u64(seed),
            pages: if slots > 0 { pages.with_states(slots) } else { pages },
            contents: vec![[0; PAGE_TOKENS]; PAGES],
            states: vec![UNKNOWN.to_vec(); slots],
            texts: Vec::new(),
            stamp: 0,
            seen: BTreeMap::new(),
        }
    }

    fn below(&mut self, most: usize) -> usize {
        (self.random.next_u64() % most as u64) as usize
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// A sequence without a step in progress.
    fn any_free(&mut self) -> Option<usize> {
        let free = self.texts.iter().enumerate().filter(|(_, text)| text.begun.is_none());
        let free: Vec<usize> = free.map(|(at, _)| at).collect();
        (!free.is_empty()).then(|| free[self.below(free.len())])
    }

    fn apply(&mut self) {
        match self.below(16) {
            0 => match self.pages.open() {
                Ok(id) => {
                    self.texts.push(Text { id, tokens: vec![], keeps_all: false, begun: None });
                }
                Err(error) => {
                    assert_eq!(error, Error::Sequences { limit: SEQUENCES });
                    assert_eq!(self.texts.len(), SEQUENCES);
                }
            },
            1 => {
                let Some(from) = self.any_free() else { return };
                let from = self.texts[from].clone();
                match self.pages.fork(from.id) {
                    Ok(id) => {
                        assert_eq!(self.pages.checkpoints(id), self.pages.checkpoints(from.id));
                        self.texts.push(Text { id, ..from });
                    }
                    Err(error) => {
                        assert_eq!(error, Error::Sequences { limit: SEQUENCES });
                        assert_eq!(self.texts.len(), SEQUENCES);
                    }
                }
            }
            2 if self.below(2) == 0 => {
                let Some(at) = self.any_free() else { return };
                self.pages.close(self.texts.remove(at).id);
            }
            3 => {
                let Some(at) = self.any_free() else { return };
                let to = self.below(self.texts[at].tokens.len() + 1);
                let expected = self.known(self.texts[at].id, to);
                let text = &mut self.texts[at];
                assert_eq!(self.pages.resumable(text.id, to), expected);
                assert_eq!(self.pages.truncate(text.id, to), expected);
                text.tokens.truncate(expected);
            }
            4 if self.below(4) == 0 => {
                let Some(at) = self.any_free() else { return };
                self.texts[at].keeps_all = true;
                self.pages.keep_all_states(self.texts[at].id);
            }
            5 | 6 => self.end_step(),
            _ => self.step(),
        }
    }

    /// The longest of the first `to` tokens after which the state is known.
    fn known(&self, id: SequenceId, to: usize) -> usize {
        if self.states.is_empty() {
            return to;
        }
        let known = self.pages.checkpoints(id).iter().map(|at| at.position);
        known.filter(|&at| at <= to).max().unwrap_or(0)
    }

    /// Number of sequences that have something in their list.
    fn sharers<T: PartialEq>(&self, of: impl Fn(SequenceId) -> Vec<T>, what: &T) -> usize {
        self.texts.iter().filter(|text| of(text.id).contains(what)).count()
    }

    /// A step with tokens of one sequence, up to its end or so far that it is in progress.
    fn step(&mut self) {
        let Some(at) = self.any_free() else { return };
        self.regain();
        let count = [1, 1, 1, 2, 5, 31, 32, 33, 70][self.below(9)];
        let Text { id, keeps_all, tokens: ref before, .. } = self.texts[at];
        let (start, end) = (before.len(), before.len() + count);
        let old = self.pages.checkpoints(id).to_vec();
        let slots = |id| self.pages.checkpoints(id).iter().map(|at| at.slot).collect::<Vec<_>>();
        let updates = count == 1
            && old
                .last()
                .is_some_and(|last| last.is_passing && self.sharers(slots, &last.slot) == 1);
        self.pages.begin();
        if !self.append(at, count) {
            return;
        }
        let verifies = count < 9 && self.below(2) == 0;
        if verifies {
            (start + 1..end).for_each(|to| self.pages.mark(id, to));
            self.pages.pass(id, start);
        } else if count > 1 && self.below(2) == 0 {
            let inside = start + 1 + self.below(count - 1);
            self.pages.mark(id, inside);
        }
        if !self.states.is_empty() {
            let is_boundary = |at: usize| at.is_multiple_of(PAGE_TOKENS);
            let list = self.pages.checkpoints(id);
            let last = list.last().expect("a state at the end");
            let passes = (count == 1 || verifies) && !keeps_all && !is_boundary(end);
            assert_eq!((last.position, last.is_passing), (end, passes), "{list:?}");
            assert!(list.iter().all(|at| !at.is_passing || at.position >= start), "{list:?}");
            assert_eq!(self.known(id, start) == start, !updates, "{list:?}");
            assert!(!updates || last.slot == old[old.len() - 1].slot, "it is updated in place");
            self.saw(if updates { "updates" } else { "takes a slot" });
        }
        let rows = match self.below(4) {
            0 => 1 + self.below(count),
            _ => count,
        };
        self.compute(id, at, start, start + rows);
        self.texts[at].begun = Some((start, updates));
        self.pages.hold(id);
        if rows < count {
            self.release(at);
            self.texts[at].tokens.truncate(start + rows);
            self.pages.stop(id, start + rows);
            self.saw("stops");
        } else if self.below(4) > 0 {
            self.release(at);
        }
    }

    /// Appends new tokens; false if there is no room.
    fn append(&mut self, at: usize, count: usize) -> bool {
        let id = self.texts[at].id;
        let (start, end) = (self.texts[at].tokens.len(), self.texts[at].tokens.len() + count);
        let tokens: Vec<u32> = (self.stamp + 1..).take(count).collect();
        let (table, free) = (self.pages.table(id).to_vec(), self.pages.free_pages());
        let tables = |id| self.pages.table(id).to_vec();
        let partial = (!start.is_multiple_of(PAGE_TOKENS)).then_some(start / PAGE_TOKENS);
        let shared = partial.filter(|&page| self.sharers(tables, &table[page]) > 1);
        let needed = end.div_ceil(PAGE_TOKENS) - table.len() + usize::from(shared.is_some());
        assert_eq!(
            (self.pages.pages_needed(id, count), self.pages.pages_needed(id, 0)),
            (needed, 0)
        );
        let mut copies = Vec::new();
        let found = self.pages.append(id, &tokens, &mut copies);
        if end > CONTEXT || needed > free {
            let full = Error::Full { pages: PAGES };
            let is_long = end > CONTEXT;
            let expected =
                if is_long { Error::Context { needed: end, context: CONTEXT } } else { full };
            assert_eq!((found, copies.len()), (Err(expected), 0));
            assert_eq!((self.pages.table(id), self.pages.free_pages()), (&*table, free));
            self.saw(if is_long { "is too long" } else { "is full" });
            return false;
        }
        assert_eq!(found, Ok(start));
        let now = self.pages.table(id);
        let copied = shared.map(|page| PageCopy { from: table[page], to: now[page] });
        assert_eq!(copies, copied.into_iter().collect::<Vec<_>>());
        for copy in copies {
            self.contents[copy.to as usize] = self.contents[copy.from as usize];
        }
        for (position, &token) in (start..).zip(&tokens) {
            let page = self.pages.table(id)[position / PAGE_TOKENS];
            self.contents[page as usize][position % PAGE_TOKENS] = token;
        }
        self.texts[at].tokens.extend(tokens);
        self.stamp += count as u32;
        self.saw(if shared.is_some() { "copies" } else { "appends" });
        true
    }

    /// Runs the tokens `start..end` as a device does: each state is that of the checkpoint before, brought to the next.
    fn compute(&mut self, id: SequenceId, at: usize, start: usize, end: usize) {
        let checkpoints = self.pages.checkpoints(id);
        let mut position = start;
        while position < end && !self.states.is_empty() {
            let next = checkpoints.iter().find(|at| at.position > position).expect("an end");
            let before = checkpoints.iter().find(|at| at.position == position);
            let from = before.unwrap_or(next).slot as usize;
            let tokens = &self.texts[at].tokens;
            assert!(position == 0 || self.states[from] == tokens[..position], "{checkpoints:?}");
            position = next.position.min(end);
            self.states[next.slot as usize] = tokens[..position].to_vec();
        }
    }

    fn release(&mut self, at: usize) {
        self.texts[at].begun = None;
        self.pages.release(self.texts[at].id);
    }

    /// Ends a step in progress; some fail.
    fn end_step(&mut self) {
        let Some(at) = self.texts.iter().position(|text| text.begun.is_some()) else { return };
        let (start, updates) = self.texts[at].begun.expect("a step in progress");
        self.release(at);
        if self.below(2) == 0 {
            return;
        }
        let id = self.texts[at].id;
        self.texts[at].tokens.truncate(start);
        self.pages.fail(id, start);
        let last = self.pages.checkpoints(id).last().copied();
        if let Some(last) = last {
            assert_eq!((last.position, self.pages.has_state(last.slot)), (start, !updates));
            if updates {
                self.states[last.slot as usize] = UNKNOWN.to_vec();
                self.saw("loses a state");
            }
        }
        self.saw("fails");
    }

    /// Computes lost states again, as happens before a step.
    fn regain(&mut self) {
        let all = (0..self.states.len() as u32).all(|slot| self.pages.has_state(slot));
        assert_eq!(self.pages.has_states(), all);
        for text in &self.texts {
            for at in self.pages.checkpoints(text.id) {
                if !self.pages.has_state(at.slot) {
                    self.states[at.slot as usize] = text.tokens[..at.position].to_vec();
                }
            }
        }
        self.pages.regain_states();
        assert!(self.pages.has_states());
    }

    /// Every sequence holds its tokens and states, and nothing else is in use.
    fn check(&self) {
        let (mut used, mut slots) = (BTreeSet::new(), BTreeSet::new());
        for Text { id, tokens, .. } in &self.texts {
            let table = self.pages.table(*id);
            assert_eq!(self.pages.tokens(*id), tokens);
            assert_eq!(
                (self.pages.len(*id), self.pages.is_empty(*id)),
                (tokens.len(), tokens.is_empty())
            );
            assert_eq!(table.len(), tokens.len().div_ceil(PAGE_TOKENS));
            used.extend(table.iter().copied());
            for (position, expected) in tokens.iter().enumerate() {
                let page = table[position / PAGE_TOKENS] as usize;
                assert_eq!(self.contents[page][position % PAGE_TOKENS], *expected);
            }
            let checkpoints = self.pages.checkpoints(*id);
            assert!(checkpoints.is_sorted_by(|a, b| a.position < b.position), "{checkpoints:?}");
            if !self.states.is_empty() {
                assert_eq!(checkpoints.last().map_or(0, |last| last.position), tokens.len());
            }
            slots.extend(checkpoints.iter().map(|at| at.slot));
            for at in checkpoints {
                let is_there = self.states[at.slot as usize] == tokens[..at.position];
                assert_eq!(self.pages.has_state(at.slot), is_there, "{at:?} of {checkpoints:?}");
            }
        }
        assert_eq!(self.pages.free_pages(), PAGES - used.len());
        assert_eq!(self.pages.pages_in_use(), used.into_iter().collect::<Vec<_>>());
        assert_eq!(self.pages.slots_in_use(), slots.into_iter().collect::<Vec<_>>());
        let open: BTreeSet<SequenceId> = self.texts.iter().map(|text| text.id).collect();
        assert_eq!(
            self.pages.sequences().collect::<Vec<_>>(),
            open.into_iter().collect::<Vec<_>>()
        );
    }
}

#[test]
fn sequences_hold_what_a_plain_map_holds() {
    for (seed, slots) in [(1, 0), (2, SLOTS), (3, 2 * SEQUENCES)] {
        let mut memory = Memory::new(seed, slots);
        for _ in 0..20_000 {
            memory.apply();
            memory.check();
        }
        let mut expected = vec!["appends", "copies", "fails", "is full", "is too long", "stops"];
        if slots > 0 {
            expected.extend(["loses a state", "takes a slot", "updates"]);
        }
        for what in expected {
            assert!(memory.seen.get(what).is_some_and(|&seen| seen > 20), "{:?}", memory.seen);
        }
    }
}

fn append(pages: &mut Pages, of: SequenceId, count: usize) -> (usize, Vec<(u32, u32)>) {
    let mut copies = Vec::new();
    let first = pages.append(of, &vec![7; count], &mut copies).expect("there is room");
    (first, copies.iter().map(|copy| (copy.from, copy.to)).collect())
}

#[test]
fn pages_are_taken_in_order_shared_copied_and_given_back() {
    let mut pages = Pages::new(6, 2, 100);
    assert_eq!((pages.pages(), pages.context(), pages.free_pages()), (6, 100, 6));
    let a = pages.open().expect("a slot");
    assert!(pages.is_empty(a));
    assert_eq!(append(&mut pages, a, 40), (0, vec![]));
    assert_eq!((pages.table(a), pages.free_pages(), pages.is_empty(a)), (&[0, 1][..], 4, false));
    let needed = |pages: &Pages, of| [0, 1, 24, 25, 60].map(|n| pages.pages_needed(of, n));
    assert_eq!(needed(&pages, a), [0, 0, 0, 1, 2]);
    let b = pages.fork(a).expect("a slot");
    assert_eq!((pages.table(b), pages.free_pages()), (&[0, 1][..], 4));
    // The second page is shared and would be written by either.
    assert_eq!([a, b].map(|of| needed(&pages, of)), [[0, 1, 1, 2, 3]; 2]);
    assert_eq!(append(&mut pages, b, 25), (40, vec![(1, 2)]));
    assert_eq!((pages.table(a), pages.table(b)), (&[0, 1][..], &[0, 2, 3][..]));
    assert_eq!((pages.free_pages(), needed(&pages, a)), (2, [0, 0, 0, 1, 2]));
    assert_eq!(pages.pages_in_use(), [0, 1, 2, 3]);
    assert_eq!(pages.open(), Err(Error::Sequences { limit: 2 }));
    // A page of which nothing is needed goes back; one that ends where the sequence does stays and is not written.
    assert_eq!((pages.truncate(b, 33), pages.table(b)), (33, &[0, 2][..]));
    assert_eq!((pages.truncate(b, 32), pages.table(b)), (32, &[0][..]));
    assert_eq!((pages.free_pages(), pages.pages_needed(b, 1)), (4, 1));
    assert_eq!(append(&mut pages, b, 1), (32, vec![]));
    assert_eq!(pages.table(b), [0, 2], "the page that was given back last");
    // As long as the context, and no longer.
    let mut copies = Vec::new();
    let refused = pages.append(a, &[7; 61], &mut copies);
    assert_eq!(refused, Err(Error::Context { needed: 101, context: 100 }));
    assert_eq!(append(&mut pages, a, 60), (40, vec![]));
    let full = pages.append(b, &[7; 32], &mut copies);
    assert_eq!((full, pages.free_pages()), (Ok(33), 0));
    assert_eq!(pages.append(b, &[7; 32], &mut copies), Err(Error::Full { pages: 6 }));
    assert_eq!(pages.append(b, &[], &mut copies), Ok(65));
    pages.close(a);
    assert_eq!((pages.pages_in_use(), pages.free_pages()), (pages.table(b).to_vec(), 3));
    assert_eq!(pages.sequences().collect::<Vec<_>>(), [b]);
    pages.close(b);
    assert_eq!((pages.sequences().count(), pages.free_pages()), (0, 6));
}

/// Positions, slots, and whether each is passing.
fn states(pages: &Pages, of: SequenceId) -> Vec<(usize, u32, bool)> {
    pages.checkpoints(of).iter().map(|at| (at.position, at.slot, at.is_passing)).collect()
}

#[test]
fn states_are_kept_where_the_documentation_says() {
    let mut pages = Pages::new(8, 2, 200).with_states(8);
    let a = pages.open().expect("a slot");
    let step = |pages: &mut Pages, of, count| {
        pages.begin();
        append(pages, of, count);
    };
    // The end of a prompt stays; single tokens update one slot, but a page boundary stays.
    step(&mut pages, a, 30);
    assert_eq!(states(&pages, a), [(30, 0, false)]);
    step(&mut pages, a, 1);
    assert_eq!(states(&pages, a), [(30, 0, false), (31, 1, true)]);
    step(&mut pages, a, 1);
    assert_eq!(states(&pages, a), [(30, 0, false), (32, 1, false)]);
    step(&mut pages, a, 1);
    step(&mut pages, a, 1);
    assert_eq!(states(&pages, a), [(30, 0, false), (32, 1, false), (34, 2, true)]);
    assert_eq!([29, 30, 31, 32, 33, 34].map(|n| pages.resumable(a, n)), [0, 30, 30, 32, 32, 34]);
    // Several tokens leave the state before them, until the next step.
    step(&mut pages, a, 2);
    assert_eq!(states(&pages, a)[2..], [(34, 2, true), (36, 3, false)]);
    assert_eq!(pages.truncate(a, 35), 34);
    step(&mut pages, a, 2);
    step(&mut pages, a, 2);
    assert_eq!(pages.slots_in_use(), [0, 1, 2, 3], "the slot of a state that nobody needs is free");
    assert_eq!(states(&pages, a)[2..], [(36, 3, false), (38, 2, false)]);
    // All states are kept where that is asked for, until the sequence is closed.
    pages.keep_all_states(a);
    step(&mut pages, a, 1);
    step(&mut pages, a, 1);
    assert_eq!(states(&pages, a)[3..], [(38, 2, false), (39, 4, false), (40, 5, false)]);
    pages.close(a);
    let a = pages.open().expect("a slot");
    step(&mut pages, a, 1);
    step(&mut pages, a, 1);
    assert!(matches!(states(&pages, a)[..], [(2, _, true)]));
    assert_eq!(pages.slots_in_use().len(), 1);
    // More are kept within a step, once each; what follows them is draft tokens.
    step(&mut pages, a, 5);
    for at in [5, 4, 5] {
        pages.mark(a, at);
    }
    assert!(matches!(
        states(&pages, a)[..],
        [(2, _, true), (4, _, false), (5, _, false), (7, _, false)]
    ));
    pages.pass(a, 4);
    assert!(matches!(
        states(&pages, a)[..],
        [(2, _, true), (4, _, false), (5, _, true), (7, _, true)]
    ));
    // Until the sequence goes on.
    step(&mut pages, a, 0);
    assert_eq!(states(&pages, a).len(), 4);
    step(&mut pages, a, 2);
    assert!(matches!(states(&pages, a)[..], [(4, _, false), (7, _, true), (9, _, false)]));
}

#[test]
fn a_model_without_states_returns_to_any_length() {
    let mut pages = Pages::new(4, 1, 100);
    let a = pages.open().expect("a slot");
    pages.begin();
    append(&mut pages, a, 50);
    pages.mark(a, 20);
    assert!(pages.checkpoints(a).is_empty() && pages.slots_in_use().is_empty());
    assert!(pages.has_states());
    assert_eq!([0, 1, 37, 50].map(|n| pages.resumable(a, n)), [0, 1, 37, 50]);
    pages.stop(a, 40);
    assert_eq!((pages.len(a), pages.truncate(a, 33)), (40, 33));
    pages.fail(a, 0);
    assert_eq!((pages.len(a), pages.free_pages()), (0, 4));
}

#[test]
fn misuse_is_noticed() {
    let is_refused = |misuse: &dyn Fn(&mut Pages, SequenceId)| {
        let mut pages = Pages::new(4, 3, 100).with_states(6);
        let a = pages.open().expect("a slot");
        pages.begin();
        append(&mut pages, a, 10);
        catch_unwind(AssertUnwindSafe(|| misuse(&mut pages, a))).is_err()
    };
    type Change = dyn Fn(&mut Pages, SequenceId);
    let changes: [&Change; 4] = [
        &|pages, a| assert_eq!(pages.append(a, &[1], &mut Vec::new()), Ok(10)),
        &|pages, a| assert_eq!(pages.truncate(a, 10), 10),
        &|pages, a| assert!(pages.fork(a).is_ok()),
        &|pages, a| pages.close(a),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert!(!is_refused(change), "{number}");
        let while_held = |pages: &mut Pages, a| {
            pages.hold(a);
            change(pages, a);
        };
        assert!(is_refused(&while_held), "{number}: a step is in progress");
        let released = |pages: &mut Pages, a| {
            pages.hold(a);
            pages.release(a);
            change(pages, a);
        };
        assert!(!is_refused(&released), "{number}: no step is in progress any more");
        let closed = |pages: &mut Pages, a| {
            pages.close(a);
            change(pages, a);
        };
        assert!(is_refused(&closed), "{number}: it was closed");
    }
    assert!(is_refused(&|pages, a| assert_eq!(pages.truncate(a, 11), 10)), "longer than it is");
}

#[test]
fn a_page_stays_until_its_copy_is_made_and_is_shared_again_if_it_is_not() {
    for fails in [true, false] {
        let mut pages = Pages::new(4, 3, 128);
        let a = pages.open().unwrap();
        let mut copies = Vec::new();
        pages.append(a, &[7; 40], &mut copies).unwrap();
        let b = pages.fork(a).unwrap();
        pages.append(b, &[8], &mut copies).unwrap();
        assert_eq!((&copies[..], pages.free_pages()), (&[PageCopy { from: 1, to: 2 }][..], 1));
        pages.hold_copied(&copies);
        pages.close(a);
        assert_eq!((pages.pages_in_use(), pages.free_pages()), (vec![0, 1, 2], 1));
        if fails {
            pages.fail(b, 40);
            pages.share_again(copies[0]);
        }
        pages.release_copied(&copies);
        let table: &[u32] = if fails { &[0, 1] } else { &[0, 2] };
        assert_eq!((pages.table(b), pages.free_pages()), (table, 2));
        pages.close(b);
        assert_eq!(pages.free_pages(), 4);
    }
}
