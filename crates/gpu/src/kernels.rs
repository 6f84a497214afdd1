//! The table of ops, and the kernels, one file an op: from a key to text, parameters and grid.

pub mod add;
pub mod attend;
mod bindings;
pub mod cache;
pub mod conv;
pub mod embed;
pub mod experts;
pub mod gate;
pub mod halve;
pub mod head_norm;
pub mod join;
pub mod layer_norm;
pub mod matmul;
pub mod mix;
pub mod part;
pub mod pool;
pub mod quantize;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod route_all;
pub mod rows;
pub mod scale;
pub mod scan;
pub mod soft_cap;
mod team;
pub mod top_k;
mod variants;
pub mod view;
pub mod weights;

use bilayer_graph::{Error as GraphError, OpKind};

use crate::caps::Caps;
use crate::kernel::Source;
use crate::program::lower::Lowering;

/// How an op of a segment becomes dispatches.
#[derive(Clone, Copy)]
pub(crate) enum Lower {
    /// As this makes them of a node.
    Alone(fn(&mut Lowering<'_>, usize) -> Result<(), GraphError>),
    /// Together with what is fused to it: an item of its own kind in [`crate::program::lower`].
    Fused,
}

/// The kernels of an op.
pub(crate) struct OpKernels {
    /// The op.
    op: OpKind,
    /// Those that are checked without an adapter: every option.
    variants: fn(&Caps) -> Vec<Source>,
    /// How it is lowered.
    pub(crate) lower: Lower,
}

/// A row of the table.
const fn row(op: OpKind, variants: fn(&Caps) -> Vec<Source>, lower: Lower) -> OpKernels {
    OpKernels { op, variants, lower }
}

/// Every op that has kernels. One that is not here stays on the CPU, and the plan says so.
const TABLE: &[OpKernels] = &[
    row(OpKind::Embed, variants::embed, Lower::Alone(|to, node| to.embed(node))),
    row(OpKind::RmsNorm, variants::rms_norm, Lower::Alone(|to, node| to.rms_norm(node))),
    row(OpKind::LayerNorm, variants::layer_norm, Lower::Alone(|to, node| to.layer_norm(node))),
    row(OpKind::HeadNorm, variants::head_norm, Lower::Alone(|to, node| to.head_norm(node))),
    row(OpKind::MatMul, variants::products, Lower::Fused),
    row(OpKind::Rope, variants::rope, Lower::Alone(|to, node| to.rope(node))),
    row(OpKind::Attend, variants::attend, Lower::Fused),
    row(OpKind::Conv, variants::conv, Lower::Alone(|to, node| to.conv(node))),
    row(OpKind::Scan, variants::scan, Lower::Alone(|to, node| to.scan(node))),
    row(OpKind::Gate, variants::gate, Lower::Alone(|to, node| to.gate(node))),
    row(OpKind::Add, |caps| vec![add::AddKey.source(caps)], Lower::Alone(|to, node| to.add(node))),
    row(
        OpKind::Scale,
        |caps| {
            [false, true].map(|temperature| scale::ScaleKey { temperature }.source(caps)).to_vec()
        },
        Lower::Alone(|to, node| to.scale(node)),
    ),
    row(
        OpKind::SoftCap,
        |caps| vec![soft_cap::SoftCapKey.source(caps)],
        Lower::Alone(|to, node| to.soft_cap(node)),
    ),
    row(
        OpKind::Part,
        |caps| vec![part::PartKey.source(caps)],
        Lower::Alone(|to, node| to.part(node)),
    ),
    row(
        OpKind::Join,
        |caps| vec![join::JoinKey.source(caps)],
        Lower::Alone(|to, node| to.join(node)),
    ),
    row(
        OpKind::Rows,
        |caps| vec![rows::RowsKey.source(caps)],
        Lower::Alone(|to, node| to.rows(node)),
    ),
    row(
        OpKind::Pool,
        |caps| vec![pool::PoolKey.source(caps)],
        Lower::Alone(|to, node| to.pool(node)),
    ),
    row(
        OpKind::TopK,
        |caps| vec![top_k::PartKey.source(caps), top_k::JoinKey.source(caps)],
        Lower::Alone(|to, node| to.top_k(node)),
    ),
    row(OpKind::Route, variants::route, Lower::Alone(|to, node| to.route(node))),
    row(
        OpKind::RouteAll,
        |caps| vec![route_all::RouteAllKey.source(caps)],
        Lower::Alone(|to, node| to.route_all(node)),
    ),
    row(OpKind::Experts, |caps| vec![experts::ExpertsKey.source(caps)], Lower::Fused),
    row(OpKind::Mix, |caps| vec![mix::MixKey.source(caps)], Lower::Alone(|to, node| to.mix(node))),
];

/// The kinds of op that the GPU runs.
pub fn ops() -> Vec<OpKind> {
    TABLE.iter().map(|kernels| kernels.op).collect()
}

/// The kernels of an op, if it has any.
pub(crate) fn of(op: OpKind) -> Option<&'static OpKernels> {
    TABLE.iter().find(|kernels| kernels.op == op)
}

/// Every kernel of an op that may be chosen on adapters of these capabilities; none where it has no kernels.
pub fn variants_of(op: OpKind, caps: &Caps) -> Vec<Source> {
    of(op).map_or(Vec::new(), |kernels| (kernels.variants)(caps))
}

/// All kernels that may be selected with these capabilities, for validation without a GPU.
pub fn all(caps: &Caps) -> Vec<Source> {
    let mut sources: Vec<Source> = ops().into_iter().flat_map(|op| variants_of(op, caps)).collect();
    // What steps and products begin with, the count of command buffers, and the measurement of bandwidth, are no ops.
    sources.push(quantize::QuantizeKey.source(caps));
    sources.push(cache::CopyPagesKey.source(caps));
    if let Some(coop) = caps.coop {
        sources.extend([halve::HalveKey.source(caps), crate::probe::coop_source(coop.edge)]);
    }
    sources.extend([crate::bandwidth::source(), crate::counter::source()]);
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources.dedup();
    sources
}
