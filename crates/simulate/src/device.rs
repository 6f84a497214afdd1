//! A simulated device: a backend that passes every call on, and charges what it would take to the simulated clock.
//!
//! A device has two timelines: kernels run in the order of their submits, one after the other; uploads run in the order
//! of their writes, beside the kernels. A segment starts when it is submitted, the kernels before it are done and its
//! inputs have arrived. The host, which is the thread that calls, goes on at once, except that a submit takes
//! [`Link::submit_us`], that a read waits for its segment, [`Link::wait_us`] and the download, and that loading and
//! streaming wait for the upload. On a device that is not asynchronous, a segment without matrices, such as the embedding,
//! does not wait for the kernels before it: the thread that needs it looks it up while the others compute.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use bilayer_graph::{
    Backend, CacheId, CachePages, Clock, Error, Facts, Holding, Kernel, Limits, Link, Op, OpTime,
    PAGE_TOKENS, Segment, SegmentId, SharedBytes, StateId, Step, Value, Weight, WeightId,
};
use bilayer_scheduler::{Budget, KernelWork, PlannedSegment, Speed, kernels, working_bytes};

use crate::costs;
use crate::idle::Idle;
use crate::simulation::{Port, Simulation};

/// Maximum number of submits whose ends are remembered.
const OPEN_MAX: usize = 1024;

/// A simulated device.
pub struct Device {
    port: Port,
    facts: Facts,
    speed: Speed,
    inner: Box<dyn Backend>,
    held: Held,
    streamed: HashMap<WeightId, Streamed>,
    /// By the inner backend's number.
    segments: HashMap<SegmentId, Scheduled>,
    /// When the inputs written since the last submit will have arrived.
    inputs_end: Instant,
    /// Ends of submits that the clock has not passed.
    open: VecDeque<Instant>,
}

/// Bytes of its memory that the device counts as its own use.
#[derive(Clone, Default)]
struct Held {
    weights: u64,
    /// The bytes of each cache, and the elements of a token's keys.
    caches: HashMap<CacheId, (u64, usize)>,
    /// The bytes of each state's slots, and the elements of one.
    states: HashMap<StateId, (u64, usize)>,
    segments: u64,
    /// What passes through slots: the bytes of the largest weights and caches of each, and of the largest segment.
    slots: BTreeMap<usize, [u64; 2]>,
    slot_segments: u64,
}

/// A weight that is streamed.
#[derive(Clone, Copy)]
struct Streamed {
    slot: usize,
    row_bytes: f64,
}

impl Held {
    fn bytes(&self) -> u64 {
        let caches = self.caches.values().chain(self.states.values()).map(|(bytes, _)| *bytes);
        let slots = self.slots.values().flatten().copied();
        let more = caches.chain(slots).chain([self.slot_segments, self.segments]);
        more.fold(self.weights, u64::saturating_add)
    }
}

/// A compiled segment.
struct Scheduled {
    kernels: Vec<KernelWork>,
    /// The values that it makes.
    makes: HashSet<Value>,
    /// Whether it runs beside other segments.
    is_beside: bool,
    /// The number of its last submit among those of the device; 0 before the first.
    submit: u64,
    /// When its last run ends, and whether the host has waited for that.
    end: Instant,
    is_awaited: bool,
    times_kernels: bool,
    times: Vec<OpTime>,
    /// Memory of its own.
    bytes: u64,
}

impl Simulation {
    /// Opens a device. It computes with `inner`; without it, it computes nothing.
    ///
    /// # Panics
    /// If there is no device of that number.
    pub fn device(&self, number: usize, inner: Option<Box<dyn Backend>>) -> Device {
        let facts = self.devices()[number].clone();
        let inner = inner.unwrap_or_else(|| Box::new(Idle::new(facts.clone())));
        Device::new(Port::new(self.clone(), number), facts, inner)
    }
}

impl Device {
    fn new(port: Port, facts: Facts, inner: Box<dyn Backend>) -> Device {
        let now = port.clock().now();
        Device {
            port,
            speed: Speed::of(&facts),
            facts,
            inner,
            held: Held::default(),
            streamed: HashMap::new(),
            segments: HashMap::new(),
            inputs_end: now,
            open: VecDeque::with_capacity(OPEN_MAX),
        }
    }

    /// Lets the host spend time.
    fn spend(&self, seconds: f64) {
        let clock = self.port.clock();
        clock.advance_to(clock.now() + Duration::from_secs_f64(seconds));
    }

    /// Uploads bytes after all uploads before; returns when they have arrived.
    fn upload(&self, bytes: f64) -> Instant {
        let took = Duration::from_secs_f64(self.facts.link.upload_seconds(bytes));
        let mut occupancy = self.port.occupancy();
        occupancy.upload_end = occupancy.upload_end.max(self.port.clock().now()) + took;
        occupancy.upload_end
    }

    /// Lets the host wait for all work.
    fn finish(&self) {
        let end = self.port.occupancy().work_end;
        if end > self.port.clock().now() {
            self.port.clock().advance_to(end);
            self.spend(self.facts.link.wait_us / 1e6);
        }
    }

    /// Changes what the device holds, unless that exceeds its memory. Weights read in the file's map are not limited.
    fn hold(&mut self, held: Held, what: &str) -> Result<(), Error> {
        let mut occupancy = self.port.occupancy();
        let (before, after) = (self.held.bytes(), held.bytes());
        let all = (occupancy.used_bytes - before).saturating_add(after);
        if self.facts.copies_weights && all > self.facts.memory_bytes {
            return Err(Error::OutOfMemory {
                device: self.facts.name.clone(),
                what: what.to_owned(),
                bytes: usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX),
            });
        }
        occupancy.used_bytes = all;
        drop(occupancy);
        self.held = held;
        Ok(())
    }

    /// An error once the device is lost: at the described submit, and from then on at every call that needs it.
    fn alive(&self) -> Result<(), Error> {
        match self.port.faults().lost_at {
            Some(at) if self.port.occupancy().submits >= at => Err(Error::DeviceLost {
                device: self.facts.name.clone(),
                reason: format!("its description says so, at submit {at}"),
            }),
            _ => Ok(()),
        }
    }

    /// Counts a submit and returns its number, unless the device fails there.
    fn admit(&mut self) -> Result<u64, Error> {
        let mut occupancy = self.port.occupancy();
        occupancy.submits += 1;
        let number = occupancy.submits;
        drop(occupancy);
        if self.port.faults().out_of_memory_at == Some(number) {
            let what = format!("submit {number}, as its description says");
            return Err(Error::OutOfMemory { device: self.facts.name.clone(), what, bytes: 0 });
        }
        self.alive().map(|()| number)
    }

    /// Bytes of a cache's pages in f32, as they are moved.
    fn pages_bytes(&self, cache: CacheId, pages: &[u32]) -> f64 {
        let width = self.held.caches.get(&cache).map_or(0, |(_, width)| *width);
        (pages.len() * PAGE_TOKENS * width * size_of::<f32>()) as f64
    }
}

impl Device {
    /// Bytes of a state's slots, as they are moved.
    fn slots_bytes(&self, state: StateId, slots: &[u32]) -> f64 {
        let elements = self.held.states.get(&state).map_or(0, |(_, elements)| *elements);
        (slots.len() * elements * size_of::<f32>()) as f64
    }
}

impl Backend for Device {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn clock(&self) -> Clock {
        self.port.clock().clone()
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), Error> {
        self.alive()?;
        self.finish();
        self.segments.clear();
        self.open.clear();
        let weight =
            |weight: &&Weight| (weight.rows as u64).saturating_mul(self.facts.row_bytes(weight));
        let weights = holding.weights.iter().map(weight).fold(0, u64::saturating_add);
        let caches = self.held.caches.iter().filter(|(id, _)| holding.caches.contains(id));
        let caches = caches.map(|(id, held)| (*id, *held)).collect();
        let states = self.held.states.iter().filter(|(id, _)| holding.states.contains(id));
        let states = states.map(|(id, held)| (*id, *held)).collect();
        let (mut slots, mut streamed) = (BTreeMap::<usize, [u64; 2]>::new(), HashMap::new());
        for layer in holding.streamed {
            let bytes = layer.weights.iter().map(|(of, _)| weight(of)).fold(0, u64::saturating_add);
            let slot = slots.entry(layer.slot).or_default();
            slot[0] = slot[0].max(bytes);
            streamed.extend(layer.weights.iter().map(|(weight, bytes)| {
                let row_bytes = bytes.len() as f64 / weight.rows as f64;
                (weight.id, Streamed { slot: layer.slot, row_bytes })
            }));
        }
        self.hold(Held { weights, caches, states, slots, ..Held::default() }, "weights")?;
        self.streamed = streamed;
        self.inner.reserve(holding)
    }

    fn ready(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<(), Error> {
        self.inner.ready(segment, limits)
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), Error> {
        if self.facts.copies_weights {
            let end = self.upload(bytes.len() as f64);
            self.port.clock().advance_to(end);
        }
        self.inner.load(weight, bytes)
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, Error> {
        let (graph, budget) = (segment.graph, Budget::of(&limits));
        let planned = PlannedSegment {
            device: 0,
            nodes: segment.nodes.clone(),
            inputs: segment.inputs.clone(),
            outputs: segment.outputs.clone(),
        };
        let working = working_bytes(graph, &planned, &budget, &self.facts);
        let mut held = self.held.clone();
        let nodes = &graph.nodes[segment.nodes.clone()];
        let mut weights = nodes.iter().flat_map(|node| node.op.weights());
        let slot = weights.find_map(|id| self.streamed.get(&id)).map(|streamed| streamed.slot);
        let caches = nodes.iter().filter_map(|node| match &node.op {
            Op::Attend(attend) => attend.cache,
            _ => None,
        });
        for id in nodes.iter().filter_map(|node| node.op.state()) {
            let state = graph.state(id);
            held.states.insert(id, (budget.state_bytes(state), state.elements));
        }
        let mut shared = 0;
        for id in caches {
            let cache = graph.cache(id);
            let bytes = budget.kv_bytes(cache);
            shared += bytes;
            // Caches of a slot share its memory.
            let own = if slot.is_some() { 0 } else { bytes };
            held.caches.insert(id, (own, cache.stored_width()));
        }
        let mut bytes = 0;
        match slot.and_then(|slot| held.slots.get_mut(&slot)) {
            Some(slot) => {
                slot[1] = slot[1].max(shared);
                held.slot_segments = held.slot_segments.max(working);
            }
            None if graph.reads_residents(segment.nodes.clone()) => {
                held.slot_segments = held.slot_segments.max(working);
            }
            None => {
                bytes = working;
                held.segments = held.segments.saturating_add(working);
            }
        }
        self.hold(held, "caches and activations")?;
        let id = self.inner.compile(segment, limits)?;
        let kernels = kernels(segment, &self.facts, &limits);
        let makes = graph.nodes[segment.nodes.clone()].iter().map(|node| node.op.out()).collect();
        let times = Vec::with_capacity(kernels.len());
        let is_beside = !self.facts.is_async && nodes.iter().all(|n| n.op.matrices().is_empty());
        let (end, times_kernels) = (self.port.clock().now(), limits.timings);
        self.segments.insert(
            id,
            Scheduled {
                kernels,
                makes,
                is_beside,
                submit: 0,
                end,
                is_awaited: true,
                times_kernels,
                times,
                bytes,
            },
        );
        Ok(id)
    }

    fn next_segment(&self) -> SegmentId {
        self.inner.next_segment()
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.finish();
        let freed = self.segments.extract_if(|id, _| id.0 >= from.0);
        self.held.segments -= freed.map(|(_, segment)| segment.bytes).sum::<u64>();
        self.inner.free_segments(from);
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), Error> {
        let number = self.admit()?;
        self.inner.submit(segment, step)?;
        self.spend(self.facts.link.submit_us / 1e6);
        let scheduled = self.segments.get_mut(&segment).expect("the inner backend knows it");
        let seconds = costs::run(&scheduled.kernels, step, self.speed, &mut scheduled.times);
        let mut occupancy = self.port.occupancy();
        let ready = self.port.clock().now().max(self.inputs_end);
        let start = if scheduled.is_beside { ready } else { ready.max(occupancy.work_end) };
        (scheduled.end, scheduled.is_awaited) = (start + Duration::from_secs_f64(seconds), false);
        occupancy.work_end = occupancy.work_end.max(scheduled.end);
        scheduled.submit = number;
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(scheduled.end);
        Ok(())
    }

    fn stream(&mut self, weight: WeightId, rows: Range<usize>) -> Result<(), Error> {
        self.alive()?;
        let bytes = self.streamed.get(&weight).map_or(0.0, |streamed| streamed.row_bytes);
        let end = self.upload(bytes * rows.len() as f64);
        self.inner.stream(weight, rows)?;
        self.port.clock().advance_to(end);
        Ok(())
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), Error> {
        self.alive()?;
        self.inner.exchange(weight, matrix, bytes)?;
        self.inputs_end = self.inputs_end.max(self.upload(bytes.len() as f64));
        Ok(())
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), Error> {
        self.alive()?;
        self.inner.write(value, data)?;
        self.inputs_end = self.inputs_end.max(self.upload(size_of_val(data) as f64));
        Ok(())
    }

    fn write_to(&mut self, segment: SegmentId, value: Value, data: &[f32]) -> Result<(), Error> {
        self.alive()?;
        self.inner.write_to(segment, value, data)?;
        self.inputs_end = self.inputs_end.max(self.upload(size_of_val(data) as f64));
        Ok(())
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error> {
        self.alive()?;
        self.inner.read(value, data)?;
        let Link { wait_us, .. } = self.facts.link;
        // Several segments may make a value: the last one submitted has.
        let makers = self.segments.values_mut().filter(|of| of.makes.contains(&value));
        if let Some(scheduled) = makers.max_by_key(|of| of.submit)
            && !std::mem::replace(&mut scheduled.is_awaited, true)
        {
            self.port.clock().advance_to(scheduled.end);
            self.spend(wait_us / 1e6);
        }
        self.spend(self.facts.link.download_seconds(size_of_val(data) as f64));
        Ok(())
    }

    fn timings(&self, segment: SegmentId) -> &[OpTime] {
        let timed = self.segments.get(&segment).filter(|scheduled| scheduled.times_kernels);
        timed.map_or(&[], |scheduled| &scheduled.times)
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.held.bytes())
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        let kernels = self.segments.get(&segment).into_iter().flat_map(|of| &of.kernels);
        let named = |kernel: &KernelWork| Kernel {
            nodes: kernel.nodes.clone(),
            name: "simulated".to_owned(),
        };
        kernels.map(named).collect()
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, Error> {
        self.alive()?;
        self.finish();
        self.spend(self.facts.link.download_seconds(self.pages_bytes(cache, pages)));
        self.inner.save(cache, pages)
    }

    fn restore(&mut self, cache: CacheId, pages: &[u32], data: &CachePages) -> Result<(), Error> {
        let end = self.upload(self.pages_bytes(cache, pages));
        self.port.clock().advance_to(end);
        self.inner.restore(cache, pages, data)
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, Error> {
        self.alive()?;
        self.finish();
        self.spend(self.facts.link.download_seconds(self.slots_bytes(state, slots)));
        self.inner.save_state(state, slots)
    }

    fn restore_state(&mut self, state: StateId, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        let end = self.upload(self.slots_bytes(state, slots));
        self.port.clock().advance_to(end);
        self.inner.restore_state(state, slots, data)
    }

    fn outstanding(&mut self) -> Option<usize> {
        let now = self.port.clock().now();
        while self.open.front().is_some_and(|end| *end <= now) {
            self.open.pop_front();
        }
        Some(self.open.len())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.port.occupancy().used_bytes -= self.held.bytes();
    }
}
