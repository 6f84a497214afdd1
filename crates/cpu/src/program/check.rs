//! Finds the first op whose result is not finite, if requested.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bilayer_graph::Error;

use crate::stage::{Buffer, Context, Stage};
use crate::state::State;

/// The results of a program's checks in the last run.
pub(crate) struct Verdict {
    /// The first node that failed; `u32::MAX` if none did.
    worst: AtomicU32,
    /// Index, label and stem of each checked node.
    names: Vec<(u32, String, &'static str)>,
}

impl Verdict {
    pub(crate) fn new(names: Vec<(u32, String, &'static str)>) -> Verdict {
        Verdict { worst: AtomicU32::new(u32::MAX), names }
    }

    /// Clears the results.
    pub(crate) fn clear(&self) {
        self.worst.store(u32::MAX, Ordering::Relaxed);
    }

    /// The failure of the last run, if any.
    pub(crate) fn failure(&self) -> Option<Error> {
        let worst = self.worst.load(Ordering::Relaxed);
        let (_, label, op) = self.names.iter().find(|(node, ..)| *node == worst)?;
        Some(Error::NotFinite { label: label.clone(), op })
    }
}

/// Checks the value that a node has computed.
pub(crate) struct Check {
    pub(crate) verdict: Arc<Verdict>,
    pub(crate) node: u32,
    pub(crate) value: Buffer,
}

impl Stage for Check {
    fn chunks(&self, state: &State) -> usize {
        self.value.element_chunks(state)
    }

    fn writes(&self, _: &State) -> Vec<Range<usize>> {
        Vec::new()
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let range = self.value.element_range(context.state, chunk);
        let values = self.value.elements(&context, range);
        if !values.iter().all(|x| x.is_finite()) {
            self.verdict.worst.fetch_min(self.node, Ordering::Relaxed);
        }
    }
}
