//! The grammar that the flags give, compiled for the model.

use bilayer_engine::constrain::{Constraint, Grammar};
use bilayer_engine::{Error, Model};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::output;

/// The constraint of every answer, if one is asked for.
pub fn asked(args: &RunArgs, model: &Model) -> Result<Option<Constraint>, Failure> {
    let flags = &args.grammar;
    let (grammar, place) = if let Some(schema) = &flags.json_schema {
        (json(schema), "--json-schema".to_owned())
    } else if let Some(path) = &flags.json_schema_file {
        (json(&output::file(path)?), path.display().to_string())
    } else if let Some(grammar) = flags.grammar() {
        (Grammar::gbnf(grammar), "--grammar".to_owned())
    } else if let Some(path) = &flags.grammar_file {
        (Grammar::gbnf(output::file(path)?), path.display().to_string())
    } else {
        return Ok(None);
    };
    let constraint = model.constraint(&grammar);
    Ok(Some(constraint.map_err(|error: Error| Failure::from(error).at(&place))?))
}

/// A schema; the empty one means an object, as with llama.cpp.
fn json(schema: &str) -> Grammar {
    let is_empty = schema.split_whitespace().collect::<String>() == "{}";
    if is_empty { Grammar::json_object() } else { Grammar::json_schema(schema) }
}
