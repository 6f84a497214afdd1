//! A segment on the way to a program: stages over operands that have no memory yet.

use std::sync::Arc;

use bilayer_graph::{CacheId, Rows, Value};

use crate::kernel::Source;
use crate::weights::Home;

/// What changes from step to step and decides grids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens.
    pub tokens: u32,
    /// Output rows.
    pub outputs: u32,
    /// Tiles of attention.
    pub tiles: u32,
    /// Pages to copy.
    pub copies: u32,
    /// Most rows in a tile.
    pub tile_rows: u32,
    /// Parts that the keys are split into.
    pub splits: u32,
}

impl Counts {
    /// Rows of a kind of value.
    pub fn of(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// From a step's counts and the rows in a dispatch's window to its workgroups.
pub type Groups = Arc<dyn Fn(&Counts, u32) -> [u32; 3] + Send + Sync>;

/// How many workgroups a step needs.
#[derive(Clone)]
pub struct Grid {
    /// Which rows it goes by.
    pub rows: Rows,
    /// The first row that this dispatch runs, and how many at most.
    pub window: [u32; 2],
    /// Operations for each row.
    pub row_operations: u64,
    /// The rule.
    pub groups: Groups,
}

impl Grid {
    /// A grid over all rows.
    pub fn new(
        rows: Rows,
        row_operations: u64,
        groups: impl Fn(&Counts, u32) -> [u32; 3] + Send + Sync + 'static,
    ) -> Grid {
        Grid { rows, window: [0, u32::MAX], row_operations, groups: Arc::new(groups) }
    }

    /// Rows inside the window.
    pub fn rows(&self, counts: &Counts) -> u32 {
        counts.of(self.rows).saturating_sub(self.window[0]).min(self.window[1])
    }

    /// Workgroups; none where the window has no rows.
    pub fn groups(&self, counts: &Counts) -> [u32; 3] {
        match self.rows(counts) {
            0 => [0; 3],
            rows => (self.groups)(counts, rows),
        }
    }

    /// Operations of the dispatch.
    pub fn operations(&self, counts: &Counts) -> u64 {
        u64::from(self.rows(counts)) * self.row_operations
    }
}

/// Memory that a kernel binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A buffer of the segment, by its number in [`Draft::buffers`].
    Buffer(usize),
    /// The step's words.
    Step,
    /// Gains, biases and turns.
    Vectors,
    /// A block of weights.
    Weights(Home),
    /// A layer's keys.
    Keys(CacheId),
    /// A layer's values.
    Values(CacheId),
}

/// One dispatch.
pub struct DraftDispatch {
    /// The kernel.
    pub source: Source,
    /// Its uniform.
    pub params: Vec<u8>,
    /// Its storage bindings in order.
    pub operands: Vec<Operand>,
    /// Its grid.
    pub grid: Grid,
}

/// One way to run a stage.
pub struct DraftChoice {
    /// When it is taken.
    pub when: fn(&Counts, u32) -> bool,
    /// What `when` is asked with.
    pub bound: u32,
    /// What runs.
    pub dispatches: Vec<DraftDispatch>,
}

/// One stage.
pub struct DraftStage {
    /// The graph's nodes it covers.
    pub nodes: Vec<u32>,
    /// Its name for profiles.
    pub name: String,
    /// The ways to run it, the first that applies is taken.
    pub choices: Vec<DraftChoice>,
    /// The value it makes, if one is to be looked at.
    pub makes: Option<Value>,
}

/// Where a value lies: rows of `stride` floats from `offset` in a buffer of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: usize,
    /// The first row, floats.
    pub offset: u32,
    /// From row to row, floats.
    pub stride: u32,
    /// Floats of a row.
    pub width: u32,
    /// Whether a row per token or per output.
    pub rows: Rows,
}

/// A buffer of the segment before it has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBuffer {
    /// Its size.
    pub bytes: u64,
    /// Whether it keeps its contents from before the first stage and to after the last.
    pub pinned: bool,
    /// Only buffers of one class may lie in the same memory.
    pub class: usize,
}

/// Always taken.
pub fn always(_: &Counts, _: u32) -> bool {
    true
}

/// Taken up to so many tokens.
pub fn tokens_to(counts: &Counts, bound: u32) -> bool {
    counts.tokens <= bound
}

/// Taken up to so many outputs.
pub fn outputs_to(counts: &Counts, bound: u32) -> bool {
    counts.outputs <= bound
}

/// Taken up to so many rows of a kind.
pub fn rows_to(rows: Rows) -> fn(&Counts, u32) -> bool {
    match rows {
        Rows::Tokens => tokens_to,
        Rows::Outputs => outputs_to,
    }
}
