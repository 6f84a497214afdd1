//! [`Op::HeadNorm`](bilayer_graph::Op::HeadNorm) that is not fused with RoPE.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// Which text of head_norm. Bindings, in order: `vectors` if there is a gain, `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadNormKey {
    /// There is a gain.
    pub gain: bool,
    /// Layer norm instead of RMS norm.
    pub centered: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HeadNormParams {
    /// `[rows, heads * head_dim]`.
    pub x: View,
    /// `[rows, heads * head_dim]`.
    pub out: View,
    /// Offset of the gain in `vectors`, in quads.
    pub gain: u32,
    /// Quads per head: `head_dim / 4`.
    pub quads: u32,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// Quads of the gain: those of a head or of a row; 1 without a gain.
    pub gain_quads: u32,
}

impl HeadNormKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::small(caps);
        let at = numbered(&[("vectors", self.gain), ("x", true), ("out", true)]);
        let gain = if self.gain { "" } else { " no gain" };
        let centered = if self.centered { " centered" } else { "" };
        let name = format!("head_norm{centered}{gain} {}", team.name());
        kernel(
            name,
            "head_norm",
            context! { at, gain => self.gain, centered => self.centered, ..team.context() },
            team.threads,
        )
    }

    /// One workgroup per head of a row.
    pub fn grid(rows: u32, heads: u32) -> [u32; 3] {
        [heads, rows, 1]
    }
}
