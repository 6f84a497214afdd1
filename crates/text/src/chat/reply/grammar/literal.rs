//! Grammars of calls written as in a programming language.

use serde_json::Value;

use super::super::families::{Literal, Style};
use super::super::out::{ArgumentType, Tool};
use super::schemas::properties;
use super::{Item, Writer, limits};

impl Writer {
    /// Calls between the family's markers.
    pub fn literal(&mut self, literal: &Literal, tools: &[&Tool]) -> String {
        let calls = self.literals(literal, tools);
        let open = self.opening(literal.open);
        let close = literal.close.first().map(|close| self.text(close)).unwrap_or_default();
        let calls = match literal.style {
            Style::Python => {
                let list = self.several(&calls, ", ");
                format!("\"[\" {list} \"]\" {close}")
            }
            Style::Braces(_) => {
                let call = self.rule("", &calls.join(" | "));
                let more = if self.is_parallel {
                    format!(" ({open} {call} {close})*")
                } else {
                    String::new()
                };
                format!("{call} {close}{more}")
            }
        };
        format!("{open} {calls}")
    }

    /// Calls without markers, one of each tool.
    pub fn literals(&mut self, literal: &Literal, tools: &[&Tool]) -> Vec<String> {
        let call = |tool: &&Tool| {
            let (open, _) = parentheses(literal.style);
            let head = self.text(&format!("{}{}{open}", literal.prefix, tool.name));
            format!("{head} {}", self.literal_end(literal, tool))
        };
        tools.iter().map(call).collect()
    }

    /// A call behind the parenthesis after its name.
    pub fn literal_end(&mut self, literal: &Literal, tool: &Tool) -> String {
        let (_, close) = parentheses(literal.style);
        let (sign, comma) = match literal.style {
            Style::Python => ("=", "\", \""),
            Style::Braces(_) => (":", "\",\""),
        };
        let items: Vec<Item> = properties(tool)
            .map(|(key, schema, is_required)| {
                let kind = ArgumentType::of(tool, key);
                let value = self.literal_value(literal.style, kind, (key, &schema), tool);
                let key = self.text(&format!("{key}{sign}"));
                Item { text: format!("{key} {value}"), is_required }
            })
            .collect();
        let items = self.sequence(tool, &items, comma);
        format!("{items} {}", self.text(close))
    }

    fn literal_value(
        &mut self,
        style: Style,
        kind: ArgumentType,
        (key, schema): (&str, &Value),
        tool: &Tool,
    ) -> String {
        if kind != ArgumentType::Text {
            return self.argument(key, schema, tool);
        }
        let quote = match style {
            Style::Python => "\"",
            Style::Braces(quote) => quote,
        };
        match limits::texts(schema) {
            Some(texts) => {
                let texts = texts.iter().map(|text| self.text(&format!("{quote}{text}{quote}")));
                format!("({})", texts.collect::<Vec<_>>().join(" | "))
            }
            None if style == Style::Python => match self.limits(schema) {
                // A text of JSON is one of Python.
                Some(limits) => self.argument(key, &limits.schema(), tool),
                None => "/\"([^\"\\\\\\n]|\\\\.)*\"/".to_owned(),
            },
            None => format!("{} {}", self.text(quote), self.limited(schema, quote)),
        }
    }
}

/// What is around the arguments of a call.
fn parentheses(style: Style) -> (&'static str, &'static str) {
    match style {
        Style::Python => ("(", ")"),
        Style::Braces(_) => ("{", "}"),
    }
}
