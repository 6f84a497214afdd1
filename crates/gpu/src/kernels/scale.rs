//! [`Op::Scale`](bilayer_graph::Op::Scale).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ScaleParams {
    /// `[rows, width]`.
    pub x: View,
    /// `[rows, width]`.
    pub out: View,
    /// Quads per row: `ceil(width / 4)`.
    pub quads: u32,
    /// The factor.
    pub factor: f32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 2],
}

impl ScaleKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("x", true), ("out", true)]);
        kernel("scale".to_owned(), "scale", context! { at, threads => APART }, APART)
    }

    /// One thread per quad.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(4) as u32).div_ceil(APART), rows, 1]
    }
}
