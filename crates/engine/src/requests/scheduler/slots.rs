//! Slots: the numbers by which clients name sequences in order to continue, save, restore or erase them.
//!
//! Each running request has a slot. When it ends, its sequence stays that of the slot until another request ends
//! there. A request that names a slot continues only that slot's sequence; others continue any.

use std::collections::HashSet;

use super::{Idle, Scheduler};
use crate::requests::sequences::Sequences;
use crate::session::SequenceId;

impl Scheduler {
    /// The sequence of a slot: of the request that runs there, or of the last one that ended.
    pub fn slot(&self, slot: u32) -> Option<SequenceId> {
        let running = self.running.iter().find(|active| active.job.progress.slot == slot);
        let idle = self.idle.iter().find(|idle| idle.slot == Some(slot));
        running.map(|active| active.sequence).or(idle.map(|idle| idle.sequence))
    }

    /// Makes a sequence that no request uses that of a slot. Only requests of the namespace continue it.
    pub fn adopt(&mut self, sequence: SequenceId, slot: u32, namespace: u64) {
        // How its tokens were divided into steps is unknown, so none counts as computed in a prompt's chunks.
        self.keep(slot, Idle { sequence, namespace, slot: None, prompt: 0, used: 0 });
    }

    /// Frees pages and a sequence of finished requests, first that of a slot, for other contents of the slot. False, and nothing
    /// is freed, if running requests hold too many pages.
    pub fn make_room(&mut self, slot: u32, pages: usize, cache: &mut impl Sequences) -> bool {
        let running = self.running.iter();
        let held = running.flat_map(|active| cache.pages().table(active.sequence));
        let held: HashSet<u32> = held.copied().collect();
        if held.len() + pages > cache.pages().pages() {
            return false;
        }
        let own = self.idle.iter_mut().filter(|idle| idle.slot == Some(slot));
        own.for_each(|idle| idle.used = 0);
        self.evict(pages, None, cache);
        match cache.open() {
            Some(sequence) => cache.close(sequence),
            None => drop(self.evict_one(None, cache)),
        }
        true
    }

    /// Closes the sequence of the last request that ended in a slot. Returns the number of its tokens.
    pub fn erase(&mut self, slot: u32, cache: &mut impl Sequences) -> usize {
        let Some(at) = self.idle.iter().position(|idle| idle.slot == Some(slot)) else {
            return 0;
        };
        let Idle { sequence, .. } = self.idle.swap_remove(at);
        let tokens = cache.pages().len(sequence);
        cache.close(sequence);
        tokens
    }

    /// Keeps a sequence for its prefix, as that of a slot.
    pub(super) fn keep(&mut self, slot: u32, mut idle: Idle) {
        let earlier = self.idle.iter_mut().filter(|idle| idle.slot == Some(slot));
        earlier.for_each(|idle| idle.slot = None);
        self.clock += 1;
        (idle.slot, idle.used) = (Some(slot), self.clock);
        self.idle.push(idle);
    }

    /// A slot without a running request: an empty one, or else the least recently used.
    pub(super) fn free_slot(&self) -> u32 {
        let is_free =
            |slot: &u32| self.running.iter().all(|active| active.job.progress.slot != *slot);
        let used = |slot: &u32| {
            let idle = self.idle.iter().find(|idle| idle.slot == Some(*slot));
            idle.map_or(0, |idle| idle.used)
        };
        let slots = 0..self.policy.sequences as u32;
        slots.filter(is_free).min_by_key(used).unwrap_or_default()
    }
}
