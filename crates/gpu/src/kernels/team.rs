//! Which threads of a workgroup work on one thing, and how they find sums and maxima (shaders/parts/reduce.wgsl).

use minijinja::{Value, context};

use crate::caps::Caps;

/// Threads of an elementwise kernel's workgroup, which do nothing together.
pub(crate) const APART: u32 = 64;

/// Threads of a workgroup that works on one row, where rows are long and barriers cheap.
const ROW: u32 = 256;

/// The threads of a workgroup that works on one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Team {
    /// How many they are.
    pub(crate) threads: u32,
    /// The size of the subgroups they consist of; 0 where that is not known.
    pub(crate) subgroup: u32,
}

impl Team {
    /// One subgroup, which needs no barrier.
    pub(crate) fn small(caps: &Caps) -> Team {
        Team { threads: caps.lanes(), subgroup: caps.subgroup.unwrap_or(0) }
    }

    /// Several subgroups, but on the host's processor one: barriers are dear there.
    pub(crate) fn large(caps: &Caps) -> Team {
        let small = Team::small(caps);
        if caps.software { small } else { Team { threads: ROW.max(small.threads), ..small } }
    }

    /// What parts/reduce.wgsl wants to know.
    pub(crate) fn context(self) -> Value {
        let Team { threads, subgroup } = self;
        let halves: Vec<u32> =
            std::iter::successors(Some(threads / 2), |h| (*h > 1).then_some(h / 2)).collect();
        context! { threads, subgroup, halves }
    }

    /// For names of kernels.
    pub(crate) fn name(self) -> String {
        match self.subgroup {
            0 => format!("t{}", self.threads),
            subgroup => format!("t{}s{subgroup}", self.threads),
        }
    }
}
