//! GBNF, llama.cpp's notation for grammars, as a Lark grammar for llguidance.
//!
//! GBNF describes texts character by character, while llguidance splits them into lexemes first, each as long as
//! possible. So terminals are chosen such that this makes no difference ([`units`]): a regular grammar becomes one
//! terminal; otherwise terminals are the largest regular parts that no following text could have continued. A token that
//! a grammar names is a terminal of its own, which stands for it ([`crate::readings`]).

use crate::{Error, Limits, Tokens};

mod automaton;
mod chars;
mod parse;
mod regular;
mod units;
mod write;

const WHAT: &str = "the GBNF grammar";

/// The Lark grammar of the texts that a GBNF grammar allows, with stand-ins for the tokens that it names, and these.
///
/// # Errors
/// [`Error::Syntax`], [`Error::Grammar`].
pub fn to_lark(
    source: &str,
    tokens: &Tokens,
    limits: &Limits,
) -> Result<(String, Vec<u32>), Error> {
    let mut grammar = parse::parse(source, tokens, limits)?;
    let mut regular = regular::Regular::find(&mut grammar)?;
    let units = units::Units::choose(&mut grammar, &mut regular)?;
    let source = write::lark(&grammar, &units, tokens)?;
    Ok((source, grammar.tokens))
}

fn refused(reason: String) -> Error {
    Error::Grammar { what: WHAT, reason }
}
