//! [`Op::TopK`](bilayer_graph::Op::TopK): the largest elements of each stretch of a row, then of those.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// Elements per stretch.
const STRETCH: u32 = 1024;

/// Stretches per row.
pub fn stretches(width: usize) -> u32 {
    (width as u32).div_ceil(STRETCH)
}

/// The only variant of top_k/part. Bindings, in order: `step`, `x`, `parts` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartKey;

/// Its uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PartParams {
    /// Offset of the first row, and the row stride, in floats.
    pub x: [u32; 2],
    /// Elements per row; below 2^24, so that indices are exact as floats.
    pub width: u32,
    /// Most elements to find.
    pub k: u32,
}

impl PartKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::small(caps);
        let at = numbered(&[("step", true), ("x", true), ("parts", true)]);
        let name = format!("top_k/part {}", team.name());
        let context = context! { at, stretch => STRETCH, ..team.context() };
        kernel(name, "top_k/part", context, team.threads)
    }

    /// One workgroup per stretch; none if nothing is searched for.
    pub fn grid(rows: u32, width: usize, top_k: u32) -> [u32; 3] {
        [stretches(width), rows, top_k.min(1)]
    }
}

/// The only variant of top_k/join. Bindings, in order: `step`, `parts`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinKey;

/// Its uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct JoinParams {
    /// Offset of the first row, and the row stride, in floats.
    pub out: [u32; 2],
    /// Stretches per row.
    pub stretches: u32,
    /// Most elements to find.
    pub k: u32,
    /// The bits of a NaN.
    pub no_number: [u32; 4],
}

impl JoinKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::large(caps);
        let at = numbered(&[("step", true), ("parts", true), ("out", true)]);
        let name = format!("top_k/join {}", team.name());
        kernel(name, "top_k/join", context! { at, ..team.context() }, team.threads)
    }

    /// One workgroup per row; none if nothing is searched for.
    pub fn grid(rows: u32, top_k: u32) -> [u32; 3] {
        [rows, 1, top_k.min(1)]
    }
}
