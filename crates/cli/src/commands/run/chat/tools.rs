//! The functions that the model of a chat may call.

use bilayer_engine::constrain::{Constraint, Grammar};
use bilayer_engine::{Error, Model};
use bilayer_text::chat::reply::{CallRules, Format, Tool, ToolChoice};
use serde_json::{Map, Value};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::output;

/// The functions of `--tools`; none without it.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    given: Option<Value>,
    list: Vec<Tool>,
}

impl Tools {
    /// Reads the file that the flags name.
    ///
    /// # Errors
    /// It cannot be read, or is no list of functions.
    pub fn of(args: &RunArgs) -> Result<Tools, Failure> {
        let Some(path) = &args.chat.tools else { return Ok(Tools::default()) };
        let wrong = |problem: String| Failure::usage(problem).in_file(path);
        let form =
            "[{\"type\": \"function\", \"function\": {\"name\": ..., \"parameters\": {...}}}]";
        let given: Value = serde_json::from_str(&output::file(path)?)
            .map_err(|error| wrong(format!("{error}; give a JSON list: {form}")))?;
        let list = Tool::list(&given);
        let count = given.as_array().map_or(0, Vec::len);
        if list.is_empty() || list.len() < count {
            return Err(wrong(format!("it is no list of functions with names; give {form}")));
        }
        Ok(Tools { given: Some(given), list })
    }

    /// The list for the chat template.
    pub fn given(&self) -> Option<Value> {
        self.given.clone()
    }

    /// The functions.
    pub fn list(&self) -> &[Tool] {
        &self.list
    }

    /// What calls must follow: their form, and the schemas of their arguments. `None` if nothing announces a call.
    ///
    /// # Errors
    /// A schema cannot be compiled.
    pub fn constraint(
        &self,
        model: &Model,
        template: &str,
        reasoning: Reasoning,
    ) -> Result<Option<Constraint>, Failure> {
        let format = Format::of(template);
        let rules = CallRules {
            tools: &self.list,
            choice: ToolChoice::Auto,
            parallel: true,
            thinking_is_open: reasoning == Reasoning::Open,
            may_think: reasoning != Reasoning::Off && format.may_think(template),
            tokenizer: Some(model.tokenizer().as_ref()),
        };
        let grammar = if self.list.is_empty() { None } else { format.call_grammar(&rules) };
        let Some((lark, trigger)) = grammar.and_then(|made| Some((made.lark, made.trigger?)))
        else {
            return Ok(None);
        };
        let compiled = model.constraint(&Grammar::lark(lark));
        let compiled = compiled.map_err(|error: Error| Failure::from(error).at("--tools"))?;
        Ok(Some(compiled.once(&trigger)))
    }
}

/// Whether an answer may begin with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// Its prompt begins it.
    Open,
    /// The template's variables turn it off.
    Off,
    /// As the model decides.
    Free,
}

impl Reasoning {
    /// By the template's variables.
    pub fn of(variables: &Map<String, Value>) -> Reasoning {
        match variables.get("enable_thinking").and_then(Value::as_bool) {
            Some(false) => Reasoning::Off,
            _ => Reasoning::Free,
        }
    }
}
