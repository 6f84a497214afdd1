//! The table of ops, and one file for each: what runs, on which chunks.

use bilayer_graph::OpKind;

use crate::lowering::Lowering;
use crate::stage::Stage;

pub(crate) mod add;
pub(crate) mod attend;
pub(crate) mod conv;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gate;
pub(crate) mod head_norm;
pub(crate) mod join;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod mix;
pub(crate) mod norm;
pub(crate) mod part;
pub(crate) mod pool;
mod products;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod route_all;
pub(crate) mod rows;
pub(crate) mod scale;
pub(crate) mod scan;
pub(crate) mod soft_cap;
pub(crate) mod top_k;

/// How an op of a segment becomes stages.
#[derive(Clone, Copy)]
pub(crate) enum Lower {
    /// As the stage that this makes of a node.
    Alone(fn(&mut Lowering<'_>, usize) -> Box<dyn Stage>),
    /// Together with what is fused to it: an item of its own kind in [`crate::program::lower`].
    Fused,
}

/// Every op that the CPU runs.
const TABLE: &[(OpKind, Lower)] = &[
    (OpKind::Embed, Lower::Alone(embed::stage)),
    (OpKind::RmsNorm, Lower::Alone(norm::stage)),
    (OpKind::LayerNorm, Lower::Alone(norm::stage)),
    (OpKind::HeadNorm, Lower::Alone(head_norm::stage)),
    (OpKind::MatMul, Lower::Fused),
    (OpKind::Rope, Lower::Alone(rope::stage)),
    (OpKind::Attend, Lower::Fused),
    (OpKind::Conv, Lower::Alone(conv::stage)),
    (OpKind::Scan, Lower::Alone(scan::stage)),
    (OpKind::Gate, Lower::Alone(gate::stage)),
    (OpKind::Add, Lower::Alone(add::stage)),
    (OpKind::Scale, Lower::Alone(scale::stage)),
    (OpKind::SoftCap, Lower::Alone(soft_cap::stage)),
    (OpKind::Part, Lower::Alone(part::stage)),
    (OpKind::Join, Lower::Alone(join::stage)),
    (OpKind::Rows, Lower::Alone(rows::stage)),
    (OpKind::Pool, Lower::Alone(pool::stage)),
    (OpKind::TopK, Lower::Alone(top_k::stage)),
    (OpKind::Route, Lower::Alone(route::stage)),
    (OpKind::RouteAll, Lower::Alone(route_all::stage)),
    (OpKind::Experts, Lower::Fused),
    (OpKind::Mix, Lower::Alone(mix::stage)),
];

/// The kinds of op that the CPU runs.
pub(crate) fn all() -> Vec<OpKind> {
    TABLE.iter().map(|(kind, _)| *kind).collect()
}

/// How an op is lowered, if it has kernels here.
pub(crate) fn of(kind: OpKind) -> Option<Lower> {
    TABLE.iter().find(|(known, _)| *known == kind).map(|(_, lower)| *lower)
}
