//! [`Op::Pool`](bilayer_graph::Op::Pool).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `step`, `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct PoolParams {
    /// `[T, width]`.
    pub x: View,
    /// `[R, width]`.
    pub out: View,
    /// Quads per row: `ceil(width / 4)`.
    pub quads: u32,
    /// Offset of `outputs` in the step buffer.
    pub outputs_at: u32,
    /// Offset of `rows` in the step buffer.
    pub rows_at: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl PoolKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("step", true), ("x", true), ("out", true)]);
        kernel("pool".to_owned(), "pool", context! { at, threads => APART }, APART)
    }

    /// One thread per quad.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(4) as u32).div_ceil(APART), rows, 1]
    }
}
