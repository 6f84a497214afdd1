//! Peephole fusion: groups a segment's nodes into items, each of which a backend turns into one or a few kernels.
//!
//! Backends differ in how they run an item, not in what may be fused, so the search is shared.
//!
//! The fusions, each only if intermediate values have no other readers:
//!
//! - matrix products with one input (q, k and v; gate and up), which share its preparation, and likewise those with
//!   experts' matrices by one route;
//! - the RMS or layer norm that computes this input, with the first of them;
//! - `activation(gate) * up` with the two products that compute gate and up;
//! - an activation without `up` with the product that computes its input;
//! - a residual `Add` with the product that computes one operand, if the other one exists before;
//! - head norm with a gain and RoPE of queries and keys, with the attention that reads them.
//!
//! Fused products move up to the first of them, which is sound: nothing in between reads them, and their inputs
//! exist.

use std::collections::{HashMap, HashSet};

use crate::{Attend, Graph, Op, Segment, Value};

/// A future kernel: the nodes it covers, ascending, and its operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The nodes it covers, ascending.
    pub nodes: Vec<usize>,
    /// Its operation.
    pub kind: FusedOp,
}

/// The operation of an item; numbers are graph nodes.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum FusedOp {
    /// A single op.
    Plain(usize),
    /// Products with one input; with a route, those with the experts' matrices.
    Multiply { input: Value, norm: Option<usize>, route: Option<Value>, parts: Vec<FusedProduct> },
    /// Attention.
    Attend { node: usize, q: QkInput, k: QkInput },
}

/// One output of a [`FusedOp::Multiply`].
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum FusedProduct {
    /// A product, optionally plus a value.
    Plain { matmul: usize, residual: Option<Residual> },
    /// Two products combined by a `Gate` node.
    Gated { gate: usize, up: usize, node: usize },
    /// A product through the activation of a `Gate` node without `up`.
    Activated { matmul: usize, node: usize },
}

/// An `Add` node and the value it adds to the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The `Add` node.
    pub node: usize,
    /// The value it adds.
    pub other: Value,
}

/// The transformation of queries or keys before attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkInput {
    /// The input.
    pub input: Value,
    /// The head norm.
    pub norm: Option<usize>,
    /// The rotation.
    pub rope: Option<usize>,
}

impl QkInput {
    fn plain(input: Value) -> QkInput {
        QkInput { input, norm: None, rope: None }
    }

    /// Whether there is any transformation.
    pub fn is_some(&self) -> bool {
        self.norm.is_some() || self.rope.is_some()
    }
}

impl Item {
    /// The values read by the item.
    pub fn reads(&self, graph: &Graph) -> Vec<Value> {
        let op = |node: usize| &graph.nodes[node].op;
        match &self.kind {
            FusedOp::Plain(node) => op(*node).inputs().collect(),
            FusedOp::Multiply { input, norm, route, parts } => {
                let first = norm.map_or(vec![*input], |norm| op(norm).inputs().collect());
                let residual = |part: &FusedProduct| match part {
                    FusedProduct::Plain { residual, .. } => residual.map(|r| r.other),
                    FusedProduct::Gated { .. } | FusedProduct::Activated { .. } => None,
                };
                let others = parts.iter().filter_map(residual);
                first.into_iter().chain(*route).chain(others).collect()
            }
            FusedOp::Attend { node, q, k } => {
                let Op::Attend(attend) = op(*node) else { unreachable!("an attend node") };
                [q.input, k.input].into_iter().chain(attend.v.beside()).collect()
            }
        }
    }

    /// The values computed by the item.
    pub fn writes(&self, graph: &Graph) -> Vec<Value> {
        let out = |node: usize| graph.nodes[node].op.out();
        match &self.kind {
            FusedOp::Plain(node) | FusedOp::Attend { node, .. } => vec![out(*node)],
            FusedOp::Multiply { norm, parts, .. } => {
                norm.map(out).into_iter().chain(parts.iter().map(|part| out(part.last()))).collect()
            }
        }
    }
}

impl FusedProduct {
    /// The node whose value is the output.
    pub fn last(&self) -> usize {
        match self {
            FusedProduct::Plain { matmul, residual } => residual.map_or(*matmul, |r| r.node),
            FusedProduct::Gated { node, .. } | FusedProduct::Activated { node, .. } => *node,
        }
    }

    /// Its products.
    pub fn matmuls(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match self {
            FusedProduct::Plain { matmul, .. } | FusedProduct::Activated { matmul, .. } => {
                (*matmul, None)
            }
            FusedProduct::Gated { gate, up, .. } => (*gate, Some(*up)),
        };
        std::iter::once(first).chain(second)
    }

    fn nodes(&self) -> Vec<usize> {
        match self {
            FusedProduct::Plain { matmul, residual } => {
                std::iter::once(*matmul).chain(residual.map(|r| r.node)).collect()
            }
            FusedProduct::Gated { gate, up, node } => vec![*gate, *up, *node],
            FusedProduct::Activated { matmul, node } => vec![*matmul, *node],
        }
    }
}

/// The items of a segment with all fusions, in execution order.
pub fn joined(segment: &Segment<'_>) -> Vec<Item> {
    Fuser::new(segment).items()
}

/// One item per node of a segment.
pub fn single(segment: &Segment<'_>) -> Vec<Item> {
    let graph = segment.graph;
    let plain = |node: usize| {
        let kind = match &graph.nodes[node].op {
            op @ (Op::MatMul { .. } | Op::Experts(_)) => {
                let (input, route) = operands(op).expect("a product");
                let parts = vec![FusedProduct::Plain { matmul: node, residual: None }];
                FusedOp::Multiply { input, norm: None, route, parts }
            }
            Op::Attend(attend) => {
                FusedOp::Attend { node, q: QkInput::plain(attend.q), k: QkInput::plain(attend.k) }
            }
            _ => FusedOp::Plain(node),
        };
        Item { nodes: vec![node], kind }
    };
    segment.nodes.clone().map(plain).collect()
}

/// The input and route of a product.
fn operands(op: &Op) -> Option<(Value, Option<Value>)> {
    match op {
        Op::MatMul { input, .. } => Some((*input, None)),
        Op::Experts(experts) => Some((experts.input, Some(experts.route))),
        _ => None,
    }
}

struct Fuser<'g> {
    graph: &'g Graph,
    nodes: std::ops::Range<usize>,
    /// The segment's node that computes a value.
    maker: HashMap<Value, usize>,
    /// The segment's nodes that read a value, ascending; one that reads it twice is there twice.
    readers: HashMap<Value, Vec<usize>>,
    /// Values that others read after the segment.
    outputs: HashSet<Value>,
    /// Nodes fused into another item.
    taken: Vec<bool>,
}

impl<'g> Fuser<'g> {
    fn new(segment: &Segment<'g>) -> Fuser<'g> {
        let graph = segment.graph;
        let nodes = segment.nodes.clone();
        let maker = nodes.clone().map(|node| (graph.nodes[node].op.out(), node)).collect();
        let mut readers: HashMap<Value, Vec<usize>> = HashMap::new();
        for node in nodes.clone() {
            for value in graph.nodes[node].op.inputs() {
                readers.entry(value).or_default().push(node);
            }
        }
        let outputs = segment.outputs.iter().copied().collect();
        Fuser { graph, maker, readers, outputs, taken: vec![false; graph.nodes.len()], nodes }
    }

    fn op(&self, node: usize) -> &'g Op {
        &self.graph.nodes[node].op
    }

    /// The nodes that read a value, ascending.
    fn readers(&self, value: Value) -> &[usize] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    /// The node that computes a value that is read only once.
    fn sole(&self, value: Value) -> Option<usize> {
        let node = *self.maker.get(&value)?;
        let reads = self.readers(value).len() + usize::from(self.outputs.contains(&value));
        (reads == 1 && !self.taken[node]).then_some(node)
    }

    fn items(mut self) -> Vec<Item> {
        // The item of a node, at its place of execution. Later searches see the nodes fused by earlier ones.
        let mut placed: Vec<(usize, Item)> = Vec::new();
        for node in self.nodes.clone() {
            if let Op::Attend(attend) = self.op(node) {
                let item = self.attend(node, attend);
                placed.push((node, item));
            }
        }
        for node in self.nodes.clone() {
            if let Some((input, route)) = operands(self.op(node)).filter(|_| !self.taken[node]) {
                let item = self.multiply(node, input, route);
                placed.push((node, item));
            }
        }
        for node in self.nodes.clone() {
            if !self.taken[node] {
                placed.push((node, Item { nodes: vec![node], kind: FusedOp::Plain(node) }));
            }
        }
        placed.sort_by_key(|(node, _)| *node);
        placed.into_iter().map(|(_, item)| item).collect()
    }

    fn take(&mut self, mut nodes: Vec<usize>, kind: FusedOp) -> Item {
        nodes.sort_unstable();
        for &node in &nodes {
            self.taken[node] = true;
        }
        Item { nodes, kind }
    }

    fn attend(&mut self, node: usize, attend: &Attend) -> Item {
        let q = self.turn(attend.q, attend.head_dim);
        let k = self.turn(attend.k, attend.head_dim);
        // Keys that others read too are rotated before; then so are queries, as kernels rotate both or neither.
        let (q, k) = match q.rope.is_some() == k.rope.is_some() {
            true => (q, k),
            false => (QkInput::plain(attend.q), QkInput::plain(attend.k)),
        };
        let turns = [q.norm, q.rope, k.norm, k.rope];
        let nodes = turns.into_iter().flatten().chain([node]).collect();
        self.take(nodes, FusedOp::Attend { node, q, k })
    }

    /// The RoPE and head norm that compute `value`; kernels take RMS norms whose gain the heads share.
    fn turn(&self, value: Value, head: usize) -> QkInput {
        let mut turn = QkInput::plain(value);
        if let Some(node) = self.sole(turn.input)
            && let Op::Rope { input, head_dim, .. } = self.op(node)
            && *head_dim == head
        {
            turn = QkInput { input: *input, norm: None, rope: Some(node) };
        }
        if let Some(node) = self.sole(turn.input)
            && let Op::HeadNorm { input, gain: Some(gain), head_dim, centered: false, .. } =
                self.op(node)
            && *head_dim == head
            && self.graph.weight(*gain).cols == head
        {
            turn = QkInput { input: *input, norm: Some(node), ..turn };
        }
        turn
    }

    /// All products of `input` by `route`; the first is `first`.
    fn multiply(&mut self, first: usize, input: Value, route: Option<Value>) -> Item {
        let same =
            |&node: &usize| !self.taken[node] && operands(self.op(node)) == Some((input, route));
        let products: Vec<usize> = self.readers(input).iter().copied().filter(same).collect();
        let mut parts: Vec<FusedProduct> = Vec::new();
        for &matmul in &products {
            if parts.iter().any(|part| part.nodes().contains(&matmul)) {
                continue;
            }
            let gated = self.gated(matmul, &products);
            let activated = || route.is_none().then(|| self.activated(matmul)).flatten();
            parts.push(gated.or_else(activated).unwrap_or_else(|| {
                let residual = route.is_none().then(|| self.residual(matmul, first)).flatten();
                FusedProduct::Plain { matmul, residual }
            }));
        }
        let norm = route.is_none().then(|| self.norm(input, first)).flatten();
        let nodes = norm.into_iter().chain(parts.iter().flat_map(FusedProduct::nodes)).collect();
        self.take(nodes, FusedOp::Multiply { input, norm, route, parts })
    }

    /// The gate whose only inputs are product `one` and another of `products`, if it is their only reader.
    fn gated(&self, one: usize, products: &[usize]) -> Option<FusedProduct> {
        let reader = self.reader(one)?;
        let Op::Gate { gate, up, .. } = self.op(reader) else { return None };
        let (gate, up) = (self.sole(*gate)?, self.sole((*up)?)?);
        let both = gate != up && products.contains(&gate) && products.contains(&up);
        both.then_some(FusedProduct::Gated { gate, up, node: reader })
    }

    /// The activation without `up` that is the only reader of the product.
    fn activated(&self, matmul: usize) -> Option<FusedProduct> {
        let node = self.reader(matmul)?;
        let Op::Gate { up: None, .. } = self.op(node) else { return None };
        Some(FusedProduct::Activated { matmul, node })
    }

    /// The `Add` that is the only reader of the product, if its other operand is computed before node `first`.
    fn residual(&self, matmul: usize, first: usize) -> Option<Residual> {
        let node = self.reader(matmul)?;
        let Op::Add { a, b, .. } = self.op(node) else { return None };
        let other = if *a == self.op(matmul).out() { *b } else { *a };
        let made = self.maker.get(&other).is_none_or(|&maker| {
            // A norm is executed with the first product that reads it.
            maker < first && (!self.is_norm(maker) || self.first_reader(other) <= Some(first))
        });
        made.then_some(Residual { node, other })
    }

    /// The only reader of a node's value.
    fn reader(&self, node: usize) -> Option<usize> {
        let value = self.op(node).out();
        self.sole(value)?;
        self.readers(value).iter().copied().find(|&reader| !self.taken[reader])
    }

    /// The norm that computes `input`, if product `first` is its first reader.
    fn norm(&self, input: Value, first: usize) -> Option<usize> {
        let node = *self.maker.get(&input)?;
        let free = self.is_norm(node) && !self.taken[node];
        (free && self.first_reader(input) == Some(first)).then_some(node)
    }

    fn is_norm(&self, node: usize) -> bool {
        matches!(self.op(node), Op::RmsNorm { .. } | Op::LayerNorm { .. })
    }

    fn first_reader(&self, value: Value) -> Option<usize> {
        self.readers(value).first().copied()
    }
}
