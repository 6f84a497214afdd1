//! The groups of pairs that [`Op::Experts`](bilayer_graph::Op::Experts) multiplies where there are many.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// Most experts of a layer.
pub const EXPERTS_MAX: u32 = 1024;

/// Words in front of the groups in their table.
const HEAD: u32 = 4;

/// The only text. Bindings, in order: `step`, `route`, `table` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ExpertsParams {
    /// Where the route's first row begins, and from row to row, in floats.
    pub route: [u32; 2],
    /// Experts of a row.
    pub used: u32,
    /// All experts.
    pub experts: u32,
    /// Most pairs of a group.
    pub most: u32,
    /// Where the table has the pairs, in words.
    pub pairs_at: u32,
    /// Where the step has the number of rows.
    pub columns_at: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

impl ExpertsKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::large(caps);
        let at = numbered(&[("step", true), ("route", true), ("table", true)]);
        let name = format!("experts {}", team.name());
        let context = context! { at, experts_max => EXPERTS_MAX, ..team.context() };
        kernel(name, "experts", context, team.threads)
    }
}

/// Most groups of up to `most` pairs that so many pairs make.
pub fn groups(pairs: u32, experts: u32, most: u32) -> u32 {
    pairs / most + experts.min(pairs)
}

/// Where a table of so many groups has its pairs, in words.
pub fn pairs_at(groups: u32) -> u32 {
    HEAD + 4 * groups
}
