//! A kernel as text with its bindings, independent of any device.

/// A kernel's access to a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read-only.
    Read,
    /// Written, possibly also read.
    Write,
}

/// One rendered kernel. Binding 0 is its uniform, the others follow in order; all are in group 0. The entry point is
/// `main`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// A name that identifies the text.
    pub name: String,
    /// The shader.
    pub wgsl: String,
    /// Storage bindings, from binding 1 on.
    pub bindings: Vec<Access>,
    /// Workgroup size.
    pub workgroup: [u32; 3],
}

/// Workgroups per dimension that every adapter supports.
pub const GROUPS_MAX: u32 = 65_535;

/// Folds a number of workgroups into x and y: `id = x + y * 65535` in the shader.
pub fn fold(groups: u32) -> [u32; 2] {
    if groups <= GROUPS_MAX { [groups, 1] } else { [GROUPS_MAX, groups.div_ceil(GROUPS_MAX)] }
}
