//! Limits on the size of grammars, and thereby on the time and memory that they take.

use llguidance::api::ParserLimits;

/// Most properties of an object: the time to compile them grows with their square.
pub(crate) const PROPERTIES_MAX: usize = 1000;

/// Items of the parser after one token: an object where any of [`PROPERTIES_MAX`] properties may follow has four for
/// each. The work for them is bounded by [`Limits::token_items`].
const ROW_ITEMS: usize = 5 * PROPERTIES_MAX;

/// Limits on one grammar. The defaults bound its compilation to about a second, however hostile the grammar is. A schema
/// whose faults are left out is compiled up to five times, and finding them takes up to half a second more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the source: schema, grammar or regular expression.
    pub source_bytes: usize,
    /// Depth of nested schemas, groups or rules.
    pub depth: usize,
    /// Symbols of the compiled grammar.
    pub symbols: usize,
    /// Work of building the lexer; 50,000 take about a millisecond.
    pub compile_fuel: u64,
    /// Work of the lexer per token; 14,000 take about a millisecond.
    pub token_fuel: u64,
    /// Items of the parser per token; 20,000 take about a millisecond where few of them are in one place. Ambiguous
    /// grammars find each item many times: 500 in one place may take 100 milliseconds.
    pub token_items: usize,
    /// States of the lexer, of 1 to 2 kB each.
    pub lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            source_bytes: 256 << 10,
            depth: 64,
            symbols: 200_000,
            compile_fuel: 400_000,
            token_fuel: 500_000,
            token_items: 100_000,
            lexer_states: 50_000,
        }
    }
}

impl Limits {
    /// The limits as llguidance takes them.
    pub(crate) fn parser(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: ROW_ITEMS,
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.token_fuel,
            step_max_items: self.token_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.symbols,
            precompute_large_lexemes: false,
            verbose_errors: false,
        }
    }
}
