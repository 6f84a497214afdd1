//! Rounds the rows of a value to halves, scaled by powers of two, for products with cooperative matrices.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `xh` (written), `xs` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalveKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HalveParams {
    /// `[rows, width]`.
    pub x: View,
    /// Elements per row.
    pub width: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl HalveKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = Team::large(caps);
        let at = numbered(&[("x", true), ("xh", true), ("xs", true)]);
        let name = format!("halve {}", team.name());
        kernel(name, "halve", context! { at, ..team.context() }, team.threads)
    }

    /// One workgroup per row.
    pub fn grid(rows: u32) -> [u32; 3] {
        [rows, 1, 1]
    }
}
