//! [`Op::RmsNorm`](bilayer_graph::Op::RmsNorm), perhaps of a sum, perhaps quantized.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// Which text. Bindings, in order: `a`, `b` and `sum` (written) if fused with an addition, `vectors` if there is a
/// gain, `out` (written), `xq` and `xs` (written) if quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNormKey {
    /// The input is `a + b`, which is kept in `sum`; else it is `a`.
    pub sum: bool,
    /// There is a gain.
    pub gain: bool,
    /// The result is wanted as floats.
    pub floats: bool,
    /// The result is wanted as quantized activations.
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
    /// `[rows, width]`, if floats are wanted.
    pub out: View,
    /// Elements of a row.
    pub width: u32,
    /// Place of the gain `[width]` in `vectors`, in quads.
    pub gain: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Fills the last sixteen bytes.
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

    /// A workgroup a row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
