//! Generates several answers at once: each step runs one token of each, so the weights are read once for all.

use std::collections::VecDeque;

use super::reply::{Choice, Reply};
use super::{Request, Stop, Token};
use crate::sampling::{Row, Sampler};
use crate::session::{CacheError, Run, SequenceId, Session, Wanted};
use crate::{Error, Model};

/// Requests and their answers in progress. As many run at once as the session has free sequences; the others are
/// queued. A prompt runs alone when its turn comes, then its answer joins the batch.
pub struct Batch<'s> {
    model: Model,
    session: &'s mut Session,
    waiting: VecDeque<(usize, Reply<'s>)>,
    running: Vec<Lane<'s>>,
    /// Selected tokens that were not returned yet.
    ready: VecDeque<(usize, Token)>,
    /// Why each answer ended, by request number.
    stops: Vec<Option<Stop>>,
}

/// An answer in its sequence.
struct Lane<'s> {
    number: usize,
    sequence: SequenceId,
    reply: Reply<'s>,
    /// The last selected token, to be run next.
    last: [u32; 1],
}

impl<'s> Batch<'s> {
    /// An empty batch.
    pub fn new(model: &Model, session: &'s mut Session) -> Batch<'s> {
        Batch {
            model: model.clone(),
            session,
            waiting: VecDeque::new(),
            running: Vec::new(),
            ready: VecDeque::new(),
            stops: Vec::new(),
        }
    }

    /// Adds a request whose tokens are selected by `sampler`. Returns its number: 0, 1, 2 and so on.
    ///
    /// # Errors
    /// The prompt is empty or longer than the context.
    pub fn push(&mut self, request: Request<'s>, sampler: Sampler) -> Result<usize, Error> {
        let (needed, context) = (request.prompt.len(), self.session.context());
        if needed == 0 {
            return Err(super::empty_prompt());
        }
        if needed > context {
            return Err(CacheError::Context { needed, context }.into());
        }
        if let Some(strengths) = &request.lora {
            self.session.check_strengths(strengths)?;
        }
        let number = self.stops.len();
        self.stops.push(None);
        self.waiting.push_back((number, Reply::new(&self.model, sampler, request)));
        Ok(number)
    }

    /// The next token of any answer, with the number of its request; `None` once all have ended.
    ///
    /// # Errors
    /// Those of [`Session::step`] and [`Sampler::sample`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results would go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<(usize, Token)>, Error> {
        while self.ready.is_empty() {
            let has_room = self.running.len() < self.session.limits().sequences;
            if has_room && let Some((number, reply)) = self.waiting.pop_front() {
                self.begin(number, reply)?;
            } else if self.running.is_empty() {
                return Ok(None);
            } else {
                self.step()?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Why the answer to a request ended, if it has.
    pub fn stop(&self, number: usize) -> Option<Stop> {
        self.stops.get(number).copied().flatten()
    }

    /// Runs a prompt in a new sequence and selects the first token.
    fn begin(&mut self, number: usize, mut reply: Reply<'s>) -> Result<(), Error> {
        if let Some(stop) = reply.ends_before_a_token() {
            self.stops[number] = Some(stop);
            return Ok(());
        }
        let sequence = self.session.open()?;
        let Reply { request, sampler, .. } = &mut reply;
        self.session.adapt(sequence, request.lora.as_deref())?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        let cancel = request.cancel.clone();
        let going = &mut |_| !cancel.is_cancelled();
        let lane = Lane { number, sequence, reply, last: [0] };
        self.running.push(lane);
        let lane = self.running.last_mut().expect("pushed");
        let room = self.session.context() - lane.reply.request.prompt.len();
        match self.session.prefill(sequence, &lane.reply.request.prompt, going)? {
            Some(logits) => self.ready.push_back((number, lane.choose(logits, room)?)),
            None => lane.reply.stop = Some(Stop::Interrupted),
        }
        self.sweep();
        Ok(())
    }

    /// Runs the last token of every answer and selects the next ones.
    fn step(&mut self) -> Result<(), Error> {
        let Batch { session, running, ready, .. } = self;
        for lane in running.iter_mut().filter(|lane| lane.reply.request.cancel.is_cancelled()) {
            lane.reply.stop = Some(Stop::Interrupted);
        }
        let going = || running.iter().filter(|lane| lane.reply.stop.is_none());
        let context = session.context();
        let room = going().map(|lane| context.saturating_sub(session.len(lane.sequence) + 1));
        let room: Vec<usize> = room.collect();
        let runs = going().map(|lane| Run {
            sequence: lane.sequence,
            tokens: &lane.last,
            wanted: Wanted::Last,
        });
        let runs: Vec<Run<'_>> = runs.collect();
        if !runs.is_empty() {
            let vocab = session.vocab();
            let logits = session.step(&runs)?;
            let lanes = running.iter_mut().filter(|lane| lane.reply.stop.is_none());
            for ((lane, row), room) in lanes.zip(logits.chunks_exact(vocab)).zip(room) {
                ready.push_back((lane.number, lane.choose(row, room)?));
            }
        }
        self.sweep();
        Ok(())
    }

    /// Closes the sequences of finished answers.
    fn sweep(&mut self) {
        let Batch { session, running, stops, .. } = self;
        running.retain(|lane| {
            stops[lane.number] = lane.reply.stop;
            if lane.reply.stop.is_some() {
                session.close(lane.sequence);
            }
            lane.reply.stop.is_none()
        });
    }
}

impl Lane<'_> {
    /// Selects the next token from logits `[vocab]`; `room` tokens of context are left.
    fn choose(&mut self, logits: &[f32], room: usize) -> Result<Token, Error> {
        let row = Row::Logits(logits);
        let token = self.reply.choose(&Choice { row, logits: Some(logits), draft: None, room })?;
        self.last = [token.id];
        Ok(token)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for lane in &self.running {
            self.session.close(lane.sequence);
        }
    }
}
