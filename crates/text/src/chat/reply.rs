//! Takes the text a model writes apart: reasoning, content and tool calls.
//!
//! Every family of models writes calls in its own way. [`Format::of`] recognises the family from its chat template, and
//! [`Parser`] reads a reply while it is written. The families are rows of one table (`reply/families.rs`); a new one
//! needs no code as long as its calls are JSON objects, names between markers, or written as in Python.
//!
//! Special tokens that are markers must be visible: decode with [`Decode::show_control`](crate::Decode).
//!
//! ```
//! use bilayer_text::chat::reply::{Delta, Format, Options, Tool};
//!
//! let format = Format::of("... <tool_call>{{ call | tojson }}</tool_call> ...");
//! let tools = vec![Tool { name: "now".into(), ..Tool::default() }];
//! let mut parser = format.parser(Options { tools, ..Options::default() });
//! let mut deltas = parser.push("Let me look.\n<tool_call>\n{\"name\": \"now\", \"argum");
//! deltas.extend(parser.push("ents\": {}}\n</tool_call>"));
//! deltas.extend(parser.finish());
//! assert_eq!(deltas, [
//!     Delta::Content("Let me look.".into()),
//!     Delta::Call { index: 0, name: "now".into() },
//!     Delta::Arguments { index: 0, text: "{}".into() },
//! ]);
//! ```

mod attempt;
mod calls;
mod channels;
mod envelope;
mod families;
mod framed;
mod grammar;
mod json;
mod literal;
mod markers;
mod out;
mod parser;
mod scope;
mod session;
#[cfg(test)]
mod tests;
mod written;

pub use grammar::{CallGrammar, CallRules, ToolChoice, Trigger};
pub use out::{Delta, Tool};
pub use parser::{Options, Parser};
pub use session::ReasoningFormat;

use families::{FAMILIES, Family, THINKING, Thinking};

use super::Builtin;
use crate::Tokenizer;

/// How a model writes reasoning and tool calls.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    family: &'static Family,
    thinking: Thinking,
}

impl Format {
    /// Recognises the format from the source of a chat template. A template without tool calls of its own gets the
    /// generic format: JSON objects with `name` and `arguments` between `<tool_call>` and `</tool_call>`, or a reply that
    /// is one such object. The table of [`Builtin`]s names the families of their replies.
    pub fn of(template_source: &str) -> Self {
        let has = |text: &&str| template_source.contains(*text);
        let builtin = Builtin::of_source(template_source);
        let is_family = |family: &&Family| match builtin {
            Some(builtin) => family.name == builtin.replies,
            None => family.signs.iter().any(|signs| signs.iter().all(has)),
        };
        let is_thinking = |thinking: &&Thinking| has(&thinking.sign);
        let generic = &FAMILIES[FAMILIES.len() - 1];
        Self {
            family: FAMILIES.iter().find(is_family).unwrap_or(generic),
            thinking: *THINKING.iter().find(is_thinking).unwrap_or(&THINKING[THINKING.len() - 1]),
        }
    }

    /// The family's name, such as `hermes` or `mistral`.
    pub fn name(&self) -> &'static str {
        self.family.name
    }

    /// The tags around reasoning.
    pub fn thinking_tags(&self) -> (&'static str, &'static str) {
        (self.thinking.open, self.thinking.close)
    }

    /// What is before and after text of a reply in which markers of calls mean nothing.
    pub fn uncalled_tags(&self) -> (&'static str, &'static str) {
        match &self.family.calls {
            families::Syntax::Channels(channels) if channels.markup.is_none() => {
                ("<|channel|>analysis<|message|>", "<|end|>")
            }
            _ => self.thinking_tags(),
        }
    }

    /// Whether a model with this template may begin with a block of reasoning.
    pub fn may_think(&self, template: &str) -> bool {
        template.contains(self.thinking.open.trim())
            || template.contains(self.thinking.close.trim())
    }

    /// Whether a prompt ends within a block of reasoning, so that the reply continues it.
    pub fn opens_thinking(&self, prompt: &str) -> bool {
        let tail = prompt.trim_end();
        tail.ends_with(self.thinking.open)
    }

    /// A grammar that forces calls as this family writes them, with arguments that fit the tools' schemas. None if
    /// nothing can be called, or if the choice is left to the model and its calls have no marker.
    pub fn call_grammar(&self, rules: &CallRules<'_>) -> Option<CallGrammar> {
        grammar::call_grammar(self, rules)
    }

    /// A grammar for a whole reply that is either calls of any of the tools or `answer`, an expression in Lark, whatever
    /// the choice of `rules`. None if nothing can be called, or if calls have no marker that tells them from an answer.
    pub fn call_or_answer_grammar(
        &self,
        rules: &CallRules<'_>,
        answer: &str,
    ) -> Option<CallGrammar> {
        grammar::call_or_answer_grammar(self, rules, answer)
    }

    /// A grammar for a whole reply that is `answer`, an expression in Lark, as this family writes answers; `tokenizer` as in
    /// [`CallRules`]. None if an answer is the reply itself, but for reasoning in tags.
    pub fn answer_grammar(&self, answer: &str, tokenizer: Option<&Tokenizer>) -> Option<String> {
        grammar::answer_grammar(self, answer, tokenizer)
    }

    /// Calls as replies of this family make them, for templates that do not write them: functions with their arguments.
    pub fn written(&self, calls: &[(String, serde_json::Value)]) -> String {
        written::written(&self.family.calls, calls)
    }

    /// A parser for one reply.
    pub fn parser(&self, options: Options) -> Parser {
        Parser::new(self.family, self.thinking, options)
    }
}
