//! The GPU backend: its weights and caches, compiled segments, and the order of submitted work.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bilayer_graph::{
    Attend, Backend, CacheId, CachePages, Error as GraphError, Facts, Holding, Kernel, Limits, Op,
    OpTime, Segment, SegmentId, SharedBytes, StateId, Step, Value, Weight, WeightId,
};
use rayon::prelude::*;

use crate::attention;
use crate::cache::Cache;
use crate::caps::{Caps, Few};
use crate::device::{Created, Device};
use crate::kernel::Source;
use crate::program::Program;
use crate::program::build::{Draft, Pool, Site, build, sources};
use crate::program::lower::{Holdings, lower};
use crate::rate::{AttentionRates, DeviceRates, RATE_MIN, products};
use crate::slots::Slots;
use crate::weights::Weights;

/// A GPU as a backend. Calls return before the work is done; `write` and `submit` are queued in order.
pub struct Gpu {
    facts: Facts,
    device: Arc<Device>,
    /// What its kernels may use: the device's, less what its driver rejected kernels with.
    caps: Caps,
    weights: Weights,
    caches: HashMap<CacheId, Cache>,
    states: HashMap<StateId, Slots>,
    /// Memory of the caches of streamed layers, by slot.
    slot_caches: HashMap<usize, Vec<Cache>>,
    /// Memory of the activations of streamed layers.
    pool: Pool,
    segments: Vec<Compiled>,
    submits: u64,
    /// The number of the last finished submit.
    finished: Arc<AtomicU64>,
    /// Its speed, by which work is cut into dispatches and submits.
    rates: DeviceRates,
    /// Whether the options gave the rate.
    is_rate_given: bool,
    /// Why the driver rejected kernels that others replace, since it was last asked.
    replaced: Vec<String>,
}

struct Compiled {
    program: Program,
    /// Labels of the nodes by value, for messages; only if values are checked.
    labels: Option<HashMap<Value, (String, &'static str)>>,
    /// The number of the last submit; 0 before the first.
    submitted: u64,
    /// Timings of the last run that was read, if enabled.
    timings: Vec<OpTime>,
    /// The error of the last submit, reported at the next read.
    failure: Option<GraphError>,
}

/// An adapter's open device, shared by any number of backends: they share its kernels and nothing else.
#[derive(Clone)]
pub struct Opened {
    device: Arc<Device>,
    facts: Facts,
    /// What kernels of backends may use.
    caps: Caps,
    rates: DeviceRates,
    is_rate_given: bool,
}

impl Opened {
    /// A device that was checked. It has the rates that were measured, unless the options give that of products.
    pub(crate) fn new(
        device: Device,
        facts: Facts,
        measured: DeviceRates,
        given: Option<u64>,
    ) -> Opened {
        let caps = device.caps().clone();
        Opened {
            facts: Facts { level: caps.level(), ..facts },
            device: Arc::new(device),
            caps,
            rates: given.map_or(measured, |rate| DeviceRates::of_products(rate as f64)),
            is_rate_given: given.is_some(),
        }
    }

    /// With products of few columns that are computed so, as far as the device can.
    #[must_use]
    pub(crate) fn with(mut self, few: Few) -> Opened {
        self.caps.few = Few { emits: few.emits && self.caps.few.emits, ..few };
        self
    }

    /// The device underneath.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Properties of the device, the kernels chosen for it among them.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Measures the bandwidth at which kernels read its memory, 10^9 bytes per second.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub fn read_gbps(&self) -> Result<f64, GraphError> {
        crate::bandwidth::measure(&self.device)
    }

    /// An empty backend on this device.
    pub fn backend(&self) -> Gpu {
        let Opened { device, facts, caps, rates, is_rate_given } = self.clone();
        Gpu {
            facts,
            caps,
            weights: Weights::new(device.clone()),
            device,
            caches: HashMap::new(),
            states: HashMap::new(),
            slot_caches: HashMap::new(),
            pool: Pool::default(),
            segments: Vec::new(),
            submits: 0,
            finished: Arc::default(),
            rates,
            is_rate_given,
            replaced: Vec::new(),
        }
    }
}

impl Gpu {
    /// The device underneath.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether products of few columns emit the next product's input.
    pub(crate) fn emits(&self) -> bool {
        self.caps.few.emits
    }

    /// Number of objects created on the device so far.
    pub fn created(&self) -> Created {
        self.device.created()
    }

    /// Steps whose commands were recorded while the device computed those before.
    pub fn steps_recorded_ahead(&self) -> usize {
        self.segments.iter().map(|compiled| compiled.program.recorded_ahead).sum()
    }

    /// Number of dispatches of a segment's last step.
    pub fn dispatches(&self, segment: SegmentId) -> usize {
        self.segments.get(segment.0 as usize).map_or(0, |compiled| compiled.program.dispatches())
    }

    /// Bytes of weights that are read directly from the file's map.
    pub fn mapped_bytes(&self) -> u64 {
        self.weights.mapped_bytes()
    }

    /// Bytes of device memory in use: weights, caches, activations and staging.
    pub fn bytes(&self) -> u64 {
        let shared = self.slot_caches.values().flatten();
        let caches: u64 = self.caches.values().chain(shared).map(|cache| cache.bytes).sum();
        let states: u64 = self.states.values().map(Slots::bytes).sum();
        let programs: u64 = self.segments.iter().map(|compiled| compiled.program.bytes).sum();
        self.weights.bytes() + caches + states + programs
    }

    /// Allocates the caches and states of a segment that do not exist yet.
    fn reserve_caches(&mut self, segment: &Segment<'_>, limits: &Limits) -> Result<(), GraphError> {
        let slot = self.slot(segment);
        let mut taken = Vec::new();
        for node in &segment.graph.nodes[segment.nodes.clone()] {
            if let Some(id) = node.op.state()
                && limits.must_reserve_states(self.states.get(&id).map(|slots| slots.len()))?
            {
                let slots = Slots::new(&self.device, segment.graph.state(id), limits)?;
                self.states.insert(id, slots);
            }
            let Op::Attend(Attend { cache: Some(id), .. }) = &node.op else { continue };
            let info = segment.graph.cache(*id);
            if let Some(slot) = slot {
                let caches = self.slot_caches.entry(slot).or_default();
                let free = |&at: &usize| !taken.contains(&at) && caches[at].fits(info, limits);
                let at = match (0..caches.len()).find(free) {
                    Some(at) => at,
                    None => {
                        caches.push(Cache::new(&self.device, info, limits)?);
                        caches.len() - 1
                    }
                };
                taken.push(at);
                self.caches.insert(*id, Cache { bytes: 0, ..caches[at].clone() });
                continue;
            }
            match self.caches.get(id) {
                Some(cache) if cache.fits(info, limits) => {}
                Some(cache) => return Err(limits.other_cache(cache.pages)),
                None => {
                    let cache = Cache::new(&self.device, info, limits)?;
                    self.caches.insert(*id, cache);
                }
            }
        }
        Ok(())
    }
}

/// Tokens of a step for which a segment is compiled, at least, where values of more cannot be bound.
const TOKENS_LEAST: usize = 16;

impl Gpu {
    /// Selects the kernels of a segment.
    ///
    /// # Errors
    /// Those of [`lower`]; [`GraphError::StepTooLarge`] or [`GraphError::OutOfMemory`]: a value is more than a kernel can bind.
    fn draft(&self, segment: &Segment<'_>, limits: &Limits) -> Result<Draft, GraphError> {
        let Gpu { caps, weights, caches, states, rates, .. } = self;
        let holdings = Holdings { caps, weights, caches, states, rates: *rates };
        let draft = lower(segment, limits, &holdings)?;
        let bytes = draft.largest_buffer();
        if bytes <= caps.max_binding {
            return Ok(draft);
        }
        let (device, found) = (self.facts.name.clone(), limits.tokens);
        let halves = std::iter::successors(Some(found / 2), |tokens| Some(tokens / 2));
        for most in halves.take_while(|&tokens| tokens >= TOKENS_LEAST) {
            let smaller = lower(segment, &Limits { tokens: most, ..*limits }, &holdings)?;
            if smaller.largest_buffer() <= caps.max_binding {
                return Err(GraphError::StepTooLarge { device, found, most });
            }
        }
        let what = format!("a value of a step, of which it binds {} at once", caps.max_binding);
        Err(GraphError::OutOfMemory { device, what, bytes: bytes as usize })
    }

    /// Selects the kernels of a segment and compiles them.
    fn program(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<Program, GraphError> {
        let draft = self.draft(segment, &limits)?;
        let graph = segment.graph;
        let is_pooled =
            self.slot(segment).is_some() || graph.reads_residents(segment.nodes.clone());
        let Gpu { device, weights, caches, states, rates, pool, .. } = self;
        let site = Site { device, weights, caches, states, rate: rates.products };
        build(draft, limits, &site, is_pooled.then_some(pool))
    }

    /// Selects kernels without what the driver rejected one with from now on.
    ///
    /// # Errors
    /// The rejection, if there are no simpler kernels; the device was lost.
    fn simplify(&mut self, rejection: GraphError) -> Result<(), GraphError> {
        let rejected = rejection.to_string();
        let caps = self.caps.reduced(&rejected).ok_or_else(|| rejection.clone())?;
        if caps.tile != self.caps.tile && !self.is_rate_given {
            let products = products::warm_up(&self.device, &caps)
                .and_then(|()| products::measure(&self.device, &caps));
            // Without memory for it, or with these kernels rejected, too, work is cut as for the slowest.
            self.device.check()?;
            let products = products.unwrap_or(RATE_MIN);
            let attention = attention::rates(&self.device, &caps)?
                .unwrap_or_else(|| AttentionRates::assumed(products));
            self.rates = DeviceRates { products, attention }.min(self.rates);
        }
        self.facts.level = caps.level();
        self.caps = caps;
        if let GraphError::DeviceLost { reason, .. } = rejection
            && !self.replaced.contains(&reason)
        {
            self.replaced.push(reason);
        }
        Ok(())
    }

    /// The slot of the weights that a segment reads, if they are streamed.
    fn slot(&self, segment: &Segment<'_>) -> Option<usize> {
        let nodes = segment.graph.nodes[segment.nodes.clone()].iter();
        nodes.flat_map(|node| node.op.weights()).find_map(|id| self.weights.slot(id))
    }

    /// Waits for a submit and all earlier ones.
    fn finish(&self, submit: u64) -> Result<(), GraphError> {
        self.device.wait_until(|| self.finished.load(Ordering::Acquire) >= submit)
    }

    fn state(&self, id: StateId) -> Result<&Slots, GraphError> {
        self.states.get(&id).ok_or_else(|| unknown("as a state's number", id.0, 0))
    }

    fn cache(&self, id: CacheId) -> Result<&Cache, GraphError> {
        self.caches.get(&id).ok_or_else(|| unknown("as a cache's number", id.0, 0))
    }
}

/// The error for a segment or value that was never compiled.
fn unknown(what: &'static str, found: u32, limit: usize) -> GraphError {
    GraphError::Limit { what, limit, found: found as usize }
}

impl Backend for Gpu {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), GraphError> {
        self.segments.clear();
        self.caches.retain(|id, _| holding.caches.contains(id));
        self.states.retain(|id, _| holding.states.contains(id));
        self.slot_caches.clear();
        self.pool = Pool::default();
        self.weights.reserve(holding)
    }

    fn ready(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<(), GraphError> {
        self.reserve_caches(segment, &limits)?;
        let mut weights =
            segment.graph.nodes[segment.nodes.clone()].iter().flat_map(|n| n.op.weights());
        // A weight that was not announced has no place before it is loaded.
        if !weights.all(|id| self.weights.placed(id).is_some()) {
            return Ok(());
        }
        let draft = self.draft(segment, &limits)?;
        let sources: Vec<Source> = sources(&draft).into_iter().cloned().collect();
        let device = self.device.clone();
        // Errors are reported when the segment is compiled.
        rayon::spawn(move || sources.par_iter().for_each(|source| drop(device.pipeline(source))));
        Ok(())
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), GraphError> {
        self.weights.load(weight, &bytes)
    }

    fn stream(&mut self, weight: WeightId, rows: Range<usize>) -> Result<(), GraphError> {
        self.weights.stream(weight, rows)
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), GraphError> {
        self.weights.exchange(weight, matrix, bytes)
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, GraphError> {
        let graph = segment.graph;
        for node in &graph.nodes[segment.nodes.clone()] {
            if let Some(id) = node.op.weights().find(|id| self.weights.get(*id).is_none()) {
                let name = graph.weight(id).name.clone();
                return Err(GraphError::WeightNotLoaded { name, device: self.facts.name.clone() });
            }
        }
        self.reserve_caches(segment, &limits)?;
        let program = loop {
            match self.program(segment, limits) {
                Err(error) if self.device.is_rejection(&error) => self.simplify(error)?,
                program => break program?,
            }
        };
        let labels = limits.check.then(|| {
            let nodes = graph.nodes[segment.nodes.clone()].iter();
            nodes.map(|n| (n.op.out(), (n.label(), n.op.kind().stem()))).collect()
        });
        let timings = Vec::with_capacity(program.kernels.len());
        self.segments.push(Compiled { program, labels, submitted: 0, timings, failure: None });
        Ok(SegmentId(self.segments.len() as u32 - 1))
    }

    fn next_segment(&self) -> SegmentId {
        SegmentId(self.segments.len() as u32)
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.segments.truncate(from.0 as usize);
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), GraphError> {
        let count = self.segments.len();
        if self.segments.get(segment.0 as usize).is_some_and(|of| of.program.is_pooled) {
            let pooled = self.segments.iter_mut().filter(|of| of.program.is_pooled);
            pooled.map(|of| &mut of.program).try_for_each(Program::release)?;
        }
        let Some(compiled) = self.segments.get_mut(segment.0 as usize) else {
            return Err(unknown("as a segment's number", segment.0, count));
        };
        self.submits += 1;
        compiled.submitted = self.submits;
        compiled.failure = None;
        let submitted = match &compiled.labels {
            None => compiled.program.submit(step),
            Some(labels) => {
                let label = |value: Value| {
                    let (label, op) = labels.get(&value).cloned().unwrap_or_default();
                    GraphError::NotFinite { label, op }
                };
                match compiled.program.submit_checked(step, label) {
                    Err(error @ GraphError::NotFinite { .. }) => {
                        compiled.failure = Some(error);
                        Ok(())
                    }
                    other => other,
                }
            }
        };
        let (finished, number) = (self.finished.clone(), self.submits);
        self.device.queue.on_submitted_work_done(move || {
            finished.fetch_max(number, Ordering::AcqRel);
        });
        submitted
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), GraphError> {
        self.device.check()?;
        let mut known = false;
        for compiled in self.segments.iter_mut().filter(|of| !of.program.is_pooled) {
            known |= compiled.program.write(value, data)?;
        }
        if known { Ok(()) } else { Err(unknown("as the number of an input", value.0, 0)) }
    }

    fn write_to(
        &mut self,
        segment: SegmentId,
        value: Value,
        data: &[f32],
    ) -> Result<(), GraphError> {
        self.device.check()?;
        let compiled = self.segments.get_mut(segment.0 as usize);
        let program = compiled.map(|compiled| &mut compiled.program);
        match program.map(|program| program.write(value, data)).transpose()? {
            Some(true) => Ok(()),
            _ => Err(unknown("as the number of an input", value.0, 0)),
        }
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), GraphError> {
        let made = self.segments.iter_mut().filter(|c| c.submitted > 0 && c.program.makes(value));
        let Some(compiled) = made.max_by_key(|compiled| compiled.submitted) else {
            return Err(unknown("as the number of an output", value.0, 0));
        };
        if let Some(failure) = &compiled.failure {
            return Err(failure.clone());
        }
        compiled.program.read(value, data)?;
        let submitted = compiled.submitted;
        compiled.program.timings(&mut compiled.timings)?;
        if data.is_empty() { self.finish(submitted) } else { Ok(()) }
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, GraphError> {
        self.cache(cache)?.save(&self.device, pages)
    }

    fn restore(
        &mut self,
        cache: CacheId,
        pages: &[u32],
        data: &CachePages,
    ) -> Result<(), GraphError> {
        self.cache(cache)?.restore(&self.device, pages, data)
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, GraphError> {
        self.state(state)?.save(&self.device, slots)
    }

    fn restore_state(
        &mut self,
        state: StateId,
        slots: &[u32],
        data: &[f32],
    ) -> Result<(), GraphError> {
        self.state(state)?.restore(&self.device, slots, data)
    }

    fn outstanding(&mut self) -> Option<usize> {
        let _ = self.device.device.poll(wgpu::PollType::Poll);
        Some((self.submits - self.finished.load(Ordering::Acquire)) as usize)
    }

    fn take_replaced(&mut self) -> Vec<String> {
        std::mem::take(&mut self.replaced)
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.bytes() + self.mapped_bytes())
    }

    fn timings(&self, segment: SegmentId) -> &[OpTime] {
        self.segments.get(segment.0 as usize).map_or(&[], |compiled| &compiled.timings)
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        let compiled = self.segments.get(segment.0 as usize);
        compiled.map(|compiled| compiled.program.kernels.clone()).unwrap_or_default()
    }
}
