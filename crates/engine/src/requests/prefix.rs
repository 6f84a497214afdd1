//! The sequence that an admitted request starts from: the longest common prefix of any, or an empty one.

use super::scheduler::{Job, Scheduler};
use super::sequences::Sequences;
use crate::session::SequenceId;

/// A prefix in a sequence.
pub(super) struct Prefix {
    idle: Option<usize>,
    pub sequence: SequenceId,
    pub common: usize,
    is_whole: bool,
}

impl Scheduler {
    /// The longest prefix of a job's tokens in any sequence.
    pub(super) fn prefix(&self, job: &Job, cache: &impl Sequences) -> Option<Prefix> {
        if !job.reuse {
            return None;
        }
        let serves = |namespace, slot| {
            namespace == job.namespace && (job.slot.is_none() || job.slot == slot)
        };
        let idle = self.idle.iter().enumerate();
        let idle = idle.filter(|(_, idle)| serves(idle.namespace, idle.slot));
        let idle = idle.map(|(at, idle)| (Some(at), idle.sequence, idle.prompt));
        let running = self.running.iter();
        let running =
            running.filter(|active| serves(active.job.namespace, Some(active.job.progress.slot)));
        let running = running.map(|active| (None, active.sequence, active.job.prompt));
        let found = idle.chain(running).map(|(idle, sequence, prompt)| {
            let held = cache.pages().tokens(sequence);
            let common = held.iter().zip(&job.tokens).take_while(|(a, b)| a == b).count();
            // The last token is always run, since its logits select the next one.
            let common = common.min(job.tokens.len() - 1);
            let usable = |common: usize| match self.policy.deterministic {
                // Other positions were not computed in the chunks of this request.
                Some(fixed) => common.min(prompt).min(job.prompt - 1) / fixed.chunk * fixed.chunk,
                None => common,
            };
            let mut common = usable(common);
            while cache.pages().resumable(sequence, common) < common {
                common = usable(cache.pages().resumable(sequence, common));
            }
            Prefix { idle, sequence, common, is_whole: common == held.len() }
        });
        found.filter(|found| found.common > 0).max_by_key(|found| (found.common, found.is_whole))
    }

    /// A sequence that holds a prefix and nothing else, or an empty one.
    pub(super) fn take_sequence(
        &mut self,
        found: Option<Prefix>,
        cache: &mut impl Sequences,
    ) -> Option<SequenceId> {
        if let Some(found) = found {
            // An idle sequence is continued if nothing of it is lost, or if there is no room for a copy.
            let fork = if found.idle.is_some() && found.is_whole {
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
            if found.idle.is_some() {
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
