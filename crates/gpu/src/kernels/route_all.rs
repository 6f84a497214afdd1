//! [`Op::RouteAll`](bilayer_graph::Op::RouteAll).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings: `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteAllKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RouteAllParams {
    /// Offset of the result's first row, and the row stride, in floats.
    pub out: [u32; 2],
    /// Number of experts.
    pub experts: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl RouteAllKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("out", true)]);
        kernel("route_all".to_owned(), "route_all", context! { at, threads => APART }, APART)
    }

    /// One thread per element.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width as u32).div_ceil(APART), rows, 1]
    }
}
