//! [`Op::SoftCap`](bilayer_graph::Op::SoftCap).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftCapKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct SoftCapParams {
    /// `[rows, width]`.
    pub x: View,
    /// `[rows, width]`.
    pub out: View,
    /// Quads per row: `ceil(width / 4)`.
    pub quads: u32,
    /// The bound.
    pub cap: f32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 2],
}

impl SoftCapKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("x", true), ("out", true)]);
        kernel("soft_cap".to_owned(), "soft_cap", context! { at, threads => APART }, APART)
    }

    /// One thread per quad.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(4) as u32).div_ceil(APART), rows, 1]
    }
}
