//! A segment before it becomes a program: stages over operands without memory.

use std::sync::Arc;

use bilayer_graph::{CacheId, Rows, StateId, Value};

use crate::kernel::Source;
use crate::weights::Home;

/// The counts of a step, which determine grids.
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
    /// Maximum rows per tile.
    pub tile_rows: u32,
    /// Number of parts of the keys.
    pub splits: u32,
    /// Tokens of the longest sequence.
    pub longest: u32,
    /// Largest elements that are searched for in each row.
    pub top_k: u32,
}

impl Counts {
    /// Number of rows of a kind.
    pub fn of(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// Workgroups from a step's counts and the rows in a dispatch's window.
pub type Groups = Arc<dyn Fn(&Counts, u32) -> [u32; 3] + Send + Sync>;

/// The grid of a dispatch.
#[derive(Clone)]
pub struct Grid {
    /// The kind of rows it covers.
    pub rows: Rows,
    /// First row and maximum number of rows of this dispatch.
    pub window: [u32; 2],
    /// Operations per row.
    pub row_operations: u64,
    /// Operations of a workgroup for each token of the longest sequence, in all parts of the keys.
    pub key_operations: u64,
    /// The tokens that count.
    pub keys_max: u32,
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
        Grid {
            rows,
            window: [0, u32::MAX],
            row_operations,
            key_operations: 0,
            keys_max: 0,
            groups: Arc::new(groups),
        }
    }

    /// Rows inside the window.
    pub fn rows(&self, counts: &Counts) -> u32 {
        counts.of(self.rows).saturating_sub(self.window[0]).min(self.window[1])
    }

    /// Workgroups; none if the window has no rows.
    pub fn groups(&self, counts: &Counts) -> [u32; 3] {
        match self.rows(counts) {
            0 => [0; 3],
            rows => (self.groups)(counts, rows),
        }
    }

    /// Operations of the dispatch with these workgroups.
    pub fn operations(&self, counts: &Counts, [x, y, _]: [u32; 3]) -> u64 {
        let keys = u64::from(counts.longest.min(self.keys_max));
        let of_keys = u64::from(x) * u64::from(y) * keys * self.key_operations;
        u64::from(self.rows(counts)) * self.row_operations + of_keys
    }
}

/// Memory bound by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A buffer of the segment, an index into [`Draft::buffers`].
    Buffer(usize),
    /// The step's words.
    Step,
    /// Gains, biases and RoPE tables.
    Vectors,
    /// A block of weights.
    Weights(Home),
    /// A layer's keys.
    Keys(CacheId),
    /// A layer's values.
    Values(CacheId),
    /// A layer's states of sequences.
    States(StateId),
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
    /// Its condition.
    pub when: fn(&Counts, u32) -> bool,
    /// The argument of `when`.
    pub bound: u32,
    /// Its dispatches.
    pub dispatches: Vec<DraftDispatch>,
}

impl DraftChoice {
    /// No dispatch where the condition applies.
    pub fn skip((when, bound): Condition) -> DraftChoice {
        DraftChoice { when, bound, dispatches: Vec::new() }
    }
}

/// One stage.
pub struct DraftStage {
    /// The graph's nodes it covers.
    pub nodes: Vec<u32>,
    /// Its name for profiles.
    pub name: String,
    /// The ways to run it; the first that applies is used.
    pub choices: Vec<DraftChoice>,
    /// The value it computes, if it must be checked.
    pub makes: Option<Value>,
}

/// The location of a value: rows of `stride` floats from `offset` in a buffer of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: usize,
    /// Offset of the first row, floats.
    pub offset: u32,
    /// Row stride, floats.
    pub stride: u32,
    /// Floats per row.
    pub width: u32,
    /// Whether there is one row per token or per output.
    pub rows: Rows,
}

/// A buffer of the segment before it has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBuffer {
    /// Its size.
    pub bytes: u64,
    /// Whether its contents must be preserved from before the first stage until after the last.
    pub pinned: bool,
    /// Only buffers of equal class may share memory.
    pub class: usize,
}

/// A condition of a choice, and its bound.
pub type Condition = (fn(&Counts, u32) -> bool, u32);

/// Always applies.
pub fn always(_: &Counts, _: u32) -> bool {
    true
}

/// Applies up to `bound` tokens.
pub fn tokens_to(counts: &Counts, bound: u32) -> bool {
    counts.tokens <= bound
}

/// Applies up to `bound` outputs.
pub fn outputs_to(counts: &Counts, bound: u32) -> bool {
    counts.outputs <= bound
}

/// Applies where attention merges parts of the keys.
pub fn is_split(counts: &Counts, _: u32) -> bool {
    counts.splits > 1
}

/// Applies up to `bound` rows of a kind.
pub fn rows_to(rows: Rows) -> fn(&Counts, u32) -> bool {
    match rows {
        Rows::Tokens => tokens_to,
        Rows::Outputs => outputs_to,
    }
}
