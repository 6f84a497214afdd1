//! [`Op::Route`](bilayer_graph::Op::Route): one workgroup selects the experts of a row.

use bilayer_graph::{Groups, Score};
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
    /// Experts that count for the score of a group; `None` without groups.
    pub group_best: Option<u32>,
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
    /// Experts of a group.
    pub group_size: u32,
    /// Number of groups.
    pub groups: u32,
    /// Groups per row.
    pub groups_used: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 2],
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
        let groups = self.group_best.map_or(String::new(), |best| format!(" groups {best}"));
        let name = format!("route {score}{bias}{factors}{groups} {}", team.name());
        let RouteKey { bias, factors, group_best, .. } = *self;
        let groups_max = Groups::MAX;
        let context =
            context! { at, score, bias, factors, group_best, groups_max, ..team.context() };
        kernel(name, "route", context, team.threads)
    }

    /// One workgroup per row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
