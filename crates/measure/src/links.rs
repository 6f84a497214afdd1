//! Which inputs of matrices can be divided by factors, and by what: read from the graph.

use std::collections::BTreeSet;

use bilayer_graph::{Activation, Attend, Graph, Op, Value, Values, Weight, WeightId};

/// What computes the input of matrices and can be divided, channel by channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Before {
    /// A norm: its gain, and its bias if it has one.
    Norm(Vec<Divided>),
    /// The matrix, and its bias, whose product is a factor of a gate or the values of an attention.
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
    /// Which channels of what computes it its columns are.
    pub repeats: Repeats,
}

/// Columns that repeat channels: every `dim` channels, the values of a key-value head, are followed by themselves, `times`
/// in all, once for each query head that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// Channels of a head.
    pub dim: usize,
    /// How often each is there.
    pub times: usize,
}

impl Repeats {
    /// Each column is a channel of its own.
    pub const NONE: Repeats = Repeats { dim: 1, times: 1 };

    /// The channel of a column.
    pub fn channel(self, column: usize) -> usize {
        column / (self.dim * self.times) * self.dim + column % self.dim
    }

    /// The first column of a channel.
    pub fn column(self, channel: usize) -> usize {
        channel / self.dim * self.dim * self.times + channel % self.dim
    }

    /// Of numbers of columns the largest of each one's channel.
    pub fn largest(self, of_columns: &[f32]) -> Vec<f32> {
        let mut largest = vec![0.0f32; of_columns.len() / self.times];
        for (column, number) in of_columns.iter().enumerate() {
            let largest = &mut largest[self.channel(column)];
            *largest = largest.max(*number);
        }
        (0..of_columns.len()).map(|column| largest[self.channel(column)]).collect()
    }
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
    let mut repeats = Repeats::NONE;
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
            (*out, Before::Matrix(product(graph, *up)?))
        }
        // Weighted sums of each channel of the values by itself.
        Op::Attend(Attend { v: Values::Beside(v), heads, kv_heads, head_dim, out, .. }) => {
            repeats = Repeats { dim: *head_dim, times: heads / kv_heads };
            (*out, Before::Matrix(product(graph, *v)?))
        }
        _ => return None,
    };
    Some(Link { before, matrices: matrices(graph, out)?, repeats })
}

/// The matrix, and its bias, whose product is a value that is read once.
fn product(graph: &Graph, value: Value) -> Option<Vec<Divided>> {
    let mut makers = graph.nodes.iter().filter(|node| node.op.out() == value);
    let Some(Op::MatMul { weight, bias, .. }) = makers.next().map(|node| &node.op) else {
        return None;
    };
    if makers.next().is_some() || readers(graph, value).len() != 1 || value == graph.logits {
        return None;
    }
    let mut parts = vec![part(graph, *weight, Channels::Rows)?];
    // A bias is one row whose columns are the matrix's rows.
    if let Some(bias) = bias {
        parts.push(part(graph, *bias, Channels::Columns)?);
    }
    Some(parts)
}

/// Whether a gate is linear in its other factor.
fn is_linear(activation: Activation) -> bool {
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh].contains(&activation)
}

/// The ops that read a value, once for each of their inputs that it is.
fn readers(graph: &Graph, value: Value) -> Vec<&Op> {
    let all = graph.nodes.iter().map(|node| &node.op);
    all.flat_map(|op| op.inputs().filter(move |input| *input == value).map(move |_| op)).collect()
}

/// The matrices that read a value, or some of its rows, if nothing else does and they are matrices of layers that no one
/// shares.
fn matrices(graph: &Graph, value: Value) -> Option<Vec<TensorRows>> {
    let readers = readers(graph, value);
    if readers.is_empty() || value == graph.logits {
        return None;
    }
    let mut found = Vec::new();
    for op in readers {
        match op {
            Op::MatMul { weight, .. } => {
                graph.weight(*weight).layer?;
                found.push(part(graph, *weight, Channels::Columns)?.matrix);
            }
            Op::Rows { out, .. } => found.extend(matrices(graph, *out)?),
            _ => return None,
        }
    }
    Some(found)
}

/// A weight, if a single op reads it and no other weight has rows of it.
fn part(graph: &Graph, id: WeightId, channels: Channels) -> Option<Divided> {
    let weight = graph.weight(id);
    let mut users = BTreeSet::new();
    for (place, node) in graph.nodes.iter().enumerate() {
        let overlaps = |other: WeightId| {
            let other = graph.weight(other);
            // In elements, as rows of one tensor may be of several lengths.
            let first = |of: &Weight| of.first_row * of.cols;
            let end = |of: &Weight| (of.first_row + of.rows) * of.cols;
            other.name == weight.name && first(other) < end(weight) && first(weight) < end(other)
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
