//! One step: which tokens of which sequences run, where their keys and values are stored, which rows are requested.

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 32;

/// A run of consecutive tokens of one sequence inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first row of the step that belongs to this span.
    pub first_row: u32,
    /// Number of rows.
    pub rows: u32,
    /// Position in the sequence of the first row; earlier positions are already cached.
    pub first_position: u32,
    /// Index of the sequence's page table in [`Step::pages`]. Entry `p / PAGE_TOKENS` contains position `p`; the
    /// table covers at least the last row's position.
    pub first_page: u32,
}

/// A page to be copied in every cache before the step runs (copy on write of a shared prefix).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Page read.
    pub from: u32,
    /// Page written.
    pub to: u32,
}

/// A run of consecutive rows through which recurrent layers carry a sequence's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// The first row of the step that belongs to this span.
    pub first_row: u32,
    /// Number of rows; at least 1.
    pub rows: u32,
    /// The slot that holds the state before the first row, possibly stored by an earlier span of the step; `None` at
    /// the beginning of a sequence, where the state is zero.
    pub from: Option<u32>,
    /// The slot that receives the state after the last row. It may equal `from`.
    pub to: u32,
}

/// How closely the results of a row depend on the rows beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exactness {
    /// Kernels are chosen for speed by the number of rows: the last bits of a row may depend on that number.
    #[default]
    Fastest,
    /// Each row gets the bits that it would get in a step of its own, as the verification of draft tokens needs. It
    /// costs the kernels for many rows. The CPU backend keeps it for up to [`EXACT_ROWS_MAX`] rows, the reference
    /// for any number; GPU kernels for one row and for several sum in different orders, and ignore it.
    PerRow,
}

/// Most rows of a step for which a backend must be able to keep [`Exactness::PerRow`].
pub const EXACT_ROWS_MAX: usize = 8;

/// The contents of a step: flat plain data that can be stored, compared and uploaded.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Token ids `[T]`, `1 <= T <= Limits::tokens`.
    pub tokens: &'a [u32],
    /// The runs that cover rows `0..T` in order, without gaps.
    pub spans: &'a [Span],
    /// Page tables, concatenated.
    pub pages: &'a [u32],
    /// Rows whose logits are requested `[R]`, ascending.
    pub outputs: &'a [u32],
    /// Spans of state that cover rows `0..T` in order, without gaps; empty if the graph has no state.
    pub states: &'a [StateSpan],
    /// Page copies performed first.
    pub copies: &'a [PageCopy],
    /// How many of the largest elements [`Op::TopK`](crate::Op::TopK) finds in each row, at most the op's `k`. With 0,
    /// nothing reads its result, and it may be skipped.
    pub top_k: usize,
    /// Whether a row's bits may depend on the rows beside it.
    pub exactness: Exactness,
}

impl Step<'_> {
    /// Position of each row in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.spans.iter().flat_map(|s| s.first_position..s.first_position + s.rows)
    }

    /// For each row, the number of `separator` tokens before it in its span, at most `most`.
    pub fn segments(&self, separator: u32, most: u32) -> impl Iterator<Item = u32> + '_ {
        self.spans.iter().flat_map(move |span| {
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            self.tokens[rows].iter().scan(0, move |count, &token| {
                let before = *count;
                *count = (before + u32::from(token == separator)).min(most);
                Some(before)
            })
        })
    }

    /// The page table of `span`, up to its last position.
    pub fn page_table(&self, span: &Span) -> &[u32] {
        let tokens = (span.first_position + span.rows) as usize;
        let first = span.first_page as usize;
        &self.pages[first..first + tokens.div_ceil(PAGE_TOKENS)]
    }
}
