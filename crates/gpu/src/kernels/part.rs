//! [`Op::Part`](bilayer_graph::Op::Part).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct PartParams {
    /// Offset of the first row, and the row stride, in floats.
    pub x: [u32; 2],
    /// Offset of the result's first row, and the row stride, in floats.
    pub out: [u32; 2],
    /// Elements of a part.
    pub width: u32,
    /// Its first element in a group.
    pub first: u32,
    /// Elements of a group.
    pub stride: u32,
    /// Elements of a row of the result.
    pub all: u32,
}

impl PartKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("x", true), ("out", true)]);
        kernel("part".to_owned(), "part", context! { at, threads => APART }, APART)
    }

    /// One thread per element.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width as u32).div_ceil(APART), rows, 1]
    }
}
