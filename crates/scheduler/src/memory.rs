//! Adds up the memory required on devices.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bilayer_graph::fuse::{self, FusedOp, FusedProduct, Item};
use bilayer_graph::slots::{self, Life};
use bilayer_graph::{Facts, Graph, Op, Value, WeightId};
use bilayer_quant::Type;

use crate::bytes::sum;
use crate::{Budget, PlannedSegment};

/// The weights read by nodes, each once.
pub(crate) fn weights(graph: &Graph, nodes: impl IntoIterator<Item = usize>) -> BTreeSet<WeightId> {
    nodes.into_iter().flat_map(|node| graph.nodes[node].op.weights()).collect()
}

/// Bytes of weights as stored by a device.
pub(crate) fn weight_bytes(graph: &Graph, weights: &BTreeSet<WeightId>, facts: &Facts) -> u64 {
    let bytes = |id| {
        let weight = graph.weight(id);
        // A device that reads weights in the file has no residents beside all others.
        let is_copy = !weight.is_resident || facts.copies_weights;
        if is_copy { (weight.rows as u64).saturating_mul(facts.row_bytes(weight)) } else { 0 }
    };
    sum(weights.iter().map(|&id| bytes(id)))
}

/// Bytes of 16 values as integers with a scale and a sum; widths are rounded up to 64 values.
const QUANTIZED_BYTES: u64 = 24;
const QUANTIZED_MULTIPLE: usize = 64;

/// The representation of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Floats,
    Integers,
    /// Queries after RoPE.
    Turned,
}

/// Bytes of a segment's activations in the largest step, computed by the rules of the devices' layout: fused
/// intermediates take nothing, and values with disjoint lifetimes share memory.
pub(crate) fn activation_bytes(
    graph: &Graph,
    segment: &PlannedSegment,
    budget: &Budget,
    facts: &Facts,
) -> u64 {
    let items = fuse::joined(&segment.segment(graph));
    let mut lives = Lives::default();
    segment.inputs.iter().for_each(|&value| lives.at((value, Form::Floats), 0));
    for (at, item) in items.iter().enumerate() {
        lives.item(graph, item, facts, at);
        lives.scratch.extend(scratch(graph, item, at, budget));
    }
    // Inputs and outputs share memory with nothing.
    for &value in segment.inputs.iter().chain(&segment.outputs) {
        lives.at((value, Form::Floats), 0);
        lives.at((value, Form::Floats), 2 * items.len());
    }
    let mut buffers: BTreeMap<(Value, Form), Life> = BTreeMap::new();
    for ((value, form), (first, last)) in lives.spans {
        let bytes = form_bytes(graph, value, form, budget);
        let place = lives.beside.get(&value).copied().unwrap_or(value);
        let class = class(graph.width(value), form);
        let life = buffers.entry((place, form)).or_insert(Life { first, last, bytes: 0, class });
        *life = Life {
            first: life.first.min(first),
            last: life.last.max(last),
            bytes: life.bytes.saturating_add(bytes),
            class: life.class,
        };
    }
    // Quantized and float forms are separate.
    let apart = buffers.into_iter().flat_map(|((_, form), life)| match form {
        Form::Integers => {
            let steps = life.bytes / 3;
            let class = if life.class == 0 { 0 } else { life.class + 1 };
            vec![Life { bytes: life.bytes - steps, ..life }, Life { bytes: steps, class, ..life }]
        }
        Form::Floats | Form::Turned => vec![life],
    });
    sum(slots::assign(&apart.chain(lives.scratch).collect::<Vec<_>>()).1)
}

/// Rows that are not a multiple of 64 values are read beyond their end and share memory only with equal ones.
fn class(width: usize, form: Form) -> usize {
    match (width.is_multiple_of(QUANTIZED_MULTIPLE), form) {
        (true, _) => 0,
        (false, Form::Integers) => 4 * width + 1,
        (false, Form::Floats | Form::Turned) => 4 * width + 3,
    }
}

/// The lifetime of each form of each value. An item has two moments: in the first its input is prepared, in the
/// second its results are computed.
#[derive(Default)]
struct Lives {
    spans: BTreeMap<(Value, Form), (usize, usize)>,
    /// Results stored adjacent to another, by the first of them.
    beside: HashMap<Value, Value>,
    /// When products compute a value that they may quantize, too, or apply a norm to: gated ones, and those with a residual.
    makers: HashMap<Value, usize>,
    /// Temporary keys and values.
    scratch: Vec<Life>,
}

/// Keys and values of an attention without a cache: alive while it runs.
fn scratch(graph: &Graph, item: &Item, at: usize, budget: &Budget) -> Option<Life> {
    let FusedOp::Attend { node, .. } = item.kind else { return None };
    let Op::Attend(attend) = &graph.nodes[node].op else { return None };
    let types = Budget { key_type: Type::F32, value_type: Type::F32, ..*budget };
    let bytes = types.kv_bytes(&attend.scratch());
    let (first, last) = (2 * at, 2 * at + 1);
    attend.cache.is_none().then_some(Life { first, last, bytes, class: 0 })
}

impl Lives {
    fn at(&mut self, what: (Value, Form), moment: usize) {
        let span = self.spans.entry(what).or_insert((moment, moment));
        *span = (span.0.min(moment), span.1.max(moment));
    }

    fn item(&mut self, graph: &Graph, item: &Item, facts: &Facts, at: usize) {
        let (ready, made) = (2 * at, 2 * at + 1);
        match &item.kind {
            FusedOp::Multiply { input, norm, route, parts } => {
                let (integers, floats) = wanted(graph, parts, facts);
                let of = norm.and_then(|norm| graph.nodes[norm].op.inputs().next());
                // On a GPU the product before may write it.
                let maker = self.makers.get(&of.unwrap_or(*input)).filter(|_| facts.is_async);
                let maker = maker.copied().unwrap_or(ready);
                if integers {
                    self.at((*input, Form::Integers), maker);
                    self.at((*input, Form::Integers), made);
                }
                if floats && norm.is_some() {
                    self.at((*input, Form::Floats), maker);
                }
                // Norms write integers themselves; for other values the floats stay alive until they are quantized.
                if floats || norm.is_none() {
                    self.at((*input, Form::Floats), if floats { made } else { ready });
                }
                for value in item.reads(graph) {
                    let prepared = norm.is_some_and(|norm| {
                        graph.nodes[norm].op.inputs().any(|input| input == value)
                    });
                    if value != *input {
                        self.at((value, Form::Floats), if prepared { ready } else { made });
                    }
                }
                for part in parts {
                    let out = graph.nodes[part.last()].op.out();
                    self.at((out, Form::Floats), made);
                    if let FusedProduct::Gated { .. }
                    | FusedProduct::Plain { residual: Some(_), .. } = part
                    {
                        self.makers.insert(out, made);
                    }
                    // GPUs run an activation without `up` after its product.
                    if let FusedProduct::Activated { matmul, .. } = part {
                        self.at((graph.nodes[*matmul].op.out(), Form::Floats), made);
                    }
                }
                let groups = if route.is_none() { together(graph, parts) } else { Vec::new() };
                for group in groups {
                    self.beside.extend(group[1..].iter().map(|&value| (value, group[0])));
                }
            }
            FusedOp::Attend { node, q, k } => {
                let op = &graph.nodes[*node].op;
                self.at((k.input, Form::Floats), ready);
                op.inputs().nth(2).into_iter().for_each(|v| self.at((v, Form::Floats), ready));
                self.at((q.input, Form::Floats), if q.is_some() { ready } else { made });
                if q.is_some() {
                    self.at((q.input, Form::Turned), ready);
                    self.at((q.input, Form::Turned), made);
                }
                self.at((op.out(), Form::Floats), made);
            }
            FusedOp::Plain(node) => {
                let op = &graph.nodes[*node].op;
                let values = op.inputs().chain([op.out()]);
                values.for_each(|value| self.at((value, Form::Floats), ready));
            }
        }
    }
}

/// Whether products read their input as integers, and as floats.
fn wanted(graph: &Graph, parts: &[FusedProduct], facts: &Facts) -> (bool, bool) {
    let matmuls = parts.iter().flat_map(FusedProduct::matmuls);
    let ids = matmuls.flat_map(|node| graph.nodes[node].op.matrices().to_vec());
    ids.fold((false, false), |(integers, floats), id| {
        let takes_integers = facts.quantized.contains(&graph.weight(id).ty);
        (integers || takes_integers, floats || !takes_integers)
    })
}

fn form_bytes(graph: &Graph, value: Value, form: Form, budget: &Budget) -> u64 {
    let info = &graph.values[value.0 as usize];
    match form {
        Form::Floats | Form::Turned => budget.value_bytes(info),
        Form::Integers => {
            let pieces = info.width.next_multiple_of(QUANTIZED_MULTIPLE) as u64 / 16;
            let rows = budget.value_bytes(info) / (4 * info.width.max(1)) as u64;
            rows.saturating_mul(pieces).saturating_mul(QUANTIZED_BYTES)
        }
    }
}

/// Results that one kernel computes side by side: of plain products with matrices of one type.
fn together(graph: &Graph, parts: &[FusedProduct]) -> Vec<Vec<Value>> {
    let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for part in parts {
        let FusedProduct::Plain { matmul, residual: None } = part else { continue };
        let op = &graph.nodes[*matmul].op;
        if let [weight] = op.matrices() {
            groups.entry(graph.weight(*weight).ty.name).or_default().push(op.out());
        }
    }
    groups.into_values().collect()
}

/// Bytes that a device needs for a segment besides weights and caches: for activations and values in transfer.
pub fn working_bytes(
    graph: &Graph,
    segment: &PlannedSegment,
    budget: &Budget,
    facts: &Facts,
) -> u64 {
    let activations = activation_bytes(graph, segment, budget, facts);
    sum([activations, staging_bytes(graph, segment, budget, facts)])
}

/// Bytes of values in transfer to and from a segment, in the largest step.
pub(crate) fn staging_bytes(
    graph: &Graph,
    segment: &PlannedSegment,
    budget: &Budget,
    facts: &Facts,
) -> u64 {
    let outputs: &[Value] = if facts.shares_memory { &[] } else { &segment.outputs };
    let crossing = segment.inputs.iter().chain(outputs);
    sum(crossing.map(|value| budget.value_bytes(&graph.values[value.0 as usize])))
}
