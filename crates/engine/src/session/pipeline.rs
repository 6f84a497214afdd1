//! Executes a step: micro-batches pass the segments in a wavefront, so that devices work at the same time.
//!
//! **The idea.** Segment `s` of micro-batch `i` runs in wave `s + i`, together with segment `s - 1` of micro-batch
//! `i + 1` and so on; each is submitted without waiting for the others of its wave. A segment's outputs are read in
//! the next wave, before the segment receives its next micro-batch.
//!
//! **Order within a wave.** The host's results are read first: a thread that waits for a synchronous device works in
//! that device's pool, while one that waits for an asynchronous device is idle. Then the host receives the segments that
//! do not depend on an asynchronous device, so that its pool works while commands for the others are encoded; then the
//! asynchronous devices receive theirs; then the host receives the rest. A last segment without requested rows is not
//! waited for.
//!
//! With overlap off, every segment is waited for at once, the last one of a wave first, so that no input is
//! overwritten before it is read: identical bits, one device at a time. Except where the next segment reads nothing of
//! it: the residents of a mixture are computed while the host computes the layer's other experts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use bilayer_graph::{Backend, Clock, Graph, Limits, Part, Rows, SegmentId, SplitMixture, Value};
use bilayer_scheduler::{Plan, PlannedSegment};

use super::Spent;
use super::batch::{Batch, Work};
use super::experts::{Experts, Routing};
use super::failed::Failed;
use super::hidden::Hidden;
use super::lanes::{At, Lanes};
use super::strengths::Given;
use super::trace::{Event, Trace, What};

/// A compiled segment with its inputs and outputs.
pub struct Compiled {
    pub device: usize,
    pub id: SegmentId,
    /// Indices into [`Pipeline::carried`].
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
    /// Segments whose outputs are read before the inputs of this one are written: the previous one, unless this one runs
    /// beside it, and those that compute one of its inputs.
    pub after: Vec<usize>,
    /// When it is submitted within a wave; on ties the later segment is first.
    pub phase: WavePhase,
    /// The submitted micro-batch whose outputs were not read yet.
    pub pending: Option<Pending>,
    /// Whether the next segment, on another device, runs beside it: it reads none of its results.
    pub runs_beside: bool,
    /// Whether it shares its activations with others: it reads residents.
    pub is_pooled: bool,
    /// Whether it is the host's segment with the most weights.
    pub is_longest: bool,
}

/// What is called while a step runs.
pub struct Calls<'a> {
    /// Receives the number of rows submitted to the last device, and stops the work by returning false.
    pub each: &'a mut dyn FnMut(usize) -> bool,
    /// Runs once while the host computes its longest segment, if it has one: work for other devices. It may ask whether
    /// the host still computes.
    pub beside: Option<Beside<'a>>,
    /// Receives hidden states for another graph as they come, if the session has them: the number of the first row, and
    /// `[rows, width]`. Otherwise they stay where they are.
    pub hidden: Option<TakeHidden<'a>>,
}

/// Takes hidden states.
pub type TakeHidden<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Work beside a step. It receives a function that tells whether the host still computes.
pub type Beside<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> bool);

impl<'a> Calls<'a> {
    /// Only `each`.
    pub fn each(each: &'a mut dyn FnMut(usize) -> bool) -> Calls<'a> {
        Calls { each, beside: None, hidden: None }
    }
}

/// When a segment is submitted within a wave, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WavePhase {
    /// The host's segments with inputs from the host.
    Early,
    /// Segments of asynchronous devices.
    Async,
    /// The host's segments with inputs from an asynchronous device.
    Late,
}

/// A micro-batch in progress on a segment.
#[derive(Clone, Copy)]
pub struct Pending {
    wave: usize,
    micro_batch: usize,
    /// The number of its record.
    lane: u64,
}

/// A value transferred between segments, or stored for the caller.
pub struct Carried {
    pub value: Value,
    pub rows: Rows,
    pub width: usize,
    /// `[slots, rows, width]` f32: one slot per wave between the segment that computes it and the last one that reads
    /// it, so that it is not overwritten meanwhile.
    pub data: Vec<f32>,
    pub slots: usize,
    /// What it is made of, if it is the route of a part of a split mixture.
    pub routed: Option<Routed>,
}

/// The route of a part of a split mixture.
#[derive(Clone, Copy)]
pub struct Routed {
    /// The number of the mixture.
    pub split: usize,
    pub part: Part,
    /// Index in [`Pipeline::carried`] of the router's result.
    pub from: usize,
}

impl Carried {
    fn slot(&mut self, micro_batch: usize, batch: &Batch) -> &mut [f32] {
        let first = micro_batch % self.slots * (self.data.len() / self.slots);
        &mut self.data[first..first + batch.rows(self.rows) * self.width]
    }
}

/// The devices with their compiled segments, and the buffers of a step.
pub struct Pipeline {
    pub backends: Vec<Box<dyn Backend>>,
    /// The clock of the devices.
    pub clock: Clock,
    pub segments: Vec<Compiled>,
    pub carried: Vec<Carried>,
    /// Segments in the order of a wave.
    pub order: Vec<usize>,
    /// Micro-batch `i` uses batch `i % batches.len()`; there is one more than segments.
    pub batches: Vec<Batch>,
    pub lanes: Lanes,
    /// The trace, if enabled.
    pub trace: Option<Trace>,
    pub spent: Spent,
    /// Whether segments keep running while others are submitted.
    pub overlap: bool,
    /// `[limits.outputs, vocab]`, the requested rows of the last step first: logits, or another value.
    pub results: Vec<f32>,
    /// The value that the current step reads for each requested row.
    pub reading: Reading,
    /// Rows of `results` computed so far.
    pub filled: usize,
    /// Values that no segment computes, besides routes of parts of mixtures.
    pub given: Vec<Given>,
    /// The residents of split mixtures, if there are any.
    pub experts: Option<Experts>,
    /// Hidden states that another graph has computed for the rows of the current step.
    pub given_hidden: Hidden,
    /// Hidden states for another graph: of the current step, as far as computed and not handed on.
    pub hidden: Hidden,
}

/// A value of the last segment `[R, width]`, the result of a step.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub value: Value,
    pub width: usize,
    /// Number of best tokens of each row, if these are read instead of logits: they are the first ones of the two halves of a
    /// row.
    pub top_k: Option<usize>,
}

/// The progress of a step.
pub struct Ran {
    /// Elements of [`Pipeline::results`] computed.
    pub made: usize,
    /// Rows run: all, unless stopped.
    pub rows: usize,
}

impl Pipeline {
    /// Runs all micro-batches. When [`Calls::each`] stops the work, rows already submitted to the first segment are
    /// completed.
    pub fn run(&mut self, work: &Work<'_>, calls: &mut Calls<'_>) -> Result<Ran, Failed> {
        let began = self.clock.now();
        self.filled = 0;
        self.hidden.rows.clear();
        let mut handed = 0;
        self.segments.iter_mut().for_each(|segment| segment.pending = None);
        // Devices share each micro-batch of split mixtures, and what is between them has room for one.
        let at_once = if self.experts.is_some() { 1 } else { work.count() };
        let (mut count, mut goes_on) = (0, true);
        while goes_on && count < work.count() {
            let end = work.count().min(count + at_once);
            (count, goes_on) = self.waves(work, calls, count..end, &mut handed)?;
        }
        if let Some(trace) = &mut self.trace {
            let (start_ns, end_ns) = (trace.ns(began), trace.ns(self.clock.now()));
            let tokens = work.rows_of(count) as u32;
            let (what, ns) = (What::Step, end_ns - start_ns);
            trace.push(Event { lane: 0, what, id: 0, tokens, start_ns, ns, bytes: 0 });
        }
        Ok(Ran { made: self.filled * self.reading.width, rows: work.rows_of(count) })
    }

    /// Runs some micro-batches, each segment of one beside others of others. Returns the end of
    /// those that were run, and whether the caller wants more; `handed` rows of hidden states were handed on before.
    fn waves(
        &mut self,
        work: &Work<'_>,
        calls: &mut Calls<'_>,
        micro_batches: Range<usize>,
        handed: &mut usize,
    ) -> Result<(usize, bool), Failed> {
        let last = self.segments.len() - 1;
        let Range { start, end: mut count } = micro_batches;
        let (mut wave, mut fed) = (start, start);
        let mut goes_on = true;
        while wave < count + last {
            self.collect_host(wave)?;
            for at in 0..self.order.len() {
                let segment = if self.overlap { self.order[at] } else { last - at };
                let micro_batch = wave.checked_sub(segment).filter(|i| (start..count).contains(i));
                let Some(micro_batch) = micro_batch else {
                    continue;
                };
                self.begin(work, segment, micro_batch)?;
                self.do_beside(segment, calls);
                if !self.overlap && !self.segments[segment].runs_beside {
                    self.collect(segment, wave + 1)?;
                }
                fed = fed.max(micro_batch + 1);
                if segment == last && goes_on && !(calls.each)(work.rows_of(micro_batch + 1)) {
                    (goes_on, count) = (false, fed);
                }
            }
            wave += 1;
            self.hand_on(handed, calls);
        }
        self.collect(last, wave)?;
        self.hand_on(handed, calls);
        Ok((count, goes_on))
    }

    /// Hands on hidden states that were computed, of the rows after the first `handed` ones.
    fn hand_on(&mut self, handed: &mut usize, calls: &mut Calls<'_>) {
        let Hidden { width, rows, step_len, .. } = &mut self.hidden;
        if rows.is_empty() {
            return;
        }
        match &mut calls.hidden {
            Some(hidden) => hidden(*handed, rows),
            // Those of a step stay; nobody reads those of a longer prompt.
            None if rows.len() <= *step_len => return,
            None => {}
        }
        *handed += rows.len() / *width;
        rows.clear();
    }

    /// Submits a micro-batch to a segment's device.
    fn begin(&mut self, work: &Work<'_>, number: usize, micro_batch: usize) -> Result<(), Failed> {
        let wave = number + micro_batch;
        self.collect_wanted(number, wave)?;
        for at in 0..self.segments[number].after.len() {
            self.collect(self.segments[number].after[at], wave)?;
        }
        if number == 0 {
            work.fill(micro_batch, self.batch(micro_batch));
        }
        self.submit(number, micro_batch, wave)
    }

    /// The batch of a micro-batch.
    pub fn batch(&mut self, micro_batch: usize) -> &mut Batch {
        let batches = self.batches.len();
        &mut self.batches[micro_batch % batches]
    }

    /// Submits a micro-batch to a segment whose former outputs were read.
    pub fn submit(&mut self, number: usize, micro_batch: usize, wave: usize) -> Result<(), Failed> {
        let batches = self.batches.len();
        let batch = &self.batches[micro_batch % batches];
        let segment = &mut self.segments[number];
        let device = segment.device;
        let backend = &mut self.backends[device];
        let began = self.clock.now();
        let mut bytes = 0;
        for &input in &segment.inputs {
            if let Some(Routed { split, part, from }) = self.carried[input].routed
                && let Some(experts) = &mut self.experts
            {
                let both = self.carried.get_disjoint_mut([from, input]);
                let [from, to] = both.expect("a part's route is a value of its own");
                let (width, route) = (from.width, from.slot(micro_batch, batch));
                let out = to.slot(micro_batch, batch);
                experts.give((split, part), Routing::Parts, (route, width), out);
            }
            let carried = &mut self.carried[input];
            let (value, shape) = (carried.value, (carried.rows, carried.width));
            let rows = carried.slot(micro_batch, batch);
            if let Some(given) = self.given.iter().find(|given| given.value == value) {
                batch.give(given, shape, rows);
            }
            if self.given_hidden.value == Some(value) {
                let first = batch.first_row * shape.1;
                rows.copy_from_slice(&self.given_hidden.rows[first..][..rows.len()]);
            }
            bytes += size_of_val(&*rows) as u64;
            let written = match segment.is_pooled {
                true => backend.write_to(segment.id, value, rows),
                false => backend.write(value, rows),
            };
            written.map_err(Failed::on(device))?;
        }
        let written = self.clock.now();
        backend.submit(segment.id, &batch.step()).map_err(Failed::on(device))?;
        self.spent.transferred(&mut self.trace, What::Write, device, bytes, began..written);
        if let Some(trace) = &mut self.trace {
            trace.call(What::Submit, device, 0, written..self.clock.now());
        }
        let lane = self.lanes.submitted(&At {
            device,
            segment: number,
            micro_batch,
            tokens: batch.rows(Rows::Tokens),
            at: written,
        });
        segment.pending = Some(Pending { wave, micro_batch, lane });
        self.look();
        Ok(())
    }

    /// Does what shall be done while a segment runs.
    fn do_beside(&mut self, number: usize, calls: &mut Calls<'_>) {
        let Compiled { device, is_longest, .. } = self.segments[number];
        let Some(beside) = calls.beside.take_if(|_| is_longest) else { return };
        let began = self.clock.now();
        let host = &mut self.backends[device];
        beside(&mut || host.outstanding().is_none_or(|submits| submits > 0));
        if let Some(trace) = &mut self.trace {
            trace.call(What::Beside, device, 0, began..self.clock.now());
        }
        self.look();
    }

    /// Like [`Pipeline::collect`], but a last segment without requested rows is not waited for.
    fn collect_wanted(&mut self, number: usize, wave: usize) -> Result<(), Failed> {
        let batches = self.batches.len();
        if let Some(Pending { micro_batch, .. }) = self.segments[number].pending
            && self.trace.is_none()
            && number + 1 == self.segments.len()
            && self.segments[number].outputs.is_empty()
            && self.batches[micro_batch % batches].rows(Rows::Outputs) == 0
        {
            return Ok(());
        }
        self.collect(number, wave)
    }

    /// Waits for a segment and reads its outputs of work submitted before `wave`, unless already done.
    pub fn collect(&mut self, number: usize, wave: usize) -> Result<(), Failed> {
        let is_last = number + 1 == self.segments.len();
        let batches = self.batches.len();
        let segment = &mut self.segments[number];
        let given = segment.pending.take_if(|pending| pending.wave < wave);
        let Some(Pending { micro_batch, lane, .. }) = given else { return Ok(()) };
        let batch = &self.batches[micro_batch % batches];
        let rows = if is_last { batch.rows(Rows::Outputs) } else { 0 };
        let device = segment.device;
        let backend = &mut self.backends[device];
        let clock = &self.clock;
        let began = clock.now();
        let (mut waited, mut bytes) = (None, 0);
        for &output in &segment.outputs {
            let carried = &mut self.carried[output];
            let value = carried.value;
            let read = carried.slot(micro_batch, batch);
            bytes += size_of_val(&*read) as u64;
            backend.read(value, read).map_err(Failed::on(device))?;
            if self.hidden.value == Some(value) {
                self.hidden.rows.extend_from_slice(read);
            }
            waited.get_or_insert_with(|| clock.now());
        }
        if is_last {
            let Reading { value, width, .. } = self.reading;
            let results = &mut self.results[self.filled * width..][..rows * width];
            backend.read(value, results).map_err(Failed::on(device))?;
            self.filled += rows;
        }
        let ended = clock.now();
        let waited = waited.unwrap_or(ended);
        self.spent.transferred(&mut self.trace, What::Read, device, bytes, waited..ended);
        self.count(device, |lanes, now| lanes.finished_through(device, lane, now));
        if let (Some(trace), Some(lane)) = (&mut self.trace, self.lanes.get(lane)) {
            trace.call(What::Wait, device, 0, began..waited);
            let event = Event {
                lane: device + 1,
                what: What::Segment,
                id: number as u32,
                tokens: lane.tokens as u32,
                start_ns: lane.began_ns,
                ns: lane.done_ns.saturating_sub(lane.began_ns),
                bytes: 0,
            };
            trace.segment(event, self.backends[device].timings(self.segments[number].id));
        }
        self.look();
        Ok(())
    }

    /// Whether a segment's device is known to have nothing left to do.
    pub fn is_done(&mut self, number: usize) -> bool {
        self.backends[self.segments[number].device].outstanding() == Some(0)
    }

    /// A stored value `[rows, width]` of the last step, which was one micro-batch; `None` for others.
    pub fn kept(&self, value: Value) -> Option<&[f32]> {
        let carried = self.carried.iter().find(|carried| carried.value == value)?;
        Some(&carried.data[..self.batches[0].rows(carried.rows) * carried.width])
    }

    /// Reads the outputs of synchronous devices. The calling thread works in their pool until they are done.
    fn collect_host(&mut self, wave: usize) -> Result<(), Failed> {
        for number in 0..self.segments.len() {
            if !self.backends[self.segments[number].device].facts().is_async {
                self.collect_wanted(number, wave)?;
            }
        }
        Ok(())
    }

    /// Records finished work on devices that report it.
    pub fn look(&mut self) {
        for device in 0..self.backends.len() {
            if let Some(outstanding) = self.backends[device].outstanding() {
                self.count(device, |lanes, now| lanes.outstanding(device, outstanding, now));
            }
        }
    }

    /// Adds a device's busy time, as recorded, to the time spent.
    pub fn count(&mut self, device: usize, busy: impl FnOnce(&mut Lanes, Instant) -> Duration) {
        self.spent.devices[device] += busy(&mut self.lanes, self.clock.now());
    }
}

/// The values transferred between segments or stored for the caller, with their buffers.
pub fn carried(graph: &Graph, plan: &Plan, limits: &Limits, watched: &[Value]) -> Vec<Carried> {
    let crossing = plan.segments.iter().flat_map(|segment| &segment.inputs);
    let mut values: BTreeSet<Value> =
        crossing.chain(watched).chain(&graph.hidden).copied().collect();
    values.extend(graph.splits.iter().map(|split| split.route));
    let place = |wanted: Value| values.iter().position(|value| *value == wanted);
    let routed = |value: Value| {
        let part = |(split, of): (usize, &SplitMixture)| {
            Some(Routed { split, part: of.reads(value)?, from: place(of.route)? })
        };
        graph.splits.iter().enumerate().find_map(part)
    };
    let carry = |&value: &Value| {
        let (rows, width) = (graph.rows(value), graph.width(value));
        let most = match rows {
            Rows::Tokens => limits.tokens,
            Rows::Outputs => limits.outputs,
        };
        let has = |values: &[Value]| {
            values.iter().any(|read| *read == value || graph.routed_by(*read) == Some(value))
        };
        let maker = plan.segments.iter().position(|segment| has(&segment.outputs)).unwrap_or(0);
        let reader = plan.segments.iter().rposition(|segment| has(&segment.inputs)).unwrap_or(0);
        // Micro-batches of split mixtures follow each other, and so do their values.
        let slots = match graph.splits.is_empty() {
            true => reader.saturating_sub(maker).max(1),
            false => 1,
        };
        let data = vec![0.0; slots * most * width];
        Carried { value, rows, width, data, slots, routed: routed(value) }
    };
    values.iter().map(carry).collect()
}

/// Compiles all segments of the plan.
pub fn compile(
    graph: &Graph,
    plan: &Plan,
    backends: &mut [Box<dyn Backend>],
    carried: &[Carried],
    limits: Limits,
) -> Result<Vec<Compiled>, Failed> {
    let is_async: Vec<bool> = backends.iter().map(|b| b.facts().is_async).collect();
    let place = |value: &Value| carried.iter().position(|c| c.value == *value);
    let mut compiled: Vec<Compiled> = Vec::with_capacity(plan.segments.len());
    for (number, planned) in plan.segments.iter().enumerate() {
        let device = planned.device;
        let makes = |made: &PlannedSegment, reader: &PlannedSegment| {
            let made = |value| made.outputs.contains(&value);
            reader.inputs.iter().any(|&read| made(read) || graph.routed_by(read).is_some_and(made))
        };
        let runs_beside = is_async[device]
            && plan
                .segments
                .get(number + 1)
                .is_some_and(|next| next.device != device && !makes(planned, next));
        let is_before = |other: &usize| {
            let (earlier, was_beside) = (&plan.segments[*other], compiled[*other].runs_beside);
            makes(earlier, planned) || (other + 1 == number && !was_beside)
        };
        let after = (0..number).filter(is_before).collect();
        let id = backends[device]
            .compile(&planned.segment(graph), limits)
            .map_err(Failed::on(device))?;
        compiled.push(Compiled {
            device,
            id,
            inputs: planned.inputs.iter().filter_map(place).collect(),
            outputs: planned.outputs.iter().filter_map(place).collect(),
            after,
            phase: match plan.segments[number.saturating_sub(1)].device {
                _ if is_async[device] => WavePhase::Async,
                before if is_async[before] => WavePhase::Late,
                _ => WavePhase::Early,
            },
            pending: None,
            runs_beside,
            is_pooled: graph.reads_residents(planned.nodes.clone()),
            is_longest: false,
        });
    }
    let bytes = |number: &usize| {
        let nodes = plan.segments[*number].nodes.clone();
        nodes.map(|node| graph.matrix_bytes(node, 1)).sum::<f64>()
    };
    let hosts = (0..compiled.len()).filter(|&number| !is_async[compiled[number].device]);
    let longest = hosts.filter(|number| bytes(number) > 0.0);
    if let Some(longest) = longest.max_by(|a, b| bytes(a).total_cmp(&bytes(b))) {
        compiled[longest].is_longest = true;
    }
    // Its output is overwritten as the input of a later segment on the same device, so that segment is submitted first.
    for number in 0..compiled.len() {
        let is_input = |later: &Compiled| {
            later.device == compiled[number].device && later.after.contains(&number)
        };
        if compiled.iter().any(is_input) && compiled[number].phase == WavePhase::Early {
            compiled[number].phase = WavePhase::Late;
        }
    }
    Ok(compiled)
}

/// Segments in the order of a wave.
pub fn order(segments: &[Compiled]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..segments.len()).rev().collect();
    order.sort_by_key(|&number| segments[number].phase);
    order
}
