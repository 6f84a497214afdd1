//! The naive executor: f32 values, one loop nest per op, the reference for all other backends.
//!
//! Nothing here is fast or clever: weights are dequantized to f32 when loaded, sums run in f64 from left to right and
//! are rounded once, and every value of a segment has its own buffer, so that after a step [`Backend::read`] returns
//! any of them, not only the segment's outputs.

mod add;
mod attend;
mod cache;
mod conv;
mod embed;
mod experts;
mod gate;
mod head_norm;
mod join;
mod layer_norm;
mod matmul;
mod mix;
mod part;
mod pool;
mod rms_norm;
mod rope;
mod route;
mod route_all;
mod rows;
mod scale;
mod scan;
mod soft_cap;
mod state;
mod top_k;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::no_state;
use crate::{
    Attend, Backend, CacheId, CachePages, Error, Facts, Holding, Ids, Kernel, Limits, Node, Op,
    OpTime, PAGE_TOKENS, Rows, Segment, SegmentId, SharedBytes, StateId, Step, Temperature, Value,
    ValueInfo, Weight, WeightId,
};
use cache::Cache;
use state::States;

const NAME: &str = "reference";

/// The naive executor. It runs inside `submit` and reports an op's failure at the next `read`.
#[derive(Debug)]
pub struct Reference {
    facts: Facts,
    weights: BTreeMap<WeightId, Vec<f32>>,
    /// Elements per row of each weight.
    cols: BTreeMap<WeightId, usize>,
    values: BTreeMap<Value, Buffer>,
    caches: BTreeMap<CacheId, Cache>,
    states: BTreeMap<StateId, States>,
    segments: Vec<Arc<Compiled>>,
    /// Timings of each segment.
    timings: Vec<Vec<OpTime>>,
    failure: Option<Error>,
}

/// A value's rows in the current step, in a buffer for the maximum number of rows.
#[derive(Debug)]
struct Buffer {
    info: ValueInfo,
    data: Vec<f32>,
    len: usize,
}

/// A compiled segment.
#[derive(Debug)]
struct Compiled {
    nodes: Vec<(u32, Node)>,
    inputs: Vec<Value>,
    /// The caches of its nodes, in which it performs the step's page copies.
    caches: Vec<CacheId>,
    limits: Limits,
}

impl Default for Reference {
    fn default() -> Self {
        Self::new()
    }
}

impl Reference {
    /// An empty executor.
    pub fn new() -> Self {
        Reference {
            // It copies the weights it is given.
            facts: Facts {
                family: NAME,
                level: "naive".to_owned(),
                copies_weights: true,
                ..Facts::host(NAME, u64::MAX)
            },
            weights: BTreeMap::new(),
            cols: BTreeMap::new(),
            values: BTreeMap::new(),
            caches: BTreeMap::new(),
            states: BTreeMap::new(),
            segments: Vec::new(),
            timings: Vec::new(),
            failure: None,
        }
    }

    /// Allocates a buffer for `value` with the maximum number of rows.
    fn reserve(&mut self, value: Value, info: &ValueInfo, limits: &Limits) {
        let rows = match info.rows {
            Rows::Tokens => limits.tokens,
            Rows::Outputs => limits.outputs,
        };
        let buffer = self.values.entry(value).or_insert_with(|| Buffer {
            info: info.clone(),
            data: Vec::new(),
            len: 0,
        });
        let room = buffer.data.len().max(rows * info.width);
        buffer.data.resize(room, 0.0);
    }

    /// The rows of a value, computed by an earlier op or written.
    fn rows(&self, value: Value) -> &[f32] {
        rows_in(&self.values, value)
    }

    /// Runs one op on its output's buffer.
    fn run(&mut self, op: &Op, step: &Step<'_>) {
        let mut buffer = self.values.remove(&op.out()).expect("compile reserved every output");
        buffer.len = rows_of(&buffer.info, step) * buffer.info.width;
        let out = &mut buffer.data[..buffer.len];
        let weight = |id: &WeightId| self.weights[id].as_slice();
        match op {
            Op::Embed { table, ids, .. } => {
                let rows = weight(table).len() / buffer.info.width;
                let ids = ids_of(*ids, step, rows);
                embed::embed(weight(table), &ids, buffer.info.width, out);
            }
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::HeadNorm { .. } => {
                self.normalize(op, buffer.info.width, out);
            }
            Op::MatMul { input, weight: matrix, bias, .. } => {
                let cols = self.values[input].info.width;
                let bias = bias.as_ref().map(weight);
                matmul::matmul(self.rows(*input), weight(matrix), bias, cols, out);
            }
            Op::Rope { input, head_dim, rope, .. } => {
                self.rotate(*input, *head_dim, rope, step, out);
            }
            Op::Attend(op) => self.attend(op, step, out),
            Op::Conv { .. } | Op::Scan(_) => self.recur(op, step, out),
            Op::Gate { gate, up, activation, .. } => {
                let up = up.map(|up| self.rows(up));
                gate::gate(*activation, self.rows(*gate), up, out);
            }
            Op::Add { a, b, .. } => add::add(self.rows(*a), self.rows(*b), out),
            Op::Scale { .. } => self.scale(op, step, out),
            Op::SoftCap { input, cap, .. } => soft_cap::soft_cap(self.rows(*input), *cap, out),
            Op::Part { input, stride, first, width, .. } => {
                part::part(self.rows(*input), *stride, *first..first + width, out);
            }
            Op::Join { a, b, widths, .. } => {
                join::join([self.rows(*a), self.rows(*b)], *widths, out);
            }
            Op::Rows { input, .. } => {
                rows::rows(self.rows(*input), step.outputs, buffer.info.width, out);
            }
            Op::Pool { input, .. } => {
                pool::pool(self.rows(*input), step, buffer.info.width, out);
            }
            Op::TopK { input, .. } => {
                let width = self.values[input].info.width;
                let k = buffer.info.width / 2;
                top_k::top_k((self.rows(*input), width), (k, step.top_k.min(k)), out);
            }
            Op::RouteAll { experts, .. } => route_all::route_all(*experts, out),
            Op::Route(_) | Op::Experts(_) | Op::Mix { .. } => {
                self.mixture(op, buffer.info.width, out);
            }
        }
        self.values.insert(op.out(), buffer);
    }

    /// Runs attention, with its cache.
    fn attend(&mut self, op: &Attend, step: &Step<'_>, out: &mut [f32]) {
        let inputs = attend::Inputs {
            q: rows_in(&self.values, op.q),
            k: rows_in(&self.values, op.k),
            v: op.v.beside().map(|v| rows_in(&self.values, v)),
            sinks: op.sinks.map(|id| self.weights[&id].as_slice()),
            table: op.table().map(|id| self.weights[&id].as_slice()),
        };
        let mut scratch = None;
        let cache = match &op.cache {
            Some(id) => self.caches.get_mut(id).expect("compile reserved the cache"),
            None => scratch.insert(Cache::scratch(op, step)),
        };
        attend::attend(op, &inputs, cache, step, out);
    }

    /// Runs a norm.
    fn normalize(&self, op: &Op, width: usize, out: &mut [f32]) {
        let weight = |id: &WeightId| self.weights[id].as_slice();
        match op {
            Op::RmsNorm { input, gain, eps, .. } => {
                let gain = gain.as_ref().map(weight);
                rms_norm::rms_norm(self.rows(*input), gain, width, *eps, out);
            }
            Op::LayerNorm { input, gain, bias, eps, .. } => {
                let bias = bias.as_ref().map(weight);
                let norm = layer_norm::LayerNorm { gain: weight(gain), bias, eps: *eps };
                layer_norm::layer_norm(&norm, self.rows(*input), out);
            }
            Op::HeadNorm { input, gain, head_dim, centered, eps, .. } => {
                let (gain, head_dim) = (gain.as_ref().map(weight), *head_dim);
                let norm = head_norm::HeadNorm { gain, head_dim, centered: *centered, eps: *eps };
                head_norm::head_norm(&norm, self.rows(*input), out);
            }
            _ => unreachable!("not a norm"),
        }
    }

    /// Runs an op with a state.
    fn recur(&mut self, op: &Op, step: &Step<'_>, out: &mut [f32]) {
        let weight = |id: &WeightId| self.weights[id].as_slice();
        let rows = |value| rows_in(&self.values, value);
        let state = op.state().expect("the caller's match");
        let states = self.states.get_mut(&state).expect("compile reserved the state");
        match op {
            Op::Conv { input, weight: taps, bias, .. } => {
                let bias = bias.as_ref().map(weight);
                let inputs = conv::Inputs { rows: rows(*input), weight: weight(taps), bias };
                conv::conv(&inputs, states, step, out);
            }
            Op::Scan(op) => {
                let columns = |of: crate::Columns| {
                    let stride = self.values[&of.value].info.width;
                    scan::RowColumns { rows: rows(of.value), stride, first: of.first }
                };
                let inputs = scan::Inputs {
                    x: columns(op.x),
                    b: columns(op.b),
                    c: columns(op.c),
                    dt: rows(op.dt),
                    beta: op.update.beta().map(rows),
                    bias: weight(&op.bias),
                    decay: weight(&op.decay),
                    skip: op.update.skip().as_ref().map(weight),
                };
                scan::scan(op, &inputs, states, step, out);
            }
            _ => unreachable!("an op without a state"),
        }
    }

    /// Runs an [`Op::Scale`].
    fn scale(&self, op: &Op, step: &Step<'_>, out: &mut [f32]) {
        let weight = |id: &WeightId| self.weights[id].as_slice();
        match op {
            Op::Scale { input, factor, temperature, by, .. } => {
                let factor = &(factor * by.as_ref().map_or(1.0, |by| weight(by)[0]));
                let factors = |by: &Temperature| -> Vec<f32> {
                    step.positions().map(|position| factor * by.at(position)).collect()
                };
                match temperature {
                    None => scale::scale(self.rows(*input), *factor, out),
                    Some(by) => scale::scale_rows(self.rows(*input), &factors(by), out),
                }
            }
            _ => unreachable!("not a scale"),
        }
    }

    /// Runs an [`Op::Rope`].
    fn rotate(
        &self,
        input: Value,
        head_dim: usize,
        rope: &crate::Rope,
        step: &Step<'_>,
        out: &mut [f32],
    ) {
        let rotation = rope::Rotation {
            pairs: rope.pairs,
            frequencies: &rope.frequencies,
            factors: rope.factors.as_ref().map(|id| self.weights[id].as_slice()),
            magnitude: rope.magnitude,
            head_dim,
        };
        rope::rope(&rotation, self.rows(input), step.positions(), out);
    }

    /// Runs an op of a mixture of experts; its output is `width` wide.
    fn mixture(&self, op: &Op, width: usize, out: &mut [f32]) {
        let weight = |id: &WeightId| self.weights[id].as_slice();
        match op {
            Op::Route(op) => {
                let experts = self.values[&op.logits].info.width;
                let of_experts = [op.bias, op.factors].map(|id| id.as_ref().map(weight));
                route::route(op, self.rows(op.logits), of_experts, experts, out);
            }
            Op::Experts(op) => {
                let used = self.values[&op.route].info.width / 2;
                let stack: Vec<&[f32]> = op.stack.iter().map(weight).collect();
                let shape =
                    experts::Shape { used, rows: width / used, cols: self.cols[&op.stack[0]] };
                let [bias, factors] = [op.bias, op.factors].map(|id| id.as_ref().map(weight));
                let beside = experts::Beside { bias, factors };
                let (input, route) = (self.rows(op.input), self.rows(op.route));
                experts::experts(&shape, input, route, &stack, &beside, out);
            }
            Op::Mix { input, route, .. } => {
                mix::mix(self.rows(*input), self.rows(*route), width, out);
            }
            _ => unreachable!("no op of a mixture"),
        }
    }
}

impl Backend for Reference {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), Error> {
        self.weights.retain(|id, _| holding.weights.iter().any(|weight| weight.id == *id));
        self.caches.retain(|id, _| holding.caches.contains(id));
        self.states.retain(|id, _| holding.states.contains(id));
        self.values.clear();
        self.segments.clear();
        self.timings.clear();
        let mut streamed = holding.streamed.iter().flat_map(|layer| &layer.weights);
        streamed.try_for_each(|(weight, bytes)| self.load(weight, bytes.clone()))
    }

    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), Error> {
        let wrong_length = || Error::WeightBytes {
            name: weight.name.clone(),
            expected: weight.bytes(),
            found: bytes.len(),
        };
        let mut floats = vec![0.0; weight.rows * weight.cols];
        weight.ty.dequantize(&bytes, &mut floats).map_err(|_| wrong_length())?;
        self.weights.insert(weight.id, floats);
        self.cols.insert(weight.id, weight.cols);
        Ok(())
    }

    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), Error> {
        let wrong =
            || Error::WeightNotLoaded { name: weight.name.clone(), device: NAME.to_owned() };
        let each = weight.rows / weight.stacked * weight.cols;
        let floats = self.weights.get_mut(&weight.id).ok_or_else(wrong)?;
        let floats = floats.chunks_exact_mut(each).nth(matrix).ok_or_else(wrong)?;
        weight.ty.dequantize(bytes, floats).map_err(|_| wrong())
    }

    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, Error> {
        let graph = segment.graph;
        let mut caches = Vec::new();
        for &input in &segment.inputs {
            self.reserve(input, &graph.values[input.0 as usize], &limits);
        }
        for node in &graph.nodes[segment.nodes.clone()] {
            if let Some(id) = node.op.weights().find(|id| !self.weights.contains_key(id)) {
                let name = graph.weight(id).name.clone();
                return Err(Error::WeightNotLoaded { name, device: NAME.to_owned() });
            }
            for input in node.op.inputs() {
                assert!(self.values.contains_key(&input), "{}: not an input", node.label());
            }
            self.reserve(node.op.out(), &graph.values[node.op.out().0 as usize], &limits);
            if let Some(id) = node.op.state()
                && limits.must_reserve_states(self.states.get(&id).map(States::slots))?
            {
                self.states.insert(id, States::new(graph.state(id).elements, limits.states));
            }
            let Op::Attend(Attend { cache: Some(id), .. }) = &node.op else { continue };
            if let Some(cache) = self.caches.get(id) {
                if cache.pages() != limits.pages {
                    return Err(limits.other_cache(cache.pages()));
                }
            } else {
                self.caches.insert(*id, Cache::new(graph.cache(*id), &limits)?);
            }
            if !caches.contains(id) {
                caches.push(*id);
            }
        }
        let nodes = segment.nodes.clone().map(|n| (n as u32, graph.nodes[n].clone())).collect();
        let inputs = segment.inputs.clone();
        self.segments.push(Arc::new(Compiled { nodes, inputs, caches, limits }));
        self.timings.push(Vec::new());
        Ok(SegmentId(self.segments.len() as u32 - 1))
    }

    fn next_segment(&self) -> SegmentId {
        SegmentId(self.segments.len() as u32)
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.segments.truncate(from.0 as usize);
    }

    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), Error> {
        let compiled = Arc::clone(&self.segments[segment.0 as usize]);
        check_limits(&compiled.limits, step)?;
        for &value in &compiled.inputs {
            let Buffer { info, len, .. } = &self.values[&value];
            assert_eq!(*len, rows_of(info, step) * info.width, "{value:?} was not written");
        }
        let mut timings = std::mem::take(&mut self.timings[segment.0 as usize]);
        timings.clear();
        self.failure = None;
        for cache in &compiled.caches {
            self.caches.get_mut(cache).expect("compile reserved it").copy(step.copies);
        }
        let first = Instant::now();
        for (place, node) in &compiled.nodes {
            let start = Instant::now();
            self.run(&node.op, step);
            if compiled.limits.timings {
                let (start_ns, ns) = (nanoseconds(start - first), nanoseconds(start.elapsed()));
                timings.push(OpTime { node: *place, start_ns, ns });
            }
            if compiled.limits.check && !self.rows(node.op.out()).iter().all(|v| v.is_finite()) {
                let op = node.op.kind().stem();
                self.failure = Some(Error::NotFinite { label: node.label(), op });
                break;
            }
        }
        self.timings[segment.0 as usize] = timings;
        Ok(())
    }

    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), Error> {
        let buffer = self.values.get_mut(&value).expect("a segment has the value as its input");
        buffer.data[..data.len()].copy_from_slice(data);
        buffer.len = data.len();
        Ok(())
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        data.copy_from_slice(self.rows(value));
        Ok(())
    }

    fn timings(&self, segment: SegmentId) -> &[OpTime] {
        self.timings.get(segment.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn kernels(&self, segment: SegmentId) -> Vec<Kernel> {
        let kernel = |(place, node): &(u32, Node)| Kernel {
            nodes: vec![*place],
            name: format!("{} {NAME}", node.op.kind().stem()),
        };
        self.segments[segment.0 as usize].nodes.iter().map(kernel).collect()
    }

    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, Error> {
        match self.caches.get(&cache) {
            Some(cache) => Ok(cache.save(pages)),
            None => Err(no_cache(cache)),
        }
    }

    fn restore(&mut self, cache: CacheId, pages: &[u32], data: &CachePages) -> Result<(), Error> {
        match self.caches.get_mut(&cache) {
            Some(cache) => cache.restore(pages, data),
            None => return Err(no_cache(cache)),
        }
        Ok(())
    }

    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, Error> {
        match self.states.get(&state) {
            Some(states) => Ok(states.save(slots)),
            None => Err(no_state(state)),
        }
    }

    fn restore_state(&mut self, state: StateId, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        match self.states.get_mut(&state) {
            Some(states) => states.restore(slots, data),
            None => return Err(no_state(state)),
        }
        Ok(())
    }
}

fn no_cache(cache: CacheId) -> Error {
    Error::Limit { what: "as a cache's number", limit: 0, found: cache.0 as usize }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The table row of each token.
fn ids_of(ids: Ids, step: &Step<'_>, rows: usize) -> Vec<u32> {
    match ids {
        Ids::Tokens => step.tokens.to_vec(),
        Ids::Positions => step.positions().collect(),
        Ids::Segments { separator } => step.segments(separator, rows as u32 - 1).collect(),
    }
}

/// The rows of a value in `values`.
fn rows_in(values: &BTreeMap<Value, Buffer>, value: Value) -> &[f32] {
    let buffer = &values[&value];
    &buffer.data[..buffer.len]
}

/// Number of rows of a value in this step.
fn rows_of(info: &ValueInfo, step: &Step<'_>) -> usize {
    match info.rows {
        Rows::Tokens => step.tokens.len(),
        Rows::Outputs => step.outputs.len(),
    }
}

/// Refuses a step that exceeds the limits; an inconsistent step is our own mistake.
fn check_limits(limits: &Limits, step: &Step<'_>) -> Result<(), Error> {
    let counts = [
        ("tokens", limits.tokens, step.tokens.len()),
        ("outputs", limits.outputs, step.outputs.len()),
        ("sequences", limits.sequences, step.spans.len()),
        ("page entries", limits.page_entries, step.pages.len()),
    ];
    for (what, limit, found) in counts {
        if found > limit {
            return Err(Error::Limit { what, limit, found });
        }
    }
    let copied = step.copies.iter().flat_map(|copy| [&copy.from, &copy.to]);
    if let Some(&page) = step.pages.iter().chain(copied).max()
        && page as usize >= limits.pages
    {
        return Err(Error::Limit { what: "pages", limit: limits.pages, found: page as usize + 1 });
    }
    let slots = step.states.iter().flat_map(|span| span.from.into_iter().chain([span.to]));
    if let Some(slot) = slots.max().filter(|&slot| slot as usize >= limits.states) {
        let (what, found) = ("slots of state", slot as usize + 1);
        return Err(Error::Limit { what, limit: limits.states, found });
    }
    let mut rows = 0;
    for span in step.spans {
        assert_eq!(span.first_row, rows, "spans cover the rows in order");
        rows += span.rows;
        let last = (span.first_position + span.rows - 1) as usize;
        assert!(
            span.first_page as usize + last / PAGE_TOKENS < step.pages.len(),
            "short page table"
        );
    }
    assert_eq!(rows as usize, step.tokens.len(), "spans cover all rows");
    assert!(step.outputs.iter().all(|&row| row < rows), "an output is a row of the step");
    Ok(())
}

#[cfg(test)]
mod tests;
