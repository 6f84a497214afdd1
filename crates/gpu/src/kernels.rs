//! The kernels, one file an op: from a key to text, parameters and grid.

use crate::caps::Caps;
use crate::kernel::Source;

/// Every kernel that may be chosen on adapters of these capabilities, for checking without one.
pub fn all(caps: &Caps) -> Vec<Source> {
    let _ = caps;
    Vec::new()
}
