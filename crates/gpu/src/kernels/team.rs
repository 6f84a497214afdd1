//! The threads that cooperate in a workgroup, and their reductions (shaders/parts/reduce.wgsl).

use minijinja::{Value, context};

use crate::caps::Caps;

/// Workgroup size of elementwise kernels, whose threads do not cooperate.
pub(crate) const APART: u32 = 64;

/// Workgroup size for one row, where rows are long and barriers cheap.
const ROW: u32 = 256;

/// The cooperating threads of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Team {
    /// Their number.
    pub(crate) threads: u32,
    /// The size of their subgroups; 0 if unknown.
    pub(crate) subgroup: u32,
}

impl Team {
    /// A single subgroup, which needs no barrier.
    pub(crate) fn small(caps: &Caps) -> Team {
        Team { threads: caps.lanes(), subgroup: caps.subgroup.unwrap_or(0) }
    }

    /// Several subgroups; on software adapters one, since barriers are expensive there.
    pub(crate) fn large(caps: &Caps) -> Team {
        let small = Team::small(caps);
        match caps.software {
            true => small,
            false => small.of(ROW.max(small.threads), caps),
        }
    }

    /// So many threads, which may be several of these subgroups.
    pub(crate) fn of(self, threads: u32, caps: &Caps) -> Team {
        let known = threads == self.threads || !caps.subgroup_varies;
        Team { threads, subgroup: if known { self.subgroup } else { 0 } }
    }

    /// One of several teams of a workgroup.
    pub(crate) fn among(self, teams: u32, caps: &Caps) -> Team {
        Team { threads: self.threads, ..self.of(teams * self.threads, caps) }
    }

    /// The template variables of parts/reduce.wgsl.
    pub(crate) fn context(self) -> Value {
        let Team { threads, subgroup } = self;
        let halves: Vec<u32> =
            std::iter::successors(Some(threads / 2), |h| (*h > 1).then_some(h / 2)).collect();
        context! { threads, subgroup, halves }
    }

    /// A suffix for kernel names.
    pub(crate) fn name(self) -> String {
        match self.subgroup {
            0 => format!("t{}", self.threads),
            subgroup => format!("t{}s{subgroup}", self.threads),
        }
    }
}
