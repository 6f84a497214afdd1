//! From a prompt and parameters to a stream of events: what all generating endpoints share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bilayer_engine::Error as Engine;
use bilayer_engine::constrain::Constraint;
use bilayer_engine::generate::{Distribution, Request, Stop, Token};
use bilayer_engine::requests::{Event, Served, Submission};
use bilayer_engine::sampling::{Breakers, Sampler, TokenLogprob};
use bilayer_text::{Decode, Decoder, StopStrings};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use crate::app::{App, Caller};
use crate::error::ApiError;
use crate::models::Loaded;
use crate::params::Params;
use crate::worker::{Ask, Ticket, Update, Worker};

/// Tickets are unique in the process.
static TICKETS: AtomicU64 = AtomicU64::new(1);

/// Answers that one request may have.
const ANSWERS_MAX: usize = 2048;

/// What is asked of a model.
pub struct Question {
    /// The model.
    pub loaded: Arc<Loaded>,
    /// The prompts, each answered `params.n` times.
    pub prompts: Vec<Vec<u32>>,
    /// Sampling and length.
    pub params: Params,
    /// Most likely tokens to report with each generated one.
    pub logprobs: Option<usize>,
    /// The distribution that these are of.
    pub distribution: Distribution,
    /// Most likely tokens to report with each prompt token.
    pub prompt_logprobs: Option<usize>,
    /// Emit control tokens as text.
    pub show_control: bool,
    /// Texts that end an answer in the chat template's format.
    pub template_stops: Vec<String>,
    /// What the answers must follow.
    pub constraint: Option<Constraint>,
}

/// Answers in the making. Dropping them cancels what still runs.
pub struct Answers {
    loaded: Arc<Loaded>,
    tickets: Vec<Ticket>,
    updates: UnboundedReceiver<(usize, Update)>,
    deadline: Instant,
    /// Answers that have not ended.
    pub open: usize,
    /// An event that was received while waiting for admission.
    first: Option<(usize, Event)>,
}

impl Answers {
    /// Hands the prompts to the model's worker, and waits until something came of the first.
    ///
    /// # Errors
    /// A prompt is empty or too long, a queue is full, the model cannot compute the prompt.
    pub async fn start(
        app: &App,
        caller: &Caller,
        question: Question,
    ) -> Result<Answers, ApiError> {
        let Question { loaded, prompts, params, .. } = &question;
        if prompts.len().saturating_mul(params.n) > ANSWERS_MAX {
            return Err(ApiError::invalid(format!(
                "the request asks for {} answers to each of {} prompts; at most {ANSWERS_MAX} in all are allowed",
                params.n,
                prompts.len()
            )));
        }
        let worker = loaded.decoder()?;
        let lora = loaded.adapters.asked(params.lora.as_ref())?;
        if let Some(slot) = params.slot.filter(|&slot| slot as usize >= app.config.slots) {
            let problem = format!("is {slot}; there are {} slots", app.config.slots);
            return Err(ApiError::field("id_slot", problem));
        }
        for prompt in prompts {
            if prompt.is_empty() {
                return Err(ApiError::field("prompt", "has no tokens"));
            }
            if prompt.len() >= loaded.context {
                return Err(ApiError::context(prompt.len(), loaded.context));
            }
        }
        let (sender, updates) = unbounded_channel();
        let mut tickets = Vec::new();
        let shifts = app.config.switches.context_shift;
        worker.ask(caller.key, prompts.len() * params.n, || {
            let (stops, mut asks) = (question.stops(), Vec::new());
            let breakers = question.breakers();
            for prompt in prompts {
                let mut leader = None;
                for sample in 0..params.n {
                    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
                    let request = Request {
                        lora: lora.clone(),
                        shift: shifts.then(|| params.shift(prompt.len())),
                        stops: stops.clone(),
                        ..question.request(prompt)
                    };
                    let submission = Submission {
                        request,
                        sampler: question.sampler(sample as u64, &breakers)?,
                        key: caller.key,
                        namespace: caller.namespace(&app.config),
                        reuse: params.reuse,
                        prompt_logprobs: question.prompt_logprobs,
                        after: None,
                        slot: params.slot,
                        arrived: None,
                    };
                    let (index, updates) = (tickets.len(), sender.clone());
                    asks.push(Ask { ticket, index, submission, after: leader, updates });
                    leader = leader.or(Some(ticket));
                    tickets.push(ticket);
                }
            }
            Ok(asks)
        })?;
        let deadline = app.config.limits.deadline();
        let open = tickets.len();
        let loaded = loaded.clone();
        let mut answers = Answers { loaded, tickets, updates, deadline, open, first: None };
        answers.first = answers.receive().await?;
        Ok(answers)
    }

    /// The next event of any answer, with the answer's number; `None` once all have ended.
    ///
    /// # Errors
    /// An answer failed, or the time is up.
    pub async fn next(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        while self.open > 0 {
            // A client that reads slowly finds updates also after the deadline.
            if Instant::now() >= self.deadline {
                return Err(ApiError::late());
            }
            let update = tokio::time::timeout_at(self.deadline, self.updates.recv()).await;
            let Some((index, update)) = update.map_err(|_| ApiError::late())? else {
                return Err(self.loaded.decoder().map_or_else(|error| error, Worker::ended));
            };
            match update {
                Update::Accepted => {}
                Update::Failed(error) => return Err(error),
                Update::Event(Event::Failed(error)) => return Err(error.into()),
                Update::Event(event) => {
                    self.open -= usize::from(matches!(event, Event::Ended { .. }));
                    return Ok(Some((index, event)));
                }
            }
        }
        Ok(None)
    }

    /// When all must have ended.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The model.
    pub fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if self.open > 0
            && let Ok(worker) = self.loaded.decoder()
        {
            self.tickets.iter().for_each(|&ticket| worker.cancel(ticket));
        }
    }
}

impl Question {
    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }

    /// The texts that end an answer: those of the chat template like tokens that do.
    fn stops(&self) -> StopStrings {
        let template_stops = self.template_stops.iter().filter(|_| !self.params.ignore_eos);
        self.params.stops.iter().chain(template_stops).cloned().collect()
    }

    /// What is asked with a prompt, without stop strings, which all answers share.
    fn request(&self, prompt: &[u32]) -> Request<'static> {
        Request {
            predict: self.params.predict,
            predict_time: self.params.predict_time,
            indent: self.params.indent,
            ignore_eos: self.params.ignore_eos,
            show_control: self.show_control,
            logprobs: self.logprobs,
            distribution: self.distribution,
            ..Request::new(prompt.to_vec())
        }
    }

    /// What ends a DRY match, which all answers share; nothing without DRY.
    fn breakers(&self) -> Arc<Breakers> {
        let Question { loaded, params, .. } = self;
        let breakers = params.sampling.dry.as_ref();
        breakers.map(|_| loaded.model.dry_breakers(&params.breakers)).unwrap_or_default().into()
    }

    /// The sampler of one of several answers: each has a seed of its own.
    fn sampler(&self, sample: u64, breakers: &Arc<Breakers>) -> Result<Sampler, ApiError> {
        let Question { loaded, params, .. } = self;
        let mut options = params.sampling.clone();
        options.seed = options.seed.wrapping_add(sample);
        let vocab = loaded.model.config().vocab;
        let sampler = Sampler::new(options, vocab, loaded.context);
        let mut sampler = sampler.map_err(Engine::SamplingOptions)?;
        sampler.set_breakers(breakers.clone());
        if let Some(constraint) = &self.constraint {
            sampler.set_constraint(constraint.clone());
        }
        Ok(sampler)
    }
}

/// OpenAI's name for why an answer ended.
pub fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::EndOfText | Stop::Text(_) => "stop",
        Stop::Length | Stop::Context | Stop::Interrupted => "length",
    }
}

/// How many of an answer's tokens, decoded so, spell its text of so many bytes: those after the others are of the stop text
/// that ended it, and begin at its end or behind. All of them if it ended otherwise.
pub fn kept(
    loaded: &Loaded,
    (tokens, decode): (impl Iterator<Item = u32>, Decode),
    stop: Option<Stop>,
    text_bytes: usize,
) -> usize {
    if !matches!(stop, Some(Stop::Text(_))) {
        return usize::MAX;
    }
    let mut decoder = Decoder::new(loaded.model.tokenizer(), decode).continuing();
    let mut start = 0;
    let begins_within = |&id: &u32| {
        let is_within = start < text_bytes;
        start += decoder.push(id).text.len();
        is_within
    };
    tokens.take_while(begins_within).count()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Where the layers ran and how long each device was busy in steps with a request.
pub fn devices(loaded: &Loaded, served: &Served) -> Value {
    let live = loaded.decoder().map(crate::worker::Worker::live).unwrap_or_default();
    let devices = live.devices.iter().enumerate().map(|(number, device)| {
        let layers = live.layers.iter().filter(|&&of| of == number).count();
        let busy = served.spent.devices.get(number).copied().unwrap_or_default();
        json!({ "name": device.name, "layers": layers, "busy_ms": ms(busy) })
    });
    Value::Array(devices.collect())
}

/// `timings`: llama-server's numbers, and where the time went.
pub fn timings(served: &Served) -> Value {
    let computed = served.processed.saturating_sub(served.cached);
    let per = |time: f64, count: usize| if count > 0 { time / count as f64 } else { 0.0 };
    let rate = |time: f64, count: usize| if time > 0.0 { count as f64 / time * 1e3 } else { 0.0 };
    let (prompt_ms, predicted_ms) = (ms(served.prefill), ms(served.decode));
    let steps = served.generated.saturating_sub(1);
    let mut timings = json!({
        "cache_n": served.cached,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": per(prompt_ms, computed),
        "prompt_per_second": rate(prompt_ms, computed),
        "predicted_n": served.generated,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": per(predicted_ms, steps),
        "predicted_per_second": rate(predicted_ms, steps),
        "queue_ms": ms(served.queued),
        "crossing_ms": ms(served.spent.crossing),
        "crossed_bytes": served.crossed_bytes,
        "preempted": served.preempted,
    });
    if let Some(timings) = timings.as_object_mut().filter(|_| served.drafted > 0) {
        timings.insert("draft_n".to_owned(), json!(served.drafted));
        timings.insert("draft_n_accepted".to_owned(), json!(served.accepted));
    }
    timings
}

/// llama-server's `prompt_progress`.
pub fn progress(served: &Served) -> Value {
    json!({
        "total": served.prompt,
        "cache": served.cached,
        "processed": served.processed,
        "time_ms": ms(served.prefill),
    })
}

/// OpenAI's `usage` over answers to the same prompt.
pub fn usage(prompt: usize, cached: usize, generated: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

/// A token's text and bytes, with its log-probability.
pub fn spelled(loaded: &Loaded, logprob: &TokenLogprob) -> Value {
    let piece = loaded.model.tokenizer().piece(logprob.id).unwrap_or_default();
    json!({
        "id": logprob.id,
        "token": String::from_utf8_lossy(piece),
        "logprob": finite(logprob.logprob),
        "bytes": piece,
    })
}

/// JSON has no infinity.
fn finite(number: f32) -> f32 {
    number.max(-9999.0)
}

/// A token's entry in `logprobs.content` and in `completion_probabilities`.
pub fn logprobs_entry(loaded: &Loaded, token: &Token) -> Option<Value> {
    let (own, top) = token.logprobs.as_ref()?;
    let mut entry = spelled(loaded, own);
    let top: Vec<Value> = top.iter().map(|logprob| spelled(loaded, logprob)).collect();
    entry.as_object_mut()?.insert("top_logprobs".to_owned(), json!(top));
    Some(entry)
}
