//! Devices: a CPU; one that runs a queue on its own thread, as a GPU does, and one that fails as scripted.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bilayer_cpu::Cpu;
use bilayer_graph::{
    Backend, CacheId, CachePages, Error, Exactness, Facts, Graph, Holding, Kernel, Limits, OpTime,
    PageCopy, Segment, SegmentId, SharedBytes, Span, StateId, StateSpan, Step, StreamedLayer,
    Value, Weight, WeightId,
};

/// The CPU, with so many threads.
pub fn cpu(threads: usize) -> Box<dyn Backend> {
    Box::new(
        Cpu::new(bilayer_cpu::Options { threads: Some(threads), ..Default::default() }).unwrap(),
    )
}

type Job = Box<dyn FnOnce(&mut dyn Backend) + Send>;

/// When each submit began and ended.
pub type Times = Arc<Mutex<Vec<Range<Instant>>>>;

/// The facts of a backend, presented as those of a GPU.
fn offload(name: &str, inner: &Facts) -> Facts {
    let Facts { ops, types, level, threads, .. } = inner.clone();
    Facts { ops, types, level, threads, ..Facts::offload("gpu", name, inner.memory_bytes) }
}

/// A backend on its own thread: `write` and `submit` queue, `read` waits. It presents itself as a GPU.
pub struct Queued {
    facts: Facts,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    delay: Duration,
    failure: Arc<Mutex<Option<Error>>>,
    pub times: Times,
}

impl Queued {
    /// Puts `inner` behind a queue; every submit takes `delay` longer.
    pub fn new(mut inner: Box<dyn Backend>, delay: Duration) -> Queued {
        let facts = offload("queued", inner.facts());
        let (jobs, queue): (Sender<Job>, Receiver<Job>) = channel();
        let thread = std::thread::spawn(move || queue.iter().for_each(|job| job(inner.as_mut())));
        Queued {
            facts,
            jobs: Some(jobs),
            thread: Some(thread),
            delay,
            failure: Arc::default(),
            times: Arc::default(),
        }
    }

    fn queue(&self, job: impl FnOnce(&mut dyn Backend) + Send + 'static) {
        self.jobs.as_ref().unwrap().send(Box::new(job)).unwrap();
    }

    /// Queues a call; its error is that of the next read.
    fn attempt(
        &self,
        call: impl FnOnce(&mut dyn Backend) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let failure = self.failure.clone();
        self.queue(move |inner| {
            if let Err(error) = call(inner) {
                *failure.lock().unwrap() = Some(error);
            }
        });
        Ok(())
    }

    /// Runs `job` after all queued work, and waits.
    fn wait<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Backend) -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = channel();
        self.queue(move |inner| answer.send(job(inner)).unwrap());
        answered.recv().unwrap()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let _ = self.thread.take().unwrap().join();
    }
}

impl Backend for Queued {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), Error> {
        let weights: Vec<Weight> = holding.weights.iter().map(|&weight| weight.clone()).collect();
        let (caches, states) = (holding.caches.to_vec(), holding.states.to_vec());
        let mapped = holding.mapped.to_vec();
        let owned = |layer: &StreamedLayer<'_>| {
            let weights = layer.weights.iter().map(|(weight, of)| ((*weight).clone(), of.clone()));
            (layer.slot, weights.collect::<Vec<_>>())
        };
        let streamed: Vec<_> = holding.streamed.iter().map(owned).collect();
        self.wait(move |inner| {
            let weights: Vec<&Weight> = weights.iter().collect();
            let streamed: Vec<StreamedLayer<'_>> = streamed
                .iter()
                .map(|(slot, weights)| StreamedLayer {
                    slot: *slot,
                    weights: weights.iter().map(|(weight, of)| (weight, of.clone())).collect(),
                })
                .collect();
            inner.reserve(&Holding {
                weights: &weights,
                mapped: &mapped,
                caches: &caches,
                states: &states,
                streamed: &streamed,
            })
        })
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), Error> {
        let weight = weight.clone();
        self.wait(move |inner| inner.load(&weight, bytes))
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, Error> {
        let graph: Graph = segment.graph.clone();
        let (nodes, inputs, outputs) =
            (segment.nodes.clone(), segment.inputs.clone(), segment.outputs.clone());
        self.wait(move |inner| {
            inner.compile(&Segment { graph: &graph, nodes, inputs, outputs }, limits)
        })
    }

    fn next_segment(&self) -> SegmentId {
        self.wait(|inner| inner.next_segment())
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.wait(move |inner| inner.free_segments(from));
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), Error> {
        let step = Owned::new(step);
        let (delay, times, failure) = (self.delay, self.times.clone(), self.failure.clone());
        self.queue(move |inner| {
            let began = Instant::now();
            std::thread::sleep(delay);
            if let Err(error) = inner.submit(segment, &step.step()) {
                *failure.lock().unwrap() = Some(error);
            }
            times.lock().unwrap().push(began..Instant::now());
        });
        Ok(())
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), Error> {
        let data = data.to_vec();
        self.attempt(move |inner| inner.write(value, &data))
    }

    fn write_to(&mut self, segment: SegmentId, value: Value, data: &[f32]) -> Result<(), Error> {
        let data = data.to_vec();
        self.attempt(move |inner| inner.write_to(segment, value, &data))
    }

    fn stream(&mut self, weight: WeightId, rows: Range<usize>) -> Result<(), Error> {
        self.attempt(move |inner| inner.stream(weight, rows))
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), Error> {
        let (weight, bytes) = (weight.clone(), bytes.clone());
        self.attempt(move |inner| inner.exchange(&weight, matrix, &bytes))
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error> {
        let len = data.len();
        let read = self.wait(move |inner| {
            let mut data = vec![0.0; len];
            inner.read(value, &mut data).map(|()| data)
        });
        if let Some(error) = self.failure.lock().unwrap().take() {
            return Err(error);
        }
        data.copy_from_slice(&read?);
        Ok(())
    }

    fn timings(&self, _: SegmentId) -> &[OpTime] {
        &[]
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        self.wait(move |inner| inner.kernels(segment))
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, Error> {
        let pages = pages.to_vec();
        self.wait(move |inner| inner.save(cache, &pages))
    }

    fn restore(&mut self, cache: CacheId, pages: &[u32], data: &CachePages) -> Result<(), Error> {
        let (pages, data) = (pages.to_vec(), data.clone());
        self.wait(move |inner| inner.restore(cache, &pages, &data))
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, Error> {
        let slots = slots.to_vec();
        self.wait(move |inner| inner.save_state(state, &slots))
    }

    fn restore_state(&mut self, state: StateId, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        let (slots, data) = (slots.to_vec(), data.to_vec());
        self.wait(move |inner| inner.restore_state(state, &slots, &data))
    }
}

/// A step that can wait in a queue.
struct Owned {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
    states: Vec<StateSpan>,
    copies: Vec<PageCopy>,
    top_k: usize,
    exactness: Exactness,
}

impl Owned {
    fn new(step: &Step<'_>) -> Owned {
        Owned {
            tokens: step.tokens.to_vec(),
            spans: step.spans.to_vec(),
            pages: step.pages.to_vec(),
            outputs: step.outputs.to_vec(),
            states: step.states.to_vec(),
            copies: step.copies.to_vec(),
            top_k: step.top_k,
            exactness: step.exactness,
        }
    }

    fn step(&self) -> Step<'_> {
        Step {
            tokens: &self.tokens,
            spans: &self.spans,
            pages: &self.pages,
            outputs: &self.outputs,
            states: &self.states,
            copies: &self.copies,
            top_k: self.top_k,
            exactness: self.exactness,
        }
    }
}

/// A trait method that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Reserve,
    Load,
    Compile,
    Submit,
    Write,
    Read,
    Save,
    Restore,
    Stream,
    Exchange,
}

/// The calls that every session makes; the others occur when layers move.
pub const CALLS: [Call; 6] =
    [Call::Reserve, Call::Load, Call::Compile, Call::Submit, Call::Write, Call::Read];

/// How a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is refused for lack of memory; others work.
    OutOfMemory,
    /// The device is lost at that call.
    Lost,
    /// The call gives an error that no other device can help with; others work.
    Refused,
    /// The call succeeds, but what is read is no number.
    NoNumber,
}

/// Number of calls before the failure: `Some(0)` fails the next call of that method.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub call: Call,
    pub after: usize,
    pub fault: Fault,
}

/// A backend that presents itself as a GPU and fails once, as scripted.
pub struct Failing {
    inner: Box<dyn Backend>,
    pub facts: Facts,
    script: Script,
    /// Whether it has failed.
    pub failed: Arc<Mutex<bool>>,
    /// Requested rows and [`Step::top_k`] of every submit.
    pub asked: Arc<Mutex<Vec<(usize, usize)>>>,
    /// Number of exchanged matrices, those of the first residents included.
    pub exchanges: Arc<Mutex<usize>>,
}

impl Failing {
    pub fn new(inner: Box<dyn Backend>, script: Script) -> Failing {
        let facts = offload("failing", inner.facts());
        let (failed, asked, exchanges) = Default::default();
        Failing { inner, facts, script, failed, asked, exchanges }
    }

    fn check(&mut self, call: Call) -> Result<(), Error> {
        let device = "failing".to_owned();
        let lost = || Error::DeviceLost { device: device.clone(), reason: "unplugged".to_owned() };
        let mut failed = self.failed.lock().unwrap();
        let is_dead = *failed && self.script.fault == Fault::Lost;
        if is_dead {
            return Err(lost());
        }
        if *failed || call != self.script.call {
            return Ok(());
        }
        if self.script.after > 0 {
            self.script.after -= 1;
            return Ok(());
        }
        *failed = true;
        match self.script.fault {
            Fault::Lost => Err(lost()),
            Fault::OutOfMemory => {
                let what = format!("{call:?}");
                Err(Error::OutOfMemory { device: device.clone(), what, bytes: 1 << 30 })
            }
            Fault::Refused => Err(Error::Limit { what: "calls", limit: 0, found: 1 }),
            Fault::NoNumber => Ok(()),
        }
    }
}

impl Backend for Failing {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), Error> {
        self.check(Call::Reserve)?;
        self.inner.reserve(holding)
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), Error> {
        self.check(Call::Load)?;
        self.inner.load(weight, bytes)
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, Error> {
        self.check(Call::Compile)?;
        self.inner.compile(segment, limits)
    }

    fn next_segment(&self) -> SegmentId {
        self.inner.next_segment()
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.inner.free_segments(from);
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), Error> {
        self.check(Call::Submit)?;
        self.asked.lock().unwrap().push((step.outputs.len(), step.top_k));
        self.inner.submit(segment, step)
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), Error> {
        self.check(Call::Write)?;
        self.inner.write(value, data)
    }

    fn write_to(&mut self, segment: SegmentId, value: Value, data: &[f32]) -> Result<(), Error> {
        self.check(Call::Write)?;
        self.inner.write_to(segment, value, data)
    }

    fn stream(&mut self, weight: WeightId, rows: Range<usize>) -> Result<(), Error> {
        self.check(Call::Stream)?;
        self.inner.stream(weight, rows)
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error> {
        // A value without rows has no number that could be wrong.
        if data.is_empty() && self.script.fault == Fault::NoNumber {
            return self.inner.read(value, data);
        }
        let failed = *self.failed.lock().unwrap();
        self.check(Call::Read)?;
        self.inner.read(value, data)?;
        let is_now = !failed && *self.failed.lock().unwrap();
        if is_now && self.script.fault == Fault::NoNumber {
            data.fill(f32::NAN);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), Error> {
        self.check(Call::Exchange)?;
        *self.exchanges.lock().unwrap() += 1;
        self.inner.exchange(weight, matrix, bytes)
    }

    fn held_bytes(&self) -> Option<u64> {
        self.inner.held_bytes()
    }

    fn timings(&self, segment: SegmentId) -> &[OpTime] {
        self.inner.timings(segment)
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        self.inner.kernels(segment)
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, Error> {
        self.check(Call::Save)?;
        self.inner.save(cache, pages)
    }

    fn restore(&mut self, cache: CacheId, pages: &[u32], data: &CachePages) -> Result<(), Error> {
        self.check(Call::Restore)?;
        self.inner.restore(cache, pages, data)
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, Error> {
        self.check(Call::Save)?;
        self.inner.save_state(state, slots)
    }

    fn restore_state(&mut self, state: StateId, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        self.check(Call::Restore)?;
        self.inner.restore_state(state, slots, data)
    }
}
