//! Runs the scheduler's steps on a session and turns logits into tokens and text.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bilayer_files::hash::fnv;
use bilayer_graph::EXACT_ROWS_MAX;

use super::answer::Answer;
use super::fairness::KeyId;
use super::report::{Delta, Event, Served, StepReport};
use super::request::{Arrival, Deterministic, Item, Policy, Refused, RequestId};
use super::scheduler::Scheduler;
use crate::generate::speculate::{Draft, DrafterSource, Text};
use crate::generate::{Reply, Request, Stop, Token};
use crate::sampling::Sampler;
use crate::session::{CacheError, Reading, Session, Spent, Wanted, Warning};
use crate::{Error, Model};
use groups::BegunStep;
pub use slots::Slot;

mod groups;
mod slots;

/// Settings of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorSettings {
    /// Maximum waiting requests.
    pub waiting: usize,
    /// Maximum waiting requests of one key.
    pub waiting_per_key: usize,
    /// Bound on the duration of a step while answers are running or a short prompt is behind a long one.
    pub step: Duration,
    /// Whether results are independent of other requests.
    pub deterministic: bool,
}

impl Default for ExecutorSettings {
    fn default() -> Self {
        ExecutorSettings {
            waiting: 512,
            waiting_per_key: 256,
            step: Duration::from_millis(250),
            deterministic: false,
        }
    }
}

/// Tokens of a prompt chunk with [`ExecutorSettings::deterministic`].
const FIXED_CHUNK: usize = 128;

/// A request with its sampler.
pub struct Submission {
    /// Prompt, length, stop texts.
    pub request: Request<'static>,
    /// Selects its tokens.
    pub sampler: Sampler,
    /// Whose queue it joins.
    pub key: KeyId,
    /// Only requests of the same namespace share cached prefixes.
    pub namespace: u64,
    /// Whether it starts from a cached prefix of any request and leaves its own behind; from that of the one in `after` it starts
    /// in any case.
    pub reuse: bool,
    /// Number of most likely tokens to report with each prompt token.
    pub prompt_logprobs: Option<usize>,
    /// A request with the same prompt, which is computed once for both.
    pub after: Option<RequestId>,
    /// The slot whose sequence it continues; without one it may continue any.
    pub slot: Option<u32>,
    /// When it came, by the session's clock; without it, when it is submitted. A server's requests wait while a step runs.
    pub arrived: Option<Instant>,
}

impl Submission {
    /// A request of key 0 in namespace 0 that starts from cached prefixes, in any slot, without log-probabilities of
    /// its prompt.
    pub fn new(request: Request<'static>, sampler: Sampler) -> Submission {
        Submission {
            request,
            sampler,
            key: 0,
            namespace: 0,
            reuse: true,
            prompt_logprobs: None,
            after: None,
            slot: None,
            arrived: None,
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// A queue is full.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The prompt is empty or too long.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// A session that serves many requests.
pub struct Executor {
    session: Session,
    scheduler: Scheduler,
    drafters: Option<Box<dyn DrafterSource>>,
    answers: BTreeMap<RequestId, Answer>,
    began: Instant,
    report: StepReport,
    /// Bytes that cross between devices for a row.
    row_bytes: u64,
    /// Steps in progress, oldest first.
    begun: VecDeque<BegunStep>,
    /// Events of steps that were finished outside of [`Executor::step`].
    deferred: Vec<(RequestId, Event)>,
}

impl Executor {
    /// Takes over a session without sequences.
    pub fn new(session: Session, settings: ExecutorSettings) -> Executor {
        let limits = session.limits();
        let has_one_device = session.plan().devices.len() == 1;
        let rows = if has_one_device { EXACT_ROWS_MAX } else { 1 };
        let fixed = Deterministic {
            chunk: FIXED_CHUNK.min(limits.tokens),
            rows: rows.min(limits.outputs).min(limits.tokens),
        };
        let policy = Policy {
            rows: limits.tokens,
            outputs: limits.outputs,
            sequences: limits.sequences.min(limits.tokens).min(limits.outputs),
            waiting: settings.waiting,
            waiting_per_key: settings.waiting_per_key,
            step: settings.step,
            deterministic: settings.deterministic.then_some(fixed),
        };
        let began = session.clock().now();
        Executor {
            row_bytes: session.crossing_bytes(),
            session,
            scheduler: Scheduler::new(policy),
            drafters: None,
            answers: BTreeMap::new(),
            began,
            report: StepReport::default(),
            begun: VecDeque::new(),
            deferred: Vec::new(),
        }
    }

    /// Lets answers be drafted while so few run that a step has rows to spare. Not with
    /// [`ExecutorSettings::deterministic`]: how many tokens are drafted depends on the other requests.
    #[must_use]
    pub fn with_drafts(self, drafters: Box<dyn DrafterSource>) -> Executor {
        Executor { drafters: Some(drafters), ..self }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// A queue is full; the prompt is empty or does not fit the context.
    pub fn submit(&mut self, submission: Submission) -> Result<RequestId, SubmitError> {
        let Submission { mut request, mut sampler, key, namespace, reuse, .. } = submission;
        let (needed, context) = (request.prompt.len(), self.session.context());
        if needed == 0 {
            return Err(crate::generate::empty_prompt().into());
        }
        if needed >= context {
            let error = CacheError::Context { needed: needed + 1, context };
            return Err(SubmitError::Engine(error.into()));
        }
        self.session.model().check_tokens(&request.prompt)?;
        if let Some(strengths) = &request.lora {
            self.session.check_strengths(strengths)?;
        }
        let namespace = self.adapted_namespace(namespace, request.lora.as_deref());
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        let arrival = Arrival {
            key,
            namespace,
            // The answer does not need it any more.
            prompt: std::mem::take(&mut request.prompt).into_owned(),
            reuse,
            all_logits: submission.prompt_logprobs.is_some(),
            after: submission.after,
            slot: submission.slot,
        };
        let id = self.scheduler.submit(self.session.clock().since(self.began), arrival)?;
        let answer = Answer {
            served: Served { prompt: needed, ..Served::default() },
            reply: Reply::new(self.session.model(), sampler, request),
            prompt_logprobs: submission.prompt_logprobs.map(|top| (top, Vec::new())),
            drafter: None,
            drafts_from: 0,
            draft: Draft::default(),
            arrived: submission.arrived.unwrap_or_else(|| self.session.clock().now()),
            clock: self.session.clock().clone(),
            started: None,
            first: None,
            last: None,
        };
        self.answers.insert(id, answer);
        Ok(id)
    }

    /// The namespace of sequences with these strengths of adapters: keys and values computed with others differ.
    fn adapted_namespace(&self, namespace: u64, strengths: Option<&[f32]>) -> u64 {
        match strengths {
            Some(strengths) if strengths != self.session.usual_strengths() => {
                adapted(namespace, strengths)
            }
            _ => namespace,
        }
    }

    /// Ends a request early, without an event. Its computed tokens stay in the cache.
    pub fn cancel(&mut self, request: RequestId) {
        self.answers.remove(&request);
        self.scheduler.end(request, &mut self.session);
    }

    /// Computes one step and reports what came of it. False if there was nothing to do.
    pub fn step(&mut self, events: &mut Vec<(RequestId, Event)>) -> bool {
        let cancelled = |answer: &Answer| answer.reply.request.cancel.is_cancelled();
        let cancelled = self.answers.iter().filter(|(_, answer)| cancelled(answer));
        let cancelled: Vec<RequestId> = cancelled.map(|(&id, _)| id).collect();
        for id in cancelled {
            self.end(id, Stop::Interrupted, events);
        }
        events.append(&mut self.deferred);
        let groups = self.groups();
        if groups > 1 || !self.begun.is_empty() {
            return self.step_of_groups(groups, events);
        }
        let items = self.next_items(1, events);
        if items.is_empty() {
            return false;
        }
        if let Err(error) = self.compute(&items, events) {
            self.isolate(&items, error, events);
        }
        true
    }

    /// The rows of the next step, with draft tokens. Reports what begins.
    fn next_items(&mut self, groups: usize, events: &mut Vec<(RequestId, Event)>) -> Vec<Item> {
        self.draft(groups);
        let now = self.session.clock().now();
        let since = self.session.clock().since(self.began);
        let mut items = self.scheduler.next_of_groups(groups, since, &mut self.session);
        // Where so few run that each could have a draft token, answers are those of steps with some, whichever have any.
        let few = items.len() <= EXACT_ROWS_MAX / 2 && items.iter().all(|item| !item.is_prefill);
        if self.drafters.is_some() && few {
            let last = items.iter_mut().filter(|item| item.wanted == Wanted::Last);
            last.for_each(|item| item.wanted = Wanted::Verified);
        }
        for item in &items {
            let answer = self.answers.get_mut(&item.request).expect("each request has an answer");
            if answer.started.is_none() {
                answer.started = Some(now);
                answer.served.queued = now.saturating_duration_since(answer.arrived);
                answer.served.cached = item.start;
                answer.served.processed = item.start;
                events.push((item.request, Event::Prefilled(answer.served.clone())));
            }
        }
        items
    }

    /// Drafts tokens for running requests, if the next step has rows for them.
    fn draft(&mut self, groups: usize) {
        let Executor { session, scheduler, drafters, answers, .. } = self;
        let Some(drafters) = drafters else { return };
        // A preempted answer gives its draft model's pages back as well.
        let drafting = answers.iter_mut().filter(|(_, answer)| answer.drafter.is_some());
        let preempted = drafting.filter(|(id, _)| scheduler.progress(**id).is_none());
        preempted.for_each(|(_, answer)| answer.drafter = None);
        let most = scheduler.most_drafted(groups, session);
        let of_step = scheduler.running().count().div_ceil(groups);
        let free = scheduler.running().map(|(id, _)| id).filter(|id| !scheduler.is_begun(*id));
        let running: Vec<RequestId> = free.take(of_step).collect();
        for id in running.into_iter().filter(|_| most > 0) {
            let answer = answers.get_mut(&id).expect("each request has an answer");
            let tokens = scheduler.tokens(id);
            let Some((&last, held)) = tokens.split_last() else { continue };
            let of_context = session.context().saturating_sub(tokens.len() + 1);
            let text = Text { held, last };
            let worked = answer.draft(&mut **drafters, text, most.min(of_context));
            match worked {
                Ok(()) => scheduler.draft(id, answer.draft.tokens()),
                Err(_) => answer.draft.clear(),
            }
            answer.settle(worked, session);
        }
    }

    /// Runs items in one step and handles their logits.
    fn compute(
        &mut self,
        items: &[Item],
        events: &mut Vec<(RequestId, Event)>,
    ) -> Result<(), Error> {
        let reading = self.reading(items)?;
        let Executor { session, scheduler, drafters, answers, .. } = self;
        let runs = groups::runs(items, scheduler);
        let clock = session.clock().clone();
        let began = clock.now();
        let mut failed = Vec::new();
        let mut draft_ahead = |is_busy: &mut dyn FnMut() -> bool| {
            for item in items {
                let answer = answers.get_mut(&item.request);
                let drafter = answer.and_then(|answer| answer.drafter.as_mut());
                let drafted = drafter.map_or(Ok(()), |drafter| drafter.draft_ahead(is_busy));
                failed.extend(drafted.err().map(|error| (item.request, error)));
            }
        };
        session.step_beside(&runs, reading, Some(&mut draft_ahead))?;
        let took = clock.since(began);
        let mut hidden = session.hidden();
        for item in items {
            let of_item = (item.end - item.start) * session.hidden_width();
            let (states, after) = hidden.split_at(of_item);
            hidden = after;
            let answer = answers.get_mut(&item.request).expect("each request has an answer");
            let tokens = scheduler.tokens(item.request);
            let seen = answer.see(drafters.as_deref_mut(), item, tokens, states);
            failed.extend(seen.err().map(|error| (item.request, error)));
        }
        for item in items {
            let answer = answers.get_mut(&item.request).expect("each request has an answer");
            let failure = failed.iter().position(|(request, _)| *request == item.request);
            let worked = failure.map_or(Ok(()), |at| Err(failed.swap_remove(at).1));
            answer.settle(worked, session);
        }
        let rows = (reading, session.results());
        let outcomes = groups::select(rows, items, scheduler, answers);
        self.conclude(items, outcomes, took, events);
        Ok(())
    }

    /// Prepares the sequences of a step, and says what it reads for their rows.
    fn reading(&mut self, items: &[Item]) -> Result<Reading, Error> {
        let Executor { session, answers, .. } = self;
        for item in items {
            let request = &answers[&item.request].reply.request;
            session.adapt(item.sequence, request.lora.as_deref())?;
        }
        let needs = items.iter().filter(|item| item.outputs() > 0);
        let mut needs = needs.map(|item| answers[&item.request].needs());
        let needs: Option<usize> = needs.try_fold(0, |most: usize, needs| Some(most.max(needs?)));
        Ok(session.reading(needs))
    }

    /// Handles what came of a step.
    fn conclude(
        &mut self,
        items: &[Item],
        outcomes: Vec<(&Item, Result<Vec<Token>, Error>)>,
        took: Duration,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        self.scheduler.finish_step(items, took, &mut self.session);
        let selected = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
        self.report.tokens = selected.map(Vec::len).sum();
        self.account(items);
        for (item, outcome) in outcomes {
            self.report(item, outcome, events);
        }
    }

    /// Adds the step's times to the requests that took part.
    fn account(&mut self, items: &[Item]) {
        let mut spent = Spent::default();
        self.session.move_spent(&mut spent);
        let rows = |is_prefill| -> usize {
            let of_kind = items.iter().filter(|item| item.is_prefill == is_prefill);
            of_kind.map(|item| item.end - item.start).sum()
        };
        for item in items {
            if let Some(answer) = self.answers.get_mut(&item.request) {
                answer.served.spent.add(&spent);
                answer.served.crossed_bytes += self.row_bytes * (item.end - item.start) as u64;
            }
        }
        let tokens = self.report.tokens;
        self.report =
            StepReport { decode_rows: rows(false), prefill_rows: rows(true), tokens, spent };
    }

    /// Handles the tokens that came of an item.
    fn report(
        &mut self,
        item: &Item,
        outcome: Result<Vec<Token>, Error>,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let id = item.request;
        let selected: Vec<u32> = outcome.iter().flatten().map(|token| token.id).collect();
        if item.selects {
            self.scheduler.push(id, &selected, &mut self.session);
        }
        let progress = self.scheduler.progress(id).unwrap_or_default();
        let (room, held) = (self.session.context(), self.session.len(item.sequence));
        let Some(answer) = self.answers.get_mut(&id) else { return };
        answer.note(&progress, held);
        let tokens = match outcome {
            Err(error) => return self.fail(id, error, events),
            Ok(tokens) if tokens.is_empty() && item.selects => {
                return self.end(id, Stop::Length, events);
            }
            Ok(tokens) => tokens,
        };
        // The first token is in the last part of the prompt; what is computed again is not reported.
        let is_prompt = answer.reply.generated == tokens.len();
        if item.is_prefill && is_prompt {
            events.push((id, Event::Prefilled(answer.served.clone())));
        }
        if !tokens.is_empty()
            && let Some((_, logprobs)) = answer.prompt_logprobs.take()
        {
            events.push((id, Event::PromptLogprobs(logprobs)));
        }
        let first = answer.reply.generated - tokens.len();
        for (at, token) in tokens.into_iter().enumerate() {
            let gap = answer.gap();
            let served = Served { generated: first + at + 1, gap, ..answer.served.clone() };
            events.push((id, Event::Token(Box::new(Delta { token, served }))));
        }
        // The last token still takes a position.
        let is_full = item.selects && held + 1 >= room;
        match (answer.reply.stop, answer.reply.request.shift) {
            (Some(stop), _) => self.end(id, stop, events),
            (None, Some(shift)) if is_full => {
                answer.served.shifted += 1;
                let (keep, discard) = shift.of(held);
                self.scheduler.shift(id, keep, discard, &mut self.session);
            }
            (None, None) if is_full => self.end(id, Stop::Context, events),
            (None, _) => {}
        }
    }

    fn end(&mut self, id: RequestId, stop: Stop, events: &mut Vec<(RequestId, Event)>) {
        self.scheduler.end(id, &mut self.session);
        if let Some(mut answer) = self.answers.remove(&id) {
            if let Some((_, logprobs)) = answer.prompt_logprobs.take() {
                events.push((id, Event::PromptLogprobs(logprobs)));
            }
            let text = answer.reply.finish();
            events.push((id, Event::Ended { stop, text, served: answer.served }));
        }
    }

    fn fail(&mut self, id: RequestId, error: Error, events: &mut Vec<(RequestId, Event)>) {
        self.scheduler.discard(id, &mut self.session);
        self.answers.remove(&id);
        events.push((id, Event::Failed(error)));
    }

    /// Number of running requests.
    pub fn running(&self) -> usize {
        self.scheduler.running().count()
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// Share of the KV cache that running requests hold, 0 to 1.
    pub fn kv_used(&self) -> f64 {
        let cache = self.session.cache();
        let held = self.scheduler.running().map(|(_, sequence)| cache.table(sequence).len());
        (held.sum::<usize>() as f64 / cache.pages().max(1) as f64).min(1.0)
    }

    /// Forgets cached prefixes, all or those of a namespace.
    pub fn clear_cache(&mut self, namespace: Option<u64>) {
        self.scheduler.clear_cache(namespace, &mut self.session);
    }

    /// The last step.
    pub fn last_step(&self) -> &StepReport {
        &self.report
    }

    /// Predicted duration of a decode step, once measured.
    pub fn decode_time(&self) -> Option<Duration> {
        self.scheduler.decode_time()
    }

    /// Warnings of the session since the last call.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        let warnings = self.session.take_warnings();
        if !warnings.is_empty() {
            // Layers may have moved to other devices.
            self.row_bytes = self.session.crossing_bytes();
        }
        warnings
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.session.model()
    }
}

/// A namespace within another for sequences with these strengths of adapters.
fn adapted(namespace: u64, strengths: &[f32]) -> u64 {
    let strengths = strengths.iter().flat_map(|strength| strength.to_le_bytes());
    fnv(&namespace.to_le_bytes().into_iter().chain(strengths).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::adapted;

    #[test]
    fn namespaces_stay_apart_with_adapters_of_any_strength() {
        let strengths: [&[f32]; 5] = [&[], &[0.0], &[0.5], &[0.0, 0.5], &[0.5, 0.0]];
        let mut all: Vec<u64> = (0..256).map(|namespace| namespace << 20 | namespace).collect();
        all.extend((0..256).flat_map(|namespace| strengths.map(|of| adapted(namespace, of))));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
