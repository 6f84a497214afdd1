//! [`Op::Join`](bilayer_graph::Op::Join).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `a`, `b`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct JoinParams {
    /// Offset of the first row of `a`, and the row stride, in floats.
    pub a: [u32; 2],
    /// Those of `b`.
    pub b: [u32; 2],
    /// Those of the result.
    pub out: [u32; 2],
    /// Elements of a group in `a` and in `b`.
    pub widths: [u32; 2],
    /// Elements of a row of the result.
    pub all: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 3],
}

impl JoinKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("a", true), ("b", true), ("out", true)]);
        kernel("join".to_owned(), "join", context! { at, threads => APART }, APART)
    }

    /// One thread per element.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width as u32).div_ceil(APART), rows, 1]
    }
}
