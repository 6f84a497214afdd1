//! The functions that a model may call, and its answers taken apart into reasoning, text and calls.

use bilayer_constrain::{Constraint, Grammar, Starts, Tags};
use bilayer_text::chat::Template;
use bilayer_text::chat::reply::{CallRules, Delta, Format, Options, Tool, ToolChoice, Trigger};
use serde_json::Value;

use crate::conversation::Function;
use crate::generate::Stop;
use crate::{Error, Model};

pub(crate) mod error;

pub use bilayer_text::chat::reply::Parser;
pub use error::ToolsError;

/// The functions that a model may call; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    given: Option<Value>,
    list: Vec<Tool>,
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

impl Tools {
    /// Reads a JSON list of functions with names and the JSON schemas of their parameters.
    ///
    /// # Errors
    /// It is no such list.
    pub fn parse(json: &str) -> Result<Tools, ToolsError> {
        let given = serde_json::from_str(json);
        let given: Value = given.map_err(|error| ToolsError::Json(error.to_string()))?;
        let list = Tool::list(&given).filter(|list| !list.is_empty()).ok_or(ToolsError::Form)?;
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

    /// Whether there is no function.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What calls must follow: their form by the chat template, and the schemas of their arguments. An answer makes one
    /// call if the template shows one only. `None` if nothing announces a call.
    ///
    /// # Errors
    /// A schema cannot be compiled.
    pub fn constraint(
        &self,
        model: &Model,
        template: &Template,
        reasoning: Reasoning,
    ) -> Result<Option<Constraint>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let format = Format::of(template.source());
        let rules = CallRules {
            tools: &self.list,
            choice: ToolChoice::Auto,
            parallel: template.shows_parallel_calls(),
            thinking_is_open: reasoning == Reasoning::Open,
            may_think: reasoning != Reasoning::Off && format.may_think(template.source()),
            tokenizer: Some(model.tokenizer().as_ref()),
        };
        let grammar = format.call_grammar(&rules);
        let Some((lark, trigger)) = grammar.and_then(|made| Some((made.lark, made.trigger?)))
        else {
            return Ok(None);
        };
        let compiled = model.constraint(&Grammar::lark(lark))?;
        Ok(Some(lazy(compiled, &format, &trigger, reasoning)))
    }

    /// Whether an answer may begin with reasoning, by the end of its prompt, of which variables turn none off.
    pub fn reasoning(template: &str, prompt_end: &str) -> Reasoning {
        match Format::of(template).opens_thinking(prompt_end) {
            true => Reasoning::Open,
            false => Reasoning::Free,
        }
    }

    /// What takes an answer apart, by the chat template whose source is given and the end of the prompt.
    pub fn parser(&self, template: &str, prompt_end: &str) -> Parser {
        let format = Format::of(template);
        let thinking_is_open = format.opens_thinking(prompt_end);
        let tools = self.list.clone();
        format.parser(Options { tools, thinking_is_open, ..Options::default() })
    }
}

/// A grammar of calls that begins where a call does, unless that is in reasoning.
#[must_use]
pub fn lazy(
    grammar: Constraint,
    format: &Format,
    trigger: &Trigger,
    reasoning: Reasoning,
) -> Constraint {
    let (open, close) = format.uncalled_tags();
    let first = trigger.first.and_then(|first| u8::try_from(first).ok());
    let starts = Starts { texts: &trigger.texts, first };
    grammar.once_outside(starts, Tags { open, close, is_open: reasoning == Reasoning::Open })
}

/// Ends an answer that is taken apart; returns what was withheld. The beginning of a call, in one that was cut off, is not
/// content.
pub fn end(parser: &mut Parser, stop: Option<Stop>) -> Vec<Delta> {
    let cuts = matches!(stop, Some(Stop::Length | Stop::Context | Stop::Interrupted));
    if cuts { parser.cut() } else { parser.finish() }
}

/// The parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The text.
    pub content: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// The calls, in order.
    pub calls: Vec<Function>,
}

impl Reply {
    /// Takes a whole answer apart.
    pub fn of(mut parser: Parser, text: &str, stop: Option<Stop>) -> Reply {
        let mut deltas = parser.push(text);
        deltas.extend(end(&mut parser, stop));
        let mut reply = Reply::default();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => reply.reasoning += &text,
                Delta::Content(text) => reply.content += &text,
                Delta::Call { name, .. } => {
                    reply.calls.push(Function { name, arguments: String::new() });
                }
                Delta::Arguments { index, text } => {
                    if let Some(call) = reply.calls.get_mut(index) {
                        call.arguments += &text;
                    }
                }
            }
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::{Tools, ToolsError};

    #[test]
    fn every_entry_must_be_a_function_with_a_name() {
        let two = r#"[{"type": "function", "function": {"name": "now"}}, {"name": "later"}]"#;
        let names = |json| Tools::parse(json).map(|tools| tools.list().len());
        assert_eq!(names(two), Ok(2));
        for json in ["[]", "{}", "3", r#"[{"name": "now"}, {"name": 3}]"#] {
            assert_eq!(names(json), Err(ToolsError::Form), "{json}");
        }
        assert!(matches!(names("[{"), Err(ToolsError::Json(_))));
    }
}
