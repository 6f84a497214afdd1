//! [`Op::Mix`](bilayer_graph::Op::Mix).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `route`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MixKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct MixParams {
    /// `[rows, used * width]`.
    pub x: View,
    /// `[rows, width]`.
    pub out: View,
    /// Offset of the route's first row, and the row stride, in floats.
    pub route: [u32; 2],
    /// Quads per row of the result.
    pub quads: u32,
    /// Experts per row.
    pub used: u32,
}

impl MixKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("x", true), ("route", true), ("out", true)]);
        kernel("mix".to_owned(), "mix", context! { at, threads => APART }, APART)
    }

    /// One thread per quad.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(4) as u32).div_ceil(APART), rows, 1]
    }
}
