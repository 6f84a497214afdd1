//! How the rows of matrices are split into chunks for threads, node by node, and into bands for the kernels.

use std::ops::Range;

use super::{Count, Linear};
use crate::gemm::TOKENS_MIN_MAX;
use crate::memory::lines;
use crate::numa::Nodes;
use crate::pieces::Pieces;

/// Minimum bytes of weights per chunk: a few microseconds of memory bandwidth.
const CHUNK_BYTES: usize = 64 << 10;

/// Number of tokens from which a panel is a chunk.
const PANEL_TOKENS: usize = 64;

/// Row granularity of chunks, so that results of two chunks never share a cache line.
const CHUNK_ROWS: usize = 16;

/// Rows that are passed to a kernel at once.
pub(crate) struct Band {
    pub(crate) rows: Range<usize>,
    /// Whether this thread has just multiplied the preceding rows.
    pub(super) follows: bool,
}

/// How the rows of matrices that are multiplied together are split among threads, for any number of inputs. Chunks are
/// counted for each NUMA node apart.
pub(crate) struct Cuts {
    /// Rows per kernel call: with few inputs, with many.
    tile_rows: [usize; 2],
    /// Of each node.
    shares: Box<[Share]>,
}

/// A node's rows.
struct Share {
    rows: Range<usize>,
    /// Chunks for few inputs, when reading the matrices dominates.
    pieces: Pieces,
    /// Chunks when inputs are too few to make a panel's work long: reading still matters.
    panels: Pieces,
}

impl Cuts {
    /// The split for matrices of equally many rows among the threads of some nodes.
    pub(crate) fn new<'a>(
        linears: impl Iterator<Item = &'a Linear> + Clone,
        nodes: &Nodes,
    ) -> Cuts {
        let rows = linears.clone().next().map_or(0, |linear| linear.rows);
        let row_bytes: usize = linears.clone().map(|linear| linear.row_bytes).sum();
        let panel_rows = linears.map(|linear| linear.prompts.panel_rows).min().unwrap_or(1);
        let least = CHUNK_BYTES.div_ceil(row_bytes.max(1));
        let few_rows = least.next_multiple_of(CHUNK_ROWS);
        let share = |node| {
            let rows = nodes.rows(rows, node);
            let pieces = |least| match nodes.threads() {
                1 => Pieces::whole(rows.len()),
                _ => Pieces::new(rows.len(), least, nodes.threads_of(node)),
            };
            let (pieces, panels) = (pieces(few_rows), pieces(least.next_multiple_of(panel_rows)));
            Share { rows, pieces, panels }
        };
        let shares = (0..nodes.count()).map(share).collect();
        Cuts { tile_rows: [few_rows, panel_rows], shares }
    }

    /// Number of a node's chunks for this many inputs.
    pub(crate) fn chunks(&self, count: Count, node: usize) -> usize {
        let share = &self.shares[node];
        match share.pieces(count) {
            Some(pieces) => pieces.len(),
            None => share.rows.len().div_ceil(self.tile_rows(count)),
        }
    }

    /// Maximum number of a node's chunks over any number of inputs.
    pub(crate) fn chunks_max(&self, node: usize) -> usize {
        let share = &self.shares[node];
        let panels = share.rows.len().div_ceil(self.tile_rows[1]);
        share.pieces.len().max(share.panels.len()).max(panels)
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.shares.len()
    }

    /// The rows of a node's chunk; empty beyond the last.
    fn range(&self, count: Count, node: usize, chunk: usize) -> Range<usize> {
        if chunk >= self.chunks(count, node) {
            return 0..0;
        }
        let share = &self.shares[node];
        let within = share.pieces(count).map_or_else(
            || {
                let rows = self.tile_rows(count);
                chunk * rows..((chunk + 1) * rows).min(share.rows.len())
            },
            |pieces| pieces.range(chunk),
        );
        share.rows.start + within.start..share.rows.start + within.end
    }

    /// The rows of a node's chunk, in portions for the kernels.
    pub(crate) fn bands(
        &self,
        count: Count,
        node: usize,
        chunk: usize,
    ) -> impl Iterator<Item = Band> {
        let (range, step) = (self.range(count, node, chunk), self.tile_rows(count));
        range.clone().step_by(step).map(move |first| Band {
            rows: first..(first + step).min(range.end),
            follows: first > range.start,
        })
    }

    /// Rows per tile.
    fn tile_rows(&self, count: Count) -> usize {
        self.tile_rows[usize::from(!count.few)]
    }

    /// Bytes of a matrix's results per tile.
    pub(crate) fn tile_bytes(&self, count: Count) -> usize {
        lines(4 * self.tile_rows(count) * count.rows)
    }

    /// Scratch bytes for tiles of two matrices with up to this many inputs: their results, then the kernels' scratch.
    pub(crate) fn scratch_bytes<'a>(
        &self,
        linears: impl Iterator<Item = &'a Linear>,
        count_max: usize,
    ) -> usize {
        let tiles = Count::all(count_max).map(|count| {
            let few_max = if count.few { TOKENS_MIN_MAX - 1 } else { count_max };
            self.tile_bytes(Count { rows: count_max.min(few_max), ..count })
        });
        let kernels = linears.flat_map(|linear| [&linear.gemm, &linear.prompts]);
        let kernels = kernels.map(|gemm| gemm.scratch_bytes(count_max)).max();
        2 * tiles.into_iter().fold(0, usize::max) + lines(kernels.unwrap_or(0))
    }
}

impl Share {
    /// The chunks, if they have different lengths.
    fn pieces(&self, count: Count) -> Option<&Pieces> {
        match count.rows {
            _ if count.few => Some(&self.pieces),
            ..PANEL_TOKENS => Some(&self.panels),
            _ => None,
        }
    }
}
