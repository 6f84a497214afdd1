//! [`Op::Route`](bilayer_graph::Op::Route): one workgroup selects the experts of a row.

use bilayer_graph::Score;
use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// The variant. Bindings, in order: `vectors` with a bias or factors, `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// Conversion of logits to scores.
    pub score: Score,
    /// Whether a bias is added to the scores for selection.
    pub bias: bool,
    /// Whether each expert has a further factor.
    pub factors: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RouteParams {
    /// Offset of the first row of logits, and the row stride, in floats.
    pub x: [u32; 2],
    /// Offset of the result's first row, and the row stride, in floats.
    pub out: [u32; 2],
    /// Number of experts.
    pub experts: u32,
    /// Experts per row.
    pub used: u32,
    /// Offset of the bias in `vectors`, in floats.
    pub bias: u32,
    /// Nonzero if weights are divided by their sum.
    pub normalise: u32,
    /// Factor on the weights.
    pub scale: f32,
    /// The bits of a NaN.
    pub no_number: u32,
    /// Offset of the experts' factors in `vectors`, in floats.
    pub factors: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl RouteKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::small(caps);
        let at = numbered(&[("vectors", self.bias || self.factors), ("x", true), ("out", true)]);
        let score = match self.score {
            Score::Softmax => "softmax",
            Score::Sigmoid => "sigmoid",
        };
        let bias = if self.bias { " bias" } else { "" };
        let factors = if self.factors { " factors" } else { "" };
        let name = format!("route {score}{bias}{factors} {}", team.name());
        let (bias, factors) = (self.bias, self.factors);
        let context = context! { at, score, bias, factors, ..team.context() };
        kernel(name, "route", context, team.threads)
    }

    /// One workgroup per row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
