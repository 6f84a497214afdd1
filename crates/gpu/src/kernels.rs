//! The kernels, one file an op: from a key to text, parameters and grid.

pub mod add;
pub mod attend;
mod bindings;
pub mod cache;
pub mod embed;
pub mod experts;
pub mod gate;
pub mod head_norm;
pub mod layer_norm;
pub mod matmul;
pub mod mix;
pub mod pool;
pub mod quantize;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod rows;
pub mod scale;
pub mod soft_cap;
mod team;
pub mod top_k;
mod variants;
pub mod view;
pub mod weights;

use bilayer_graph::OpKind;

use crate::caps::Caps;
use crate::kernel::Source;

/// The ops that have kernels here: what the backend's facts list. An op that is not among them stays on the CPU.
pub const OPS: &[OpKind] = &[
    OpKind::Embed,
    OpKind::RmsNorm,
    OpKind::LayerNorm,
    OpKind::HeadNorm,
    OpKind::MatMul,
    OpKind::Rope,
    OpKind::Attend,
    OpKind::Gate,
    OpKind::Add,
    OpKind::Scale,
    OpKind::SoftCap,
    OpKind::Rows,
    OpKind::Pool,
    OpKind::TopK,
    OpKind::Route,
    OpKind::Experts,
    OpKind::Mix,
];

/// Every kernel that may be chosen on adapters of these capabilities, for checking without one.
pub fn all(caps: &Caps) -> Vec<Source> {
    let few = variants::small_ops(caps).chain(variants::attention(caps));
    let mut sources: Vec<Source> = few.chain(variants::products(caps)).collect();
    sources.push(crate::bandwidth::source());
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources.dedup();
    sources
}
