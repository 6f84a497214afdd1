//! [`Op::RmsNorm`](bilayer_graph::Op::RmsNorm), optionally of a sum, optionally quantized.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The variant. Bindings, in order: `a`, `b` and `sum` (written) if fused with an addition, `vectors` if there is a
/// gain, `out` (written), `xq` and `xs` (written) if quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNormKey {
    /// Whether the input is `a + b`, which is stored in `sum`, instead of `a`.
    pub sum: bool,
    /// Whether there is a gain.
    pub gain: bool,
    /// Whether the result is stored as floats.
    pub floats: bool,
    /// Whether the result is stored as quantized activations.
    pub quantized: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RmsNormParams {
    /// `[rows, width]`.
    pub a: View,
    /// `[rows, width]`, if there is a sum.
    pub b: View,
    /// `[rows, width]`, if there is a sum.
    pub sum: View,
    /// `[rows, width]`, if stored as floats.
    pub out: View,
    /// Elements per row.
    pub width: u32,
    /// Offset of the gain `[width]` in `vectors`, in quads.
    pub gain: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl RmsNormKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let RmsNormKey { sum, gain, floats, quantized } = *self;
        let team = Team::large(caps);
        let at = numbered(&[
            ("a", true),
            ("b", sum),
            ("sum", sum),
            ("vectors", gain),
            ("out", floats),
            ("xq", quantized),
            ("xs", quantized),
        ]);
        let name = format!(
            "rms_norm{}{}{}{} {}",
            if sum { " sum" } else { "" },
            if gain { " gain" } else { "" },
            if floats { " f32" } else { "" },
            if quantized { " q8" } else { "" },
            team.name()
        );
        kernel(name, "rms_norm", context! { at, ..team.context() }, team.threads)
    }

    /// One workgroup per row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
