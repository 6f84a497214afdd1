//! Runs the scheduler's steps on a session and turns logits into tokens and text.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::fairness::KeyId;
use super::request::{Arrival, Deterministic, Item, Policy, Refused, RequestId};
use super::scheduler::Scheduler;
use crate::generate::{Choice, Reply, Request, Stop, Token};
use crate::sampling::{self, Row, Sampler, TokenLogprob};
use crate::session::{CacheError, Run, Session, Spent, Warning};
use crate::{Error, Model};

/// Settings of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorSettings {
    /// Maximum waiting requests.
    pub waiting: usize,
    /// Maximum waiting requests of one key.
    pub waiting_per_key: usize,
    /// Bound on the duration of a step while answers are running.
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

/// Largest number of best tokens that are found before sampling.
const BEST_MAX: usize = 256;

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
    /// Whether it starts from a cached prefix and leaves its own behind.
    pub reuse: bool,
    /// Number of most likely tokens to report with each prompt token.
    pub prompt_logprobs: Option<usize>,
    /// A request with the same prompt, which is computed once for both.
    pub after: Option<RequestId>,
}

/// Log-probabilities at one position: of the token that is there, and of the most likely ones.
pub type PositionLogprobs = (TokenLogprob, Vec<TokenLogprob>);

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

/// A generated token and where its answer stands.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The token.
    pub token: Token,
    /// Times and counts up to it.
    pub served: Served,
}

/// What happened to a request in a step.
#[derive(Debug)]
pub enum Event {
    /// Its prompt begins, with what was cached, or a part of it was computed.
    Prefilled(Served),
    /// Log-probabilities of the prompt's tokens from the second on, if requested.
    PromptLogprobs(Vec<PositionLogprobs>),
    /// The next token.
    Token(Box<Delta>),
    /// The answer ended; text that was still withheld.
    Ended {
        /// Why.
        stop: Stop,
        /// The withheld text.
        text: String,
        /// Times and counts.
        served: Served,
    },
    /// The answer failed.
    Failed(Error),
}

/// Times and counts of one request.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those that were in the cache.
    pub cached: usize,
    /// Tokens of the prompt that are computed or were cached.
    pub processed: usize,
    /// Tokens generated.
    pub generated: usize,
    /// From arrival to the first step.
    pub queued: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Time that devices were busy in steps with this request, and copies between devices.
    pub spent: Spent,
    /// Bytes of hidden states that crossed between devices for its rows.
    pub crossed_bytes: u64,
    /// How often its pages were given to others and computed again.
    pub preempted: usize,
}

/// An answer in the making.
struct Answer {
    reply: Reply<'static>,
    prompt_logprobs: Option<(usize, Vec<PositionLogprobs>)>,
    served: Served,
    arrived: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
}

/// The last step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Decode rows.
    pub decode_rows: usize,
    /// Prefill rows.
    pub prefill_rows: usize,
    /// Time on devices and in total.
    pub spent: Spent,
}

/// A session that serves many requests.
pub struct Executor {
    session: Session,
    scheduler: Scheduler,
    answers: BTreeMap<RequestId, Answer>,
    began: Instant,
    best: Vec<(u32, f32)>,
    report: StepReport,
    /// Bytes that cross between devices for a row.
    row_bytes: u64,
}

impl Executor {
    /// Takes over a session without sequences.
    pub fn new(session: Session, settings: ExecutorSettings) -> Executor {
        let limits = session.limits();
        let has_one_device = session.plan().devices.len() == 1;
        let rows = if has_one_device { bilayer_graph::EXACT_ROWS_MAX } else { 1 };
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
        Executor {
            row_bytes: session.crossing_bytes(),
            session,
            scheduler: Scheduler::new(policy),
            answers: BTreeMap::new(),
            began: Instant::now(),
            best: Vec::with_capacity(BEST_MAX),
            report: StepReport::default(),
        }
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
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        let arrival = Arrival {
            key,
            namespace,
            // The answer does not need it any more.
            prompt: std::mem::take(&mut request.prompt).into_owned(),
            reuse,
            all_logits: submission.prompt_logprobs.is_some(),
            after: submission.after,
        };
        let id = self.scheduler.submit(self.began.elapsed(), arrival)?;
        let answer = Answer {
            served: Served { prompt: needed, ..Served::default() },
            reply: Reply::new(self.session.model(), sampler, request),
            prompt_logprobs: submission.prompt_logprobs.map(|top| (top, Vec::new())),
            arrived: Instant::now(),
            started: None,
            first: None,
        };
        self.answers.insert(id, answer);
        Ok(id)
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
        let items = self.scheduler.next_step(self.began.elapsed(), &mut self.session);
        if items.is_empty() {
            return false;
        }
        let now = Instant::now();
        for item in &items {
            let answer = self.answers.get_mut(&item.request).expect("each request has an answer");
            if answer.started.is_none() {
                answer.started = Some(now);
                answer.served.queued = now - answer.arrived;
                answer.served.cached = item.start;
                answer.served.processed = item.start;
                events.push((item.request, Event::Prefilled(answer.served.clone())));
            }
        }
        if let Err(error) = self.compute(&items, events) {
            self.isolate(&items, error, events);
        }
        true
    }

    /// Runs items in one step and handles their logits.
    fn compute(
        &mut self,
        items: &[Item],
        events: &mut Vec<(RequestId, Event)>,
    ) -> Result<(), Error> {
        let Executor { session, scheduler, answers, best, .. } = self;
        let runs = items.iter().map(|item| Run {
            sequence: item.sequence,
            tokens: &scheduler.tokens(item.request)[item.start..item.end],
            wanted: item.wanted,
        });
        let runs: Vec<Run<'_>> = runs.collect();
        let needs = items.iter().filter(|item| item.outputs() > 0);
        let mut needs = needs.map(|item| answers[&item.request].needs());
        let needs: Option<usize> = needs.try_fold(0, |most: usize, needs| Some(most.max(needs?)));
        let device = session.best().filter(|(k, _)| needs.is_some_and(|needs| needs <= *k));
        let reading = device.map_or(session.logits(), |(_, reading)| reading);
        let began = Instant::now();
        let mut rest = session.step_reading(&runs, reading)?;
        let took = began.elapsed();
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            let (rows, after) = rest.split_at(item.outputs() * reading.width);
            rest = after;
            let answer = answers.get_mut(&item.request).expect("each request has an answer");
            let tokens = scheduler.tokens(item.request);
            let rows = ItemRows { data: rows, width: reading.width, k: device.map(|(k, _)| k) };
            outcomes.push((item, answer.advance(item, tokens, &rows, best)));
        }
        self.scheduler.finish_step(items, took);
        self.account(items);
        for (item, outcome) in outcomes {
            self.report(item, outcome, events);
        }
        Ok(())
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
        self.report = StepReport { decode_rows: rows(false), prefill_rows: rows(true), spent };
    }

    /// Handles what came of an item.
    fn report(
        &mut self,
        item: &Item,
        outcome: Result<Option<Token>, Error>,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let id = item.request;
        let progress = self.scheduler.progress(id).unwrap_or_default();
        let (room, held) = (self.session.context(), self.session.len(item.sequence));
        let Some(answer) = self.answers.get_mut(&id) else { return };
        answer.served.cached = progress.cached;
        answer.served.preempted = progress.preempted;
        answer.served.processed = held.min(answer.served.prompt);
        answer.time();
        match outcome {
            Err(error) => self.fail(id, error, events),
            Ok(None) if item.selects => self.end(id, Stop::Length, events),
            Ok(None) => events.push((id, Event::Prefilled(answer.served.clone()))),
            Ok(Some(token)) => {
                if item.is_prefill && progress.preempted == 0 {
                    events.push((id, Event::Prefilled(answer.served.clone())));
                }
                if let Some((_, logprobs)) = answer.prompt_logprobs.take() {
                    events.push((id, Event::PromptLogprobs(logprobs)));
                }
                // The token itself still takes a position.
                let stop = answer.reply.stop.or((held + 1 >= room).then_some(Stop::Context));
                self.scheduler.push(id, token.id);
                let delta = Delta { token, served: answer.served.clone() };
                events.push((id, Event::Token(Box::new(delta))));
                if let Some(stop) = stop {
                    self.end(id, stop, events);
                }
            }
        }
    }

    /// Runs the items of a failed step one by one: only those fail that fail alone.
    fn isolate(&mut self, items: &[Item], error: Error, events: &mut Vec<(RequestId, Event)>) {
        if let [item] = items {
            return self.fail(item.request, error, events);
        }
        for item in items {
            if let Err(error) = self.compute(std::slice::from_ref(item), events) {
                self.fail(item.request, error, events);
            }
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

    /// The running requests with the tokens that each holds in the cache.
    pub fn slots(&self) -> Vec<(RequestId, usize)> {
        let held = |(id, sequence)| (id, self.session.len(sequence));
        self.scheduler.running().map(held).collect()
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

/// ItemRows that a step read for an item.
struct ItemRows<'a> {
    data: &'a [f32],
    width: usize,
    /// The number of best tokens per row, if these were read instead of logits.
    k: Option<usize>,
}

impl Answer {
    /// Number of best tokens of a row that suffice; `None` if all logits are needed.
    fn needs(&self) -> Option<usize> {
        let needs_all = self.prompt_logprobs.is_some() || self.reply.request.logprobs.is_some();
        if needs_all { None } else { self.reply.sampler.needs() }
    }

    /// Uses the rows of an item; selects the next token if the item asks for it and one is wanted.
    fn advance(
        &mut self,
        item: &Item,
        tokens: &[u32],
        rows: &ItemRows<'_>,
        best: &mut Vec<(u32, f32)>,
    ) -> Result<Option<Token>, Error> {
        if let Some((top, found)) = &mut self.prompt_logprobs {
            for (row, at) in rows.data.chunks_exact(rows.width).zip(item.start..) {
                if let Some(&next) = tokens.get(at + 1) {
                    found.push(sampling::logprobs(row, next, *top));
                }
            }
        }
        if !item.selects || self.reply.ends_before_a_token().is_some() {
            return Ok(None);
        }
        let row = &rows.data[rows.data.len() - rows.width..];
        let needs = self.needs().filter(|&needs| needs <= BEST_MAX);
        let row = match (rows.k, needs) {
            (Some(k), _) => {
                best.clear();
                let (logits, ids) = row.split_at(k);
                best.extend(ids.iter().map(|&id| id as u32).zip(logits.iter().copied()));
                Row::Best(best)
            }
            (None, Some(needs)) => {
                sampling::best(row, needs, best);
                Row::Best(best)
            }
            (None, None) => Row::Logits(row),
        };
        let logits = match row {
            Row::Logits(logits) => self.reply.request.logprobs.map(|_| logits),
            Row::Best(_) => None,
        };
        let choice = Choice { row, logits, draft: None, room: usize::MAX };
        self.reply.choose(&choice).map(Some)
    }

    /// Notes the time of the token that was just selected.
    fn time(&mut self) {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        self.served.queued = started - self.arrived;
        self.served.generated = self.reply.generated;
        if self.reply.generated == 0 {
            self.served.prefill = now - started;
            return;
        }
        if self.first.is_none() {
            self.first = Some(now);
            self.served.prefill = now - started;
        }
        self.served.decode = now - self.first.unwrap_or(now);
    }
}
