//! The step that a program runs: its own validated copy, and data derived once for all layers.

use bilayer_graph::{Error, Exactness, Limits, PAGE_TOKENS, PageCopy, Rows, Span, StateSpan, Step};

use crate::plan::Plan;

/// Consecutive tokens of a span within one page, which are stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRun {
    /// The first row of the step.
    pub(crate) row: usize,
    /// Number of rows.
    pub(crate) rows: usize,
    /// The page.
    pub(crate) page: u32,
    /// Index of the first token within the page.
    pub(crate) slot: usize,
}

/// Rows of the smallest embedding tables of a program; `usize::MAX` without any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// Bound of token ids.
    pub(crate) vocab: usize,
    /// Bound of positions.
    pub(crate) positions: usize,
    /// The token that ends a text and the last row of the table, if the program distinguishes texts of a sequence.
    pub(crate) segments: Option<(u32, u32)>,
    /// Whether the program has states of sequences.
    pub(crate) has_states: bool,
}

/// A step's data, in buffers allocated for the limits.
pub(crate) struct State {
    limits: Limits,
    tables: Tables,
    /// Whether pages are used.
    cached: bool,
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// For each row, the number of texts that end before it in its span; empty without a separator.
    pub(crate) segments: Vec<u32>,
    pub(crate) spans: Vec<Span>,
    pub(crate) pages: Vec<u32>,
    pub(crate) outputs: Vec<u32>,
    pub(crate) states: Vec<StateSpan>,
    pub(crate) copies: Vec<PageCopy>,
    /// How many of the largest elements are searched for in each row.
    pub(crate) top_k: usize,
    pub(crate) exactness: Exactness,
    /// Whether all rows are of prompts: none is alone in its span, as those of answers are, and none is a draft token.
    pub(crate) only_prompts: bool,
    pub(crate) runs: Vec<PageRun>,
    /// The tiles of attention, one plan per kind of attention in the program.
    pub(crate) plans: Vec<Plan>,
}

impl State {
    pub(crate) fn new(limits: Limits, tables: Tables, plans: Vec<Plan>) -> State {
        State {
            limits,
            tables,
            cached: !plans.is_empty(),
            tokens: Vec::with_capacity(limits.tokens),
            positions: Vec::with_capacity(limits.tokens),
            segments: Vec::with_capacity(limits.tokens),
            spans: Vec::with_capacity(limits.sequences),
            pages: Vec::with_capacity(limits.page_entries),
            outputs: Vec::with_capacity(limits.outputs),
            states: Vec::with_capacity(limits.states + limits.sequences),
            copies: Vec::with_capacity(limits.pages),
            top_k: 0,
            exactness: Exactness::Fastest,
            only_prompts: false,
            runs: Vec::with_capacity(limits.tokens),
            plans,
        }
    }

    /// Number of rows of a value in this step.
    pub(crate) fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.outputs.len(),
        }
    }

    /// Maximum number of rows of a value in any step.
    pub(crate) fn rows_max(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
        }
    }

    /// The page table of a span.
    pub(crate) fn page_table(&self, span: &Span) -> &[u32] {
        &self.pages[span.first_page as usize..]
    }

    /// The first row of the span that contains `row`.
    pub(crate) fn span_start(&self, row: u32) -> u32 {
        let after = self.spans.partition_point(|span| span.first_row <= row);
        self.spans[after - 1].first_row
    }

    /// Sets the step.
    ///
    /// # Errors
    /// It exceeds a limit, or is inconsistent; the state is then unchanged.
    pub(crate) fn set(&mut self, step: &Step<'_>) -> Result<(), Error> {
        self.check(step)?;
        refill(&mut self.tokens, step.tokens);
        refill(&mut self.spans, step.spans);
        refill(&mut self.pages, step.pages);
        refill(&mut self.outputs, step.outputs);
        refill(&mut self.states, step.states);
        refill(&mut self.copies, step.copies);
        self.top_k = step.top_k;
        self.exactness = step.exactness;
        self.only_prompts =
            step.exactness == Exactness::Fastest && step.spans.iter().all(|span| span.rows > 1);
        self.positions.clear();
        self.positions.extend(step.positions());
        self.segments.clear();
        if let Some((separator, last)) = self.tables.segments {
            self.segments.extend(step.segments(separator, last));
        }
        self.runs.clear();
        if self.cached {
            for span in step.spans {
                push_runs(&mut self.runs, span, step.page_table(span));
            }
        }
        for plan in &mut self.plans {
            plan.lay(step.spans);
        }
        Ok(())
    }

    fn check(&self, step: &Step<'_>) -> Result<(), Error> {
        let limits = &self.limits;
        at_most("tokens", limits.tokens, step.tokens.len())?;
        at_most("outputs", limits.outputs, step.outputs.len())?;
        at_most("sequences", limits.sequences, step.spans.len())?;
        at_most("page entries", limits.page_entries, step.pages.len())?;
        at_most("page copies", limits.pages, step.copies.len())?;
        if step.tokens.is_empty() {
            return Err(Error::Limit {
                what: "tokens, and none is not a step",
                limit: 1,
                found: 0,
            });
        }
        for &token in step.tokens {
            below("as a token id", self.tables.vocab, token)?;
        }
        for copy in step.copies {
            below("as a page", limits.pages, copy.from.max(copy.to))?;
        }
        if self.cached {
            for &page in step.pages {
                below("as a page", limits.pages, page)?;
            }
        }
        self.check_states(step)?;
        let mut covered = 0;
        for span in step.spans {
            if span.first_row as usize != covered || span.rows == 0 {
                let found = span.first_row as usize;
                return Err(Error::Limit { what: "as a span's first row", limit: covered, found });
            }
            covered += span.rows as usize;
            let end = u64::from(span.first_position) + u64::from(span.rows);
            let pages = end.div_ceil(PAGE_TOKENS as u64) + u64::from(span.first_page);
            at_most("as a position", u32::MAX as usize, end as usize)?;
            at_most("positions in its table", self.tables.positions, end as usize)?;
            if self.cached {
                at_most("pages in a span's table", step.pages.len(), pages as usize)?;
            }
        }
        if covered != step.tokens.len() {
            return Err(Error::Limit {
                what: "rows in its spans",
                limit: step.tokens.len(),
                found: covered,
            });
        }
        for &row in step.outputs {
            below("as an output row", step.tokens.len(), row)?;
        }
        Ok(())
    }
}

impl State {
    fn check_states(&self, step: &Step<'_>) -> Result<(), Error> {
        let slots = self.limits.states;
        at_most("spans of state", slots + self.limits.sequences, step.states.len())?;
        let mut covered = 0;
        for span in step.states {
            if span.first_row as usize != covered || span.rows == 0 {
                let (what, found) =
                    ("as the first row of a span of state", span.first_row as usize);
                return Err(Error::Limit { what, limit: covered, found });
            }
            covered += span.rows as usize;
            span.from.map_or(Ok(()), |slot| below("as a slot of state", slots, slot))?;
            below("as a slot of state", slots, span.to)?;
        }
        if self.tables.has_states && covered != step.tokens.len() {
            let (what, limit) = ("rows in its spans of state", step.tokens.len());
            return Err(Error::Limit { what, limit, found: covered });
        }
        Ok(())
    }
}

fn at_most(what: &'static str, limit: usize, found: usize) -> Result<(), Error> {
    if found > limit { Err(Error::Limit { what, limit, found }) } else { Ok(()) }
}

fn below(what: &'static str, bound: usize, found: u32) -> Result<(), Error> {
    let found = found as usize;
    if found >= bound {
        Err(Error::Limit { what, limit: bound.saturating_sub(1), found })
    } else {
        Ok(())
    }
}

/// Replaces the contents of `to` by `from`; `to` is large enough once the limits are checked.
fn refill<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}

fn push_runs(runs: &mut Vec<PageRun>, span: &Span, table: &[u32]) {
    let (mut row, end) = (span.first_row as usize, (span.first_row + span.rows) as usize);
    let mut position = span.first_position as usize;
    while row < end {
        let slot = position % PAGE_TOKENS;
        let rows = (PAGE_TOKENS - slot).min(end - row);
        runs.push(PageRun { row, rows, page: table[position / PAGE_TOKENS], slot });
        row += rows;
        position += rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reach;

    fn limits() -> Limits {
        Limits { outputs: 4, sequences: 3, states: 2, ..Limits::new(40, 8) }
    }

    const TABLES: Tables = Tables { vocab: 100, positions: 96, segments: None, has_states: true };
    const CAUSAL: Reach = Reach { window: None, both_ways: false, tile_tokens: 4 };

    fn span(first_row: u32, rows: u32, first_position: u32, first_page: u32) -> Span {
        Span { first_row, rows, first_position, first_page }
    }

    fn state_span(first_row: u32, rows: u32, from: Option<u32>, to: u32) -> StateSpan {
        StateSpan { first_row, rows, from, to }
    }

    #[test]
    fn runs_end_at_pages_and_spans() {
        let mut state = State::new(limits(), TABLES, vec![Plan::new(CAUSAL, 40)]);
        let step = Step {
            tokens: &[1; 38],
            spans: &[span(0, 36, 30, 0), span(36, 2, 0, 3)],
            pages: &[5, 6, 7, 2],
            outputs: &[37],
            states: &[state_span(0, 38, None, 1)],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        state.set(&step).unwrap();
        let run = |row, rows, page, slot| PageRun { row, rows, page, slot };
        assert_eq!(
            state.runs,
            [run(0, 2, 5, 30), run(2, 32, 6, 0), run(34, 2, 7, 0), run(36, 2, 2, 0)]
        );
        assert_eq!(state.positions[35..], [65, 0, 1]);
    }

    #[test]
    fn answers_and_draft_tokens_are_told_from_prompts() {
        let mut state = State::new(limits(), Tables { has_states: false, ..TABLES }, Vec::new());
        let prompts = Step {
            tokens: &[1; 5],
            spans: &[span(0, 3, 0, 0), span(3, 2, 7, 0)],
            pages: &[],
            outputs: &[],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        for (step, only_prompts) in [
            (prompts, true),
            (Step { spans: &[span(0, 4, 0, 0), span(4, 1, 7, 0)], ..prompts }, false),
            (Step { tokens: &[1], spans: &[span(0, 1, 7, 0)], ..prompts }, false),
            (Step { exactness: Exactness::PerRow, ..prompts }, false),
        ] {
            state.set(&step).unwrap();
            assert_eq!(state.only_prompts, only_prompts, "{step:?}");
        }
    }

    #[test]
    fn steps_that_do_not_fit_are_refused() {
        let mut state = State::new(limits(), TABLES, vec![Plan::new(CAUSAL, 40)]);
        let good = Step {
            tokens: &[1, 2],
            spans: &[span(0, 2, 0, 0)],
            pages: &[0],
            outputs: &[1],
            states: &[state_span(0, 1, None, 0), state_span(1, 1, Some(0), 1)],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        state.set(&good).unwrap();
        assert!(state.only_prompts);
        let copies = [PageCopy { from: 0, to: 8 }];
        let bad = [
            Step { tokens: &[1; 41], ..good },
            Step { tokens: &[], spans: &[], ..good },
            Step { tokens: &[1, 100], ..good },
            Step { spans: &[span(0, 1, 0, 0)], ..good },
            Step { spans: &[span(1, 2, 0, 0)], ..good },
            Step { spans: &[span(0, 3, 0, 0)], ..good },
            Step { spans: &[span(0, 2, 31, 0)], ..good },
            Step { spans: &[span(0, 2, 95, 0)], pages: &[0, 1, 2, 3], ..good },
            Step { spans: &[span(0, 2, u32::MAX, 0)], ..good },
            Step { spans: &[span(0, 2, 0, u32::MAX)], ..good },
            Step { spans: &[span(0, 2, 0, 0), span(2, 0, 0, 0)], ..good },
            Step { pages: &[8], ..good },
            Step { outputs: &[2], ..good },
            Step { outputs: &[0; 5], ..good },
            Step { states: &[], ..good },
            Step { states: &[state_span(0, 1, None, 0)], ..good },
            Step { states: &[state_span(0, 2, None, 2)], ..good },
            Step { states: &[state_span(0, 2, Some(2), 0)], ..good },
            Step { states: &[state_span(1, 2, None, 0)], ..good },
            Step { copies: &copies, ..good },
        ];
        for step in bad {
            assert!(matches!(state.set(&step), Err(Error::Limit { .. })), "{step:?}");
            assert_eq!(state.tokens, [1, 2]);
        }
    }
}
