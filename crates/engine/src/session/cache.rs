//! Ownership of KV pages and of states: page tables, prefix sharing, copy on write, checkpoints.
//!
//! A page holds [`PAGE_TOKENS`] positions of every layer; the bytes belong to the backends, this is the book-keeping.
//! If the model has states, a sequence can return only to lengths with a checkpoint: see [`Pages::resumable`].
//! Invariants: a page is either free or referenced; a page about to be written has exactly one reference.

use std::ops::Range;

use bilayer_graph::{PAGE_TOKENS, PageCopy};

use super::checkpoints::{Checkpoint, Checkpoints, Slots};

/// One sequence of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u32);

/// Errors of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Every sequence slot is in use.
    #[error("all {limit} sequences are in use")]
    Sequences {
        /// Number of slots.
        limit: usize,
    },
    /// The sequence would be longer than the context.
    #[error("{needed} tokens do not fit into the context of {context} tokens")]
    Context {
        /// Tokens required.
        needed: usize,
        /// Maximum tokens per sequence.
        context: usize,
    },
    /// No page is free.
    #[error("the KV cache of {pages} pages is full")]
    Full {
        /// Number of pages.
        pages: usize,
    },
}

#[derive(Debug, Default)]
struct Sequence {
    open: bool,
    /// Whether a step with tokens of it is in progress.
    is_held: bool,
    tokens: Vec<u32>,
    pages: Vec<u32>,
    checkpoints: Checkpoints,
}

impl Sequence {
    fn checkpoints(&mut self) -> &mut Checkpoints {
        &mut self.checkpoints
    }
}

/// The book-keeping. All memory is allocated by [`Pages::new`].
#[derive(Debug)]
pub struct Pages {
    /// Unreferenced pages; the last is used first.
    free: Vec<u32>,
    /// Number of page tables that reference each page, and of copies of it in progress.
    references: Vec<u32>,
    sequences: Vec<Sequence>,
    context: usize,
    /// Those of states; none if the model has no states.
    slots: Slots,
}

impl Pages {
    /// `pages` pages for at most `sequences` sequences of at most `context` tokens each.
    pub fn new(pages: usize, sequences: usize, context: usize) -> Pages {
        let table = context.div_ceil(PAGE_TOKENS);
        let slot = || Sequence {
            open: false,
            is_held: false,
            tokens: Vec::with_capacity(context),
            pages: Vec::with_capacity(table),
            checkpoints: Checkpoints::default(),
        };
        Pages {
            free: (0..pages as u32).rev().collect(),
            references: vec![0; pages],
            sequences: (0..sequences).map(|_| slot()).collect(),
            context,
            slots: Slots::default(),
        }
    }

    /// Adds slots for states: one for each sequence, one for each in a step, and more for further checkpoints.
    pub fn with_states(mut self, slots: usize) -> Pages {
        self.slots = Slots::new(slots);
        for sequence in &mut self.sequences {
            sequence.checkpoints = Checkpoints::reserved(slots);
        }
        self
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// [`Error::Sequences`].
    pub fn open(&mut self) -> Result<SequenceId, Error> {
        let limit = self.sequences.len();
        let slot = self.sequences.iter().position(|s| !s.open).ok_or(Error::Sequences { limit })?;
        self.sequences[slot].open = true;
        Ok(SequenceId(slot as u32))
    }

    /// Opens a sequence with all of `from`'s tokens, sharing its pages.
    ///
    /// # Errors
    /// [`Error::Sequences`].
    pub fn fork(&mut self, from: SequenceId) -> Result<SequenceId, Error> {
        self.assert_free(from);
        let to = self.open()?;
        let slots = [from.0 as usize, to.0 as usize];
        let [from, new] = self.sequences.get_disjoint_mut(slots).expect("two slots that are open");
        assert!(from.open, "sequence {} was closed", slots[0]);
        new.tokens.extend_from_slice(&from.tokens);
        new.pages.extend_from_slice(&from.pages);
        for &page in &new.pages {
            self.references[page as usize] += 1;
        }
        self.slots.fork(&from.checkpoints, &mut new.checkpoints);
        Ok(to)
    }

    /// Closes a sequence; pages without other references become free.
    pub fn close(&mut self, sequence: SequenceId) {
        self.truncate(sequence, 0);
        let slot = &mut self.sequences[sequence.0 as usize];
        slot.open = false;
        slot.checkpoints.keeps_all = false;
    }

    /// The longest length, at most `tokens`, that a sequence can be truncated to: `tokens` itself, unless states are
    /// known only after fewer tokens.
    pub fn resumable(&self, sequence: SequenceId, tokens: usize) -> usize {
        match self.slots.len() {
            0 => tokens,
            _ => self.slot(sequence).checkpoints.resumable(tokens),
        }
    }

    /// Truncates a sequence to its first `tokens` tokens, or to as many fewer as [`Pages::resumable`] says. Returns its
    /// length.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: usize) -> usize {
        self.assert_free(sequence);
        assert!(tokens <= self.len(sequence), "truncate cannot lengthen a sequence");
        let tokens = self.resumable(sequence, tokens);
        let slot = &mut self.sequences[sequence.0 as usize];
        self.slots.truncate(&mut slot.checkpoints, tokens);
        slot.tokens.truncate(tokens);
        while slot.pages.len() > tokens.div_ceil(PAGE_TOKENS) {
            let page = slot.pages.pop().expect("the table is longer than needed");
            drop_reference(&mut self.references, &mut self.free, page);
        }
        tokens
    }

    /// Number of pages that [`Pages::truncate`] frees: those behind the tokens that no other sequence has.
    pub fn pages_behind(&self, sequence: SequenceId, tokens: usize) -> usize {
        let behind = self.slot(sequence).pages.iter().skip(tokens.div_ceil(PAGE_TOKENS));
        behind.filter(|&&page| self.references[page as usize] == 1).count()
    }

    /// Gives a sequence the shared page back that an append replaced, since the copy may not have been made. The appended
    /// tokens were removed.
    pub fn share_again(&mut self, copy: PageCopy) {
        let Pages { sequences, references, free, .. } = self;
        let mut pages = sequences.iter_mut().flat_map(|sequence| &mut sequence.pages);
        if let Some(page) = pages.find(|page| **page == copy.to) {
            *page = copy.from;
            references[copy.from as usize] += 1;
            drop_reference(references, free, copy.to);
        }
    }

    /// Notes that copies are in progress: the pages that they read stay as they are, even if no sequence has them.
    pub fn hold_copied(&mut self, copies: &[PageCopy]) {
        copies.iter().for_each(|copy| self.references[copy.from as usize] += 1);
    }

    /// Notes that copies are not in progress any more.
    pub fn release_copied(&mut self, copies: &[PageCopy]) {
        let Pages { references, free, .. } = self;
        copies.iter().for_each(|copy| drop_reference(references, free, copy.from));
    }

    /// Truncates a sequence whose step ended early, after the sequence's first `tokens` tokens.
    pub fn stop(&mut self, sequence: SequenceId, tokens: usize) {
        self.end_early(sequence, tokens, Slots::stop);
    }

    /// Truncates a sequence whose step failed to its first `tokens` tokens, those before the step. If the step was to
    /// update the state there, that is lost: see [`Pages::has_state`].
    pub fn fail(&mut self, sequence: SequenceId, tokens: usize) {
        self.end_early(sequence, tokens, Slots::fail);
    }

    fn end_early(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        correct: impl FnOnce(&mut Slots, &mut Checkpoints, usize),
    ) {
        if tokens > 0 {
            let slot = &mut self.sequences[sequence.0 as usize];
            correct(&mut self.slots, &mut slot.checkpoints, tokens);
        }
        let kept = self.truncate(sequence, tokens);
        debug_assert_eq!(kept, tokens, "the state at the end of a step is known");
    }

    /// Whether a slot has the state of its checkpoint: after a failed step, that at the end of a sequence may have to be
    /// computed again before the next one.
    pub fn has_state(&self, slot: u32) -> bool {
        !self.slots.is_lost(slot)
    }

    /// Whether all slots have the states of their checkpoints.
    pub fn has_states(&self) -> bool {
        !self.slots.has_lost()
    }

    /// Notes that the states of all checkpoints were computed again.
    pub fn regain_states(&mut self) {
        self.slots.regain();
    }

    /// Keeps the state at the end of every step of a sequence that is often truncated, as long as slots suffice. Without,
    /// a step of one token may update the state before it, and page boundaries and the ends of longer steps remain.
    pub fn keep_all_states(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0 as usize].checkpoints.keeps_all = true;
    }

    /// Notes that the states after more than the first `tokens` tokens are only needed until the sequence goes on.
    pub fn pass(&mut self, sequence: SequenceId, tokens: usize) {
        self.sequences[sequence.0 as usize].checkpoints.pass(tokens);
    }

    /// Begins a step: the states at the ends of all sequences remain until the next one, unless the step updates them, and
    /// of sequences with a step in progress those before it.
    pub fn begin(&mut self) {
        let Pages { slots, sequences, .. } = self;
        let free = sequences.iter_mut().filter(|sequence| !sequence.is_held);
        slots.begin(free.map(|sequence| &mut sequence.checkpoints));
    }

    /// Notes that a step with the last tokens of a sequence is in progress: the sequence must not be changed.
    pub fn hold(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0 as usize].is_held = true;
    }

    /// Notes that no step with tokens of a sequence is in progress any more.
    pub fn release(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0 as usize].is_held = false;
    }

    /// Asserts that no step with tokens of a sequence is in progress.
    fn assert_free(&self, sequence: SequenceId) {
        let is_held = self.sequences[sequence.0 as usize].is_held;
        assert!(!is_held, "a step with sequence {} is in progress", sequence.0);
    }

    /// Adds a checkpoint within the tokens appended since [`Pages::begin`], if the model has states and a slot can be
    /// had for one.
    pub fn mark(&mut self, sequence: SequenceId, position: usize) {
        self.add_checkpoint(sequence, position);
    }

    /// Whether there is a checkpoint at that position afterwards; true if the model has no states.
    fn add_checkpoint(&mut self, sequence: SequenceId, position: usize) -> bool {
        let Pages { slots, sequences, .. } = self;
        let place = sequence.0 as usize;
        slots.len() == 0 || slots.add(sequences, Sequence::checkpoints, place, position)
    }

    /// The checkpoints of a sequence, ascending; the last one is at its end. None if the model has no states.
    pub fn checkpoints(&self, sequence: SequenceId) -> &[Checkpoint] {
        self.slot(sequence).checkpoints.all()
    }

    /// Slots with a state, ascending.
    pub fn slots_in_use(&self) -> Vec<u32> {
        self.slots.in_use()
    }

    /// Appends tokens, allocates pages for them and returns the position of the first. Shared pages that are about to
    /// be written are replaced; required copies are added to `copies`.
    ///
    /// # Errors
    /// [`Error::Context`], [`Error::Full`]; nothing has changed then.
    pub fn append(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        copies: &mut Vec<PageCopy>,
    ) -> Result<usize, Error> {
        self.assert_free(sequence);
        let first = self.len(sequence);
        let needed = first + tokens.len();
        if needed > self.context {
            return Err(Error::Context { needed, context: self.context });
        }
        if self.pages_needed(sequence, tokens.len()) > self.free.len() {
            return Err(Error::Full { pages: self.references.len() });
        }
        let shared = self.shared_page(sequence, tokens.len());
        let held = self.slot(sequence).pages.len();
        let total = needed.div_ceil(PAGE_TOKENS);
        if let Some(index) = shared {
            let to = self.take();
            let slot = &mut self.sequences[sequence.0 as usize];
            let from = std::mem::replace(&mut slot.pages[index], to);
            self.references[from as usize] -= 1;
            copies.push(PageCopy { from, to });
        }
        for _ in held..total {
            let page = self.take();
            self.sequences[sequence.0 as usize].pages.push(page);
        }
        self.sequences[sequence.0 as usize].tokens.extend_from_slice(tokens);
        if needed > first {
            self.add_end(sequence, first..needed);
        }
        Ok(first)
    }

    /// Adds the checkpoint at the end of appended tokens, or moves the last one there.
    fn add_end(&mut self, sequence: SequenceId, tokens: Range<usize>) {
        let Pages { slots, sequences, .. } = self;
        let checkpoints = &mut sequences[sequence.0 as usize].checkpoints;
        slots.leave(checkpoints);
        let is_single = tokens.len() == 1;
        if !(is_single && slots.advance(checkpoints, tokens.end)) {
            let added = self.add_checkpoint(sequence, tokens.end);
            assert!(added, "there is a slot for every sequence before and after a step");
        }
        if is_single {
            self.pass(sequence, tokens.start);
        }
    }

    /// Number of free pages that appending `tokens` tokens takes, including the copy of a shared page.
    pub fn pages_needed(&self, sequence: SequenceId, tokens: usize) -> usize {
        let total = (self.len(sequence) + tokens).div_ceil(PAGE_TOKENS);
        let held = self.slot(sequence).pages.len();
        total.saturating_sub(held) + usize::from(self.shared_page(sequence, tokens).is_some())
    }

    /// Index in the sequence's table of the shared page that appending `tokens` tokens would write.
    fn shared_page(&self, sequence: SequenceId, tokens: usize) -> Option<usize> {
        let first = self.len(sequence);
        let is_partial = tokens > 0 && !first.is_multiple_of(PAGE_TOKENS);
        let index = is_partial.then_some(first / PAGE_TOKENS)?;
        let page = self.slot(sequence).pages[index];
        (self.references[page as usize] > 1).then_some(index)
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.references.len()
    }

    /// Number of tokens of a sequence.
    pub fn len(&self, sequence: SequenceId) -> usize {
        self.slot(sequence).tokens.len()
    }

    /// The tokens of a sequence.
    pub fn tokens(&self, sequence: SequenceId) -> &[u32] {
        &self.slot(sequence).tokens
    }

    /// The sequences that are open.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let open = self.sequences.iter().zip(0..).filter(|(slot, _)| slot.open);
        open.map(|(_, id)| SequenceId(id))
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, sequence: SequenceId) -> bool {
        self.len(sequence) == 0
    }

    /// The pages of a sequence; entry `i` holds positions from `i * PAGE_TOKENS`.
    pub fn table(&self, sequence: SequenceId) -> &[u32] {
        &self.slot(sequence).pages
    }

    /// Maximum tokens per sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Referenced pages, ascending.
    pub fn pages_in_use(&self) -> Vec<u32> {
        let used = self.references.iter().zip(0..).filter(|(count, _)| **count > 0);
        used.map(|(_, page)| page).collect()
    }

    /// Number of unreferenced pages.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("counted before");
        self.references[page as usize] = 1;
        page
    }

    fn slot(&self, sequence: SequenceId) -> &Sequence {
        let slot = &self.sequences[sequence.0 as usize];
        assert!(slot.open, "sequence {} was closed", sequence.0);
        slot
    }
}

/// Removes a reference to a page, which becomes free if it was the last one.
fn drop_reference(references: &mut [u32], free: &mut Vec<u32>, page: u32) {
    references[page as usize] -= 1;
    if references[page as usize] == 0 {
        free.push(page);
    }
}

#[cfg(test)]
mod tests;
