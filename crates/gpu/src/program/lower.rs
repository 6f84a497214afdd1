//! Lowers a segment to a draft: selects kernels, views and their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bilayer_graph::fuse::{self, FusedOp, Item};
use bilayer_graph::{
    CacheId, Error as GraphError, Graph, Ids, Limits, Op, Rows, Segment, StateId, Value, WeightId,
};
use bytemuck::Pod;

use super::build::Draft;
use super::draft::{
    DraftBuffer, DraftChoice, DraftDispatch, DraftStage, Grid, Operand, View, always,
};
use super::step::{Splits, StepKind, Words};
use crate::cache::Cache;
use crate::caps::{Caps, Input};
use crate::kernel::Source;
use crate::kernels;
use crate::rate::DeviceRates;
use crate::slots::Slots;
use crate::weights::{ROW_MULTIPLE, Weights};

mod attend;
mod emit;
mod experts;
mod plain;
mod product;

/// Maximum duration of one dispatch in seconds, at the device's measured speed.
const DISPATCH_SECONDS: f64 = 0.05;

/// Workgroups that fill a device; more are harmless.
const GROUPS_WANTED: u32 = 1024;

/// Workgroups that fill a software adapter, which runs them on a few cores.
const GROUPS_WANTED_SOFTWARE: u32 = 8;

/// Maximum parts of a tile's keys.
const SPLITS_MAX: u32 = 64;

/// The device's state for lowering a segment.
pub struct Holdings<'a> {
    /// Capabilities.
    pub caps: &'a Caps,
    /// Its weights.
    pub weights: &'a Weights,
    /// Its caches.
    pub caches: &'a HashMap<CacheId, Cache>,
    /// Its states of sequences.
    pub states: &'a HashMap<StateId, Slots>,
    /// Its speed.
    pub rates: DeviceRates,
}

/// Quantized activations of a value: two buffers.
#[derive(Clone, Copy)]
struct Quantized {
    q: usize,
    s: usize,
}

/// A value as halves: two buffers.
#[derive(Clone, Copy)]
struct Halves {
    h: usize,
    s: usize,
}

/// The forms in which later kernels read a value.
#[derive(Clone, Copy, Default)]
struct Wanted {
    floats: bool,
    quantized: bool,
    /// Whether it is read quantized in steps of many rows.
    quantized_many: bool,
}

/// The forms in which products read their input, in steps of few columns and of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forms {
    few: Input,
    many: Input,
}

/// A segment on its way to dispatches.
pub struct Lowering<'a> {
    graph: &'a Graph,
    limits: &'a Limits,
    holdings: &'a Holdings<'a>,
    caps: &'a Caps,
    words: Words,
    stages: Vec<DraftStage>,
    buffers: Vec<DraftBuffer>,
    /// The classes of padded buffers, by their shapes.
    shapes: HashMap<Vec<usize>, usize>,
    views: BTreeMap<Value, View>,
    quantized: HashMap<Value, Quantized>,
    halves: HashMap<Value, Halves>,
    wanted: HashMap<Value, Wanted>,
    vectors: Vec<f32>,
    places: HashMap<WeightId, u32>,
    constants: HashMap<Vec<u32>, u32>,
    /// Tables of groups by route.
    groups: HashMap<Value, experts::Table>,
    outputs: BTreeSet<Value>,
    /// Values that are quantized by a separate stage, except in steps of one row.
    late: BTreeSet<Value>,
    /// Values that the merge of attention's parts quantizes, where there are parts.
    merged: BTreeSet<Value>,
    /// Norms that steps of few rows have no kernel for, by the values that they are of.
    folded: HashMap<Value, emit::FoldedNorm>,
    /// The values that they are of, by their results.
    normed: HashMap<Value, Value>,
    /// Values that the products which make them quantize in steps of few rows.
    quantized_by_maker: BTreeSet<Value>,
    /// Whether every stage's name says what it is part of.
    checked: bool,
}

/// Selects kernels for a segment.
///
/// # Errors
/// An op or shape without a kernel.
pub fn lower(
    segment: &Segment<'_>,
    limits: &Limits,
    holdings: &Holdings<'_>,
) -> Result<Draft, GraphError> {
    let items = if limits.fuse { fuse::joined(segment) } else { fuse::single(segment) };
    let attends =
        segment.graph.nodes[segment.nodes.clone()].iter().find_map(|node| match &node.op {
            Op::Attend(attend) => Some(attend),
            _ => None,
        });
    let (heads, pages) = attends.map_or((1, 1), |of| attend::of_tile(of, limits, holdings));
    let wanted = if holdings.caps.software { GROUPS_WANTED_SOFTWARE } else { GROUPS_WANTED };
    let splits = Splits {
        wanted,
        // On hardware a part is bound by the time of one workgroup, on software by the work of all.
        least_pages: pages.max(if holdings.caps.software { 2 } else { 1 }),
        max: SPLITS_MAX,
        heads,
        rows: attend::split_rows(limits) as u32,
    };
    let tile_rows = attend::tile_rows(segment, limits, holdings.caps);
    let mut lowering = Lowering {
        graph: segment.graph,
        limits,
        holdings,
        caps: holdings.caps,
        words: Words::new(limits, step_kind(segment), tile_rows, splits),
        stages: Vec::new(),
        buffers: Vec::new(),
        shapes: HashMap::new(),
        views: BTreeMap::new(),
        quantized: HashMap::new(),
        halves: HashMap::new(),
        wanted: HashMap::new(),
        vectors: vec![0.0; 4],
        places: HashMap::new(),
        constants: HashMap::new(),
        groups: HashMap::new(),
        outputs: segment.outputs.iter().copied().collect(),
        late: BTreeSet::new(),
        merged: BTreeSet::new(),
        folded: HashMap::new(),
        normed: HashMap::new(),
        quantized_by_maker: BTreeSet::new(),
        checked: limits.check,
    };
    for &input in &segment.inputs {
        lowering.view(input);
    }
    lowering.want(&items);
    lowering.fold_norms(&items);
    lowering.copy_pages(segment);
    for item in &items {
        lowering.item(item)?;
    }
    let pinned = segment.inputs.iter().chain(&segment.outputs);
    for value in pinned {
        let buffer = lowering.view(*value).buffer;
        lowering.buffers[buffer].pinned = true;
    }
    if lowering.checked {
        lowering.buffers.iter_mut().for_each(|buffer| buffer.pinned = true);
    }
    Ok(Draft {
        stages: lowering.stages,
        buffers: lowering.buffers,
        views: lowering.views,
        inputs: segment.inputs.clone(),
        outputs: segment.outputs.clone(),
        vectors: lowering.vectors,
        words: lowering.words,
    })
}

/// A segment's requirements on the step buffer.
fn step_kind(segment: &Segment<'_>) -> StepKind {
    let ops = || segment.graph.nodes[segment.nodes.clone()].iter().map(|node| &node.op);
    let segments = |op: &Op| match op {
        Op::Embed { table, ids: Ids::Segments { separator }, .. } => {
            Some((*separator, segment.graph.weight(*table).rows as u32 - 1))
        }
        _ => None,
    };
    StepKind {
        whole: ops().any(|op| matches!(op, Op::Attend(attend) if attend.cache.is_none())),
        segments: ops().find_map(segments),
    }
}

impl<'a> Lowering<'a> {
    fn item(&mut self, item: &Item) -> Result<(), GraphError> {
        match &item.kind {
            FusedOp::Plain(node) => self.plain(*node),
            FusedOp::Multiply { input, norm, route, parts } => {
                if let Some(norm) = norm {
                    self.plain(*norm)?;
                }
                match route {
                    Some(route) => self.mixture(*input, *route, parts),
                    None => self.multiply(*input, parts),
                }
            }
            FusedOp::Attend { node, q, k } => self.attend(*node, q, k),
        }
    }

    fn op(&self, node: usize) -> &'a Op {
        &self.graph.nodes[node].op
    }

    /// Records how each value will be read.
    fn want(&mut self, items: &[Item]) {
        for item in items {
            if let FusedOp::Multiply { input, parts, .. } = &item.kind {
                let forms = self.forms(parts);
                let wanted = self.wanted.entry(*input).or_default();
                for Forms { few, many } in forms {
                    // Halves are made of floats.
                    wanted.floats |= [few, many].iter().any(|form| *form != Input::Quantized);
                    wanted.quantized |= [few, many].contains(&Input::Quantized);
                    wanted.quantized_many |= many == Input::Quantized;
                }
            }
            for value in item.reads(self.graph) {
                let multiplied = matches!(&item.kind,
                    FusedOp::Multiply { input, norm: None, .. } if *input == value);
                if !multiplied {
                    self.wanted.entry(value).or_default().floats = true;
                }
            }
        }
        for value in self.outputs.clone() {
            self.wanted.entry(value).or_default().floats = true;
        }
        if self.checked {
            self.wanted.values_mut().for_each(|wanted| wanted.floats = true);
        }
    }

    fn wanted(&self, value: Value) -> Wanted {
        let wanted = self.wanted.get(&value).copied().unwrap_or_default();
        // A value without readers is still computed.
        Wanted { floats: wanted.floats || !wanted.quantized, ..wanted }
    }

    fn rows_max(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
        }
    }

    fn buffer(&mut self, bytes: u64) -> usize {
        self.buffers.push(DraftBuffer { bytes, pinned: false, class: 0 });
        self.buffers.len() - 1
    }

    /// Allocates a buffer whose rows are read beyond their end: the padding stays zero, as in new memory, as long as
    /// only buffers of equal `shape` share it. Other contents might be NaN. In memory of a pool, which programs of
    /// other shapes use too, each step begins by clearing it.
    fn padded_buffer(&mut self, bytes: u64, shape: Vec<usize>) -> usize {
        let buffer = self.buffer(bytes);
        let next = self.shapes.len() + 1;
        self.buffers[buffer].class = *self.shapes.entry(shape).or_insert(next);
        buffer
    }

    /// The location of a value; allocates memory if it has none yet.
    fn view(&mut self, value: Value) -> View {
        if let Some(view) = self.views.get(&value) {
            return *view;
        }
        self.views_of(&[value])[0]
    }

    /// Places values with equal rows side by side in one buffer.
    fn views_of(&mut self, values: &[Value]) -> Vec<View> {
        let rows = self.graph.rows(values[0]);
        let widths: Vec<usize> = values.iter().map(|&value| self.graph.width(value)).collect();
        let stride = widths.iter().sum::<usize>().next_multiple_of(ROW_MULTIPLE);
        let bytes = (self.rows_max(rows) * stride * 4) as u64;
        let buffer = match widths.iter().sum::<usize>() == stride {
            true => self.buffer(bytes),
            false => self.padded_buffer(bytes, widths.clone()),
        };
        let mut offset = 0;
        let mut views = Vec::with_capacity(values.len());
        for (&value, &width) in values.iter().zip(&widths) {
            let view = View {
                buffer,
                offset: offset as u32,
                stride: stride as u32,
                width: width as u32,
                rows,
            };
            self.views.insert(value, view);
            views.push(view);
            offset += width;
        }
        views
    }

    /// Allocates memory for the quantized activations of a value.
    fn quantized(&mut self, value: Value) -> Quantized {
        if let Some(quantized) = self.quantized.get(&value) {
            return *quantized;
        }
        let pieces = kernels::view::pieces(self.graph.width(value));
        let rows = self.rows_max(self.graph.rows(value));
        let width = self.graph.width(value);
        let [q, s] = [16, 8].map(|each| {
            let bytes = (rows * pieces * each) as u64;
            match width.is_multiple_of(ROW_MULTIPLE) {
                true => self.buffer(bytes),
                // The first number separates the two from each other and from floats.
                false => self.padded_buffer(bytes, vec![0, each, width]),
            }
        });
        let quantized = Quantized { q, s };
        self.quantized.insert(value, quantized);
        quantized
    }

    /// Allocates memory for a value as halves, with a factor per row.
    fn halves(&mut self, value: Value) -> Halves {
        if let Some(halves) = self.halves.get(&value) {
            return *halves;
        }
        let width = self.graph.width(value).next_multiple_of(ROW_MULTIPLE);
        let rows = self.rows_max(self.graph.rows(value)) as u64;
        let [h, s] = [2 * width as u64, 4].map(|each| self.buffer(rows * each));
        let halves = Halves { h, s };
        self.halves.insert(value, halves);
        halves
    }

    /// Place of a vector in `vectors`, in quads.
    fn vector(&mut self, id: WeightId) -> u32 {
        if let Some(place) = self.places.get(&id) {
            return *place;
        }
        let floats = self.holdings.weights.vector(id).unwrap_or_default().to_vec();
        let place = self.append(&floats);
        self.places.insert(id, place);
        place
    }

    /// Appends floats to the vectors; returns their offset in quads.
    fn append(&mut self, floats: &[f32]) -> u32 {
        let place = self.vectors.len() / 4;
        self.vectors.extend_from_slice(floats);
        // Whole units, so that a kernel may read to the end of one.
        self.vectors.resize(self.vectors.len().next_multiple_of(ROW_MULTIPLE), 0.0);
        place as u32
    }

    /// Place of constants among the vectors, in quads; the same ones once.
    fn constants(&mut self, words: Vec<u32>) -> u32 {
        if let Some(place) = self.constants.get(&words) {
            return *place;
        }
        let floats: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
        let place = self.append(&floats);
        self.constants.insert(words, place);
        place
    }

    /// Adds a stage of one dispatch over all rows.
    fn stage(&mut self, nodes: &[usize], makes: Option<Value>, dispatch: DraftDispatch) {
        let name = dispatch.source.name.clone();
        let choices = vec![DraftChoice { when: always, bound: 0, dispatches: vec![dispatch] }];
        self.push(nodes, name, makes, choices);
    }

    fn push(
        &mut self,
        nodes: &[usize],
        name: String,
        makes: Option<Value>,
        choices: Vec<DraftChoice>,
    ) {
        let nodes = nodes.iter().map(|&node| node as u32).collect();
        self.stages.push(DraftStage { nodes, name, choices, makes });
    }
}

/// Makes one dispatch of a kernel.
fn dispatch(
    source: Source,
    params: &impl Pod,
    operands: Vec<Operand>,
    grid: Grid,
) -> DraftDispatch {
    assert_eq!(operands.len(), source.bindings.len(), "{}: operands", source.name);
    DraftDispatch { params: bytemuck::bytes_of(params).to_vec(), source, operands, grid }
}
