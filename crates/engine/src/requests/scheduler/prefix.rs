//! The sequence that an admitted request starts from: the longest common prefix of any, or an empty one.

use bilayer_graph::PAGE_TOKENS;

use super::{Active, Job, Scheduler};
use crate::requests::request::RequestId;
use crate::requests::sequences::Sequences;
use crate::session::SequenceId;

/// A prefix in a sequence.
pub(super) struct Prefix {
    idle: Option<usize>,
    pub sequence: SequenceId,
    pub common: usize,
    /// Whether nothing else of the sequence is to be kept.
    pub is_whole: bool,
}

impl Prefix {
    /// Whether no request runs in the sequence.
    pub fn is_idle(&self) -> bool {
        self.idle.is_some()
    }
}

impl Job {
    /// Whether it may start from a sequence of a namespace and slot.
    fn may_use(&self, namespace: u64, slot: Option<u32>) -> bool {
        namespace == self.namespace && (self.slot.is_none() || self.slot == slot)
    }

    /// Tokens in common with others, at most all but the last: its logits select the next one.
    fn common(&self, tokens: &[u32]) -> usize {
        let common = tokens.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        common.min(self.tokens.len() - 1)
    }
}

impl Scheduler {
    /// The longest prefix of a job's tokens in any sequence.
    pub(super) fn prefix(&self, job: &Job, cache: &impl Sequences) -> Option<Prefix> {
        let idle = self.idle.iter().enumerate();
        let idle = idle.filter(|(_, idle)| job.reuse && job.may_use(idle.namespace, idle.slot));
        let idle = idle.map(|(at, idle)| (Some(at), idle.sequence, idle.prompt));
        let running = self.running.iter();
        let running = running.filter(|active| {
            (job.reuse || job.leader == Some(active.job.id))
                && job.may_use(active.job.namespace, Some(active.job.progress.slot))
        });
        let running = running.map(|active| (None, active.sequence, active.job.prompt));
        let found = idle.chain(running).map(|(idle, sequence, prompt)| {
            let held = cache.pages().tokens(sequence);
            let usable = |common: usize| self.usable(job, prompt, common);
            let mut common = usable(job.common(held));
            while cache.pages().resumable(sequence, common) < common {
                common = usable(cache.pages().resumable(sequence, common));
            }
            Prefix { idle, sequence, common, is_whole: common == held.len() }
        });
        found.filter(|found| found.common > 0).max_by_key(|found| (found.common, found.is_whole))
    }

    /// A running request that is about to compute at least a page of a job's tokens beyond those that are cached, and how
    /// many tokens both have in common: those that arrive together with the same system prompt compute it once.
    pub(super) fn computing(
        &self,
        job: &Job,
        cached: usize,
        cache: &impl Sequences,
    ) -> Option<(RequestId, usize)> {
        if !job.reuse {
            return None;
        }
        let others = self.running.iter().filter(|active| {
            !active.has_ended && job.may_use(active.job.namespace, Some(active.job.progress.slot))
        });
        let of_each = others.map(|active| {
            let common = job.common(&active.job.tokens);
            (active, self.usable(job, active.job.prompt, common))
        });
        of_each
            .filter(|&(active, common)| {
                common >= cached + PAGE_TOKENS && cache.pages().len(active.sequence) < common
            })
            .max_by_key(|&(_, common)| common)
            .map(|(active, common)| (active.job.id, common))
    }

    /// The tokens left of each of some prompts, in the order of arrival, of all that are to be computed. A prompt behind the
    /// oldest counts with those alone that a follower waits for: else one that is too long to be computed beside the oldest
    /// would make short ones wait for that too.
    pub(super) fn left(
        &self,
        prompts: &[&Active],
        all: impl Fn(&Job) -> usize,
        cache: &impl Sequences,
    ) -> Vec<usize> {
        let left = |(at, active): (usize, &&Active)| {
            let held = cache.pages().len(active.sequence);
            let followers = self.followers.iter().filter(|of| at > 0 && of.leader == active.job.id);
            let common = followers.map(|follower| follower.common).min();
            common.unwrap_or(usize::MAX).min(all(&active.job)).saturating_sub(held)
        };
        prompts.iter().enumerate().map(left).collect()
    }

    /// Of the first tokens that a job has in common with a sequence, those that it may start from.
    fn usable(&self, job: &Job, prompt: usize, common: usize) -> usize {
        match self.policy.deterministic {
            // Other positions were not computed in the chunks of this request.
            Some(fixed) => common.min(prompt).min(job.prompt - 1) / fixed.chunk * fixed.chunk,
            None => common,
        }
    }

    /// A sequence that holds a prefix and nothing else, or an empty one.
    pub(super) fn take_sequence(
        &mut self,
        found: Option<Prefix>,
        cache: &mut impl Sequences,
    ) -> Option<SequenceId> {
        if let Some(found) = found {
            // An idle sequence is continued if nothing of it is lost, or if there is no room for a copy.
            let fork = if found.is_idle() && found.is_whole {
                None
            } else {
                cache.fork(found.sequence).or_else(|| {
                    self.evict_one(Some(found.sequence), cache);
                    cache.fork(found.sequence)
                })
            };
            if let Some(fork) = fork {
                self.clock += 1;
                let used = self.clock;
                let idle = self.idle.iter_mut().find(|idle| idle.sequence == found.sequence);
                idle.into_iter().for_each(|idle| idle.used = used);
                cache.truncate(fork, found.common);
                return Some(fork);
            }
            if found.is_idle() {
                self.idle.retain(|idle| idle.sequence != found.sequence);
                cache.truncate(found.sequence, found.common);
                return Some(found.sequence);
            }
        }
        cache.open().or_else(|| {
            self.evict_one(None, cache);
            cache.open()
        })
    }
}
