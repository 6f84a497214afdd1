//! The ops, one file each: what runs, on which chunks.

pub(crate) mod add;
pub(crate) mod attend;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gate;
pub(crate) mod head_norm;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod mix;
pub(crate) mod pool;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod scale;
pub(crate) mod soft_cap;
pub(crate) mod top_k;

use bilayer_graph::OpKind;

/// The ops that have kernels here: what the backend's facts list. An op that is not among them stays on another device.
pub(crate) const OPS: &[OpKind] = &[
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
