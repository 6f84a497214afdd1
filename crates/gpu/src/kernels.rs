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

use bilayer_graph::OpKind;

use crate::caps::Caps;
use crate::kernel::Source;

/// The kernels of an op that are checked without an adapter: every option.
type Variants = fn(&Caps) -> Vec<Source>;

/// Every op that has kernels. One that is not here stays on the CPU, and the plan says so.
const TABLE: &[(OpKind, Variants)] = &[
    (OpKind::Embed, variants::embed),
    (OpKind::RmsNorm, variants::rms_norm),
    (OpKind::LayerNorm, variants::layer_norm),
    (OpKind::HeadNorm, variants::head_norm),
    (OpKind::MatMul, variants::products),
    (OpKind::Rope, variants::rope),
    (OpKind::Attend, variants::attend),
    (OpKind::Conv, variants::conv),
    (OpKind::Scan, variants::scan),
    (OpKind::Gate, variants::gate),
    (OpKind::Add, |caps| vec![add::AddKey.source(caps)]),
    (OpKind::Scale, |caps| {
        [false, true].map(|temperature| scale::ScaleKey { temperature }.source(caps)).to_vec()
    }),
    (OpKind::SoftCap, |caps| vec![soft_cap::SoftCapKey.source(caps)]),
    (OpKind::Part, |caps| vec![part::PartKey.source(caps)]),
    (OpKind::Join, |caps| vec![join::JoinKey.source(caps)]),
    (OpKind::Rows, |caps| vec![rows::RowsKey.source(caps)]),
    (OpKind::Pool, |caps| vec![pool::PoolKey.source(caps)]),
    (OpKind::TopK, |caps| vec![top_k::PartKey.source(caps), top_k::JoinKey.source(caps)]),
    (OpKind::Route, variants::route),
    (OpKind::RouteAll, |caps| vec![route_all::RouteAllKey.source(caps)]),
    (OpKind::Experts, |caps| vec![experts::ExpertsKey.source(caps)]),
    (OpKind::Mix, |caps| vec![mix::MixKey.source(caps)]),
];

/// The kinds of op that the GPU runs.
pub fn ops() -> Vec<OpKind> {
    TABLE.iter().map(|(op, _)| *op).collect()
}

/// Every kernel of an op that may be chosen on adapters of these capabilities; none where it has no kernels.
pub fn variants_of(op: OpKind, caps: &Caps) -> Vec<Source> {
    let found = TABLE.iter().find(|(known, _)| *known == op);
    found.map_or(Vec::new(), |(_, variants)| variants(caps))
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
    sources.extend([crate::bandwidth::source(), crate::device::counter::source()]);
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources.dedup();
    sources
}
