//! Steps in progress together: which running requests have rows in one, and must stay as they are until it ends.

use super::Scheduler;
use crate::requests::request::{Item, RequestId};
use crate::requests::sequences::Sequences;

impl Scheduler {
    /// Notes that a step is in progress. Until [`Scheduler::finish_step`] or [`Scheduler::release`] its requests are in no
    /// other step, keep their pages, and end only then.
    pub fn begin_step(&mut self, items: &[Item]) {
        for active in &mut self.running {
            active.is_begun |= items.iter().any(|item| item.request == active.job.id);
        }
    }

    /// Notes that a step is not in progress any more, although it may not have been computed.
    pub fn release(&mut self, items: &[Item], cache: &mut impl Sequences) {
        for item in items {
            let found = self.running.iter_mut().find(|active| active.job.id == item.request);
            let Some(active) = found else { continue };
            active.is_begun = false;
            if active.has_ended {
                self.end(item.request, cache);
            }
        }
    }

    /// Number of requests with a step in progress.
    pub fn begun(&self) -> usize {
        self.running.iter().filter(|active| active.is_begun).count()
    }

    /// Whether a request has a step in progress.
    pub fn is_begun(&self, request: RequestId) -> bool {
        let mut running = self.running.iter();
        running.any(|active| active.job.id == request && active.is_begun)
    }

    /// Number of running requests whose prompt is computed: each takes a row of a step.
    pub fn decoding(&self) -> usize {
        let decodes = |job: &super::Job| job.tokens.len() > job.prompt;
        self.running.iter().filter(|active| !active.has_ended && decodes(&active.job)).count()
    }
}
