//! Which inputs of matrices can be divided by factors, and by what: read from the graph.

use std::collections::BTreeSet;

use bilayer_graph::{Activation, Graph, Op, Value, WeightId};

/// What computes the input of matrices and can be divided, channel by channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Before {
    /// A norm: its gain, and its bias if it has one.
    Norm(Vec<Divided>),
    /// The matrix, and its bias, whose product is a factor of a gate.
    Matrix(Vec<Divided>),
}

/// Rows of a tensor whose results are divided.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// The rows.
    pub matrix: TensorRows,
    /// Where the channels of the input are.
    pub channels: Channels,
}

/// Where a tensor has the channels of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Each is a row.
    Rows,
    /// Each is a column.
    Columns,
}

/// Rows of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRows {
    /// The tensor.
    pub tensor: String,
    /// The first of the rows.
    pub first_row: usize,
    /// Their number.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
}

impl Before {
    /// The parts to divide.
    pub fn parts(&self) -> &[Divided] {
        let (Before::Norm(parts) | Before::Matrix(parts)) = self;
        parts
    }

    /// The names of the tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.parts().iter().map(|part| part.matrix.tensor.as_str())
    }
}

/// An input that only matrices read.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// What computes it.
    pub before: Before,
    /// What reads it.
    pub matrices: Vec<TensorRows>,
}

impl Link {
    /// The names of all tensors that change.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.before.tensors().chain(self.matrices.iter().map(|matrix| matrix.tensor.as_str()))
    }
}

/// All such inputs in the layers, in the order of the graph.
pub fn links(graph: &Graph) -> Vec<Link> {
    let nodes = graph.nodes.iter().filter(|node| node.layer.is_some());
    nodes.filter_map(|node| link(graph, &node.op)).collect()
}

fn link(graph: &Graph, op: &Op) -> Option<Link> {
    let (out, before) = match op {
        Op::RmsNorm { gain: Some(gain), out, .. } => {
            (*out, Before::Norm(vec![part(graph, *gain, Channels::Columns)?]))
        }
        Op::LayerNorm { gain, bias, out, .. } => {
            let parts = [Some(*gain), *bias].into_iter().flatten();
            let parts =
                parts.map(|id| part(graph, id, Channels::Columns)).collect::<Option<_>>()?;
            (*out, Before::Norm(parts))
        }
        Op::Gate { up: Some(up), activation, out, .. } if is_linear(*activation) => {
            let mut makers = graph.nodes.iter().filter(|node| node.op.out() == *up);
            let Some(Op::MatMul { weight, bias, .. }) = makers.next().map(|node| &node.op) else {
                return None;
            };
            if makers.next().is_some() || readers(graph, *up).len() != 1 || *up == graph.logits {
                return None;
            }
            let mut parts = vec![part(graph, *weight, Channels::Rows)?];
            // A bias is one row whose columns are the matrix's rows.
            if let Some(bias) = bias {
                parts.push(part(graph, *bias, Channels::Columns)?);
            }
            (*out, Before::Matrix(parts))
        }
        _ => return None,
    };
    Some(Link { before, matrices: matrices(graph, out)? })
}

/// Whether a gate is linear in its other factor.
fn is_linear(activation: Activation) -> bool {
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh].contains(&activation)
}

fn readers(graph: &Graph, value: Value) -> Vec<&Op> {
    let all = graph.nodes.iter().map(|node| &node.op);
    all.filter(|op| op.inputs().any(|input| input == value)).collect()
}

/// The matrices that read a value, if nothing else does and they are matrices of layers that no one shares.
fn matrices(graph: &Graph, value: Value) -> Option<Vec<TensorRows>> {
    let readers = readers(graph, value);
    if readers.is_empty() || value == graph.logits {
        return None;
    }
    readers
        .into_iter()
        .map(|op| match op {
            Op::MatMul { weight, .. } => {
                graph.weight(*weight).layer?;
                Some(part(graph, *weight, Channels::Columns)?.matrix)
            }
            _ => None,
        })
        .collect()
}

/// A weight, if a single op reads it and no other weight has rows of it.
fn part(graph: &Graph, id: WeightId, channels: Channels) -> Option<Divided> {
    let weight = graph.weight(id);
    let mut users = BTreeSet::new();
    for (place, node) in graph.nodes.iter().enumerate() {
        let overlaps = |other: WeightId| {
            let other = graph.weight(other);
            let end = |of: &bilayer_graph::Weight| of.first_row + of.rows;
            other.name == weight.name
                && other.first_row < end(weight)
                && weight.first_row < end(other)
        };
        if node.op.weights().any(overlaps) {
            users.insert(place);
        }
    }
    (users.len() == 1 && weight.stacked == 1).then(|| Divided {
        matrix: TensorRows {
            tensor: weight.name.clone(),
            first_row: weight.first_row,
            rows: weight.rows,
            cols: weight.cols,
        },
        channels,
    })
}
