//! An answer in the making, as Python takes it: tokens from a channel that the model's thread fills.
//!
//! To wake a reader that waits costs the model's thread some microseconds, 8 % of a token of the demo model. So it does that
//! at most once in [`WAKE`]: tokens that follow each other faster come together.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bilayer::{Error, Model, Reply, Request, Statistics, Token};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error;
use crate::worker::{self, Ticket, Worker, locked};

/// A token as Python gets it: its id, its text, its log-probability and those of the most likely tokens.
type Row = (u32, String, Option<f32>, Vec<(u32, f32)>);

/// A reply as Python gets it: its text, its reasoning, and the names and arguments of its calls.
type Parts = (String, String, Vec<(String, String)>);

/// The least time between two wakes of the reader. A token that comes within it waits for the next one, which is due
/// sooner than this.
const WAKE: Duration = Duration::from_millis(1);

/// What the model's thread reports.
enum Event {
    /// At least one.
    Tokens(Vec<Token>),
    End(Box<End>),
    Failed(Box<Error>),
}

/// How an answer ended.
#[derive(Default)]
struct End {
    stop: Option<&'static str>,
    /// Tokens of the whole prompt.
    prompt_tokens: usize,
    statistics: Statistics,
    /// `None` if it failed.
    reply: Option<Reply>,
}

/// An answer in the making. The model's thread runs ahead of the reader, at most to the answer's end.
#[pyclass(frozen, module = "bilayer._native")]
pub struct Answer {
    worker: Arc<Worker>,
    events: Mutex<Receiver<Event>>,
    /// Tokens of the last event that were not taken.
    ready: Mutex<VecDeque<Token>>,
    ticket: Mutex<Option<Ticket>>,
    end: Mutex<Option<End>>,
}

impl End {
    /// The end of an answer that was closed before it began.
    fn unbegun() -> End {
        let stop = Some(bilayer::Stop::Interrupted.name());
        End { stop, reply: Some(Reply::default()), ..End::default() }
    }
}

impl Answer {
    /// Asks the model's thread for an answer.
    pub fn begin(py: Python<'_>, worker: &Arc<Worker>, request: Request) -> PyResult<Answer> {
        let (sender, events) = mpsc::channel();
        let ticket = worker.post(py, sender, |model, sender| make(model, request, sender))?;
        Ok(Answer::of(worker, events, ticket))
    }

    /// An answer that panics instead.
    #[cfg(debug_assertions)]
    pub fn panicking(py: Python<'_>, worker: &Arc<Worker>) -> PyResult<Answer> {
        let (sender, events) = mpsc::channel();
        // Without the hook, which would print it.
        let panic =
            |_: &mut Model, _: &Sender<Event>| std::panic::resume_unwind(Box::new("a test"));
        let ticket = worker.post(py, sender, panic)?;
        Ok(Answer::of(worker, events, ticket))
    }

    fn of(worker: &Arc<Worker>, events: Receiver<Event>, ticket: Ticket) -> Answer {
        Answer {
            worker: worker.clone(),
            events: Mutex::new(events),
            ready: Mutex::new(VecDeque::new()),
            ticket: Mutex::new(Some(ticket)),
            end: Mutex::new(None),
        }
    }

    /// The token of an event; `None` at the end.
    fn take(&self, py: Python<'_>, event: Event) -> PyResult<Option<Row>> {
        match event {
            Event::Tokens(tokens) => {
                let mut ready = locked(&self.ready);
                ready.extend(tokens);
                Ok(ready.pop_front().map(row))
            }
            Event::End(end) => {
                *locked(&self.end) = Some(*end);
                Ok(None)
            }
            Event::Failed(failed) => {
                *locked(&self.end) = Some(End::default());
                Err(error::of(py, &failed))
            }
        }
    }

    fn has_ended(&self) -> bool {
        locked(&self.end).is_some()
    }

    /// A token that came with the one before.
    fn take_rest(&self) -> Option<Row> {
        locked(&self.ready).pop_front().map(row)
    }
}

fn row(token: Token) -> Row {
    let (own, top) = token.logprobs.unzip();
    let top = top.unwrap_or_default().iter().map(|t| (t.id, t.logprob)).collect();
    (token.id, token.text, own.map(|own| own.logprob), top)
}

#[pymethods]
impl Answer {
    /// The next token, waited for; None at the end.
    fn take_next(&self, py: Python<'_>) -> PyResult<Option<Row>> {
        self.worker.check_process(py)?;
        if let Some(row) = self.take_rest() {
            return Ok(Some(row));
        }
        if self.has_ended() {
            return Ok(None);
        }
        let next = worker::wait(py, &self.events, || self.has_ended());
        let next = next.inspect_err(|_| self.close());
        match next? {
            Some(event) => self.take(py, event),
            // The end came to another thread, or the interpreter ends.
            None if self.has_ended() || worker::is_over() => Ok(None),
            None => {
                *locked(&self.end) = Some(End::default());
                Err(self.worker.fault(py))
            }
        }
    }

    /// Whether there is a token or the end already, and then that.
    fn take_ready(&self, py: Python<'_>) -> PyResult<(bool, Option<Row>)> {
        self.worker.check_process(py)?;
        if let Some(row) = self.take_rest() {
            return Ok((true, Some(row)));
        }
        if self.has_ended() {
            return Ok((true, None));
        }
        // Another thread may hold the lock while it waits.
        let ready = match self.events.try_lock() {
            Ok(events) => events.try_recv(),
            Err(_) => Err(TryRecvError::Empty),
        };
        match ready {
            Ok(event) => Ok((true, self.take(py, event)?)),
            Err(TryRecvError::Empty) => Ok((false, None)),
            Err(TryRecvError::Disconnected) => self.take_next(py).map(|row| (true, row)),
        }
    }

    /// Ends the answer.
    fn close(&self) {
        let ticket = locked(&self.ticket).take();
        if ticket.is_some_and(|ticket| ticket.cancel()) {
            *locked(&self.end) = Some(End::unbegun());
        }
    }

    /// Why the answer ended, once it has and was read to its end.
    fn stop(&self) -> Option<&'static str> {
        locked(&self.end).as_ref()?.stop
    }

    /// Text, reasoning and calls as names and arguments, once the answer was read to its end; None if it failed.
    fn reply(&self) -> Option<Parts> {
        let end = locked(&self.end);
        let Reply { content, reasoning, calls } = end.as_ref()?.reply.as_ref()?;
        let call = |call: &bilayer::Function| (call.name.clone(), call.arguments.clone());
        Some((content.clone(), reasoning.clone(), calls.iter().map(call).collect()))
    }

    /// Times and counts, once the answer has ended and was read to its end.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        // The lock is not held while Python runs.
        let ended =
            locked(&self.end).as_ref().map(|end| (end.prompt_tokens, end.statistics.clone()));
        let Some((prompt_tokens, statistics)) = ended else { return Ok(None) };
        let row = PyDict::new(py);
        row.set_item("prompt_tokens", prompt_tokens)?;
        row.set_item("computed_tokens", statistics.prompt_tokens)?;
        row.set_item("prompt_seconds", statistics.prompt.as_secs_f64())?;
        row.set_item("first_token_seconds", statistics.first_token.as_secs_f64())?;
        row.set_item("generated_tokens", statistics.generated)?;
        row.set_item("generate_seconds", statistics.generate.as_secs_f64())?;
        row.set_item("steps", statistics.steps)?;
        row.set_item("drafted_tokens", statistics.drafted)?;
        row.set_item("accepted_tokens", statistics.accepted)?;
        Ok(Some(row))
    }
}

/// Makes an answer, reports its tokens, and returns the last event.
fn make(model: &mut Model, request: Request, sender: &Sender<Event>) -> Event {
    let mut answer = match model.generate(request) {
        Ok(answer) => answer,
        Err(error) => return Event::Failed(Box::new(error)),
    };
    let (mut tokens, mut woken, mut text) = (Vec::new(), None::<Instant>, String::new());
    for token in &mut answer {
        match token {
            Ok(token) => {
                text += &token.text;
                tokens.push(token);
            }
            Err(error) => {
                let _ = give(&mut tokens, sender);
                return Event::Failed(Box::new(error));
            }
        }
        if woken.is_none_or(|at| at.elapsed() >= WAKE) {
            if !give(&mut tokens, sender) {
                break;
            }
            woken = Some(Instant::now());
        }
    }
    let _ = give(&mut tokens, sender);
    let stop = answer.stop().map(bilayer::Stop::name);
    let (prompt_tokens, statistics) = (answer.prompt_tokens(), answer.statistics());
    let reply = Some(answer.parse(&text));
    Event::End(Box::new(End { stop, prompt_tokens, statistics, reply }))
}

/// Gives the tokens to the reader; false if it is gone.
fn give(tokens: &mut Vec<Token>, sender: &Sender<Event>) -> bool {
    tokens.is_empty() || sender.send(Event::Tokens(std::mem::take(tokens))).is_ok()
}
