//! A kernel as text with its bindings, before any device knows it.

/// How a kernel uses a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes, and may read.
    Write,
}

/// One rendered kernel. Binding 0 is its uniform, the others follow in order; all in group 0. Its entry point is
/// `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The same name means the same text.
    pub name: String,
    /// The shader.
    pub wgsl: String,
    /// Storage bindings, from binding 1 on.
    pub bindings: Vec<Access>,
    /// Threads of a workgroup.
    pub workgroup: [u32; 3],
}

/// Workgroups in one dimension that every adapter allows.
pub const GROUPS_MAX: u32 = 65_535;

/// Folds a count of workgroups into x and y: `id = x + y * 65535` in the shader.
pub fn fold(groups: u32) -> [u32; 2] {
    if groups <= GROUPS_MAX { [groups, 1] } else { [GROUPS_MAX, groups.div_ceil(GROUPS_MAX)] }
}
