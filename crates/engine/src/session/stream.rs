//! Executes a step with streamed weights: layer by layer instead of micro-batch by micro-batch, so that all tokens use
//! a copy of a layer's weights while it is in its slot.
//!
//! **Order.** A pass runs up to [`STREAM_BATCHES`] micro-batches through each stage in turn. While a stage runs, weights
//! are copied to the slot that is free: after each submit the part that falls to it, so that the device always has work.
//! A slot is free when all results of the layer that used it have been read.
//!
//! **Experts.** In a pass of few tokens the stage before a mixture hands the router's result to the host. The experts that
//! a micro-batch has selected are copied while the next one runs; those of the last one are waited for.
//!
//! **Caches.** The caches of streamed layers belong to the host, which decodes. Before a stage runs, pages that its tokens
//! refer to are copied to the device; the pages that it has filled are copied back while the next stage runs.
//!
//! After an error the page tables are reset by the caller, as for any step, and nothing that the host holds has changed
//! before their end.

use std::collections::BTreeMap;
use std::ops::Range;

use bilayer_graph::{
    Backend, CacheId, CachePages, Graph, Limits, PAGE_TOKENS, PageCopy, Part, Rows, SegmentId,
    SplitMixture, Step, Value, WeightId,
};
use bilayer_scheduler::{
    Plan, PlannedSegment, STREAM_BATCHES, STREAM_SLOTS, StreamBuffers, StreamStage,
    StreamedExperts, Streaming,
};

use super::batch::{self, Batch, Work};
use super::experts::Routing;
use super::failed::Failed;
use super::lanes::At;
use super::pipeline::{Calls, Compiled, Pipeline, Ran, Reading};
use super::reduced::unstreamed;
use super::trace::{Event, What};
use super::{Run, Session, Wanted};

mod experts;

use experts::Mixture;

/// The index of the host.
const HOST: usize = 0;

/// How prompts run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// With streamed weights, where the plan has that and a prompt is long enough.
    #[default]
    Planned,
    /// Where the layers are placed.
    InPlace,
}

impl Session {
    /// Selects how prompts run from now on, for comparison.
    pub fn set_prefill(&mut self, prefill: Prefill) {
        self.prefill = prefill;
    }

    /// Whether weights are streamed for a step.
    pub(crate) fn streams(&self, runs: &[Run<'_>]) -> bool {
        let streaming = self.plan.streaming.as_ref().filter(|_| self.stream.is_some());
        let exact = runs.iter().any(|run| run.wanted == Wanted::Verified);
        let wanted = self.prefill == Prefill::Planned && !exact;
        wanted && streaming.is_some_and(|streaming| streaming.takes(batch::rows(runs)))
    }

    /// Notes that a device failed in a step: streaming ends if it lacked memory for that, otherwise it is lost.
    pub(super) fn failed(&mut self, runs: &[Run<'_>], device: usize, error: bilayer_graph::Error) {
        let is_full = matches!(error, bilayer_graph::Error::OutOfMemory { .. });
        let streamed = (is_full && self.streams(runs)).then_some(&mut self.plan);
        match streamed.and_then(|plan| unstreamed(plan, device, &error)) {
            Some(warning) => {
                self.stream = None;
                self.warnings.push(warning);
            }
            None => self.lost = Some((device, error)),
        }
    }
}

/// What is compiled for streamed steps.
pub struct Stream {
    /// The stages of the pass in progress.
    stages: Vec<Stage>,
    /// Those of the other kind of pass, if there are two.
    others: Vec<Stage>,
    /// Whether `stages` copies only the experts that are used, and the tokens of a pass up to which that is done.
    is_routed: bool,
    routed_max: usize,
    /// `[rows, width]` f32 of the values that cross between stages; values share buffers.
    buffers: Vec<Vec<f32>>,
    batches: Vec<Batch>,
    /// Pages that the tokens of a pass refer to, and pages that they fill.
    before: Vec<u32>,
    filled: Vec<u32>,
}

/// A compiled segment of a streamed step.
struct Stage {
    device: usize,
    id: SegmentId,
    inputs: Vec<Crossing>,
    outputs: Vec<Crossing>,
    /// Weights to be copied before it runs, with their rows and bytes.
    weights: Vec<(WeightId, usize, u64)>,
    /// Experts to be copied before it runs, of which micro-batches tell the numbers.
    experts: Vec<Mixture>,
    /// Caches of the host that it fills.
    caches: Vec<CacheId>,
    /// The number of its layer among those that are streamed.
    unit: Option<usize>,
}

/// A value in a buffer.
#[derive(Clone, Copy)]
struct Crossing {
    value: Value,
    buffer: usize,
    width: usize,
    rows: Rows,
    /// The split mixture and the part whose route it is, and the buffer of the router's result.
    routed: Option<(usize, Part, usize)>,
}

/// The weights to be copied next.
struct Upload {
    /// Stages with streamed weights, in order.
    stages: Vec<usize>,
    /// Index in it of the stage whose weights are copied.
    next: usize,
    /// Number of its weights copied, and their bytes.
    weight: usize,
    done_bytes: u64,
}

/// Compiles the stages of a plan's streamed steps, if it has any. Segments that the plan has anyway are shared.
pub fn compile(
    graph: &Graph,
    plan: &Plan,
    backends: &mut [Box<dyn Backend>],
    compiled: &[Compiled],
    limits: Limits,
) -> Result<Option<Stream>, Failed> {
    let Some(streaming) = &plan.streaming else { return Ok(None) };
    let planned = plan.segments.iter().zip(compiled);
    let mut known: Vec<(PlannedSegment, SegmentId)> =
        planned.map(|(segment, compiled)| (segment.clone(), compiled.id)).collect();
    let mut lens = Vec::new();
    let mut path = |stages: &[StreamStage], tokens: usize| {
        let rows = (tokens, limits.outputs);
        let StreamBuffers { of, lens: needed } = Streaming::buffers(graph, stages, rows);
        StreamBuffers::widen(&mut lens, &needed);
        let mut compiled = Vec::with_capacity(stages.len());
        for stage in stages {
            let segment = &stage.segment;
            let id = match known.iter().find(|(other, _)| other == segment) {
                Some((_, id)) => *id,
                None => {
                    let backend = &mut backends[segment.device];
                    let id = backend.compile(&segment.segment(graph), limits);
                    let id = id.map_err(Failed::on(segment.device))?;
                    known.push((segment.clone(), id));
                    id
                }
            };
            compiled.push(Stage::new(graph, stage, id, &of));
        }
        Ok::<_, Failed>(compiled)
    };
    let stages = path(&streaming.stages, streaming.tokens_max)?;
    let (others, routed_max) = match &streaming.routed {
        Some(routed) => (path(&routed.stages, routed.tokens_max)?, routed.tokens_max),
        None => (Vec::new(), 0),
    };
    Ok(Some(Stream {
        stages,
        others,
        is_routed: false,
        routed_max,
        buffers: lens.into_iter().map(|len| vec![0.0; len]).collect(),
        batches: (0..STREAM_BATCHES).map(|_| Batch::reserved(&limits)).collect(),
        before: Vec::with_capacity(limits.pages),
        filled: Vec::with_capacity(limits.pages),
    }))
}

impl Stage {
    fn new(
        graph: &Graph,
        planned: &StreamStage,
        id: SegmentId,
        buffers: &BTreeMap<Value, usize>,
    ) -> Stage {
        let crossing = |value: &Value| {
            let buffer = *buffers.get(value)?;
            let (width, rows) = (graph.width(*value), graph.rows(*value));
            let part = |(split, of): (usize, &SplitMixture)| {
                Some((split, of.reads(*value)?, *buffers.get(&of.route)?))
            };
            let routed = graph.splits.iter().enumerate().find_map(part);
            Some(Crossing { value: *value, buffer, width, rows, routed })
        };
        let mixture = |experts: &StreamedExperts| {
            Some(Mixture::new(graph, experts, crossing(&experts.route)?))
        };
        let weight = |&id: &WeightId| {
            let weight = graph.weight(id);
            (id, weight.rows, weight.bytes() as u64)
        };
        Stage {
            device: planned.segment.device,
            id,
            inputs: planned.segment.inputs.iter().filter_map(crossing).collect(),
            outputs: planned.segment.outputs.iter().filter_map(crossing).collect(),
            weights: planned.weights.iter().map(weight).collect(),
            experts: planned.experts.iter().filter_map(mixture).collect(),
            caches: planned.caches.clone(),
            unit: planned.unit,
        }
    }
}

impl Upload {
    fn new(stages: &[Stage]) -> Upload {
        let streamed = (0..stages.len()).filter(|&number| !stages[number].weights.is_empty());
        Upload { stages: streamed.collect(), next: 0, weight: 0, done_bytes: 0 }
    }

    /// The stage whose weights come next, if their slot is free while stage `running` of `stages` runs.
    fn free(&self, stages: &[Stage], running: usize) -> Option<usize> {
        let stage = *self.stages.get(self.next)?;
        let before = stages[stage].unit?.checked_sub(STREAM_SLOTS);
        let user = before.and_then(|unit| stages.iter().rposition(|of| of.unit == Some(unit)));
        user.is_none_or(|user| user < running).then_some(stage)
    }
}

/// A streamed step in progress.
struct Streamed<'a> {
    pipeline: &'a mut Pipeline,
    stream: &'a mut Stream,
    work: &'a Work<'a>,
}

impl Stream {
    /// Like [`Pipeline::run`], with streamed weights. [`Calls::each`] is asked before each stage, too; nothing is done
    /// beside.
    pub fn run(
        &mut self,
        pipeline: &mut Pipeline,
        work: &Work<'_>,
        calls: &mut Calls<'_>,
    ) -> Result<Ran, Failed> {
        Streamed { pipeline, stream: self, work }.run(&mut *calls.each)
    }

    /// Begins a pass of so many tokens: selects its stages, whose experts are not there yet.
    fn begin(&mut self, tokens: usize) {
        if self.is_routed != (tokens <= self.routed_max) {
            std::mem::swap(&mut self.stages, &mut self.others);
            self.is_routed = !self.is_routed;
        }
        let mixtures = self.stages.iter_mut().flat_map(|stage| &mut stage.experts);
        mixtures.for_each(Mixture::forget);
    }
}

impl Streamed<'_> {
    fn run(&mut self, each: &mut dyn FnMut(usize) -> bool) -> Result<Ran, Failed> {
        let began = self.pipeline.clock.now();
        self.pipeline.filled = 0;
        self.pipeline.segments.iter_mut().for_each(|segment| segment.pending = None);
        let count = self.work.count();
        let at_once = count.div_ceil(count.div_ceil(STREAM_BATCHES).max(1));
        let mut done = 0;
        while done < count {
            let end = count.min(done + at_once);
            if !self.pass(done..end, each)? {
                break;
            }
            done = end;
            if !each(self.work.rows_of(done)) {
                break;
            }
        }
        let rows = self.work.rows_of(done);
        let Pipeline { trace, clock, filled, reading, .. } = &mut *self.pipeline;
        if let Some(trace) = trace {
            let (start_ns, end_ns) = (trace.ns(began), trace.ns(clock.now()));
            let (what, ns, tokens) = (What::Step, end_ns - start_ns, rows as u32);
            trace.push(Event { lane: 0, what, id: 0, tokens, start_ns, ns, bytes: 0 });
        }
        Ok(Ran { made: *filled * reading.width, rows })
    }

    /// Runs some micro-batches through all stages; false if `each` has stopped it.
    fn pass(
        &mut self,
        micro_batches: Range<usize>,
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, Failed> {
        let (first, count) = (micro_batches.start, micro_batches.len());
        let batches = self.stream.batches.iter_mut();
        batches.zip(micro_batches.clone()).for_each(|(batch, at)| self.work.fill(at, batch));
        let tokens = self.work.rows_of(micro_batches.end) - self.work.rows_of(first);
        self.find_pages(micro_batches);
        self.stream.begin(tokens);
        let mut upload = Upload::new(&self.stream.stages);
        let mut ended = None;
        for number in 0..self.stream.stages.len() {
            // Page copies are done in all caches or in none.
            let stops = first > 0 || self.work.copies.is_empty();
            if stops && !each(self.work.rows_of(first)) {
                return Ok(false);
            }
            while upload.stages.get(upload.next).is_some_and(|&stage| stage <= number) {
                self.upload(&mut upload, number, 1.0)?;
            }
            let copies = if first == 0 { self.work.copies } else { &[] };
            self.bring(number, copies)?;
            for at in 0..count {
                self.upload_experts(number, at)?;
                let lane = self.submit(number, first, at)?;
                self.upload(&mut upload, number, (at + 1) as f64 / count as f64)?;
                if at > 0 {
                    self.upload_experts(number + 1, at - 1)?;
                }
                if at + 1 < count {
                    self.upload_experts(number, at + 1)?;
                }
                if let Some(before) = ended.take() {
                    self.hand_back(before)?;
                }
                self.read(number, at, lane)?;
            }
            if self.stream.stages[number].unit.is_some() {
                ended = Some(number);
            }
        }
        ended.map_or(Ok(()), |last| self.hand_back(last))?;
        Ok(true)
    }

    /// Finds the pages that the tokens of micro-batches refer to and fill, each once.
    fn find_pages(&mut self, micro_batches: Range<usize>) {
        let Stream { before, filled, .. } = &mut *self.stream;
        before.clear();
        filled.clear();
        for (sequence, positions) in self.work.spans(micro_batches) {
            let table = self.work.cache.table(sequence);
            before.extend_from_slice(&table[..positions.start.div_ceil(PAGE_TOKENS)]);
            let pages = positions.start / PAGE_TOKENS..positions.end.div_ceil(PAGE_TOKENS);
            filled.extend_from_slice(&table[pages]);
        }
        for pages in [before, filled] {
            pages.sort_unstable();
            pages.dedup();
        }
    }

    /// Copies a share of the weights that come next, if their slot is free while a stage runs.
    fn upload(&mut self, upload: &mut Upload, running: usize, share: f64) -> Result<(), Failed> {
        let Some(number) = upload.free(&self.stream.stages, running) else { return Ok(()) };
        let stage = &self.stream.stages[number];
        let whole: u64 = stage.weights.iter().map(|(.., bytes)| bytes).sum();
        let wanted = (whole as f64 * share) as u64;
        let Pipeline { backends, clock, trace, spent, .. } = &mut *self.pipeline;
        let began = clock.now();
        while upload.done_bytes < wanted
            && let Some(&(weight, rows, bytes)) = stage.weights.get(upload.weight)
        {
            let from = clock.now();
            backends[stage.device].stream(weight, 0..rows).map_err(Failed::on(stage.device))?;
            if let Some(trace) = trace {
                trace.call(What::Stream, stage.device, bytes, from..clock.now());
            }
            upload.weight += 1;
            upload.done_bytes += bytes;
        }
        spent.crossing += clock.since(began);
        if upload.weight == stage.weights.len() {
            *upload = Upload {
                stages: std::mem::take(&mut upload.stages),
                next: upload.next + 1,
                weight: 0,
                done_bytes: 0,
            };
        }
        self.pipeline.look();
        Ok(())
    }

    /// Copies pages on the host, then those that a stage's tokens refer to from there to its device.
    fn bring(&mut self, number: usize, copies: &[PageCopy]) -> Result<(), Failed> {
        let Stream { stages, before, .. } = &*self.stream;
        let stage = &stages[number];
        let (began, mut bytes) = (self.pipeline.clock.now(), 0);
        for &cache in &stage.caches {
            let host = &mut self.pipeline.backends[HOST];
            for copy in copies {
                let page = host.save(cache, &[copy.from]).map_err(Failed::on(HOST))?;
                host.restore(cache, &[copy.to], &page).map_err(Failed::on(HOST))?;
            }
            if !before.is_empty() {
                let pages = host.save(cache, before).map_err(Failed::on(HOST))?;
                bytes += page_bytes(&pages);
                let backend = &mut self.pipeline.backends[stage.device];
                backend.restore(cache, before, &pages).map_err(Failed::on(stage.device))?;
            }
        }
        let Pipeline { clock, trace, spent, .. } = &mut *self.pipeline;
        spent.transferred(trace, What::Write, stage.device, bytes, began..clock.now());
        Ok(())
    }

    /// Copies the pages that a stage has filled to the host.
    fn hand_back(&mut self, number: usize) -> Result<(), Failed> {
        let Stream { stages, filled, .. } = &*self.stream;
        let stage = &stages[number];
        let (began, mut bytes) = (self.pipeline.clock.now(), 0);
        for &cache in &stage.caches {
            let backends = &mut self.pipeline.backends;
            let pages = backends[stage.device].save(cache, filled);
            let pages = pages.map_err(Failed::on(stage.device))?;
            bytes += page_bytes(&pages);
            backends[HOST].restore(cache, filled, &pages).map_err(Failed::on(HOST))?;
        }
        let Pipeline { clock, trace, spent, .. } = &mut *self.pipeline;
        spent.transferred(trace, What::Read, stage.device, bytes, began..clock.now());
        Ok(())
    }

    /// Submits a micro-batch of the pass that begins with micro-batch `first`; returns the number of its record.
    fn submit(&mut self, number: usize, first: usize, at: usize) -> Result<u64, Failed> {
        let Stream { stages, buffers, batches, .. } = &mut *self.stream;
        let stage = &stages[number];
        let device = stage.device;
        let began = self.pipeline.clock.now();
        let mut bytes = 0;
        for input in &stage.inputs {
            if let Some((split, part, from)) = input.routed
                && let Some(experts) = &mut self.pipeline.experts
            {
                let rows = input.range(batches, at);
                let both = buffers.get_disjoint_mut([from, input.buffer]);
                let [from, to] = both.expect("both are needed, so their buffers differ");
                let (route, width) = (&from[rows.clone()], input.width);
                experts.give((split, part), Routing::Whole, (route, width), &mut to[rows]);
            }
            let data = &mut buffers[input.buffer][input.range(batches, at)];
            if let Some(given) = self.pipeline.given.iter().find(|of| of.value == input.value) {
                batches[at].give(given, (input.rows, input.width), data);
            }
            bytes += size_of_val(&*data) as u64;
            let backend = &mut self.pipeline.backends[device];
            backend.write_to(stage.id, input.value, data).map_err(Failed::on(device))?;
        }
        let (batch, id) = (&batches[at], stage.id);
        // The host has copied the pages of caches that it hands out.
        let copies = if stage.unit.is_some() { &[] } else { batch.step().copies };
        let step = Step { copies, ..batch.step() };
        let written = self.pipeline.clock.now();
        self.pipeline.backends[device].submit(id, &step).map_err(Failed::on(device))?;
        let Pipeline { clock, trace, spent, lanes, .. } = &mut *self.pipeline;
        spent.transferred(trace, What::Write, device, bytes, began..written);
        if let Some(trace) = trace {
            trace.call(What::Submit, device, 0, written..clock.now());
        }
        let tokens = batch.rows(Rows::Tokens);
        let lane = At { device, segment: number, micro_batch: first + at, tokens, at: written };
        let lane = lanes.submitted(&lane);
        self.pipeline.look();
        Ok(lane)
    }

    /// Waits for a micro-batch and reads its outputs; of the last stage also the requested rows.
    fn read(&mut self, number: usize, at: usize, lane: u64) -> Result<(), Failed> {
        let Stream { stages, buffers, batches, .. } = &mut *self.stream;
        let is_last = number + 1 == stages.len();
        let stage = &stages[number];
        let device = stage.device;
        let began = self.pipeline.clock.now();
        for output in &stage.outputs {
            let range = output.range(batches, at);
            let data = &mut buffers[output.buffer][range];
            let backend = &mut self.pipeline.backends[device];
            backend.read(output.value, data).map_err(Failed::on(device))?;
        }
        if is_last {
            let rows = batches[at].rows(Rows::Outputs);
            let Pipeline { backends, results, filled, reading, .. } = &mut *self.pipeline;
            let Reading { value, width, .. } = *reading;
            let results = &mut results[*filled * width..][..rows * width];
            backends[device].read(value, results).map_err(Failed::on(device))?;
            *filled += rows;
        }
        self.pipeline.count(device, |lanes, now| lanes.finished_through(device, lane, now));
        let Pipeline { backends, clock, trace, lanes, .. } = &mut *self.pipeline;
        if let (Some(trace), Some(lane)) = (trace, lanes.get(lane)) {
            trace.call(What::Wait, device, 0, began..clock.now());
            let event = Event {
                lane: device + 1,
                what: What::Segment,
                id: number as u32,
                tokens: lane.tokens as u32,
                start_ns: lane.began_ns,
                ns: lane.done_ns.saturating_sub(lane.began_ns),
                bytes: 0,
            };
            trace.segment(event, backends[device].timings(stage.id));
        }
        self.pipeline.look();
        Ok(())
    }
}

impl Crossing {
    /// The elements of a micro-batch in its buffer.
    fn range(&self, batches: &[Batch], at: usize) -> Range<usize> {
        let before: usize = batches[..at].iter().map(|batch| batch.rows(self.rows)).sum();
        let start = before * self.width;
        start..start + batches[at].rows(self.rows) * self.width
    }
}

/// Bytes of pages as they are handed over.
fn page_bytes(pages: &CachePages) -> u64 {
    (size_of_val(&*pages.keys) + size_of_val(&*pages.values)) as u64
}
