//! [`Op::Scan`](bilayer_graph::Op::Scan).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use crate::caps::Caps;
use crate::kernel::Source;

/// A variant. Bindings, in order: `step`, `vectors`, `x`, `bc`, `dt`, `beta` with the delta rule, `state` (written), `out`
/// (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanKey {
    /// Elements of a row of the state.
    pub state_dim: usize,
    /// Whether rows add what the state lacks.
    pub delta: bool,
}

/// The uniform. Views are an offset of the first row and a row stride, in floats.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ScanParams {
    /// `[T, heads * head_dim]`.
    pub x: [u32; 2],
    /// `[T, groups * state_dim]`.
    pub b: [u32; 2],
    /// `[T, groups * state_dim]`.
    pub c: [u32; 2],
    /// `[T, heads]`.
    pub dt: [u32; 2],
    /// `[T, heads]`.
    pub beta: [u32; 2],
    /// `[T, heads * head_dim]`.
    pub out: [u32; 2],
    /// Offset of the bias in the vectors, in floats.
    pub bias: u32,
    /// Offset of the decay in the vectors, in floats.
    pub decay: u32,
    /// Offset of the factor on `x` in the vectors, in floats.
    pub skip: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements of a row of the state.
    pub state_dim: u32,
    /// Groups.
    pub groups: u32,
    /// Consecutive heads of the same group.
    pub neighbours: u32,
    /// Offset of `states` in the step buffer.
    pub states_at: u32,
    /// Floats from one slot to the next.
    pub slot: u32,
    /// Factor on `b`.
    pub b_factor: f32,
    /// Factor on `c`.
    pub c_factor: f32,
    /// Padding to a multiple of eight bytes.
    pub zero: u32,
}

impl ScanKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let ScanKey { state_dim, delta } = *self;
        let team = Team::small(caps);
        let at = numbered(&[
            ("step", true),
            ("vectors", true),
            ("x", true),
            ("bc", true),
            ("dt", true),
            ("beta", delta),
            ("state", true),
            ("out", true),
        ]);
        let parts = state_dim.div_ceil(team.threads as usize);
        let rule = if delta { " delta" } else { "" };
        let name = format!("scan{rule} {parts} {}", team.name());
        kernel(name, "scan", context! { at, parts, delta, ..team.context() }, team.threads)
    }

    /// One workgroup per row of the heads' states.
    pub fn grid(rows: usize) -> [u32; 3] {
        [rows as u32, 1, 1]
    }
}
