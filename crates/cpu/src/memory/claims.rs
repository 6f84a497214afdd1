//! Checks in debug builds that the chunks of a stage write to disjoint bytes, and read weights of their own node.
//!
//! A thread that runs a chunk says so ([`enter`]); until it leaves, each slice of a [`Memory`](super::Memory) that it takes
//! for writing is compared with those of other chunks in that run of the stage, no matter when or on which thread: a
//! violation is found even where the chunks did not run at the same time.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A chunk of one run of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// From [`step`].
    pub(crate) step: u64,
    pub(crate) stage: usize,
    pub(crate) chunk: usize,
    /// The NUMA node to which it belongs.
    pub(crate) node: usize,
}

thread_local! {
    static CURRENT: Cell<Option<Chunk>> = const { Cell::new(None) };
}

/// A number for a step of a program that no other step has.
pub(crate) fn step() -> u64 {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    STEPS.fetch_add(1, Ordering::Relaxed)
}

/// This thread runs a chunk until the result is dropped.
pub(crate) fn enter(chunk: Chunk) -> Running {
    CURRENT.set(Some(chunk));
    Running
}

/// Asserts that the chunk that this thread runs belongs to the node whose weights it reads.
pub(crate) fn reads_from(node: usize) {
    if let Some(running) = CURRENT.get() {
        assert_eq!(running.node, node, "{running:?} reads rows of another node");
    }
}

/// See [`enter`].
pub(crate) struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// The bytes of a memory that chunks of the current stage have written.
pub(super) struct Claims(Mutex<Written>);

struct Written {
    /// Step and stage.
    of: (u64, usize),
    /// In the order of their starts. Ranges of different chunks are disjoint.
    ranges: Vec<Claimed>,
}

/// Bytes that a chunk has written.
struct Claimed {
    start: usize,
    end: usize,
    chunk: usize,
}

impl Default for Claims {
    fn default() -> Claims {
        let ranges = Vec::with_capacity(RANGES);
        Claims(Mutex::new(Written { of: (0, 0), ranges }))
    }
}

impl Claims {
    /// Asserts that no other chunk of the stage has written to the range; this one has from now on.
    pub(super) fn claim(&self, range: &Range<usize>) {
        let Some(Chunk { step, stage, chunk, .. }) = CURRENT.get() else { return };
        if range.is_empty() {
            return;
        }
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.of != (step, stage) {
            written.of = (step, stage);
            written.ranges.clear();
        }
        let ranges = &mut written.ranges;
        // Ranges of this chunk may overlap, so the last one that starts before need not be the longest.
        let before_end = ranges.partition_point(|other| other.start < range.end);
        let others = ranges[..before_end].iter().rev().take(OVERLAPS_MAX);
        let is_shared = |other: &&Claimed| other.end > range.start && other.chunk != chunk;
        if let Some(Claimed { start, end, chunk: other }) = others.into_iter().find(is_shared) {
            panic!(
                "chunks {other} and {chunk} of stage {stage} share bytes: {start}..{end} and {range:?}"
            );
        }
        let at = ranges.partition_point(|other| other.start <= range.start);
        match ranges[..at].last_mut() {
            Some(last) if last.chunk == chunk && last.end >= range.start => {
                last.end = last.end.max(range.end);
            }
            _ => ranges.insert(at, Claimed { start: range.start, end: range.end, chunk }),
        }
    }
}

/// Ranges that there is room for, so that steps of small models allocate nothing.
const RANGES: usize = 4096;

/// Number of ranges before a place that are compared with it.
const OVERLAPS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn in_chunk(step: u64, chunk: usize, claims: &Claims, range: Range<usize>) -> bool {
        let _running = enter(Chunk { step, stage: 3, chunk, node: 0 });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claims.claim(&range))).is_ok()
    }

    #[test]
    fn bytes_belong_to_one_chunk_of_a_stage() {
        let (claims, now, later) = (Claims::default(), step(), step());
        assert!(in_chunk(now, 0, &claims, 0..64));
        assert!(in_chunk(now, 1, &claims, 64..128));
        assert!(in_chunk(now, 0, &claims, 32..64), "its own");
        assert!(!in_chunk(now, 1, &claims, 60..70));
        assert!(!in_chunk(now, 2, &claims, 127..129));
        assert!(in_chunk(later, 2, &claims, 0..128), "the next step");
        claims.claim(&(0..128));
    }

    #[test]
    fn weights_of_another_node_are_found() {
        reads_from(1);
        let _running = enter(Chunk { step: 1, stage: 0, chunk: 0, node: 0 });
        reads_from(0);
        assert!(std::panic::catch_unwind(|| reads_from(1)).is_err());
    }
}
