//! Changes of a running request's tokens: selected ones, draft ones, and those that leave a full context.

use bilayer_graph::EXACT_ROWS_MAX;

use super::{Active, Scheduler};
use crate::requests::request::RequestId;
use crate::requests::sequences::Sequences;

impl Scheduler {
    /// Appends selected tokens to a running request, in place of its draft tokens.
    pub fn push(&mut self, request: RequestId, tokens: &[u32], cache: &mut impl Sequences) {
        let Some(active) = self.active(request) else { return };
        let Active { job, sequence, .. } = active;
        job.clear_draft();
        job.tokens.extend_from_slice(tokens);
        // The last token is always run, since its logits select the next one.
        let computed = cache.pages().len(*sequence).min(job.tokens.len() - 1);
        cache.truncate(*sequence, computed);
    }

    /// Number of draft tokens that each request may have in the next step, with requests divided into `groups`. Only
    /// steps of so few rows have any that their weights take longer to read than to multiply.
    pub fn most_drafted(&self, groups: usize, cache: &impl Sequences) -> usize {
        let mut free = self.running.iter().filter(|active| !active.is_begun);
        let all_decode = free.clone().all(|active| active.decodes(cache));
        let most = self.running.len().div_ceil(groups).min(free.by_ref().count());
        if most == 0 || !all_decode || self.policy.deterministic.is_some() {
            return 0;
        }
        let rows = EXACT_ROWS_MAX.min(self.policy.rows).min(self.policy.outputs);
        (rows / most).saturating_sub(1)
    }

    /// Gives a running request draft tokens, to be verified in the next step.
    pub fn draft(&mut self, request: RequestId, tokens: &[u32]) {
        if let Some(Active { job, .. }) = self.active(request) {
            job.clear_draft();
            job.tokens.extend_from_slice(tokens);
            job.drafted = tokens.len();
        }
    }

    /// Removes `discard` tokens of a running request after its first `keep`. Those behind them are computed again, at
    /// their new positions. Does nothing if not even the last token would remain.
    pub fn shift(
        &mut self,
        request: RequestId,
        keep: usize,
        discard: usize,
        cache: &mut impl Sequences,
    ) {
        let Some(Active { job, sequence, .. }) = self.active(request) else { return };
        job.clear_draft();
        if discard == 0 || keep + discard >= job.tokens.len() {
            return;
        }
        job.tokens.drain(keep..keep + discard);
        job.prompt -= discard.min(job.prompt.saturating_sub(keep));
        cache.truncate(*sequence, keep.min(cache.pages().len(*sequence)));
    }

    fn active(&mut self, request: RequestId) -> Option<&mut Active> {
        self.running.iter_mut().find(|active| active.job.id == request)
    }
}
