//! The functions that the model of a chat may call, from its flags.

use bilayer_engine::tools::{Reasoning, Tools};
use serde_json::{Map, Value};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::output;

/// Those of the file that `--tools` names; none without it.
///
/// # Errors
/// The file cannot be read, or is no list of functions.
pub fn given(args: &RunArgs) -> Result<Tools, Failure> {
    let Some(path) = &args.chat.tools else { return Ok(Tools::default()) };
    let wrong = |error: bilayer_engine::tools::ToolsError| Failure::usage(error.to_string());
    Tools::parse(&output::file(path)?).map_err(|error| wrong(error).in_file(path))
}

/// Whether answers may reason, by the template's variables.
pub fn reasoning(variables: &Map<String, Value>) -> Reasoning {
    match variables.get("enable_thinking").and_then(Value::as_bool) {
        Some(false) => Reasoning::Off,
        _ => Reasoning::Free,
    }
}
