//! Builds a program from a draft: memory by lifetimes, pipelines in parallel, bind groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bilayer_graph::slots::{self, Life};
use bilayer_graph::{CacheId, Error as GraphError, Kernel, Limits, Rows, StateId};
use rayon::prelude::*;

use super::draft::{DraftBuffer, DraftStage, Operand, View};
use super::step::Words;
use super::timer::Timer;
use super::{Access, Choice, Dispatch, Output, Program, Stage};
use crate::cache::Cache;
use crate::device::counter::Completion;
use crate::device::{Device, Pipeline};
use crate::kernel::Source;
use crate::slots::Slots;
use crate::weights::Weights;

/// Alignment of a uniform slice in bytes, the maximum required by any GPU.
const UNIFORM_ALIGNMENT: u64 = 256;

/// A segment with selected kernels.
pub struct Draft {
    /// Stages in order.
    pub stages: Vec<DraftStage>,
    /// Buffers they use.
    pub buffers: Vec<DraftBuffer>,
    /// Locations of values.
    pub views: BTreeMap<bilayer_graph::Value, View>,
    /// Values written before a submit.
    pub inputs: Vec<bilayer_graph::Value>,
    /// Values read after it.
    pub outputs: Vec<bilayer_graph::Value>,
    /// Gains, biases and RoPE tables.
    pub vectors: Vec<f32>,
    /// The step's words.
    pub words: Words,
}

impl Draft {
    /// Bytes of the largest buffer that a kernel binds.
    pub fn largest_buffer(&self) -> u64 {
        let vectors = size_of_val(&*self.vectors) as u64;
        self.buffers.iter().map(|buffer| buffer.bytes).fold(vectors, u64::max)
    }
}

/// The resources for building a draft.
pub struct Site<'a> {
    /// The device.
    pub device: &'a Arc<Device>,
    /// Its weights.
    pub weights: &'a Weights,
    /// Its caches.
    pub caches: &'a HashMap<CacheId, Cache>,
    /// Its states of sequences.
    pub states: &'a HashMap<StateId, Slots>,
    /// Its speed, operations of products per second.
    pub rate: f64,
}

/// Buffers that programs share of which only one runs at a time.
#[derive(Default)]
pub struct Pool {
    activations: Vec<wgpu::Buffer>,
    readbacks: Vec<wgpu::Buffer>,
}

/// A buffer of at least so many bytes: the first in a list that `taken` does not name, or a new one at its end.
fn pooled(
    list: &mut Vec<wgpu::Buffer>,
    taken: &mut Vec<usize>,
    bytes: u64,
    make: impl FnOnce(u64) -> Result<wgpu::Buffer, GraphError>,
) -> Result<(wgpu::Buffer, u64), GraphError> {
    let fits = |&at: &usize| list[at].size() >= bytes && !taken.contains(&at);
    let (at, new_bytes) = match (0..list.len()).find(fits) {
        Some(at) => (at, 0),
        None => {
            list.push(make(bytes)?);
            (list.len() - 1, bytes)
        }
    };
    taken.push(at);
    Ok((list[at].clone(), new_bytes))
}

/// Builds the program; its buffers are those of a pool, if there is one.
///
/// # Errors
/// Out of memory, or a rejected kernel.
pub fn build(
    draft: Draft,
    limits: Limits,
    site: &Site<'_>,
    pool: Option<&mut Pool>,
) -> Result<Program, GraphError> {
    let device = site.device;
    let (slots, sizes) = place(&draft);
    let is_pooled = pool.is_some();
    let shown = if is_pooled { BTreeSet::new() } else { mappable(&draft, &slots, device) };
    let mut own = Pool::default();
    let pool = pool.unwrap_or(&mut own);
    let is_first = pool.activations.is_empty();
    let (buffers, mut bytes) = activations(&sizes, &shown, device, pool)?;
    let step_bytes = u64::from(draft.words.layout().len) * 4;
    let step = device.buffer("step", step_bytes, STORAGE)?;
    let stages = Wiring { draft: &draft, slots: &slots, buffers: &buffers, step: &step, site };
    let stages = stages.stages()?;
    device.check()?;

    let most = |rows: Rows| match rows {
        Rows::Tokens => limits.tokens as u32,
        Rows::Outputs => limits.outputs as u32,
    };
    let inputs: Vec<Access> =
        draft.inputs.iter().map(|&value| access(&draft, &slots, value)).collect();
    let (mut outputs, mut taken) = (Vec::with_capacity(draft.outputs.len()), Vec::new());
    bytes += step_bytes;
    for &value in &draft.outputs {
        let access = access(&draft, &slots, value);
        let is_copy = !shown.contains(&access.buffer);
        let (mapped, at) = if is_copy {
            let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
            let size = access.span(most(access.rows)) * 4;
            let make = |size| device.buffer("readback", size, usage);
            let (buffer, new_bytes) = pooled(&mut pool.readbacks, &mut taken, size, make)?;
            bytes += new_bytes;
            (buffer, 0)
        } else {
            (buffers[access.buffer].clone(), u64::from(access.offset) * 4)
        };
        let state = Arc::new(AtomicBool::new(false));
        outputs.push(Output { access, mapped, at, is_copy, state, rows: 0 });
    }
    // Written data passes through memory of the queue of equal size.
    if is_first {
        bytes += inputs.iter().map(|access| access.span(most(access.rows)) * 4).sum::<u64>();
    }
    let timer = if limits.timings { timer(&draft, device)? } else { None };
    let padded = inputs.iter().filter(|a| a.stride != a.width);
    let padded = padded.map(|a| most(a.rows) as usize * a.stride as usize).max().unwrap_or(0);
    let kernel =
        |stage: &DraftStage| Kernel { nodes: stage.nodes.clone(), name: stage.name.clone() };
    Ok(Program {
        device: device.clone(),
        kernels: draft.stages.iter().map(kernel).collect(),
        cleared: if is_pooled { padded_slots(&draft, &slots, &sizes) } else { Vec::new() },
        buffers,
        stages,
        inputs,
        outputs,
        step,
        words: draft.words,
        padded: vec![0.0; padded],
        limits,
        timer,
        completion: Completion::new(device)?,
        ahead: None,
        recorded_ahead: 0,
        submission: None,
        last: Default::default(),
        is_pooled,
        slice: ((site.rate * super::SUBMIT_SECONDS) as u64).max(1),
        bytes,
    })
}

/// A timer of the stages, if the device has a clock.
fn timer(draft: &Draft, device: &Device) -> Result<Option<Timer>, GraphError> {
    let nodes = draft.stages.iter().map(|stage| stage.nodes.first().copied());
    Timer::new(device, nodes.collect())
}

/// The slots whose rows are padded, with their sizes; those of inputs are written with their padding.
fn padded_slots(draft: &Draft, slots: &[usize], sizes: &[u64]) -> Vec<(usize, u64)> {
    let buffers = slots.iter().zip(&draft.buffers);
    let mut padded: BTreeSet<usize> =
        buffers.filter(|(_, buffer)| buffer.class != 0).map(|(&slot, _)| slot).collect();
    for input in &draft.inputs {
        padded.remove(&slots[draft.views[input].buffer]);
    }
    padded.into_iter().map(|slot| (slot, sizes[slot])).collect()
}

/// The buffers of a program's slots, and the bytes of those that are new.
fn activations(
    sizes: &[u64],
    shown: &BTreeSet<usize>,
    device: &Device,
    pool: &mut Pool,
) -> Result<(Vec<wgpu::Buffer>, u64), GraphError> {
    let (mut buffers, mut taken, mut new_bytes) = (Vec::new(), Vec::new(), 0);
    for (slot, &bytes) in sizes.iter().enumerate() {
        let read = if shown.contains(&slot) { wgpu::BufferUsages::MAP_READ } else { NOTHING };
        let make = |bytes| device.buffer("activations", bytes, STORAGE | read);
        let (buffer, bytes) = pooled(&mut pool.activations, &mut taken, bytes, make)?;
        buffers.push(buffer);
        new_bytes += bytes;
    }
    Ok((buffers, new_bytes))
}

/// Usage of activations and of the step's words.
const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_DST)
    .union(wgpu::BufferUsages::COPY_SRC);

/// No usage.
const NOTHING: wgpu::BufferUsages = wgpu::BufferUsages::empty();

/// Slots of outputs that the host can map directly: in shared memory, if no other mapped or written value is in them.
fn mappable(draft: &Draft, slots: &[usize], device: &Device) -> BTreeSet<usize> {
    if !device.maps_primary_buffers() {
        return BTreeSet::new();
    }
    let slot = |value: &bilayer_graph::Value| slots[draft.views[value].buffer];
    let alone = |output: &&bilayer_graph::Value| {
        let mine = slot(output);
        let aligned =
            (u64::from(draft.views[output].offset) * 4).is_multiple_of(wgpu::MAP_ALIGNMENT);
        let others = draft.outputs.iter().filter(|other| slot(other) == mine).count();
        aligned && others == 1 && !draft.inputs.iter().any(|input| slot(input) == mine)
    };
    draft.outputs.iter().filter(alone).map(slot).collect()
}

/// The location of a value after buffers have memory.
fn access(draft: &Draft, slots: &[usize], value: bilayer_graph::Value) -> Access {
    let view = draft.views[&value];
    Access {
        value,
        buffer: slots[view.buffer],
        offset: view.offset,
        stride: view.stride,
        width: view.width,
        rows: view.rows,
    }
}

/// A draft with the memory of its operands.
struct Wiring<'a> {
    draft: &'a Draft,
    slots: &'a [usize],
    buffers: &'a [wgpu::Buffer],
    step: &'a wgpu::Buffer,
    site: &'a Site<'a>,
}

impl Wiring<'_> {
    /// Stages with pipelines and bind groups.
    fn stages(&self) -> Result<Vec<Stage>, GraphError> {
        let Wiring { draft, slots, site, .. } = *self;
        let device = site.device;
        let pipelines = pipelines(draft, device)?;
        let vectors = bytemuck::cast_slice(&draft.vectors);
        let vectors = device.filled("vectors", vectors, wgpu::BufferUsages::STORAGE)?;
        let (uniform, places) = uniform(&draft.stages, device)?;
        let mut place = places.iter();
        let mut stages = Vec::with_capacity(draft.stages.len());
        for stage in &draft.stages {
            let mut choices = Vec::with_capacity(stage.choices.len());
            for choice in &stage.choices {
                let mut dispatches = Vec::with_capacity(choice.dispatches.len());
                for dispatch in &choice.dispatches {
                    let pipeline = pipelines[&dispatch.source.name].clone();
                    let (at, size) = *place.next().expect("a place for each dispatch");
                    let mut resources = vec![part(&uniform, at, size)];
                    let operands = dispatch.operands.iter();
                    resources.extend(operands.map(|operand| self.resource(operand, &vectors)));
                    let group = device.bind_group(&pipeline, &resources);
                    dispatches.push(Dispatch { pipeline, group, grid: dispatch.grid.clone() });
                }
                choices.push(Choice { when: choice.when, bound: choice.bound, dispatches });
            }
            let makes = stage.makes.filter(|value| draft.views.contains_key(value));
            let makes = makes.map(|value| access(draft, slots, value));
            stages.push(Stage { choices, makes });
        }
        Ok(stages)
    }

    fn resource<'r>(
        &'r self,
        operand: &Operand,
        vectors: &'r wgpu::Buffer,
    ) -> wgpu::BindingResource<'r> {
        match operand {
            Operand::Buffer(buffer) => &self.buffers[self.slots[*buffer]],
            Operand::Step => self.step,
            Operand::Vectors => vectors,
            Operand::Weights(home) => self.site.weights.buffer(*home),
            Operand::Keys(cache) => &self.site.caches[cache].keys.buffer,
            Operand::Values(cache) => {
                let values = &self.site.caches[cache].values;
                &values.as_ref().expect("a kernel of values beside the keys").buffer
            }
            Operand::States(state) => &self.site.states[state].buffer,
        }
        .as_entire_binding()
    }
}

fn part(buffer: &wgpu::Buffer, at: u64, size: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding {
        buffer,
        offset: at,
        size: std::num::NonZeroU64::new(size),
    })
}

/// All kernels of a draft, each once.
pub fn sources(draft: &Draft) -> Vec<&Source> {
    let mut sources: BTreeMap<&str, &Source> = BTreeMap::new();
    let choices = draft.stages.iter().flat_map(|stage| &stage.choices);
    for dispatch in choices.flat_map(|choice| &choice.dispatches) {
        sources.insert(&dispatch.source.name, &dispatch.source);
    }
    sources.into_values().collect()
}

/// All kernels' pipelines, compiled in parallel: the driver takes tens of milliseconds for each.
fn pipelines(draft: &Draft, device: &Device) -> Result<HashMap<String, Arc<Pipeline>>, GraphError> {
    let made = sources(draft)
        .par_iter()
        .map(|source| Ok((source.name.clone(), device.pipeline(source)?)))
        .collect();
    device.keep_cache();
    made
}

/// Puts all uniforms into one buffer; returns each dispatch's offset.
fn uniform(
    stages: &[DraftStage],
    device: &Device,
) -> Result<(wgpu::Buffer, Vec<(u64, u64)>), GraphError> {
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    let choices = stages.iter().flat_map(|stage| &stage.choices);
    for dispatch in choices.flat_map(|choice| &choice.dispatches) {
        bytes.resize(bytes.len().next_multiple_of(UNIFORM_ALIGNMENT as usize), 0);
        places.push((bytes.len() as u64, dispatch.params.len() as u64));
        bytes.extend_from_slice(&dispatch.params);
    }
    Ok((device.filled("params", &bytes, wgpu::BufferUsages::UNIFORM)?, places))
}

/// The memory slot of each buffer of the draft: those with disjoint lifetimes share. Returns the slot of each and the
/// slots' sizes.
fn place(draft: &Draft) -> (Vec<usize>, Vec<u64>) {
    let end = draft.stages.len();
    let mut lives: Vec<(usize, usize)> = vec![(end, 0); draft.buffers.len()];
    for (number, stage) in draft.stages.iter().enumerate() {
        let dispatches = stage.choices.iter().flat_map(|choice| &choice.dispatches);
        for operand in dispatches.flat_map(|dispatch| &dispatch.operands) {
            if let Operand::Buffer(buffer) = operand {
                let life = &mut lives[*buffer];
                *life = (life.0.min(number), life.1.max(number));
            }
        }
    }
    for (life, buffer) in lives.iter_mut().zip(&draft.buffers) {
        if buffer.pinned {
            *life = (0, end);
        }
    }
    let lives = lives.iter().zip(&draft.buffers);
    let lives: Vec<Life> = lives
        .map(|(&(first, last), &DraftBuffer { bytes, class, .. })| Life {
            first,
            last,
            bytes,
            class,
        })
        .collect();
    slots::assign(&lives)
}
