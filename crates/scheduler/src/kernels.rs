//! What kernels read and compute, and the time that takes on a device of known speed.
//!
//! **The model.** A kernel is a fused item of a segment. It takes the longer of two times, its bytes by the device's
//! bandwidth and its operations by the device's compute, and kernels run one after the other. So a layer takes the sum of
//! the longer times, not the longer of two sums: in a prompt attention's matrices are bound by compute, while a mixture of
//! many small experts, each with few of the rows, is bound by reading.
//!
//! - Matrices are read once a step. Of a mixture of `n` experts of which a row uses `k`, `r` rows are expected to read the
//!   share `1 - (1 - k / n)^r`, each of these experts once, since its rows are multiplied together.
//! - Kernels of a type may take longer to unpack it than to read it, such as those of sparse types with few bytes. Where their
//!   bandwidth was measured ([`Facts::kernel_gbps`]), it is that of their matrices.
//! - Activations are read and written by every kernel that has them as input or output. Inside a mixture a row has them `k`
//!   times: of 8 experts, the product before the weighted sum writes 8 hidden states for each row, and the sum reads them.
//! - A row takes two operations for every weight it is multiplied by, `k / n` of those of a mixture.
//!
//! Tiles that an expert's rows do not fill are not counted: how many columns a tile has is up to the device and its kernels,
//! and while most tiles are partly filled, reading the expert takes longer than computing with it. Times that are measured
//! contain them.

use bilayer_graph::fuse;
use bilayer_graph::{Attend, Facts, Graph, Limits, Op, Rows, Segment};

/// Bytes of an element of an activation, f32.
const ELEMENT_BYTES: f64 = size_of::<f32>() as f64;

/// What a kernel reads and computes.
#[derive(Clone, Debug)]
pub struct KernelWork {
    /// The nodes it covers, ascending.
    pub nodes: Vec<u32>,
    /// That of each node besides the values it reads and writes.
    parts: Vec<NodeWork>,
    /// Bytes of the values that the kernel reads and writes, per row.
    values: Vec<(Rows, f64)>,
}

/// What a node reads and computes.
#[derive(Clone, Debug)]
struct NodeWork {
    rows: Rows,
    /// Bytes of its matrices, of which a step reads a share that depends on its rows; of types that kernels read more slowly
    /// than memory, as many more as memory is read in that time.
    matrix_bytes: f64,
    /// The share of its matrices that a single row uses: less than 1 for experts.
    used: f64,
    /// The share by the number of rows, of a part of a split mixture.
    shares: Vec<f64>,
    /// Bytes of weights read for each row: of an embedding.
    row_bytes: f64,
    /// Operations for each row.
    row_ops: f64,
    attention: Option<AttentionWork>,
}

/// Attention over a cache, whose work depends on the tokens that are seen.
#[derive(Clone, Debug)]
pub struct AttentionWork {
    /// The op.
    pub op: Attend,
    /// Bytes of the keys and values of a token.
    pub token_bytes: f64,
}

impl AttentionWork {
    /// Operations of a row with each token it sees: a multiplication and an addition for every element of its queries with the
    /// keys, and of its results with the values.
    pub fn seen_ops(&self) -> f64 {
        2.0 * (self.op.heads * (self.op.head_dim + self.op.value_dim())) as f64
    }
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

/// The rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRows {
    /// Tokens.
    pub tokens: usize,
    /// Rows that are asked for.
    pub outputs: usize,
}

impl Speed {
    /// That of a device; what is not known takes no time.
    pub fn of(facts: &Facts) -> Speed {
        let per_second = |figure: Option<f64>, unit: f64| figure.map_or(f64::MAX, |of| of * unit);
        Speed {
            read: per_second(facts.read_gbps, 1e9),
            ops: per_second(facts.tops, 1e12),
            kernel: facts.link.kernel_us / 1e6,
        }
    }
}

impl StepRows {
    fn of(self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// The kernels of a segment, in execution order.
pub fn kernels(segment: &Segment<'_>, facts: &Facts, limits: &Limits) -> Vec<KernelWork> {
    let graph = segment.graph;
    let items = match limits.fuse {
        true => fuse::joined(segment),
        false => fuse::single(segment),
    };
    let value = |value| (graph.rows(value), ELEMENT_BYTES * graph.width(value) as f64);
    let kernel = |item: fuse::Item| KernelWork {
        parts: item.nodes.iter().map(|&node| part(graph, node, facts, limits)).collect(),
        values: item.reads(graph).into_iter().chain(item.writes(graph)).map(value).collect(),
        nodes: item.nodes.into_iter().map(|node| node as u32).collect(),
    };
    items.into_iter().map(kernel).collect()
}

fn part(graph: &Graph, node: usize, facts: &Facts, limits: &Limits) -> NodeWork {
    let op = &graph.nodes[node].op;
    let matrices = || op.matrices().iter().map(|&id| graph.weight(id));
    let used = graph.share(node, 1);
    let weights: f64 = matrices().map(|weight| weight.rows as f64 * weight.cols as f64).sum();
    let bytes = matrices().map(|weight| {
        weight.rows as f64 * facts.row_bytes(weight) as f64 * facts.slowness(weight.ty)
    });
    NodeWork {
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
        row_ops: 2.0 * weights * used,
        attention: match op {
            Op::Attend(op) => {
                let bytes = op.scratch().token_bytes(limits.key_type, limits.value_type);
                Some(AttentionWork { op: op.clone(), token_bytes: bytes as f64 })
            }
            _ => None,
        },
    }
}

impl KernelWork {
    /// Seconds that it takes in a step, of which `attention` tells the bytes of keys and values, and the operations with them.
    pub fn seconds(
        &self,
        rows: StepRows,
        speed: Speed,
        attention: &dyn Fn(&AttentionWork) -> (f64, f64),
    ) -> f64 {
        let values = self.values.iter().map(|&(of, bytes)| rows.of(of) as f64 * bytes);
        let (mut bytes, mut ops) = (values.sum::<f64>(), 0.0);
        for part in &self.parts {
            let rows = rows.of(part.rows);
            let share = part.shares.get(rows).copied();
            let share = share.unwrap_or_else(|| 1.0 - (1.0 - part.used).powf(rows as f64));
            bytes += part.matrix_bytes * share + part.row_bytes * rows as f64;
            ops += part.row_ops * rows as f64;
            if let Some((read, performed)) = part.attention.as_ref().map(attention) {
                bytes += read;
                ops += performed;
            }
        }
        speed.kernel + (bytes / speed.read).max(ops / speed.ops)
    }
}
