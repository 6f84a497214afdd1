//! [`Op::Route`](bilayer_graph::Op::Route): a workgroup chooses the experts of a row.

use bilayer_graph::Score;
use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// Which text. Bindings, in order: `vectors` with a bias, `x`, `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// How logits become weights.
    pub score: Score,
    /// Something is added to the scores where experts are chosen.
    pub bias: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RouteParams {
    /// Where the first row of logits begins, and from row to row, in floats.
    pub x: [u32; 2],
    /// The same of the result.
    pub out: [u32; 2],
    /// All experts.
    pub experts: u32,
    /// Experts of a row.
    pub used: u32,
    /// Place of the bias in `vectors`, in floats.
    pub bias: u32,
    /// Not 0 where weights are divided by their sum.
    pub normalise: u32,
    /// Factor on the weights.
    pub scale: f32,
    /// The bits of what is no number.
    pub no_number: u32,
    /// Fills the last sixteen bytes.
    pub zero: [u32; 2],
}

impl RouteKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::small(caps);
        let at = numbered(&[("vectors", self.bias), ("x", true), ("out", true)]);
        let score = match self.score {
            Score::Softmax => "softmax",
            Score::Sigmoid => "sigmoid",
        };
        let bias = if self.bias { " bias" } else { "" };
        let name = format!("route {score}{bias} {}", team.name());
        let context = context! { at, score, bias => self.bias, ..team.context() };
        kernel(name, "route", context, team.threads)
    }

    /// A workgroup a row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
