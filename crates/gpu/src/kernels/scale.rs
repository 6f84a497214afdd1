//! [`Op::Scale`](bilayer_graph::Op::Scale).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// Which text of scale. Bindings, in order: `step` if there is a temperature, `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleKey {
    /// The factor also depends on the row's position.
    pub temperature: bool,
}

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
    /// Offset of `rows` in the step buffer.
    pub rows_at: u32,
    /// [`Temperature::length`](bilayer_graph::Temperature::length).
    pub length: u32,
    /// [`Temperature::offset`](bilayer_graph::Temperature::offset).
    pub offset: u32,
    /// [`Temperature::scale`](bilayer_graph::Temperature::scale).
    pub scale: f32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 2],
}

impl ScaleKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let temperature = self.temperature;
        let at = numbered(&[("step", temperature), ("x", true), ("out", true)]);
        let name = if temperature { "scale by position" } else { "scale" };
        kernel(name.to_owned(), "scale", context! { at, temperature, threads => APART }, APART)
    }

    /// One thread per quad.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(4) as u32).div_ceil(APART), rows, 1]
    }
}
