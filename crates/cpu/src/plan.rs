//! Splits a step's attention into tiles: by tokens if there are many, by pages if there are few.
//!
//! The split depends on the step alone, never on the number of threads, so the order of every sum is fixed. In a step of at
//! most [`EXACT_ROWS_MAX`] rows, where a row's pages are cut depends on the row's position alone: cuts lie at multiples of
//! their width from the sequence's begin. What rows beside it add are pages and cuts that it attends to nothing of.

use bilayer_graph::{EXACT_ROWS_MAX, PAGE_TOKENS, Span, Window};

/// Minimum number of pages per tile before a sequence's pages are split: 512 positions.
const CUT_PAGES: usize = 16;

/// Width of cuts of rows whose pages are not split.
const UNCUT: usize = usize::MAX;

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
        let least = self.least_width(spans);
        self.tiles.clear();
        self.merges.clear();
        let mut part = 0;
        for (index, span) in spans.iter().enumerate() {
            let mut rest = self.whole(index, span);
            while rest.rows > 0 {
                let (tile, width) = self.split_off(&mut rest, span);
                let width = width.max(least);
                if cuts(&tile, width) > 1 {
                    part = self.push_cuts(tile, width, part);
                } else {
                    self.tiles.push(tile);
                }
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

    /// Whether a span has so many rows that its tiles need not be cut by pages.
    fn is_prompt(&self, span: &Span) -> bool {
        span.rows as usize > self.reach.tile_tokens.max(EXACT_ROWS_MAX)
    }

    /// Takes the next rows that one tile can have from the rest of a span. Returns the tile and the width of its cuts.
    fn split_off(&self, rest: &mut Tile, span: &Span) -> (Tile, usize) {
        let most = rest.rows.min(self.reach.tile_tokens);
        let (rows, width) = match self.is_prompt(span) {
            true => (most, UNCUT),
            false => {
                let width = self.width(rest, 0);
                let others = (1..most).take_while(|&at| self.width(rest, at) == width).count();
                (1 + others, width)
            }
        };
        let tile = self.paged(Tile { rows, ..*rest });
        rest.row += rows;
        rest.position += rows;
        rest.rows -= rows;
        (tile, width)
    }

    /// Pages per cut for the row `at` of a tile: the smallest power-of-two multiple of [`CUT_PAGES`] for which the partial
    /// results of [`EXACT_ROWS_MAX`] such rows fit; [`UNCUT`] for few pages.
    fn width(&self, tile: &Tile, at: usize) -> usize {
        let position = tile.position + at;
        let seen = match self.reach.both_ways {
            true => tile.end - tile.begin,
            false => position + 1 - first_seen(self.reach.window, position),
        };
        if seen <= CUT_PAGES * PAGE_TOKENS {
            return UNCUT;
        }
        // One page more than it sees may be touched, and one cut more than those fill.
        let pages = seen.div_ceil(PAGE_TOKENS) + 1;
        let most = self.parts_max / EXACT_ROWS_MAX;
        let mut width = CUT_PAGES;
        while pages.div_ceil(width) + 1 > most {
            width *= 2;
        }
        width
    }

    /// The smallest power-of-two multiple of [`CUT_PAGES`] with which the partial results of all rows fit.
    fn least_width(&self, spans: &[Span]) -> usize {
        let mut least = CUT_PAGES;
        loop {
            let mut parts = 0;
            for span in spans {
                let mut rest = self.whole(0, span);
                while rest.rows > 0 && !self.is_prompt(span) {
                    let (tile, width) = self.split_off(&mut rest, span);
                    let cuts = cuts(&tile, width.max(least));
                    parts += if cuts > 1 { cuts * tile.rows } else { 0 };
                }
            }
            if parts <= self.parts_max {
                return least;
            }
            least *= 2;
        }
    }

    fn push_cuts(&mut self, whole: Tile, width: usize, mut part: usize) -> usize {
        let first_part = part;
        let mut first_page = whole.first_page;
        while first_page < whole.end_page {
            let end_page = ((first_page / width + 1) * width).min(whole.end_page);
            self.tiles.push(Tile { first_page, end_page, part: Some(part), ..whole });
            part += whole.rows;
            first_page = end_page;
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
}

/// Number of cuts of a tile's pages.
fn cuts(tile: &Tile, width: usize) -> usize {
    tile.end_page.div_ceil(width) - tile.first_page / width
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

    /// The pages that row `at` attends to, in the tiles of a step in which it is.
    fn pages_of(plan: &Plan, at: usize) -> Vec<(usize, usize)> {
        let of = |tile: &Tile| {
            let position = tile.position + at.checked_sub(tile.row).filter(|&at| at < tile.rows)?;
            let first = first_seen(plan.reach.window, position) / PAGE_TOKENS;
            let end = position / PAGE_TOKENS + 1;
            Some((tile.first_page.max(first), tile.end_page.min(end)))
        };
        plan.tiles.iter().filter_map(of).filter(|(first, end)| first < end).collect()
    }

    #[test]
    fn a_row_of_few_is_cut_as_if_it_were_alone() {
        let windows =
            [None, Some(Window::Last(700)), Some(Window::Last(512)), Some(Window::Chunk(1000))];
        let positions = [0, 500, 509, 700, 1020, 1500, 1999, 5000, 17_400, 40_000, 81_900, 163_000];
        let mut several = 0;
        for (window, tile_tokens, tokens) in windows.into_iter().flat_map(|window| {
            [(window, 16, 8), (window, 3, 8), (window, 64, 512), (window, 1, 512)]
        }) {
            let reach = Reach { window, tile_tokens, ..CAUSAL };
            let [mut alone, mut among] = [(); 2].map(|()| Plan::new(reach, tokens));
            for (position, rows) in positions.into_iter().flat_map(|at| [(at, 8), (at + 3, 5)]) {
                let other = span(rows, 8 - rows, 100_000);
                among.lay(&[span(0, rows, position), other][..1 + usize::from(rows < 8)]);
                for row in 0..rows {
                    alone.lay(&[span(0, 1, position + row)]);
                    let expected = pages_of(&alone, 0);
                    several += usize::from(expected.len() > 1);
                    assert_eq!(
                        pages_of(&among, row as usize),
                        expected,
                        "{reach:?} {position} {row}"
                    );
                }
            }
        }
        assert!(several > 100, "{several}");
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
