//! What the kernels of a segment cost: the bytes they read and the operations they perform.

use bilayer_graph::fuse;
use bilayer_graph::{Attend, Facts, Graph, Limits, Op, OpTime, Rows, Segment, Step};

/// Bytes of an element of an activation, f32.
const ELEMENT_BYTES: f64 = size_of::<f32>() as f64;

/// A kernel: the nodes of a fused item.
pub struct Kernel {
    /// The nodes it covers, ascending.
    pub nodes: Vec<u32>,
    /// What each node costs besides the values it reads and writes.
    parts: Vec<NodeCost>,
    /// Bytes of the values that the item reads and writes, per row.
    values: Vec<(Rows, f64)>,
}

/// The cost of a node.
struct NodeCost {
    rows: Rows,
    /// Bytes of its matrices, of which a step reads a share that depends on its tokens.
    matrix_bytes: f64,
    /// The share of its matrices that a single row uses: less than 1 for experts.
    used: f64,
    /// The share by the number of rows, of a part of a split mixture.
    shares: Vec<f64>,
    /// Bytes of weights read for each row: of an embedding.
    row_bytes: f64,
    /// Operations for each row.
    row_ops: f64,
    attention: Option<Attention>,
}

/// Attention over a cache.
struct Attention {
    op: Attend,
    /// Bytes of the keys and values of a token.
    token_bytes: f64,
}

/// How fast a device is.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Memory read bandwidth, bytes per second.
    pub read: f64,
    /// Operations per second.
    pub ops: f64,
    /// Seconds between kernels.
    pub kernel: f64,
}

/// The kernels of a segment, in execution order.
pub fn kernels(segment: &Segment<'_>, facts: &Facts, limits: &Limits) -> Vec<Kernel> {
    let graph = segment.graph;
    let value = |value| (graph.rows(value), ELEMENT_BYTES * graph.width(value) as f64);
    if !limits.fuse {
        let plain = |node: usize| {
            let op = &graph.nodes[node].op;
            Kernel {
                nodes: vec![node as u32],
                parts: vec![part(graph, node, facts, limits)],
                values: op.inputs().chain([op.out()]).map(value).collect(),
            }
        };
        return segment.nodes.clone().map(plain).collect();
    }
    let items = fuse::joined(segment).into_iter();
    let kernel = |item: fuse::Item| Kernel {
        parts: item.nodes.iter().map(|&node| part(graph, node, facts, limits)).collect(),
        values: item.reads(graph).into_iter().chain(item.writes(graph)).map(value).collect(),
        nodes: item.nodes.into_iter().map(|node| node as u32).collect(),
    };
    items.map(kernel).collect()
}

fn part(graph: &Graph, node: usize, facts: &Facts, limits: &Limits) -> NodeCost {
    let op = &graph.nodes[node].op;
    let matrices = || op.matrices().iter().map(|&id| graph.weight(id));
    let used = graph.share(node, 1);
    let weights: f64 = matrices().map(|weight| weight.rows as f64 * weight.cols as f64).sum();
    let bytes = matrices().map(|weight| weight.rows as f64 * facts.row_bytes(weight) as f64);
    NodeCost {
        rows: graph.rows(op.out()),
        matrix_bytes: bytes.sum(),
        used,
        shares: match graph.part_of(node) {
            Some(_) => (0..=limits.tokens).map(|rows| graph.share(node, rows)).collect(),
            None => Vec::new(),
        },
        row_bytes: match op {
            Op::Embed { table, .. } => facts.row_bytes(graph.weight(*table)) as f64,
            _ => 0.0,
        },
        // A multiplication and an addition for each weight.
        row_ops: 2.0 * weights * used,
        attention: match op {
            Op::Attend(op) => Some(Attention { op: op.clone(), token_bytes: kv(op, limits) }),
            _ => None,
        },
    }
}

/// Bytes of a token's keys and values.
fn kv(op: &Attend, limits: &Limits) -> f64 {
    op.scratch().token_bytes(limits.key_type, limits.value_type) as f64
}

impl Kernel {
    /// Seconds that it takes in a step: the longer of reading and computing, after the pause between kernels.
    pub fn seconds(&self, step: &Step<'_>, speed: Speed) -> f64 {
        let count = |rows: Rows| match rows {
            Rows::Tokens => step.tokens.len() as f64,
            Rows::Outputs => step.outputs.len() as f64,
        };
        let mut bytes: f64 = self.values.iter().map(|(rows, bytes)| count(*rows) * bytes).sum();
        let mut ops = 0.0;
        for part in &self.parts {
            let rows = count(part.rows);
            // The expected share of the experts that some row is routed to.
            let share = part.shares.get(rows as usize).copied();
            let share = share.unwrap_or_else(|| 1.0 - (1.0 - part.used).powf(rows));
            bytes += part.matrix_bytes * share;
            bytes += part.row_bytes * rows;
            ops += part.row_ops * rows;
            if let Some(attention) = &part.attention {
                let (read, performed) = attention.of(step);
                bytes += read;
                ops += performed;
            }
        }
        speed.kernel + (bytes / speed.read).max(ops / speed.ops)
    }
}

impl Attention {
    /// Bytes of keys and values, which are read once for each sequence, and operations.
    fn of(&self, step: &Step<'_>) -> (f64, f64) {
        let width = (self.op.heads * (self.op.head_dim + self.op.value_dim())) as f64;
        let (mut bytes, mut ops) = (0.0, 0.0);
        for span in step.spans {
            let end = span.first_position + span.rows;
            let mut first = end;
            for position in span.first_position..end {
                let seen = self.op.sees(span, position);
                first = first.min(seen.start);
                // A multiplication and an addition with each key, and with each value.
                ops += 2.0 * width * seen.len() as f64;
            }
            bytes += f64::from(end - first) * self.token_bytes;
        }
        (bytes, ops)
    }
}

/// Fills `times` with the kernels of a step, one after the other, and returns the seconds of all.
pub fn run(kernels: &[Kernel], step: &Step<'_>, speed: Speed, times: &mut Vec<OpTime>) -> f64 {
    times.clear();
    let mut seconds = 0.0;
    for kernel in kernels {
        let took = kernel.seconds(step, speed);
        let (start_ns, ns) = ((seconds * 1e9) as u64, (took * 1e9) as u64);
        times.push(OpTime { node: kernel.nodes[0], start_ns, ns });
        seconds += took;
    }
    seconds
}
