//! Deterministic steps: a prompt chunk of one request, or a group of decode rows.

use super::{Active, Filling, Scheduler};
use crate::requests::prompts;
use crate::requests::request::{Deterministic, Item, RequestId};
use crate::requests::sequences::Sequences;
use crate::session::Wanted;

impl Scheduler {
    /// A prompt chunk of one request, or a group of decode rows, in turn.
    pub(super) fn fixed_step(
        &mut self,
        fixed: Deterministic,
        groups: usize,
        cache: &mut impl Sequences,
    ) -> Vec<Item> {
        let rows = fixed.rows.min(self.running.len().div_ceil(groups));
        for is_prompt in [!self.was_prefill, self.was_prefill] {
            let items = match is_prompt {
                true => self.prompt_chunk(fixed, cache),
                false => self.decode_group(rows, cache),
            };
            if !items.is_empty() {
                self.was_prefill = is_prompt;
                return items;
            }
        }
        Vec::new()
    }

    /// The next chunk of the oldest prompt and of a short one, if there is one, in turn.
    fn prompt_chunk(&mut self, fixed: Deterministic, cache: &mut impl Sequences) -> Vec<Item> {
        for is_oldest in [!self.was_oldest, self.was_oldest] {
            let held = |active: &Active| cache.pages().len(active.sequence);
            let running = self.running.iter().enumerate();
            let (places, prompts): (Vec<usize>, Vec<&Active>) =
                running.filter(|(_, of)| !of.is_begun && held(of) < of.job.prompt).unzip();
            let left = self.left(&prompts, |job| job.prompt, cache);
            let next = if is_oldest { Some(0) } else { prompts::short(&left).first().copied() };
            let Some(&at) = next.and_then(|next| places.get(next)) else { continue };
            let active = &self.running[at];
            let held = held(active);
            let chunk = ((held / fixed.chunk + 1) * fixed.chunk).min(active.job.prompt) - held;
            let outputs = self.policy.outputs;
            let mut step = Filling { prefill: chunk, rows: chunk, outputs, ..Filling::default() };
            self.add(at, &mut step, cache);
            // The latest request may have given its pages back instead.
            if !step.items.is_empty() {
                self.was_oldest = is_oldest;
                return step.items;
            }
        }
        Vec::new()
    }

    /// Rows of requests whose prompt is computed, beginning behind the last group.
    fn decode_group(&mut self, rows: usize, cache: &mut impl Sequences) -> Vec<Item> {
        let first = self.running.partition_point(|active| active.job.id.0 <= self.turn);
        let (before, after) = self.running.split_at(first);
        let held = |active: &&Active| {
            !active.is_begun && cache.pages().len(active.sequence) >= active.job.prompt
        };
        let order: Vec<RequestId> =
            after.iter().chain(before).filter(held).map(|active| active.job.id).collect();
        let outputs = self.policy.outputs;
        let mut step = Filling { rows, outputs, ..Filling::default() };
        for id in order {
            // A request may have given its pages back to one before it.
            let at = self.running.iter().position(|active| active.job.id == id);
            if let Some(at) = at {
                step.prefill = step.rows;
                self.add(at, &mut step, cache);
            }
        }
        // One such run makes the whole step exact.
        for item in &mut step.items {
            item.wanted = Wanted::Verified;
        }
        self.turn = step.items.last().map_or(self.turn, |item| item.request.0);
        step.items
    }
}
