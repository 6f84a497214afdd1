//! Generates several answers at once: each step runs one token of each, so the weights are read once for all; or of each
//! of a group, with steps of several groups in progress together, where that is faster.

use std::collections::VecDeque;
use std::time::Duration;

use bilayer_graph::Limits;
use bilayer_scheduler::Demand;

use super::reply::{Choice, Reply};
use super::{Request, Stop, Token};
use crate::sampling::{Row, Sampler};
use crate::session::{CacheError, Run, SequenceId, Session, Wanted};
use crate::{Error, Model};

/// Requests and their answers in progress. As many run at once as the session has free sequences and a step has tokens and
/// outputs; the others are queued. A prompt runs alone when its turn comes, then its answer joins the batch.
pub struct Batch<'s> {
    model: Model,
    session: &'s mut Session,
    waiting: VecDeque<(usize, Reply<'s>)>,
    running: Vec<Lane<'s>>,
    /// The requests of steps in progress, oldest first.
    begun: VecDeque<Vec<usize>>,
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
    /// Whether a step with it is in progress.
    is_begun: bool,
}

impl<'s> Batch<'s> {
    /// An empty batch.
    pub fn new(model: &Model, session: &'s mut Session) -> Batch<'s> {
        Batch {
            model: model.clone(),
            session,
            waiting: VecDeque::new(),
            running: Vec::new(),
            begun: VecDeque::new(),
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
            let has_room = self.running.len() < most_at_once(self.session.limits());
            if has_room && !self.waiting.is_empty() && !self.begun.is_empty() {
                self.finish_group()?;
            } else if has_room && let Some((number, reply)) = self.waiting.pop_front() {
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
        let lane = Lane { number, sequence, reply, last: [0], is_begun: false };
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

    /// Runs the last token of every answer, or of a group, and selects the next ones.
    fn step(&mut self) -> Result<(), Error> {
        let free = self.running.iter_mut().filter(|lane| !lane.is_begun);
        for lane in free.filter(|lane| lane.reply.request.cancel.is_cancelled()) {
            lane.reply.stop = Some(Stop::Interrupted);
        }
        let rows = self.running.iter().filter(|lane| lane.reply.stop.is_none()).count();
        let step_rows = self.session.limits().tokens;
        let groups = self.session.groups(Demand { rows, step_rows });
        if groups > 1 || !self.begun.is_empty() {
            let of_step = rows.div_ceil(groups);
            while self.begun.len() < groups && self.begin_group(of_step)? {}
            return self.finish_group();
        }
        let Batch { session, running, ready, .. } = self;
        let going = || running.iter().filter(|lane| lane.reply.stop.is_none());
        let context = session.context();
        let room = going().map(|lane| context.saturating_sub(session.len(lane.sequence) + 1));
        let room: Vec<usize> = room.collect();
        let runs: Vec<Run<'_>> = going().map(Lane::run).collect();
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

    /// Begins a step with the last tokens of so many answers at most. False if there are none.
    fn begin_group(&mut self, most: usize) -> Result<bool, Error> {
        let Batch { session, running, begun, .. } = self;
        let is_free = |lane: &&mut Lane<'_>| !lane.is_begun && lane.reply.stop.is_none();
        let lanes: Vec<&mut Lane<'_>> = running.iter_mut().filter(is_free).take(most).collect();
        let runs: Vec<Run<'_>> = lanes.iter().map(|lane| lane.run()).collect();
        if runs.is_empty() {
            return Ok(false);
        }
        if let Err(error) = session.begin(&runs) {
            self.forget_begun();
            return Err(error);
        }
        begun.push_back(lanes.iter().map(|lane| lane.number).collect());
        lanes.into_iter().for_each(|lane| lane.is_begun = true);
        Ok(true)
    }

    /// Selects tokens from the results of the oldest step in progress.
    fn finish_group(&mut self) -> Result<(), Error> {
        let Batch { session, running, begun, ready, .. } = self;
        let Some(numbers) = begun.pop_front() else {
            self.sweep();
            return Ok(());
        };
        let (vocab, context) = (session.vocab(), session.context());
        let is_of = |lane: &Lane<'_>| numbers.contains(&lane.number);
        let of_step = running.iter().filter(|lane| is_of(lane));
        let room: Vec<usize> =
            of_step.map(|lane| context.saturating_sub(session.len(lane.sequence))).collect();
        let logits = match session.finish() {
            Ok(logits) => logits,
            Err(error) => {
                self.forget_begun();
                return Err(error);
            }
        };
        let lanes = running.iter_mut().filter(|lane| is_of(lane));
        for ((lane, row), room) in lanes.zip(logits.chunks_exact(vocab)).zip(room) {
            lane.is_begun = false;
            ready.push_back((lane.number, lane.choose(row, room)?));
        }
        self.sweep();
        Ok(())
    }

    /// Forgets steps that have failed.
    fn forget_begun(&mut self) {
        self.begun.clear();
        self.running.iter_mut().for_each(|lane| lane.is_begun = false);
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

/// Number of answers of which a step can run a token each.
fn most_at_once(limits: &Limits) -> usize {
    limits.sequences.min(limits.tokens).min(limits.outputs)
}

impl Lane<'_> {
    /// Its part of a step.
    fn run(&self) -> Run<'_> {
        Run { sequence: self.sequence, tokens: &self.last, wanted: Wanted::Last }
    }

    /// Selects the next token from logits `[vocab]`; `room` tokens of context are left.
    fn choose(&mut self, logits: &[f32], room: usize) -> Result<Token, Error> {
        let row = Row::Logits(logits);
        let (logits, elapsed) = (Some(logits), Duration::ZERO);
        let token = self.reply.choose(&Choice { row, logits, draft: None, room, elapsed })?;
        self.last = [token.id];
        Ok(token)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // After an error none is left.
        while self.session.begun() > 0 && self.session.finish().is_ok() {}
        for lane in &self.running {
            self.session.close(lane.sequence);
        }
    }
}
