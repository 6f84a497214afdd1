//! Groups pairs of row and expert for [`Op::Experts`](bilayer_graph::Op::Experts) with many rows.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// Maximum experts per layer.
pub const EXPERTS_MAX: u32 = 1024;

/// Words before the groups in their table.
const HEAD: u32 = 4;

/// The only variant. Bindings, in order: `step`, `route`, `table` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ExpertsParams {
    /// Offset of the route's first row, and the row stride, in floats.
    pub route: [u32; 2],
    /// Experts per row.
    pub used: u32,
    /// Number of experts.
    pub experts: u32,
    /// Maximum pairs per group.
    pub most: u32,
    /// Offset of the pairs in the table, in words.
    pub pairs_at: u32,
    /// Offset of the number of rows in the step.
    pub columns_at: u32,
    /// Padding to a multiple of sixteen bytes.
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

/// Maximum number of groups of up to `most` pairs for this many pairs, of which some may have no expert.
pub fn groups(pairs: u32, experts: u32, most: u32) -> u32 {
    pairs / most + (experts + 1).min(pairs)
}

/// Offset of the pairs in a table of this many groups, in words.
pub fn pairs_at(groups: u32) -> u32 {
    HEAD + 4 * groups
}
