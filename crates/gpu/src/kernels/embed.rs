//! [`Op::Embed`](bilayer_graph::Op::Embed).

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::matmul::loader_context;
use super::team::APART;
use super::view::View;
use super::weights::Layout;
use crate::caps::Caps;
use crate::kernel::Source;

/// The variant. Bindings, in order: `step`, `out` (written), the weights, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedKey {
    /// The table's type.
    pub ty: Type,
    /// Its layout.
    pub layout: Layout,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct EmbedParams {
    /// `[T, width]`.
    pub out: View,
    /// Offset of the token ids or positions in the step buffer.
    pub ids_at: u32,
    /// Units of 64 weights per row.
    pub units: u32,
    /// Quads per row.
    pub quads: u32,
    /// Quantization blocks per row.
    pub row_blocks: u32,
    /// Offset of the rows in their block of weights, bytes.
    pub base: u32,
    /// Quantization blocks in it.
    pub blocks: u32,
    /// The first table row in it.
    pub first_row: u32,
    /// Rows in it.
    pub rows: u32,
    /// Distance between ids, in words.
    pub ids_stride: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl EmbedKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("step", true), ("out", true), ("weights", true), ("words", true)]);
        let raw = if self.layout == Layout::Raw { " raw" } else { "" };
        let name = format!("embed {}{raw}", self.ty.name.to_lowercase());
        let context = context! { at, threads => APART, ..loader_context(self.ty, self.layout) };
        kernel(name, "embed", context, APART)
    }

    /// One thread per unit.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(width.div_ceil(64) as u32).div_ceil(APART), rows, 1]
    }
}
