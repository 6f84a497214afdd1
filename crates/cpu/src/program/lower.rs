//! Lowers items to stages: places buffers, binds weights, selects and names kernels.

use std::collections::HashMap;
use std::sync::Arc;

use bilayer_graph::{
    Activation, Attend, CacheId, DistanceBias, Graph, Ids, Kernel, Limits, Op, Precision, Rows,
    Segment, Value, Weight,
};

use super::check::{Check, Verdict};
use super::place::{Request, place};
use super::{Parts, Placed};
use crate::cache::Cache;
use crate::lowering::{Holdings, Lowering};
use crate::matrix::Vector;
use crate::memory::lines;
use crate::ops::attend::{self, tile_tokens};
use crate::ops::experts::{self, Mixture};
use crate::ops::matmul::{self, Group, Linear};
use crate::ops::norm::Norm;
use crate::ops::rope;
use crate::ops::{self, Lower};
use crate::plan::{Plan, Reach};
use crate::stage::{Buffer, Stage};
use crate::state::{State, Tables};
use crate::types;
use bilayer_graph::fuse::{self, FusedOp, FusedProduct, Item};

/// Lowers a segment. All its weights are loaded and its caches allocated.
pub(crate) fn lower(segment: &Segment<'_>, limits: Limits, holdings: &Holdings<'_>) -> Parts {
    // Checking examines every op's result, so nothing may be fused away.
    let fused = limits.fuse && !limits.check;
    let items = if fused { fuse::joined(segment) } else { fuse::single(segment) };
    let mut assembly = Assembly::new(segment, limits, holdings, &items);
    assembly.copies(segment);
    for (at, item) in items.iter().enumerate() {
        assembly.item(at, item);
    }
    assembly.parts(segment)
}

/// The stages of a segment under construction.
struct Assembly<'a> {
    graph: &'a Graph,
    limits: Limits,
    lowering: Lowering<'a>,
    /// Number of rows from which a value's products are those of GEMM kernels.
    many: HashMap<Value, usize>,
    /// Offset of each item's own memory.
    own: Vec<usize>,
    arena_bytes: usize,
    plans: Vec<Plan>,
    stages: Vec<Box<dyn Stage>>,
    kernels: Vec<Placed>,
    caches: Vec<CacheId>,
    verdict: Option<Arc<Verdict>>,
}

impl<'a> Assembly<'a> {
    fn new(
        segment: &Segment<'a>,
        limits: Limits,
        holdings: &'a Holdings<'a>,
        items: &[Item],
    ) -> Assembly<'a> {
        let graph = segment.graph;
        let names = segment.nodes.clone().map(|node| {
            let of = &graph.nodes[node];
            (node as u32, of.label(), of.op.kind().stem())
        });
        let verdict = limits.check.then(|| Arc::new(Verdict::new(names.collect())));
        let mut assembly = Assembly {
            graph,
            limits,
            lowering: Lowering::new(graph, holdings),
            many: matmul::many(graph, holdings.level),
            own: Vec::new(),
            arena_bytes: 0,
            plans: Vec::new(),
            stages: Vec::new(),
            kernels: Vec::new(),
            caches: Vec::new(),
            verdict,
        };
        assembly.place(segment, items);
        assembly
    }

    /// Places all values, each item's own memory and the RoPE tables.
    fn place(&mut self, segment: &Segment<'_>, items: &[Item]) {
        let graph = self.graph;
        let mut spans: HashMap<Value, (usize, usize)> = HashMap::new();
        for &value in &segment.inputs {
            spans.insert(value, (0, 0));
        }
        for (at, item) in items.iter().enumerate() {
            for value in item.writes(graph) {
                spans.insert(value, (at, at));
            }
            for value in item.reads(graph) {
                spans.get_mut(&value).expect("values are made before they are read").1 = at;
            }
        }
        for value in &segment.outputs {
            spans.get_mut(value).expect("outputs are made in the segment").1 = items.len();
        }
        let holders = self.holders(items, &mut spans);
        let mut values: Vec<(Value, (usize, usize))> = spans.into_iter().collect();
        values.sort_unstable();
        let mut requests: Vec<Request> = values
            .iter()
            .map(|&(value, (first, last))| Request { bytes: self.value_bytes(value), first, last })
            .collect();
        for (at, item) in items.iter().enumerate() {
            requests.push(Request { bytes: self.own_bytes(item), first: at, last: at });
        }
        for node in segment.nodes.clone() {
            if let Op::Rope { rope, .. } = &graph.nodes[node].op {
                self.lowering.add_table(rope);
            }
        }
        for table in &self.lowering.tables {
            let bytes = 4 * self.limits.tokens * table.buffer.width;
            requests.push(Request { bytes, first: 0, last: items.len() });
        }
        let (offsets, bytes) = place(&requests);
        self.arena_bytes = bytes;
        let (of_values, rest) = offsets.split_at(values.len());
        let (of_items, of_tables) = rest.split_at(items.len());
        for (&(value, _), &offset) in values.iter().zip(of_values) {
            let (width, rows) = (graph.width(value), graph.rows(value));
            self.lowering.buffers.insert(value, Buffer { offset, width, rows });
        }
        for (value, holder) in holders {
            self.lowering.buffers.insert(value, self.lowering.buffers[&holder]);
        }
        self.own = of_items.to_vec();
        for (table, &offset) in self.lowering.tables.iter_mut().zip(of_tables) {
            table.buffer.offset = offset;
        }
    }

    /// The sums computed in place of a product's residual, because nothing reads that afterwards, each with the value
    /// whose memory it uses. They are removed from `spans` in favour of that value.
    fn holders(
        &self,
        items: &[Item],
        spans: &mut HashMap<Value, (usize, usize)>,
    ) -> HashMap<Value, Value> {
        let mut holders: HashMap<Value, Value> = HashMap::new();
        for (at, item) in items.iter().enumerate() {
            let FusedOp::Multiply { route: None, parts, .. } = &item.kind else { continue };
            let reads = item.reads(self.graph);
            for part in parts {
                let FusedProduct::Plain { residual: Some(residual), .. } = part else { continue };
                let sum = self.graph.nodes[residual.node].op.out();
                let other = residual.other;
                let holder = holders.get(&other).copied().unwrap_or(other);
                let is_last = spans[&holder].1 == at;
                if is_last && reads.iter().filter(|&&read| read == other).count() == 1 {
                    let (_, last) = spans.remove(&sum).expect("items write what they make");
                    spans.get_mut(&holder).expect("placed").1 = last;
                    holders.insert(sum, holder);
                }
            }
        }
        holders
    }

    /// Adds the stage that copies pages in all caches of the segment.
    fn copies(&mut self, segment: &Segment<'_>) {
        for node in segment.nodes.clone() {
            if let Op::Attend(Attend { cache: Some(cache), .. }) = self.graph.nodes[node].op
                && !self.caches.contains(&cache)
            {
                self.caches.push(cache);
            }
        }
        if !self.caches.is_empty() {
            let caches =
                self.caches.iter().map(|id| self.lowering.holdings.caches[id].clone()).collect();
            self.stages.push(Box::new(attend::Copy { caches }));
        }
    }

    fn value_bytes(&self, value: Value) -> usize {
        4 * self.rows_max(self.graph.rows(value)) * self.graph.width(value)
    }

    fn rows_max(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
        }
    }

    /// Bytes that an item needs besides its values.
    fn own_bytes(&self, item: &Item) -> usize {
        match &item.kind {
            FusedOp::Plain(_) => 0,
            FusedOp::Multiply { input, norm, route, parts } => {
                let buffer = |value| Buffer {
                    offset: 0,
                    width: self.graph.width(value),
                    rows: self.graph.rows(value),
                };
                match route {
                    Some(route) => self.mixture(*input, *route, parts, buffer).own_bytes(),
                    None => {
                        let group = self.group(*input, *norm, parts, buffer);
                        group.prepared_bytes(self.rows_max(self.graph.rows(*input)))
                    }
                }
            }
            FusedOp::Attend { node, q, .. } => {
                let attend = self.attend_of(*node);
                let plan = Plan::new(reach(attend), self.limits.tokens);
                lines(self.turned_bytes(attend, q)) + shape(attend, 0).parts_bytes(plan.parts_max())
            }
        }
    }

    /// Whether the op's keys are stored after the Hadamard transform.
    fn transforms(&self, attend: &Attend) -> bool {
        self.limits.hadamard_keys && attend.cache.is_some()
    }

    /// Bytes of transformed queries.
    fn turned_bytes(&self, attend: &Attend, q: &fuse::QkInput) -> usize {
        let is_turned = q.is_some() || self.transforms(attend);
        if is_turned { self.value_bytes(attend.q) } else { 0 }
    }

    fn attend_of(&self, node: usize) -> &'a Attend {
        match &self.graph.nodes[node].op {
            Op::Attend(attend) => attend,
            _ => unreachable!("an attend node"),
        }
    }

    fn linear(&self, node: usize) -> Box<Linear> {
        let Op::MatMul { weight, bias, precision, .. } = self.graph.nodes[node].op else {
            unreachable!("a product")
        };
        let (weight, matrix) = self.lowering.weight(weight);
        let Weight { ty, rows, cols, .. } = *weight;
        let shape = matmul::Shape { ty, rows, cols, precision };
        let bias = bias.map(|bias| Vector::Fixed(self.lowering.vector(bias)));
        let (many, holdings) = (self.many(node), self.lowering.holdings);
        Box::new(Linear::new(matrix, &shape, bias, many, holdings))
    }

    /// Number of inputs from which the products of a node are those of GEMM kernels.
    fn many(&self, node: usize) -> usize {
        self.graph.nodes[node].op.inputs().next().map_or(1, |input| self.many[&input])
    }

    /// The group of a [`FusedOp::Multiply`] without a route, with values at `buffer`.
    fn group(
        &self,
        input: Value,
        norm: Option<usize>,
        parts: &[FusedProduct],
        buffer: impl Fn(Value) -> Buffer,
    ) -> Group {
        let out = |node: usize| buffer(self.graph.nodes[node].op.out());
        let parts = parts.iter().map(|part| match part {
            FusedProduct::Plain { matmul, residual } => matmul::Product::Plain {
                linear: self.linear(*matmul),
                activation: None,
                residual: residual.map(|residual| buffer(residual.other)),
                out: out(part.last()),
            },
            FusedProduct::Activated { matmul, node } => matmul::Product::Plain {
                linear: self.linear(*matmul),
                activation: Some(self.activation(*node)),
                residual: None,
                out: out(*node),
            },
            FusedProduct::Gated { gate, up, node } => {
                let (gate, up) = (self.linear(*gate), self.linear(*up));
                let (activation, out) = (self.activation(*node), out(*node));
                matmul::Product::Gated { gate, up, activation, out }
            }
        });
        let parts = parts.collect();
        let norm = norm.map(|node| {
            let source = self.graph.nodes[node].op.inputs().next().expect("a norm has an input");
            (Norm::of(&self.lowering, node), buffer(source))
        });
        Group::new(norm, buffer(input), parts, self.lowering.holdings.nodes)
    }

    /// The products of a [`FusedOp::Multiply`] with a route, with values at `buffer`.
    fn mixture(
        &self,
        input: Value,
        route: Value,
        parts: &[FusedProduct],
        buffer: impl Fn(Value) -> Buffer,
    ) -> Mixture {
        let out = |node: usize| buffer(self.graph.nodes[node].op.out());
        let parts = parts.iter().map(|part| match part {
            FusedProduct::Plain { matmul, .. } => {
                experts::ExpertProduct::Plain { linears: self.stack(*matmul), out: out(*matmul) }
            }
            FusedProduct::Gated { gate, up, node } => {
                let (gates, ups) = (self.stack(*gate), self.stack(*up));
                let (activation, out) = (self.activation(*node), out(*node));
                experts::ExpertProduct::Gated { gates, ups, activation, out }
            }
            FusedProduct::Activated { .. } => unreachable!("not fused with a route"),
        });
        let rows = self.rows_max(self.graph.rows(input));
        Mixture::new(
            buffer(input),
            buffer(route),
            parts.collect(),
            rows,
            self.lowering.holdings.nodes,
        )
    }

    /// The matrices of all experts.
    fn stack(&self, node: usize) -> Vec<Linear> {
        let Op::Experts(experts) = &self.graph.nodes[node].op else { unreachable!("experts") };
        let [mut biases, mut factors] = [experts.bias, experts.factors]
            .map(|id| id.map(|id| self.lowering.vectors(id)).into_iter().flatten());
        let mut linears = Vec::new();
        for &id in experts.stack.iter() {
            let weight = self.graph.weight(id);
            let (rows, cols) = (weight.rows / weight.stacked, weight.cols);
            for expert in 0..weight.stacked {
                let part = self.lowering.matrix(id, expert);
                let precision = Precision::Coarse;
                let shape = matmul::Shape { ty: weight.ty, rows, cols, precision };
                let (bias, holdings) = (biases.next(), self.lowering.holdings);
                let linear = Linear::new(part, &shape, bias, self.many(node), holdings);
                linears.push(linear.times(factors.next()));
            }
        }
        linears
    }

    fn activation(&self, node: usize) -> Activation {
        match self.graph.nodes[node].op {
            Op::Gate { activation, .. } => activation,
            _ => unreachable!("a gate"),
        }
    }

    fn item(&mut self, at: usize, item: &Item) {
        let first = self.stages.len();
        let name = match &item.kind {
            FusedOp::Plain(node) => self.plain(*node),
            FusedOp::Multiply { input, route: Some(route), parts, .. } => {
                let buffers = &self.lowering.buffers;
                let mut mixture = self.mixture(*input, *route, parts, |value| buffers[&value]);
                mixture.offset = self.own[at];
                let name = mixture.name();
                self.stages.extend(mixture.stages());
                name
            }
            FusedOp::Multiply { input, norm, route: None, parts } => {
                let buffers = &self.lowering.buffers;
                let mut group = self.group(*input, *norm, parts, |value| buffers[&value]);
                group.prepared_offset = self.own[at];
                let name = group.name();
                let rows = self.rows_max(self.graph.rows(*input));
                self.stages.extend(group.stages(rows));
                name
            }
            FusedOp::Attend { node, q, k } => self.attend(*node, q, k, self.own[at]),
        };
        if let (Some(verdict), &[node]) = (self.verdict.clone(), item.nodes.as_slice()) {
            let value = self.lowering.buffers[&self.graph.nodes[node].op.out()];
            self.stages.push(Box::new(Check { verdict, node: node as u32, value }));
        }
        let nodes = item.nodes.iter().map(|&node| node as u32).collect();
        let kernel = Kernel { nodes, name };
        self.kernels.push(Placed { kernel, stages: first..self.stages.len() });
    }

    /// An op as it is, by the table of ops; returns its name.
    fn plain(&mut self, node: usize) -> String {
        let kind = self.lowering.op(node).kind();
        let Some(Lower::Alone(stage)) = ops::of(kind) else { unreachable!("an item of its own") };
        let stage = stage(&mut self.lowering, node);
        self.fill_tables();
        self.stages.push(stage);
        format!("{} {}", kind.stem(), self.lowering.holdings.level)
    }

    /// Adds the stages that fill the tables that a stage uses for the first time.
    fn fill_tables(&mut self) {
        let new = |at: &usize| self.lowering.tables[*at].used && !self.lowering.tables[*at].made;
        let new: Vec<usize> = (0..self.lowering.tables.len()).filter(new).collect();
        for at in new {
            self.lowering.tables[at].made = true;
            let table = &self.lowering.tables[at];
            let factors = table.rope.factors.map(|factors| self.lowering.vector(factors));
            self.stages.push(rope::fill_table(&table.rope, factors.as_deref(), table.buffer));
        }
    }

    fn turn(&mut self, turn: &fuse::QkInput) -> attend::QkTransform {
        let norm = turn.norm.map(|node| match self.graph.nodes[node].op {
            Op::HeadNorm { gain: Some(gain), eps, .. } => (self.lowering.vector(gain), eps),
            _ => unreachable!("a head norm with a gain"),
        });
        let rope = turn.rope.map(|node| match &self.graph.nodes[node].op {
            Op::Rope { rope, .. } => (rope.pairs, self.lowering.table(rope)),
            _ => unreachable!("a rotation"),
        });
        attend::QkTransform { norm, rope, hadamard: false }
    }

    fn attend(&mut self, node: usize, q: &fuse::QkInput, k: &fuse::QkInput, own: usize) -> String {
        let attend = self.attend_of(node);
        let reach = reach(attend);
        let plan = self.plans.iter().position(|plan| plan.serves(reach));
        let plan = plan.unwrap_or_else(|| {
            self.plans.push(Plan::new(reach, self.limits.tokens));
            self.plans.len() - 1
        });
        let shape = shape(attend, plan);
        if let Some(name) = self.attend_whole(attend, shape, [q, k]) {
            return name;
        }
        let hadamard = self.transforms(attend);
        let turn = |turn| attend::QkTransform { hadamard, ..self.turn(turn) };
        let [q_turn, k_turn] = [q, k].map(turn);
        self.fill_tables();
        let cache = self.cache(attend);
        let kept = cache.layout.name();
        let source = self.lowering.buffers[&q.input];
        let turned_bytes = self.turned_bytes(attend, q);
        let turned = (turned_bytes > 0).then_some(Buffer { offset: own, ..source });
        let parts_offset = own + lines(turned_bytes);
        let sinks = attend.sinks.map(|sinks| self.lowering.vector(sinks));
        let out = self.lowering.buffers[&attend.out];
        self.stages.push(Box::new(attend::Store {
            shape,
            cache: cache.clone(),
            q: source,
            k: self.lowering.buffers[&k.input],
            v: attend.v.beside().map(|v| self.lowering.buffers[&v]),
            q_turn,
            k_turn,
            turned,
        }));
        let q = turned.unwrap_or(source);
        self.stages.push(Box::new(attend::Sweep {
            shape,
            cache,
            q,
            out,
            parts_offset,
            sinks: sinks.clone(),
            bias: self.bias(attend),
        }));
        self.stages.push(Box::new(attend::Join { shape, out, parts_offset, sinks }));
        let ways = if reach.both_ways { " both ways" } else { "" };
        format!("attend {kept}{ways} {}", self.lowering.holdings.level)
    }

    /// Attention with eight-bit queries and keys, if that is what the op needs and products with eight-bit activations
    /// made them.
    fn attend_whole(
        &mut self,
        attend: &Attend,
        shape: attend::Shape,
        turns: [&fuse::QkInput; 2],
    ) -> Option<String> {
        let level = self.lowering.holdings.level;
        let v = attend.v.beside()?;
        let is_plain = attend.cache.is_none()
            && attend.heads == attend.kv_heads
            && attend.window.is_none()
            && attend.softcap.is_none()
            && attend.sinks.is_none()
            && attend.bias.is_none();
        let is_eight_bits =
            |turn: &fuse::QkInput| !turn.is_some() && self.is_eight_bits(turn.input);
        let serves = attend::whole::serves(level, attend.head_dim);
        if !(is_plain && serves && turns.into_iter().all(is_eight_bits)) {
            return None;
        }
        let [q, k, v] = [attend.q, attend.k, v].map(|value| self.lowering.buffers[&value]);
        let (cache, out) = (self.cache(attend), self.lowering.buffers[&attend.out]);
        self.stages.push(Box::new(attend::whole::Keys { shape, cache: cache.clone(), k }));
        self.stages.push(Box::new(attend::whole::Sweep { shape, cache, q, v, out }));
        Some(format!("attend int8 both ways {level}"))
    }

    /// Whether a value is a product whose activations have eight bits and one scale per token.
    fn is_eight_bits(&self, value: Value) -> bool {
        self.graph.nodes.iter().any(|node| match node.op {
            Op::MatMul { weight, out, .. } if out == value => {
                let weight = self.graph.weight(weight);
                types::is_whole_row(weight.ty, weight.cols)
            }
            _ => false,
        })
    }

    /// What scores gain by the distance of query and key.
    fn bias(&self, attend: &Attend) -> Option<attend::Bias> {
        Some(match attend.bias.as_ref()? {
            DistanceBias::Slopes(slopes) => attend::Bias::Slopes(slopes.clone()),
            DistanceBias::Buckets(buckets) => {
                attend::Bias::of_buckets(buckets, &self.lowering.vector(buckets.table))
            }
        })
    }

    /// The cache of keys and values.
    fn cache(&self, attend: &Attend) -> Arc<Cache> {
        let fits = |cache: &&Arc<Cache>| cache.layout.holds(&attend.scratch());
        match attend.cache {
            Some(id) => self.lowering.holdings.caches[&id].clone(),
            None => self
                .lowering
                .holdings
                .scratch
                .iter()
                .find(fits)
                .expect("made before lowering")
                .clone(),
        }
    }

    fn parts(self, segment: &Segment<'_>) -> Parts {
        let graph = self.graph;
        let ops = || segment.nodes.clone().map(|node| &graph.nodes[node].op);
        let rows = |wanted: Ids| {
            let tables = ops().filter_map(|op| match op {
                Op::Embed { table, ids, .. } if *ids == wanted => Some(graph.weight(*table).rows),
                _ => None,
            });
            tables.min().unwrap_or(usize::MAX)
        };
        let separators = ops().filter_map(|op| match op {
            Op::Embed { table, ids: Ids::Segments { separator }, .. } => {
                Some((*separator, graph.weight(*table).rows as u32 - 1))
            }
            _ => None,
        });
        let tables = Tables {
            vocab: rows(Ids::Tokens),
            positions: rows(Ids::Positions),
            segments: separators.into_iter().next(),
            has_states: ops().any(|op| op.state().is_some()),
        };
        let buffer = |&value: &Value| (value, self.lowering.buffers[&value]);
        Parts {
            inputs: segment.inputs.iter().map(buffer).collect(),
            outputs: segment.outputs.iter().map(buffer).collect(),
            stages: self.stages,
            kernels: self.kernels,
            arena_bytes: self.arena_bytes,
            check: self.verdict,
            state: State::new(self.limits, tables, self.plans),
        }
    }
}

fn shape(attend: &Attend, plan: usize) -> attend::Shape {
    attend::Shape {
        heads: attend.heads,
        kv_heads: attend.kv_heads,
        head_dim: attend.head_dim,
        value_dim: attend.value_dim(),
        scale: attend.scale,
        reach: reach(attend),
        softcap: attend.softcap,
        plan,
    }
}

fn reach(attend: &Attend) -> Reach {
    Reach {
        window: attend.window,
        both_ways: attend.cache.is_none(),
        tile_tokens: tile_tokens(attend.heads / attend.kv_heads),
    }
}
