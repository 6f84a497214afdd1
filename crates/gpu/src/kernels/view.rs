//! The location of a value's rows in a buffer.

use bytemuck::{Pod, Zeroable};

/// Rows in a buffer of `vec4<f32>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct View {
    /// Offset of the first row, in quads (four floats).
    pub at: u32,
    /// Row stride, in quads.
    pub stride: u32,
}

impl View {
    /// From an offset and a stride in floats, both multiples of four.
    pub fn of_floats(at: usize, stride: usize) -> View {
        assert!(at.is_multiple_of(4) && stride.is_multiple_of(4), "views are made of quads");
        View { at: (at / 4) as u32, stride: (stride / 4) as u32 }
    }
}

/// Pieces of sixteen per row of quantized activations: whole units of 64.
pub fn pieces(width: usize) -> usize {
    4 * width.div_ceil(64)
}
