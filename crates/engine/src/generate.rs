//! The loop from a prompt to a text: prefill, sample, decode, stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bilayer_text::{Decode, Decoder};

use crate::cache::SequenceId;
use crate::sampling::{self, Sampler, TokenLogprob};
use crate::session::{Run, Session, Spent, Wanted};
use crate::{Error, Model};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Tokens to begin with, at least one.
    pub prompt: &'a [u32],
    /// Most tokens to generate; `None` goes on until the text or the context ends.
    pub predict: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<String>,
    /// Goes on past end-of-text tokens.
    pub ignore_eos: bool,
    /// Shows control tokens as text.
    pub show_control: bool,
    /// How many of the most likely tokens to report beside each.
    pub logprobs: Option<usize>,
}

impl<'a> Request<'a> {
    /// Goes on from `prompt` until the text or the context ends.
    pub fn new(prompt: &'a [u32]) -> Request<'a> {
        Request {
            prompt,
            predict: None,
            stops: Vec::new(),
            ignore_eos: false,
            show_control: false,
            logprobs: None,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model said so.
    EndOfText,
    /// One of the request's stop texts appeared.
    Text(usize),
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller interrupted.
    Interrupted,
}

impl Stop {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Stop::EndOfText => "end",
            Stop::Text(_) => "stop",
            Stop::Length => "length",
            Stop::Context => "context",
            Stop::Interrupted => "interrupted",
        }
    }
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that is certain by now; may be empty, may belong to earlier tokens too.
    pub text: String,
    /// The token's and the most likely ones' log-probabilities, when asked for.
    pub logprobs: Option<(TokenLogprob, Vec<TokenLogprob>)>,
}

/// Times and counts of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Prompt tokens run.
    pub prompt_tokens: usize,
    /// Time to run them.
    pub prompt: Duration,
    /// From the start of the prompt to the first token.
    pub first_token: Duration,
    /// Tokens generated.
    pub generated: usize,
    /// Time from the first token's choice to the last's.
    pub generate: Duration,
    /// Share of it all spent on the devices.
    pub spent: Spent,
}

/// An answer in the making. Ask [`Generation::next`] until it gives `None`.
pub struct Generation<'s> {
    session: &'s mut Session,
    sequence: SequenceId,
    sampler: Sampler,
    decoder: Decoder,
    tokenizer: std::sync::Arc<bilayer_text::Tokenizer>,
    request: Request<'s>,
    interrupt: &'s AtomicBool,
    /// The logits after the last token, unless `top` says that the best are enough.
    logits: Vec<f32>,
    best: Vec<(u32, f32)>,
    top: bool,
    /// The token chosen last, not run yet.
    pending: Option<u32>,
    stop: Option<Stop>,
    statistics: Statistics,
    began: Instant,
}

impl<'s> Generation<'s> {
    /// Prepares an answer on `sequence`; nothing runs yet.
    ///
    /// # Errors
    /// The prompt is empty or does not fit the context.
    pub fn new(
        model: &Model,
        session: &'s mut Session,
        sequence: SequenceId,
        sampler: Sampler,
        request: Request<'s>,
        interrupt: &'s AtomicBool,
    ) -> Result<Generation<'s>, Error> {
        let needed = session.len(sequence) + request.prompt.len();
        let context = session.context();
        if request.prompt.is_empty() {
            let (name, found) = ("prompt", "empty".to_owned());
            return Err(Error::Setting { name, found, expected: "at least one token".to_owned() });
        }
        if needed > context {
            return Err(crate::cache::Error::Context { needed, context }.into());
        }
        let decode = Decode { stops: request.stops.clone(), show_control: request.show_control };
        Ok(Generation {
            decoder: Decoder::new(model.tokenizer(), decode).continuing(),
            tokenizer: model.tokenizer().clone(),
            top: is_enough(session, &sampler, &request),
            logits: Vec::with_capacity(model.config().vocab),
            best: Vec::with_capacity(session.top_k().unwrap_or(0)),
            session,
            sequence,
            sampler,
            request,
            interrupt,
            pending: None,
            stop: None,
            statistics: Statistics::default(),
            began: Instant::now(),
        })
    }

    /// Runs the prompt; `each` is told how many of its tokens are done. [`Generation::next`] does it unasked.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn prefill(&mut self, each: &mut dyn FnMut(usize)) -> Result<(), Error> {
        let Generation { session, sequence, request, interrupt, sampler, logits, best, .. } = self;
        self.began = Instant::now();
        session.take_spent();
        for &token in session.tokens(*sequence) {
            sampler.accept(token);
        }
        let going = &mut |done: usize| {
            each(done);
            !interrupt.load(Ordering::Relaxed)
        };
        let is_whole = if self.top {
            let top = session.prefill_top(*sequence, request.prompt, going)?;
            top.map(|top| best.extend(top.row(0))).is_some()
        } else {
            let row = session.prefill(*sequence, request.prompt, going)?;
            row.map(|row| logits.extend_from_slice(row)).is_some()
        };
        if !is_whole {
            self.stop = Some(Stop::Interrupted);
        }
        for &token in request.prompt {
            sampler.accept(token);
        }
        self.statistics.prompt_tokens = request.prompt.len();
        self.statistics.prompt = self.began.elapsed();
        Ok(())
    }

    /// The next token, or `None` once the answer has ended.
    ///
    /// # Errors
    /// Those of [`Session::step`] and [`Sampler::sample`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results would go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Token>, Error> {
        if self.statistics.prompt_tokens == 0 {
            self.prefill(&mut |_| ())?;
        }
        if self.stop.is_none() {
            self.stop = self.ends_before_a_token();
        }
        if self.stop.is_some() {
            return Ok(None);
        }
        if let Some(token) = self.pending.take() {
            let run = Run { sequence: self.sequence, tokens: &[token], wanted: Wanted::Last };
            if self.top {
                self.best.clear();
                self.best.extend(self.session.step_top(&[run])?.row(0));
            } else {
                self.logits.clear();
                self.logits.extend_from_slice(self.session.step(&[run])?);
            }
        }
        let id = match self.top {
            true => self.sampler.sample_top(self.best.iter().copied())?,
            false => self.sampler.sample(&self.logits)?,
        };
        let logprobs = self.request.logprobs.map(|top| sampling::logprobs(&self.logits, id, top));
        self.count();
        if self.tokenizer.is_end(id) && !self.request.ignore_eos {
            self.stop = Some(Stop::EndOfText);
            return Ok(Some(Token { id, text: self.decoder.finish(), logprobs }));
        }
        self.pending = Some(id);
        let piece = self.decoder.push(id);
        if let Some(which) = piece.stop {
            self.stop = Some(Stop::Text(which));
        }
        Ok(Some(Token { id, text: piece.text, logprobs }))
    }

    /// Text that was held back when the answer ended; empty after a stop text.
    pub fn finish(&mut self) -> String {
        match self.stop {
            Some(Stop::Text(_)) => String::new(),
            _ => self.decoder.finish(),
        }
    }

    /// Why the answer ended, once it has.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Times and counts so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn ends_before_a_token(&self) -> Option<Stop> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Some(Stop::Interrupted);
        }
        if self.request.predict.is_some_and(|most| self.statistics.generated >= most) {
            return Some(Stop::Length);
        }
        let full = self.session.len(self.sequence) >= self.session.context();
        (full && self.pending.is_some()).then_some(Stop::Context)
    }

    fn count(&mut self) {
        let elapsed = self.began.elapsed();
        if self.statistics.generated == 0 {
            self.statistics.first_token = elapsed;
        }
        self.statistics.generated += 1;
        self.statistics.generate = elapsed.saturating_sub(self.statistics.first_token);
        self.statistics.spent = add(self.statistics.spent, self.session.take_spent());
    }
}

/// Whether the best tokens that the session finds are all that will be looked at.
fn is_enough(session: &Session, sampler: &Sampler, request: &Request<'_>) -> bool {
    let needs = sampler.options().needs().map(|needs| needs.min(session.vocab()));
    let is_enough = |k| needs.is_some_and(|needs| needs <= k);
    request.logprobs.is_none() && session.top_k().is_some_and(is_enough)
}

fn add(a: Spent, b: Spent) -> Spent {
    Spent {
        total: a.total + b.total,
        cpu: a.cpu + b.cpu,
        gpu: a.gpu + b.gpu,
        crossing: a.crossing + b.crossing,
    }
}
