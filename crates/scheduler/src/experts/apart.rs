//! Splits the mixtures of a graph: residents get ops of their own, and an addition joins both parts.

use std::collections::HashMap;
use std::ops::Range;

use bilayer_graph::{
    Experts, Graph, Node, Op, ResidentStack, SplitMixture, Stack, Value, ValueInfo, Weight,
    WeightId,
};

/// The experts of a mixture that become resident.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitChoice {
    /// The router's result, by which the mixture is known.
    pub route: Value,
    /// The expert in each slot; distinct.
    pub residents: Vec<u32>,
    /// Expected uses of each expert by a token.
    pub uses: Vec<f32>,
}

/// A mixture that can be split.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The router's result.
    pub route: Value,
    /// Its layer.
    pub layer: Option<u32>,
    /// From its first product to its last one.
    pub nodes: Range<usize>,
    /// Experts of a row.
    pub used: usize,
    /// All experts.
    pub experts: usize,
}

impl Mixture {
    /// Its weights: the experts' matrices, biases and factors.
    pub fn weights<'g>(&self, graph: &'g Graph) -> impl Iterator<Item = WeightId> + use<'g> {
        graph.nodes[self.nodes.clone()].iter().flat_map(|node| node.op.weights())
    }
}

/// The mixtures of a graph that can be split: their products follow each other with nothing between them but what
/// changes each result by itself, and only the last result is read elsewhere.
pub fn mixtures(graph: &Graph) -> Vec<Mixture> {
    let mut found: Vec<Mixture> = Vec::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        let Op::Experts(op) = &node.op else { continue };
        if !graph.is_sparse(node) || graph.part_of(number).is_some() {
            continue;
        }
        match found.iter_mut().find(|known| known.route == op.route) {
            Some(known) => known.nodes.end = number + 1,
            None => found.push(Mixture {
                route: op.route,
                layer: node.layer,
                nodes: number..number + 1,
                used: graph.width(op.route) / 2,
                experts: graph.experts(op),
            }),
        }
    }
    found.retain(|mixture| is_separable(graph, mixture));
    found
}

fn is_separable(graph: &Graph, mixture: &Mixture) -> bool {
    let nodes = &graph.nodes[mixture.nodes.clone()];
    let made: Vec<Value> = nodes.iter().map(|node| node.op.out()).collect();
    let is_part = |node: &Node| match &node.op {
        Op::Experts(op) => op.route == mixture.route,
        Op::Gate { .. } | Op::Part { .. } => node.op.inputs().all(|input| made.contains(&input)),
        _ => false,
    };
    let Some((_, inner)) = made.split_last() else { return false };
    let others = (0..graph.nodes.len()).filter(|number| !mixture.nodes.contains(number));
    let mut read = others.flat_map(|number| graph.nodes[number].op.inputs());
    nodes.iter().all(is_part) && !read.any(|value| inner.contains(&value))
}

/// The graph with mixtures split as chosen. Values and weights keep their numbers; new ones follow.
///
/// # Panics
/// If a choice names no mixture that can be split, or an expert that it does not have.
pub fn split_experts(graph: &Graph, choices: &[SplitChoice]) -> Graph {
    let mut split = Graph { nodes: Vec::new(), ..graph.clone() };
    let mixtures = mixtures(graph);
    let mut next = 0;
    for mixture in &mixtures {
        let Some(choice) = choices.iter().find(|choice| choice.route == mixture.route) else {
            continue;
        };
        split.nodes.extend_from_slice(&graph.nodes[next..mixture.nodes.start]);
        Splitting { graph, split: &mut split, mixture, choice }.run();
        next = mixture.nodes.end;
    }
    split.nodes.extend_from_slice(&graph.nodes[next..]);
    assert_eq!(split.splits.len() - graph.splits.len(), choices.len(), "each names a mixture");
    split
}

/// A mixture being split.
struct Splitting<'a> {
    graph: &'a Graph,
    split: &'a mut Graph,
    mixture: &'a Mixture,
    choice: &'a SplitChoice,
}

impl Splitting<'_> {
    fn run(mut self) {
        let Mixture { route, layer, ref nodes, .. } = *self.mixture;
        let (resident_route, rest_route) = (self.value(route), self.value(route));
        let first = self.split.nodes.len();
        let count = nodes.len();
        let mut values = HashMap::new();
        let mut stacks: Vec<ResidentStack> = Vec::new();
        let mut resident = |split: &mut Self, whole: Stack| {
            let slots = split.slots(&whole);
            stacks.push(ResidentStack { slots, whole });
            slots
        };
        for number in nodes.clone() {
            let node = &self.graph.nodes[number];
            values.insert(node.op.out(), self.value(node.op.out()));
            let op = match changed(&node.op, resident_route, &values) {
                Op::Experts(op) => {
                    let stack = Stack::from([resident(&mut self, op.stack.clone())]);
                    let [bias, factors] = [op.bias, op.factors]
                        .map(|id| id.map(|id| resident(&mut self, Stack::from([id]))));
                    Op::Experts(Experts { stack, bias, factors, ..op })
                }
                op => op,
            };
            self.split.nodes.push(Node { op, ..node.clone() });
        }
        let last = &self.graph.nodes[nodes.end - 1];
        let out = last.op.out();
        // The results of the others are new; their sum is what the whole mixture made.
        let rest = HashMap::from([(out, self.value(out))]);
        for node in &self.graph.nodes[nodes.clone()] {
            let op = changed(&node.op, rest_route, &rest);
            self.split.nodes.push(Node { op, ..node.clone() });
        }
        let op = Op::Add { a: values[&out], b: rest[&out], out };
        self.split.nodes.push(Node { op, layer, name: "ffn_moe_join" });
        self.split.splits.push(SplitMixture {
            layer,
            route,
            resident_route,
            rest_route,
            resident_nodes: first..first + count,
            rest_nodes: first + count..first + 2 * count,
            join: first + 2 * count,
            stacks,
            residents: self.choice.residents.clone(),
            uses: self.choice.uses.clone(),
        });
    }

    /// A new value of another's shape.
    fn value(&mut self, like: Value) -> Value {
        let info: ValueInfo = self.graph.values[like.0 as usize].clone();
        self.split.values.push(info);
        Value(self.split.values.len() as u32 - 1)
    }

    /// A new weight with a slot for each resident of a stack.
    fn slots(&mut self, stack: &Stack) -> WeightId {
        let like = self.graph.weight(stack[0]);
        let (id, count) = (WeightId(self.split.weights.len() as u32), self.choice.residents.len());
        assert!(
            self.choice.residents.iter().all(|&expert| (expert as usize) < self.mixture.experts)
        );
        self.split.weights.push(Weight {
            id,
            rows: like.rows / like.stacked * count,
            stacked: count,
            is_resident: true,
            first_row: 0,
            ..like.clone()
        });
        id
    }
}

/// An op of a mixture with another route, and other values where there are others.
fn changed(op: &Op, route: Value, values: &HashMap<Value, Value>) -> Op {
    let of = |value: &Value| values.get(value).copied().unwrap_or(*value);
    match op {
        Op::Experts(op) => {
            let (input, out) = (of(&op.input), of(&op.out));
            Op::Experts(Experts { input, route, out, ..op.clone() })
        }
        Op::Gate { gate, up, activation, out } => {
            let (gate, up, out) = (of(gate), up.as_ref().map(of), of(out));
            Op::Gate { gate, up, activation: *activation, out }
        }
        Op::Part { input, stride, first, width, out } => {
            let (input, out) = (of(input), of(out));
            Op::Part { input, stride: *stride, first: *first, width: *width, out }
        }
        _ => unreachable!("no op of a mixture that can be split"),
    }
}
