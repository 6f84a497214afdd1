//! [`Op::LayerNorm`](bilayer_graph::Op::LayerNorm), perhaps of a sum, perhaps quantized.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// Which text. Bindings, in order: `a`, `b` and `sum` (written) if fused with an addition, `vectors`, `out` (written),
/// `xq` and `xs` (written) if quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormKey {
    /// The input is `a + b`, which is kept in `sum`; else it is `a`.
    pub sum: bool,
    /// There is a bias.
    pub bias: bool,
    /// The result is wanted as floats.
    pub floats: bool,
    /// The result is wanted as quantized activations.
    pub quantized: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct LayerNormParams {
    /// `[rows, width]`.
    pub a: View,
    /// `[rows, width]`, if there is a sum.
    pub b: View,
    /// `[rows, width]`, if there is a sum.
    pub sum: View,
    /// `[rows, width]`, if floats are wanted.
    pub out: View,
    /// Elements of a row.
    pub width: u32,
    /// Place of the gain `[width]` in `vectors`, in quads.
    pub gain: u32,
    /// Place of the bias `[width]` in `vectors`, in quads.
    pub bias: u32,
    /// Added to the variance.
    pub eps: f32,
}

impl LayerNormKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let LayerNormKey { sum, bias, floats, quantized } = *self;
        let team = Team::large(caps);
        let at = numbered(&[
            ("a", true),
            ("b", sum),
            ("sum", sum),
            ("vectors", true),
            ("out", floats),
            ("xq", quantized),
            ("xs", quantized),
        ]);
        let name = format!(
            "layer_norm{}{}{}{} {}",
            if sum { " sum" } else { "" },
            if bias { " bias" } else { "" },
            if floats { " f32" } else { "" },
            if quantized { " q8" } else { "" },
            team.name()
        );
        kernel(name, "layer_norm", context! { at, bias, ..team.context() }, team.threads)
    }

    /// A workgroup a row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
