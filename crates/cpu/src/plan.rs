//! Splits a step's attention into tiles: by tokens if there are many, by pages if there are few.
//!
//! The split depends on the step alone, never on the number of threads, so the order of every sum is fixed.

use bilayer_graph::{PAGE_TOKENS, Span, Window};

/// Minimum number of pages per tile before a sequence's pages are split: 512 positions.
const CUT_PAGES: usize = 16;

/// Tokens with space for partial results, in addition to two for each token of the step.
const PARTS: usize = 256;

/// Consecutive tokens of a span, with the pages that they attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Index of the span in the step.
    pub(crate) span: usize,
    /// The first row of the step.
    pub(crate) row: usize,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Position of the first row in the sequence.
    pub(crate) position: usize,
    /// The sequence's available positions, before mask and window.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// The first page to read, as an index into the span's table.
    pub(crate) first_page: usize,
    /// End of the pages to read, exclusive.
    pub(crate) end_page: usize,
    /// Index of the partial results, one per row; `None` if the tile reads everything its rows attend to.
    pub(crate) part: Option<usize>,
}

/// A row whose partial results must be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// The row of the step.
    pub(crate) row: usize,
    /// Index of the first partial result.
    pub(crate) part: usize,
    /// Distance between the row's partial results.
    pub(crate) stride: usize,
    /// Number of partial results.
    pub(crate) count: usize,
}

/// The parameters that determine the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The op's window.
    pub(crate) window: Option<Window>,
    /// Whether tokens also attend to later ones, and to nothing of earlier steps.
    pub(crate) both_ways: bool,
    /// Maximum tokens per tile.
    pub(crate) tile_tokens: usize,
}

impl Reach {
    /// Number of later positions that a token attends to.
    pub(crate) fn ahead(&self) -> usize {
        match (self.both_ways, self.window) {
            (true, None) => usize::MAX,
            (true, Some(Window::Last(window))) => window as usize - 1,
            (true, Some(Window::Chunk(_))) | (false, _) => 0,
        }
    }
}

/// The first position that the token at `position` attends to.
pub(crate) fn first_seen(window: Option<Window>, position: usize) -> usize {
    window.map_or(0, |window| window.first(position as u32) as usize)
}

/// The tiles of one kind of attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    reach: Reach,
    parts_max: usize,
    pub(crate) tiles: Vec<Tile>,
    pub(crate) merges: Vec<Merge>,
}

impl Plan {
    /// A plan with capacity for steps of `tokens` tokens.
    pub(crate) fn new(reach: Reach, tokens: usize) -> Plan {
        let parts_max = PARTS + 2 * tokens;
        Plan {
            reach,
            parts_max,
            tiles: Vec::with_capacity(tokens + parts_max),
            merges: Vec::with_capacity(tokens),
        }
    }

    /// Whether this plan applies to attention of that reach.
    pub(crate) fn serves(&self, reach: Reach) -> bool {
        self.reach == reach
    }

    /// Capacity for partial results.
    pub(crate) fn parts_max(&self) -> usize {
        self.parts_max
    }

    /// Splits a step into tiles.
    pub(crate) fn lay(&mut self, spans: &[Span]) {
        let cut_pages = self.cut_pages(spans);
        self.tiles.clear();
        self.merges.clear();
        let mut part = 0;
        for (index, span) in spans.iter().enumerate() {
            let whole = self.whole(index, span);
            if self.cuts(span, cut_pages) > 1 {
                part = self.push_cuts(whole, cut_pages, part);
            } else {
                self.push_tokens(whole);
            }
        }
        debug_assert!(part <= self.parts_max);
    }

    /// The span as one tile.
    fn whole(&self, index: usize, span: &Span) -> Tile {
        let (position, rows) = (span.first_position as usize, span.rows as usize);
        let tile = Tile {
            span: index,
            row: span.first_row as usize,
            rows,
            position,
            begin: if self.reach.both_ways { position } else { 0 },
            end: position + rows,
            first_page: 0,
            end_page: 0,
            part: None,
        };
        self.paged(tile)
    }

    /// The tile with the pages that its rows attend to.
    fn paged(&self, tile: Tile) -> Tile {
        let first = first_seen(self.reach.window, tile.position).max(tile.begin);
        let end = (tile.position + tile.rows).saturating_add(self.reach.ahead()).min(tile.end);
        Tile { first_page: first / PAGE_TOKENS, end_page: end.div_ceil(PAGE_TOKENS), ..tile }
    }

    /// Number of tiles for a span's pages; 1 for spans of more than one tile of tokens.
    fn cuts(&self, span: &Span, cut_pages: usize) -> usize {
        let whole = self.whole(0, span);
        if whole.rows > self.reach.tile_tokens {
            return 1;
        }
        (whole.end_page - whole.first_page).div_ceil(cut_pages)
    }

    /// The smallest power-of-two multiple of [`CUT_PAGES`] whose partial results fit.
    fn cut_pages(&self, spans: &[Span]) -> usize {
        let mut cut_pages = CUT_PAGES;
        loop {
            let parts = |span: &Span| match self.cuts(span, cut_pages) {
                1 => 0,
                cuts => cuts * span.rows as usize,
            };
            if spans.iter().map(parts).sum::<usize>() <= self.parts_max {
                return cut_pages;
            }
            cut_pages *= 2;
        }
    }

    fn push_cuts(&mut self, whole: Tile, cut_pages: usize, mut part: usize) -> usize {
        let first_part = part;
        for first_page in (whole.first_page..whole.end_page).step_by(cut_pages) {
            let end_page = (first_page + cut_pages).min(whole.end_page);
            self.tiles.push(Tile { first_page, end_page, part: Some(part), ..whole });
            part += whole.rows;
        }
        let (stride, count) = (whole.rows, (part - first_part) / whole.rows);
        self.merges.extend((0..whole.rows).map(|at| Merge {
            row: whole.row + at,
            part: first_part + at,
            stride,
            count,
        }));
        part
    }

    fn push_tokens(&mut self, whole: Tile) {
        for done in (0..whole.rows).step_by(self.reach.tile_tokens) {
            let rows = self.reach.tile_tokens.min(whole.rows - done);
            let position = whole.position + done;
            let tile = Tile { row: whole.row + done, rows, position, ..whole };
            self.tiles.push(self.paged(tile));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSAL: Reach = Reach { window: None, both_ways: false, tile_tokens: 16 };

    fn span(first_row: u32, rows: u32, first_position: u32) -> Span {
        Span { first_row, rows, first_position, first_page: 0 }
    }

    #[test]
    fn prompts_are_cut_by_tokens_and_depth_by_pages() {
        let mut plan = Plan::new(CAUSAL, 64);
        plan.lay(&[span(0, 40, 100), span(40, 2, 32 * 40)]);
        let by_tokens: Vec<_> =
            plan.tiles[..3].iter().map(|t| (t.row, t.rows, t.end_page)).collect();
        assert_eq!(by_tokens, [(0, 16, 4), (16, 16, 5), (32, 8, 5)]);
        let by_pages: Vec<_> =
            plan.tiles[3..].iter().map(|t| (t.first_page, t.end_page, t.part)).collect();
        assert_eq!(by_pages, [(0, 16, Some(0)), (16, 32, Some(2)), (32, 41, Some(4))]);
        let merge = |row, part| Merge { row, part, stride: 2, count: 3 };
        assert_eq!(plan.merges, [merge(40, 0), merge(41, 1)]);
    }

    #[test]
    fn a_window_leaves_out_the_pages_before_it() {
        let mut plan = Plan::new(Reach { window: Some(Window::Last(33)), ..CAUSAL }, 64);
        plan.lay(&[span(0, 1, 1000)]);
        assert_eq!((plan.tiles[0].first_page, plan.tiles[0].end_page), (30, 32));
        assert_eq!(plan.tiles[0].part, None);
    }

    #[test]
    fn both_ways_a_tile_reads_to_the_end_of_its_sequence_or_window() {
        let reach = Reach { both_ways: true, ..CAUSAL };
        let pages = |reach| {
            let mut plan = Plan::new(reach, 256);
            plan.lay(&[span(0, 200, 0), span(200, 20, 0)]);
            plan.tiles.iter().map(|t| (t.row, t.first_page, t.end_page)).collect::<Vec<_>>()
        };
        let whole = pages(reach);
        assert_eq!((whole[0], whole[12], whole[14]), ((0, 0, 7), (192, 0, 7), (216, 0, 1)));
        // Position 96 attends to 65 to 127, position 111 up to 142.
        assert_eq!(pages(Reach { window: Some(Window::Last(32)), ..reach })[6], (96, 2, 5));
    }

    #[test]
    fn partial_results_always_have_room() {
        let spans: Vec<_> = (0..64).map(|row| span(row, 1, 300_000 + row)).collect();
        let mut plan = Plan::new(CAUSAL, 64);
        let room = plan.tiles.capacity();
        plan.lay(&spans);
        let used = plan.merges.iter().map(|m| m.count).sum::<usize>();
        assert!(used <= plan.parts_max() && used > plan.parts_max() / 4, "{used}");
        assert_eq!(plan.tiles.capacity(), room);
    }
}
