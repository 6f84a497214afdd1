//! Grammars of calls that begin a reply without a marker, beside an answer by a schema.

use super::super::families::{Envelope, Keys, Syntax};
use super::super::out::Tool;
use super::super::{calls, json};
use super::Writer;

impl Writer {
    /// Calls without a marker, where the family allows them. An object is written in the parts that one of a schema has:
    /// a part is read to its end before the next one, so with longer parts an answer could not begin like a call.
    pub fn bare(&mut self, syntax: &Syntax, tools: &[&Tool]) -> Option<String> {
        calls::bare(syntax)?;
        match syntax {
            Syntax::Envelope(Envelope { keys: Keys::Arguments(key), .. }) => {
                let [name, key] = ["name", key].map(text);
                let call = |tool: &&Tool| {
                    let (function, arguments) = (text(&tool.name), self.arguments(tool));
                    let pair = |key: &str, value: &str| format!("{key} \":\" \" \"? {value}");
                    let (name, arguments) = (pair(&name, &function), pair(&key, &arguments));
                    format!("\"{{\" {name} \",\" \" \"? {arguments} \"}}\"")
                };
                let objects: Vec<String> = tools.iter().map(call).collect();
                Some(self.lines(&objects))
            }
            Syntax::Literal(literal) => {
                let calls = self.literals(literal, tools);
                Some(format!("\"[\" {} \"]\"", self.several(&calls, ", ")))
            }
            Syntax::Envelope(_) | Syntax::Framed(_) | Syntax::Channels(_) => None,
        }
    }
}

/// A text of JSON as a terminal.
fn text(text: &str) -> String {
    json::quoted(&json::quoted(text))
}
