//! Steps that are in progress together: groups of sequences follow each other through the segments, across steps.
//!
//! **The idea.** [`Session::begin`] starts a step, [`Session::finish`] returns the results of the oldest one. While the
//! tokens of one group are in the second device, those of another are in the first, and a group's next tokens enter as
//! soon as they are selected. Two groups of a single step are done after at least 3/4 of the time of both devices,
//! because the second device waits at the beginning and the first one at the end. Across steps neither waits, so two
//! groups reach (T1 + T2) / max(T1, T2).
//!
//! **Order.** A segment holds one micro-batch, from its submit until the next segment takes it, and micro-batches do not
//! overtake. Every device so computes a layer in the order in which tokens were appended, and a value needs as many
//! buffers as within a step ([`Carried::slots`](super::pipeline::Carried)).
//!
//! **Waiting.** Only [`Session::finish`] waits: first for asynchronous devices that are done, then for the host, whose
//! pool the waiting thread joins, then for the device of the oldest micro-batch.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bilayer_graph::{Limits, Op, PageCopy};
use bilayer_quant::first_not_finite;
use bilayer_scheduler::Demand;

use super::append::within;
use super::batch;
use super::checkpoints::Checkpoint;
use super::failed::{Failed, is_recoverable};
use super::pipeline::Reading;
use super::trace::{Event, What};
use super::{Run, SequenceId, Session, Wanted};
use crate::Error;
use crate::settings::Overlap;

/// Maximum number of steps in progress.
const STEPS_MAX: usize = 8;

/// Steps in progress. All memory is allocated by [`Waves::new`].
pub struct Waves {
    /// Those not finished, oldest first.
    steps: VecDeque<BegunStep>,
    /// Number of steps finished or taken back.
    finished: u64,
    /// Their micro-batches, oldest first.
    flights: VecDeque<Flight>,
    /// Counts micro-batches.
    next: usize,
    spare: Vec<BegunStep>,
    /// When the last step was finished.
    last_end: Instant,
    /// A failure to be handled by the next call.
    failed: Option<Failed>,
}

/// A step in progress.
#[derive(Debug)]
struct BegunStep {
    runs: Vec<Appended>,
    /// Checkpoints of the run as they were when the step began, if its rows are divided. Another step may begin before the
    /// last of them run and take slots of states between, which this step has used by then.
    checkpoints: Vec<Checkpoint>,
    /// Page copies performed first.
    copies: Vec<PageCopy>,
    reading: Reading,
    rows: usize,
    began: Instant,
}

/// Tokens of a sequence that were appended for a step.
#[derive(Clone, Copy, Debug)]
struct Appended {
    sequence: SequenceId,
    start: usize,
    len: usize,
    wanted: Wanted,
}

/// A micro-batch in progress.
#[derive(Clone, Debug)]
struct Flight {
    /// Selects its buffers.
    number: usize,
    /// The number of its step.
    step: u64,
    /// Its rows of the step.
    part: Range<usize>,
    place: Place,
}

/// Where a micro-batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first segment.
    Entrance,
    /// Submitted to a segment.
    In(usize),
    /// The outputs of a segment were read.
    Behind(usize),
}

/// A step that was taken back.
struct Taken {
    runs: Vec<(SequenceId, Vec<u32>, Wanted)>,
    reading: Reading,
    began: Instant,
}

impl Waves {
    /// None in progress, with room for steps within the limits.
    pub fn new(limits: &Limits, reading: Reading, now: Instant) -> Waves {
        let step = || BegunStep {
            runs: Vec::with_capacity(limits.sequences),
            checkpoints: Vec::with_capacity(limits.states),
            copies: Vec::with_capacity(2 * limits.sequences),
            reading,
            rows: 0,
            began: now,
        };
        Waves {
            steps: VecDeque::with_capacity(STEPS_MAX),
            finished: 0,
            flights: VecDeque::with_capacity(STEPS_MAX * batch::PARTS_MAX),
            next: 0,
            spare: (0..STEPS_MAX).map(|_| step()).collect(),
            last_end: now,
            failed: None,
        }
    }

    fn step(&self, number: u64) -> &BegunStep {
        &self.steps[(number - self.finished) as usize]
    }

    /// Whether a segment has a micro-batch.
    fn is_taken(&self, segment: usize) -> bool {
        self.flights.iter().any(
            |flight| matches!(flight.place, Place::In(at) | Place::Behind(at) if at == segment),
        )
    }
}

impl Session {
    /// Number of groups into which decode rows of several sequences are best divided: 1 if steps one after the other
    /// ([`Session::step`]) take less time than [`Session::begin`] and [`Session::finish`] with several groups in turn.
    pub fn groups(&self, demand: Demand) -> usize {
        let multiplies = |nodes: &Range<usize>| {
            let mut nodes = self.graph.nodes[nodes.clone()].iter();
            nodes.any(|node| matches!(node.op, Op::MatMul { .. }))
        };
        let busy = self.plan.segments.iter().filter(|segment| multiplies(&segment.nodes));
        let devices: BTreeSet<usize> = busy.map(|segment| segment.device).collect();
        let most = devices.len().min(demand.rows).min(STEPS_MAX);
        if !self.divides || self.graph.takes_whole_sequences() || self.has_one() || most < 2 {
            return 1;
        }
        match (self.overlap, &self.plan.predicted) {
            (Overlap::Off, _) => 1,
            (Overlap::Always, _) => most,
            (Overlap::Auto, Some(predicted)) => predicted.groups(demand, most),
            (Overlap::Auto, None) if demand.rows >= 2 * batch::SEQUENCE_ROWS => 2,
            (Overlap::Auto, None) => 1,
        }
    }

    /// Whether there is room for one micro-batch alone: for residents of mixtures, and hidden states for another graph.
    fn has_one(&self) -> bool {
        self.pipeline.experts.is_some() || self.graph.hidden.is_some()
    }

    /// Number of steps begun and not finished.
    pub fn begun(&self) -> usize {
        self.waves.steps.len()
    }

    /// Starts a step beside those in progress, of other sequences. Its results are those of [`Session::step`]; they come
    /// from [`Session::finish`]. Until then its sequences must not be changed, and nothing but other steps may be begun.
    /// Weights are not streamed for it.
    ///
    /// # Panics
    /// If a sequence has a step in progress.
    ///
    /// # Errors
    /// Those of [`Session::step`], of this step or an earlier one: no step is in progress then, and all their sequences
    /// have their previous contents. More than 8 steps, or more than one where the graph has room for no more.
    pub fn begin(&mut self, runs: &[Run<'_>]) -> Result<(), Error> {
        self.begin_reading(runs, self.logits)
    }

    /// Like [`Session::begin`], for rows of `reading`.
    pub(crate) fn begin_reading(
        &mut self,
        runs: &[Run<'_>],
        reading: Reading,
    ) -> Result<(), Error> {
        let began = self.clock().now();
        let started = self.drive(Session::regain_states);
        let started = started.and_then(|()| self.start(runs, (reading, began)));
        let started = started.and_then(|()| self.drive(Session::advance));
        if started.is_err() {
            self.take_back();
        }
        self.pipeline.spent.total += self.clock().since(began);
        started
    }

    /// Waits for the oldest step in progress and returns its rows, as [`Session::step`] does.
    ///
    /// # Panics
    /// If no step is in progress.
    ///
    /// # Errors
    /// Those of [`Session::begin`].
    pub fn finish(&mut self) -> Result<&[f32], Error> {
        assert!(self.begun() > 0, "a step was begun");
        let began = self.clock().now();
        let made = self.drive(Session::finish_oldest);
        if made.is_err() {
            self.take_back();
        }
        self.pipeline.spent.total += self.clock().since(began);
        Ok(&self.pipeline.results[..made?])
    }

    /// Refuses to change what steps in progress use.
    pub(super) fn assert_none_begun(&self) {
        assert!(self.begun() == 0, "steps that were begun are finished first");
    }

    /// Does work for the steps in progress. If a device fails, they start again on the others.
    fn drive<T>(&mut self, work: impl Fn(&mut Session) -> Result<T, Failed>) -> Result<T, Error> {
        loop {
            let done = match self.waves.failed.take() {
                Some(failed) => Err(failed),
                None => work(self),
            };
            match done {
                Err(Failed::Device { device, error })
                    if is_recoverable(self.pipeline.backends[device].as_ref(), &error) =>
                {
                    let taken = self.take_back();
                    self.move_from(device, error)?;
                    for Taken { runs, reading, began } in &taken {
                        let run = |(sequence, tokens, wanted): &(SequenceId, Vec<u32>, Wanted)| {
                            (*sequence, tokens.clone(), *wanted)
                        };
                        let runs: Vec<_> = runs.iter().map(run).collect();
                        let runs: Vec<Run<'_>> = runs
                            .iter()
                            .map(|(sequence, tokens, wanted)| Run {
                                sequence: *sequence,
                                tokens,
                                wanted: *wanted,
                            })
                            .collect();
                        self.start(&runs, (*reading, *began))?;
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// Appends a step's tokens and queues its micro-batches.
    fn start(
        &mut self,
        runs: &[Run<'_>],
        (reading, began): (Reading, Instant),
    ) -> Result<(), Error> {
        let rows = batch::rows(runs);
        within("tokens", rows, self.limits.tokens)?;
        let has_one = self.has_one();
        within("steps in progress", self.begun() + 1, if has_one { 1 } else { STEPS_MAX })?;
        if let Some((device, error)) = self.lost.take() {
            self.move_from(device, error)?;
        }
        if let Err(error) = self.append(runs) {
            self.withdraw(runs);
            return Err(error);
        }
        let Session { waves, starts, cache, copies, are_copies_held, .. } = self;
        let mut step = waves.spare.pop().expect("fewer than the limit are in progress");
        step.runs.clear();
        step.runs.extend(runs.iter().zip(&*starts).map(|(run, &start)| Appended {
            sequence: run.sequence,
            start,
            len: run.tokens.len(),
            wanted: run.wanted,
        }));
        step.runs.iter().for_each(|run| cache.hold(run.sequence));
        step.copies.clear();
        step.copies.append(copies);
        if !std::mem::take(are_copies_held) {
            cache.hold_copied(&step.copies);
        }
        (step.reading, step.rows, step.began) = (reading, rows, began);
        let is_divided = runs.len() == 1 && !has_one;
        let micro_rows = if is_divided { batch::of_prompt(rows) } else { rows }.max(1);
        step.checkpoints.clear();
        if micro_rows < rows {
            step.checkpoints.extend_from_slice(cache.checkpoints(runs[0].sequence));
        }
        let number = waves.finished + waves.steps.len() as u64;
        for first in (0..rows).step_by(micro_rows) {
            let part = first..rows.min(first + micro_rows);
            let place = Place::Entrance;
            waves.flights.push_back(Flight { number: waves.next, step: number, part, place });
            waves.next += 1;
        }
        waves.steps.push_back(step);
        Ok(())
    }

    /// Takes the steps in progress back: their sequences have their previous contents.
    fn take_back(&mut self) -> Vec<Taken> {
        let Session { waves, pipeline, cache, .. } = self;
        pipeline.segments.iter_mut().for_each(|segment| segment.pending = None);
        waves.flights.clear();
        waves.failed = None;
        let mut taken = Vec::with_capacity(waves.steps.len());
        for step in waves.steps.drain(..).rev() {
            let tokens =
                |run: &Appended| cache.tokens(run.sequence)[run.start..][..run.len].to_vec();
            let runs = step.runs.iter().map(|run| (run.sequence, tokens(run), run.wanted));
            taken.push(Taken { runs: runs.collect(), reading: step.reading, began: step.began });
            for run in step.runs.iter().rev() {
                cache.release(run.sequence);
                cache.fail(run.sequence, run.start);
            }
            step.copies.iter().rev().for_each(|&copy| cache.share_again(copy));
            cache.release_copied(&step.copies);
            waves.finished += 1;
            waves.spare.push(step);
        }
        taken.reverse();
        taken
    }

    /// Runs until the oldest step is done. Returns the number of elements of its results.
    fn finish_oldest(&mut self) -> Result<usize, Failed> {
        let (rows, reading) = (self.waves.steps[0].rows, self.waves.steps[0].reading);
        let last = self.pipeline.segments.len() - 1;
        self.pipeline.filled = 0;
        let mut done = 0;
        while done < rows {
            self.advance()?;
            match self.waves.flights.front() {
                Some(Flight { place: Place::Behind(at), part, .. }) if *at == last => {
                    done = part.end;
                    self.waves.flights.pop_front();
                }
                Some(Flight { place: Place::In(at), .. })
                    if *at == last && self.pipeline.is_done(last) =>
                {
                    self.read(0)?;
                }
                _ => self.wait()?,
            }
        }
        self.check_file()?;
        let made = self.pipeline.filled * reading.width;
        if first_not_finite(&self.pipeline.results[..made]).is_some() {
            return Err(Failed::Other(Error::LogitsNotFinite));
        }
        let Session { waves, cache, pipeline, .. } = self;
        let step = waves.steps.pop_front().expect("it is the oldest");
        step.runs.iter().for_each(|run| cache.release(run.sequence));
        cache.release_copied(&step.copies);
        waves.finished += 1;
        let now = pipeline.clock.now();
        if let Some(trace) = &mut pipeline.trace {
            // Steps overlap; the chart has one after the other.
            let start_ns = trace.ns(step.began.max(waves.last_end));
            let (what, ns) = (What::Step, trace.ns(now) - start_ns);
            let tokens = rows as u32;
            trace.push(Event { lane: 0, what, id: 0, tokens, start_ns, ns, bytes: 0 });
        }
        waves.last_end = now;
        waves.spare.push(step);
        // What can go on does so while the caller selects tokens. If a device fails, these results are still right.
        self.waves.failed = self.advance().err();
        Ok(made)
    }

    /// Does what needs no waiting: every micro-batch enters the next segment if that is free and the outputs of the one
    /// before are there.
    fn advance(&mut self) -> Result<(), Failed> {
        let last = self.pipeline.segments.len() - 1;
        for at in 0..self.waves.flights.len() {
            if let Place::In(segment) = self.waves.flights[at].place
                && segment < last
                && self.pipeline.is_done(segment)
            {
                self.read(at)?;
            }
            let next = match self.waves.flights[at].place {
                Place::Entrance => 0,
                Place::Behind(segment) if segment < last => segment + 1,
                _ => continue,
            };
            if !self.waves.is_taken(next) {
                self.enter(at, next)?;
            }
        }
        Ok(())
    }

    /// Waits for a segment and reads its outputs.
    fn wait(&mut self) -> Result<(), Failed> {
        let Session { waves, pipeline, .. } = self;
        let running = |(at, flight): (usize, &Flight)| match flight.place {
            Place::In(segment) => Some((at, segment)),
            _ => None,
        };
        let running = || waves.flights.iter().enumerate().filter_map(running);
        let is_host =
            |segment: usize| !pipeline.backends[pipeline.segments[segment].device].facts().is_async;
        let host = running().find(|&(_, segment)| is_host(segment));
        let (at, _) = host.or_else(|| running().next()).expect("a micro-batch is in progress");
        self.read(at)
    }

    /// Reads the outputs of the segment that a micro-batch is in, once it is done.
    fn read(&mut self, at: usize) -> Result<(), Failed> {
        let Session { waves, pipeline, .. } = self;
        let Place::In(segment) = waves.flights[at].place else { return Ok(()) };
        pipeline.reading = waves.step(waves.flights[at].step).reading;
        pipeline.collect(segment, usize::MAX)?;
        waves.flights[at].place = Place::Behind(segment);
        Ok(())
    }

    /// Submits a micro-batch to a segment.
    fn enter(&mut self, at: usize, segment: usize) -> Result<(), Failed> {
        // Outputs that the segment's inputs would overwrite.
        for number in 0..self.pipeline.segments[segment].after.len() {
            let after = self.pipeline.segments[segment].after[number];
            let holder = self.waves.flights.iter().position(|of| of.place == Place::In(after));
            holder.map_or(Ok(()), |holder| self.read(holder))?;
        }
        let Session { waves, pipeline, cache, strengths, .. } = self;
        let flight = &waves.flights[at];
        if segment == 0 {
            let step = waves.step(flight.step);
            let run = |run: &Appended| {
                let tokens = &cache.tokens(run.sequence)[run.start..][..run.len];
                let checkpoints = match &*step.checkpoints {
                    [] => cache.checkpoints(run.sequence),
                    own => own,
                };
                (Run { sequence: run.sequence, tokens, wanted: run.wanted }, run.start, checkpoints)
            };
            let copies = if flight.part.start == 0 { &step.copies[..] } else { &[] };
            let batch = pipeline.batch(flight.number);
            batch.fill(step.runs.iter().map(run), flight.part.clone(), (cache, strengths, copies));
            batch.top_k = step.reading.top_k.unwrap_or(0);
        }
        pipeline.submit(segment, flight.number, 0)?;
        waves.flights[at].place = Place::In(segment);
        Ok(())
    }
}
