//! Ownership of state slots: after how many tokens of a sequence its state is in which slot.
//!
//! A step of one token updates the state in its slot if nobody returns to the length before it: the checkpoint there is
//! [passing](Checkpoint::is_passing) and no fork shares it. If the step fails, that state is lost, and is computed again
//! from an earlier checkpoint. Any other step takes a free slot, so the state before it remains: at the end of a prompt,
//! at page boundaries, and for draft tokens that are rejected. A fork shares its parent's checkpoints. When no slot is
//! free, the checkpoint that is least worth keeping is dropped: one between close neighbours and far from the end of its
//! sequence. Those at page boundaries are worth more.

use bilayer_graph::PAGE_TOKENS;

/// How much more a checkpoint at a page boundary is worth than another.
const BOUNDARY_WORTH: f64 = 8.0;

/// The state of a sequence after its first `position` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of tokens; at least 1.
    pub position: usize,
    /// The slot of the state.
    pub slot: u32,
    /// Whether it is kept only until the sequence goes on: the end of a step of one token, or after a draft token.
    pub is_passing: bool,
}

/// The checkpoints of a sequence, ascending by position. The last one is at its end, unless it is empty.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    list: Vec<Checkpoint>,
    /// The sequence's length before the current step. A checkpoint there must remain.
    base: usize,
    /// Whether none becomes passing.
    pub keeps_all: bool,
}

impl Checkpoints {
    /// None, with room for `slots`.
    pub fn reserved(slots: usize) -> Checkpoints {
        Checkpoints { list: Vec::with_capacity(slots), ..Checkpoints::default() }
    }

    /// All of them.
    pub fn all(&self) -> &[Checkpoint] {
        &self.list
    }

    /// The length of the longest prefix of at most `tokens` tokens whose state is known.
    pub fn resumable(&self, tokens: usize) -> usize {
        self.list[..self.upto(tokens)].last().map_or(0, |last| last.position)
    }

    /// Makes the checkpoints after the first `tokens` tokens passing, except at page boundaries.
    pub fn pass(&mut self, tokens: usize) {
        let first = self.upto(tokens);
        for at in &mut self.list[first..] {
            at.is_passing = !self.keeps_all && !at.position.is_multiple_of(PAGE_TOKENS);
        }
    }

    /// Number of checkpoints within the first `tokens` tokens.
    fn upto(&self, tokens: usize) -> usize {
        self.list.partition_point(|at| at.position <= tokens)
    }

    /// The slots that a step must not take: those of the states before and after it.
    fn needed(&self) -> impl Iterator<Item = u32> + '_ {
        let base = self.list.iter().filter(|at| at.position == self.base);
        base.chain(self.list.last()).map(|at| at.slot)
    }
}

/// The slots of all sequences' states; none if the model has no state.
#[derive(Debug, Default)]
pub struct Slots {
    /// Unreferenced slots; the last is used first.
    free: Vec<u32>,
    /// Number of sequences with a checkpoint in each slot.
    references: Vec<u32>,
    /// Whether the state of each slot was lost in a step that failed.
    lost: Vec<bool>,
    /// Slots that must not be taken, while one is sought.
    needed: Vec<bool>,
}

impl Slots {
    /// So many free slots.
    pub fn new(slots: usize) -> Slots {
        Slots {
            free: (0..slots as u32).rev().collect(),
            references: vec![0; slots],
            lost: vec![false; slots],
            needed: vec![false; slots],
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.references.len()
    }

    /// Referenced slots, ascending.
    pub fn in_use(&self) -> Vec<u32> {
        let used = self.references.iter().zip(0..).filter(|(count, _)| **count > 0);
        used.map(|(_, slot)| slot).collect()
    }

    /// Shares the checkpoints of a sequence with an empty one.
    pub fn fork(&mut self, from: &Checkpoints, to: &mut Checkpoints) {
        to.list.extend_from_slice(&from.list);
        (to.base, to.keeps_all) = (from.base, from.keeps_all);
        from.list.iter().for_each(|at| self.references[at.slot as usize] += 1);
    }

    /// Drops the checkpoints after the first `tokens` tokens.
    pub fn truncate(&mut self, of: &mut Checkpoints, tokens: usize) {
        for at in of.list.drain(of.upto(tokens)..) {
            release(&mut self.references, &mut self.free, at.slot);
        }
    }

    /// Drops the passing checkpoints before the one at which the current step of their sequence begins.
    pub fn leave(&mut self, of: &mut Checkpoints) {
        let (references, free, base) = (&mut self.references, &mut self.free, of.base);
        of.list.retain(|at| {
            let stays = !at.is_passing || at.position >= base;
            if !stays {
                release(references, free, at.slot);
            }
            stays
        });
    }

    /// Moves the checkpoint at the beginning of a step to its end, if it is passing and no other sequence has it. Returns
    /// whether it did: the step then updates the state in its slot.
    pub fn advance(&mut self, of: &mut Checkpoints, position: usize) -> bool {
        let base = of.base;
        let last = of.list.last_mut().filter(|at| at.is_passing && at.position == base);
        let last = last.filter(|at| self.references[at.slot as usize] == 1);
        last.map(|at| at.position = position).is_some()
    }

    /// Corrects the checkpoints of a sequence whose step ended early, after its first `tokens` tokens: the first slot
    /// that the step had not filled completely has the state at that point.
    pub fn stop(&mut self, of: &mut Checkpoints, tokens: usize) {
        let filled = of.upto(tokens.saturating_sub(1));
        if let Some(at) = of.list.get_mut(filled) {
            at.position = tokens;
        }
        self.truncate(of, tokens);
    }

    /// Like [`Slots::stop`] after a step that failed and began after `tokens` tokens: if it was to update the state there,
    /// that is lost.
    pub fn fail(&mut self, of: &mut Checkpoints, tokens: usize) {
        let was_updated = of.resumable(tokens) < tokens;
        self.stop(of, tokens);
        if let Some(last) = of.list.last().filter(|_| was_updated) {
            self.lost[last.slot as usize] = true;
        }
    }

    /// Whether the state of a slot was lost.
    pub fn is_lost(&self, slot: u32) -> bool {
        self.lost[slot as usize]
    }

    /// Whether any state was lost, be its slot in use or not.
    pub fn has_lost(&self) -> bool {
        self.lost.contains(&true)
    }

    /// Notes that no state is lost any more.
    pub fn regain(&mut self) {
        self.lost.fill(false);
    }

    /// Marks the end of each sequence as the beginning of a step.
    pub fn begin<'c>(&self, all: impl Iterator<Item = &'c mut Checkpoints>) {
        all.for_each(|of| of.base = of.list.last().map_or(0, |last| last.position));
    }

    /// Adds a checkpoint to sequence `index` of `all` at a position that the current step reaches, if a slot can be
    /// had. It can for the end of each run of a step: there are enough slots for every sequence before and after it.
    pub fn add<S>(
        &mut self,
        all: &mut [S],
        of: impl Fn(&mut S) -> &mut Checkpoints,
        index: usize,
        position: usize,
    ) -> bool {
        if of(&mut all[index]).resumable(position) == position {
            return true;
        }
        if self.free.is_empty() {
            self.drop_one(all, &of);
        }
        let Some(slot) = self.free.pop() else { return false };
        self.references[slot as usize] = 1;
        self.lost[slot as usize] = false;
        let of = of(&mut all[index]);
        let place = of.upto(position);
        of.list.insert(place, Checkpoint { position, slot, is_passing: false });
        true
    }

    /// Drops the checkpoint that is least worth keeping, in all sequences that share it.
    fn drop_one<S>(&mut self, all: &mut [S], of: impl Fn(&mut S) -> &mut Checkpoints) {
        self.needed.fill(false);
        for one in &mut *all {
            of(one).needed().for_each(|slot| self.needed[slot as usize] = true);
        }
        let mut least: Option<(f64, u32)> = None;
        for one in &mut *all {
            let list = &of(one).list;
            let Some(end) = list.last().map(|last| last.position) else { continue };
            for (place, at) in list.iter().enumerate() {
                if self.needed[at.slot as usize] {
                    continue;
                }
                let before = place.checked_sub(1).map_or(0, |place| list[place].position);
                let gap = (list[place + 1].position - before) as f64;
                let is_boundary = at.position.is_multiple_of(PAGE_TOKENS);
                let worth = gap / (end - at.position) as f64;
                let worth = if is_boundary { BOUNDARY_WORTH * worth } else { worth };
                if least.is_none_or(|(known, _)| worth < known) {
                    least = Some((worth, at.slot));
                }
            }
        }
        let Some((_, slot)) = least else { return };
        for one in &mut *all {
            let list = &mut of(one).list;
            if let Some(place) = list.iter().position(|at| at.slot == slot) {
                list.remove(place);
                release(&mut self.references, &mut self.free, slot);
            }
        }
    }
}

fn release(references: &mut [u32], free: &mut Vec<u32>, slot: u32) {
    references[slot as usize] -= 1;
    if references[slot as usize] == 0 {
        free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(of: &mut Checkpoints) -> &mut Checkpoints {
        of
    }

    fn positions(of: &Checkpoints) -> Vec<usize> {
        of.all().iter().map(|at| at.position).collect()
    }

    /// Runs a step of one sequence to a length, as [`Pages::append`](super::super::cache::Pages::append) does.
    fn step(slots: &mut Slots, all: &mut [Checkpoints], index: usize, to: usize) {
        slots.begin(all.iter_mut());
        let of = &mut all[index];
        let base = of.base;
        slots.leave(of);
        let is_single = to == base + 1;
        if !(is_single && slots.advance(of, to)) {
            assert!(slots.add(all, same, index, to));
        }
        if is_single {
            all[index].pass(base);
        }
    }

    #[test]
    fn old_checkpoints_thin_out_and_boundaries_stay_longer() {
        let mut slots = Slots::new(8);
        let mut all = [Checkpoints::reserved(8)];
        all[0].keeps_all = true;
        for token in 1..=500 {
            step(&mut slots, &mut all, 0, token);
        }
        let found = positions(&all[0]);
        assert_eq!((found.len(), found.last()), (8, Some(&500)));
        assert!(found.contains(&499), "the state before the last step: {found:?}");
        let boundaries = found.iter().filter(|at| at.is_multiple_of(PAGE_TOKENS)).count();
        assert!(boundaries >= 4 && found[0] <= 256, "{found:?}");
        assert_eq!(all[0].resumable(498), found[5]);
        slots.truncate(&mut all[0], 0);
        assert_eq!(slots.in_use(), [0; 0]);
    }

    #[test]
    fn single_tokens_stay_in_a_slot_between_boundaries() {
        let mut slots = Slots::new(8);
        let mut all = [Checkpoints::reserved(8), Checkpoints::reserved(8)];
        step(&mut slots, &mut all, 0, 40);
        for token in 41..=97 {
            step(&mut slots, &mut all, 0, token);
            assert!(slots.in_use().len() <= 4, "{token}");
        }
        // The end of the prompt, the boundaries, and the end.
        assert_eq!(positions(&all[0]), [40, 64, 96, 97]);
        // A fork needs the state at the end: both go on in slots of their own, then in place again.
        let [from, to] = &mut all;
        slots.fork(from, to);
        step(&mut slots, &mut all, 0, 98);
        step(&mut slots, &mut all, 1, 98);
        let [own, forked] = [&all[0], &all[1]].map(|of| of.all().last().unwrap().slot);
        assert_ne!(own, forked);
        step(&mut slots, &mut all, 0, 99);
        assert_eq!((positions(&all[0]), slots.in_use().len()), (vec![40, 64, 96, 99], 6));
        assert_eq!(all[0].all().last().unwrap().slot, own);
        // A step in place that fails loses the state before it, any other does not.
        step(&mut slots, &mut all, 0, 100);
        slots.fail(&mut all[0], 99);
        assert_eq!((positions(&all[0]), slots.has_lost()), (vec![40, 64, 96, 99], true));
        assert!(slots.is_lost(own));
        slots.regain();
        step(&mut slots, &mut all, 0, 107);
        slots.fail(&mut all[0], 99);
        assert_eq!((all[0].resumable(99), slots.has_lost()), (99, false));
    }

    #[test]
    fn forks_share_slots_and_a_step_leaves_the_states_before_it() {
        let mut slots = Slots::new(4);
        let mut all = [Checkpoints::reserved(4), Checkpoints::reserved(4)];
        step(&mut slots, &mut all, 0, 5);
        let [from, to] = &mut all;
        slots.fork(from, to);
        assert_eq!(slots.in_use(), [0]);
        slots.begin(all.iter_mut());
        assert!(slots.add(&mut all, same, 0, 9) && slots.add(&mut all, same, 1, 7));
        // A third, between the states of one step, takes the last slot; there is no fifth.
        assert!(slots.add(&mut all, same, 0, 6) && slots.add(&mut all, same, 0, 7));
        assert_eq!(positions(&all[0]), [5, 7, 9]);
        assert_eq!(positions(&all[1]), [5, 7]);
        // The step of the first sequence ends early: its next slot has the state after 6 tokens.
        slots.stop(&mut all[0], 6);
        assert_eq!(positions(&all[0]), [5, 6]);
        all.iter_mut().for_each(|of| slots.truncate(of, 4));
        assert_eq!((slots.in_use(), all[0].resumable(4)), (vec![], 0));
    }

    /// Sequences with checkpoints at given positions in slots of their own, and where the step of each began.
    fn made<const N: usize>(lists: [(&[usize], usize); N]) -> (Slots, [Checkpoints; N]) {
        let mut slots = Slots::new(lists.iter().map(|(list, _)| list.len()).sum());
        let mut all = lists.map(|_| Checkpoints::reserved(8));
        for (index, (list, base)) in lists.iter().enumerate() {
            list.iter().for_each(|&at| assert!(slots.add(&mut all, same, index, at)));
            all[index].base = *base;
        }
        (slots, all)
    }

    #[test]
    fn the_checkpoint_that_is_least_worth_keeping_is_dropped() {
        // Worth is the gap that it leaves by its distance from the end, eightfold at multiples of 32. The step is from
        // the last but one to the last unless another beginning is named.
        let cases: [(&[usize], usize, usize); 8] = [
            // 20 / 90, 20 / 80
            (&[10, 20, 30, 100], 30, 10),
            // 50 / 160, 15 / 150, 10 / 145
            (&[40, 50, 55, 60, 200], 60, 55),
            // 12 / 190, 30 / 188
            (&[10, 12, 40, 200], 40, 10),
            // 100 / 110, 100 / 60
            (&[50, 100, 150, 160], 150, 50),
            // 40 / 190, 40 / 160, 20 / 150
            (&[10, 40, 50, 60, 200], 60, 50),
            // 32 / 80, 8 * 20 / 68, 18 / 60
            (&[20, 32, 40, 50, 100], 50, 40),
            // 64 / 238, 8 * 4 / 236
            (&[62, 64, 66, 300], 66, 64),
            // 11 / 90, needed, 89 / 88
            (&[10, 11, 12, 100], 11, 10),
        ];
        for (list, base, dropped) in cases {
            let (mut slots, mut all) = made([(list, base)]);
            let end = list[list.len() - 1] + 1;
            assert!(slots.add(&mut all, same, 0, end), "{list:?}");
            let left = list.iter().copied().filter(|&at| at != dropped);
            assert_eq!(positions(&all[0]), left.chain([end]).collect::<Vec<_>>(), "{list:?}");
            assert_eq!(slots.in_use().len(), list.len(), "{list:?}");
        }
        // 30 / 90 of one, 15 / 25 and 15 / 15 of another.
        let (mut slots, mut all) = made([(&[10, 30, 100], 30), (&[5, 15, 20, 30], 20)]);
        assert!(slots.add(&mut all, same, 1, 25));
        assert_eq!(all.each_ref().map(positions), [vec![30, 100], vec![5, 15, 20, 25, 30]]);
    }

    #[test]
    fn a_dropped_checkpoint_leaves_all_that_share_it_and_needed_ones_stay() {
        let (mut slots, mut all) = made([(&[40, 50, 55, 60, 200], 60), (&[], 0)]);
        let [from, to] = &mut all;
        slots.fork(from, to);
        slots.truncate(to, 55);
        slots.begin(all[1..].iter_mut());
        // The first has 15 / 150 and 10 / 145, but the second needs the latter.
        assert!(slots.add(&mut all, same, 1, 90));
        assert_eq!(all.each_ref().map(positions), [vec![40, 55, 60, 200], vec![40, 55, 90]]);
        // A place that has a checkpoint needs no slot.
        let before = slots.in_use();
        assert!(slots.add(&mut all, same, 1, 55));
        assert_eq!((slots.in_use(), positions(&all[1])), (before, vec![40, 55, 90]));
        // Nothing can be dropped before and after a step.
        let (mut slots, mut all) = made([(&[5, 9], 5)]);
        assert!(!slots.add(&mut all, same, 0, 7));
        assert_eq!((positions(&all[0]), slots.in_use()), (vec![5, 9], vec![0, 1]));
    }
}
