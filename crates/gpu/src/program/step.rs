//! The step as read by shaders: one array of u32, with the layout in shaders/README.md.

use bilayer_graph::{Error as GraphError, Limits, Span, Step};

use super::draft::Counts;

/// Words before the first array.
const HEADER: u32 = 8;

/// Rows per span from which its attention is tiled.
pub const TILED_ROWS: u32 = 2;

/// Offsets of the arrays of a step, in u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Token ids.
    pub tokens: u32,
    /// Position and first page-table entry of each row.
    pub rows: u32,
    /// Rows whose logits are requested.
    pub outputs: u32,
    /// Tiles of attention.
    pub tiles: u32,
    /// Words per tile: if every step consists of whole sequences, a tile contains the bounds of its own.
    pub tile_words: u32,
    /// Number of texts that end before each row, if texts of a sequence are distinguished.
    pub segments: u32,
    /// Spans of state: first row, rows, the slots from and to which they carry.
    pub states: u32,
    /// Page tables.
    pub pages: u32,
    /// Pages to copy.
    pub copies: u32,
    /// Total words.
    pub len: u32,
}

impl Layout {
    /// The layout for steps of a kind within `limits`.
    pub fn new(limits: &Limits, kind: &StepKind) -> Layout {
        let tokens = HEADER;
        let rows = tokens + limits.tokens as u32;
        let outputs = rows + 2 * limits.tokens as u32;
        let tiles = (outputs + limits.outputs as u32).next_multiple_of(4);
        let tile_words = if kind.whole { 6 } else { 4 };
        let segments = tiles + tile_words * limits.tokens as u32;
        let states = segments + if kind.segments.is_some() { limits.tokens as u32 } else { 0 };
        let pages = states + 4 * spans_max(limits) as u32;
        // Last, since most steps have none, and what is behind the last word that is read is not written to the device.
        let copies = pages + limits.page_entries as u32;
        let len = (copies + 2 * copies_max(limits) as u32).next_multiple_of(4);
        Layout { tokens, rows, outputs, tiles, tile_words, segments, states, pages, copies, len }
    }
}

/// A segment's requirements on the step buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepKind {
    /// Whether steps consist of whole sequences with bidirectional attention.
    pub whole: bool,
    /// The token that ends a text and the last row of the table, if texts of a sequence are distinguished.
    pub segments: Option<(u32, u32)>,
}

/// Maximum copies per step: each sequence may have to replace a page twice before a step.
fn copies_max(limits: &Limits) -> usize {
    (2 * limits.sequences).max(limits.pages)
}

/// Maximum spans of state per step.
fn spans_max(limits: &Limits) -> usize {
    if limits.states == 0 { 0 } else { limits.states + limits.sequences }
}

/// Instead of a slot at the beginning of a sequence.
const NO_SLOT: u32 = u32::MAX;

/// The words of the current step.
pub struct Words {
    layout: Layout,
    kind: StepKind,
    words: Vec<u32>,
    used: usize,
    /// Rows per tile of attention if there are many.
    tile_rows: u32,
    /// The splitting of keys.
    splits: Splits,
    /// Rows of the smallest table of positions.
    positions: usize,
}

/// The splitting of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    /// Workgroups that fill the device.
    pub wanted: u32,
    /// Pages of a part that is worth merging.
    pub least_pages: u32,
    /// Maximum number of splits.
    pub max: u32,
    /// Workgroups per tile without splits.
    pub heads: u32,
    /// Maximum rows with splits; steps of more rows are not split.
    pub rows: u32,
}

impl Words {
    /// Allocates for any step within `limits`.
    pub fn new(limits: &Limits, kind: StepKind, tile_rows: u32, splits: Splits) -> Words {
        let layout = Layout::new(limits, &kind);
        let words = vec![0; layout.len as usize];
        Words { layout, kind, words, used: 0, tile_rows, splits, positions: usize::MAX }
    }

    /// The maximum of rows times splits over all steps with splits.
    pub fn split_rows(&self, limits: &Limits) -> usize {
        let longest = (limits.pages * bilayer_graph::PAGE_TOKENS) as u32;
        let of = |rows: u32| (rows, self.splits.of(rows.div_ceil(self.tile_rows), longest));
        let split = (1..=self.splits.rows).map(of).filter(|(_, splits)| *splits > 1);
        split.map(|(rows, splits)| (rows * splits) as usize).max().unwrap_or(0)
    }

    /// Refuses positions from `bound` on.
    pub fn bound_positions(&mut self, bound: usize) {
        self.positions = self.positions.min(bound);
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Rows per tile of attention if there are many.
    pub fn tile_rows(&self) -> u32 {
        self.tile_rows
    }

    /// The words of the last step.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.used]
    }

    /// Writes a step.
    ///
    /// # Errors
    /// It exceeds the limits.
    pub fn fill(&mut self, step: &Step<'_>, limits: &Limits) -> Result<Counts, GraphError> {
        self.check(step, limits)?;
        let Layout { tokens, rows, outputs, copies, states, pages, .. } = self.layout;
        self.lay_segments(step);
        let words = &mut self.words;
        words[tokens as usize..][..step.tokens.len()].copy_from_slice(step.tokens);
        words[outputs as usize..][..step.outputs.len()].copy_from_slice(step.outputs);
        words[pages as usize..][..step.pages.len()].copy_from_slice(step.pages);
        for (to, copy) in words[copies as usize..].chunks_exact_mut(2).zip(step.copies) {
            to.copy_from_slice(&[copy.from, copy.to]);
        }
        for (to, span) in words[states as usize..].chunks_exact_mut(4).zip(step.states) {
            let from = span.from.unwrap_or(NO_SLOT);
            to.copy_from_slice(&[span.first_row, span.rows, from, span.to]);
        }
        let mut row = rows as usize;
        for span in step.spans {
            for position in span.first_position..span.first_position + span.rows {
                words[row..row + 2].copy_from_slice(&[position, span.first_page]);
                row += 2;
            }
        }
        let many = step.spans.iter().any(|span| span.rows >= TILED_ROWS);
        let tile_rows = if many { self.tile_rows } else { 1 };
        let count = self.lay_tiles(step, tile_rows);
        let end = |span: &Span| span.first_position + span.rows;
        let longest = step.spans.iter().map(end).max().unwrap_or(0);
        let splits = match step.tokens.len() as u32 > self.splits.rows {
            true => 1,
            false => self.splits.of(count as u32, longest),
        };
        let counts = Counts {
            tokens: step.tokens.len() as u32,
            outputs: step.outputs.len() as u32,
            tiles: count as u32,
            copies: step.copies.len() as u32,
            tile_rows,
            splits,
            longest,
            top_k: u32::try_from(step.top_k).unwrap_or(u32::MAX),
        };
        self.words[..HEADER as usize].copy_from_slice(&[
            counts.tokens,
            counts.outputs,
            counts.tiles,
            counts.copies,
            counts.splits,
            step.states.len() as u32,
            counts.top_k,
            0,
        ]);
        self.used = match step.copies.len() {
            0 => pages as usize + step.pages.len(),
            copied => copies as usize + 2 * copied,
        };
        Ok(counts)
    }

    /// The counts of a step that adds one token to each sequence, if that is what the last one did.
    pub fn following(&self, last: &Counts) -> Option<Counts> {
        if last.tile_rows != 1 || last.tiles != last.tokens || last.tokens > self.splits.rows {
            return None;
        }
        let longest = last.longest + 1;
        Some(Counts { longest, splits: self.splits.of(last.tiles, longest), copies: 0, ..*last })
    }

    /// Splits spans into tiles of `tile_rows` and returns their number.
    fn lay_tiles(&mut self, step: &Step<'_>, tile_rows: u32) -> usize {
        let len = self.layout.tile_words as usize;
        let mut tiles = self.words[self.layout.tiles as usize..].chunks_exact_mut(len);
        let mut count = 0;
        for span in step.spans {
            for first in (0..span.rows).step_by(tile_rows as usize) {
                let tile = [
                    span.first_row + first,
                    tile_rows.min(span.rows - first),
                    span.first_position + first,
                    span.first_page,
                    span.first_position,
                    span.first_position + span.rows,
                ];
                let to = tiles.next().expect("a tile for each token has room");
                to.copy_from_slice(&tile[..len]);
                count += 1;
            }
        }
        count
    }

    fn lay_segments(&mut self, step: &Step<'_>) {
        if let Some((separator, last)) = self.kind.segments {
            let to = self.words[self.layout.segments as usize..].iter_mut();
            to.zip(step.segments(separator, last)).for_each(|(to, segment)| *to = segment);
        }
    }

    fn check(&self, step: &Step<'_>, limits: &Limits) -> Result<(), GraphError> {
        within("tokens", step.tokens.len(), limits.tokens)?;
        within("outputs", step.outputs.len(), limits.outputs)?;
        within("sequences", step.spans.len(), limits.sequences)?;
        within("page entries", step.pages.len(), limits.page_entries)?;
        within("page copies", step.copies.len(), copies_max(limits))?;
        within("spans of state", step.states.len(), spans_max(limits))?;
        let slots = step.states.iter().flat_map(|span| span.from.into_iter().chain([span.to]));
        within("slots of state", slots.max().map_or(0, |slot| slot as usize + 1), limits.states)?;
        for span in step.spans {
            let end = span.first_position as usize + span.rows as usize;
            within("positions in its table", end, self.positions)?;
        }
        if let Some(&page) = step.pages.iter().find(|&&page| page as usize >= limits.pages) {
            let (what, found) = ("as a page", page as usize);
            return Err(GraphError::Limit { what, limit: limits.pages, found });
        }
        Ok(())
    }
}

impl Splits {
    /// Number of splits for `tiles` tiles over sequences of up to `longest` tokens.
    fn of(&self, tiles: u32, longest: u32) -> u32 {
        let limits = [self.least_pages, self.max];
        crate::kernels::attend::splits(tiles * self.heads, longest, self.wanted, limits)
    }
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<(), GraphError> {
    if found > limit { Err(GraphError::Limit { what, limit, found }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Exactness, PageCopy};

    use super::*;

    /// Pages to copy are few and seldom, and have room for all.
    #[test]
    fn a_step_without_copies_ends_with_its_pages() {
        let limits = Limits { sequences: 2, page_entries: 600, states: 0, ..Limits::new(8, 500) };
        let splits = Splits { wanted: 8, least_pages: 1, max: 4, heads: 1, rows: 8 };
        let mut words = Words::new(&limits, StepKind::default(), 4, splits);
        let span = Span { first_row: 0, rows: 2, first_position: 30, first_page: 0 };
        let mut fill = |copies: &[PageCopy]| {
            let step = Step {
                tokens: &[5, 6],
                spans: &[span],
                pages: &[7, 9],
                outputs: &[1],
                states: &[],
                copies,
                top_k: 0,
                exactness: Exactness::default(),
            };
            words.fill(&step, &limits).expect("within the limits");
            (words.words().to_vec(), *words.layout())
        };
        let (few, layout) = fill(&[]);
        assert_eq!(few[layout.pages as usize..], [7, 9]);
        let (more, layout) = fill(&[PageCopy { from: 1, to: 7 }, PageCopy { from: 2, to: 9 }]);
        assert_eq!(more[layout.pages as usize..][..2], [7, 9]);
        assert_eq!(more[layout.copies as usize..], [1, 7, 2, 9]);
        assert!(few.len() < 100 && more.len() > 600, "{} and {} words", few.len(), more.len());
    }
}
