//! Grammars of calls that begin a reply without a marker, beside an answer.

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

    /// Calls without a marker, where the family allows them, or any answer that begins with the same character and does
    /// not name a function as a call would. What tells them apart is one terminal each: the longest match decides.
    pub fn unmarked(&mut self, syntax: &Syntax, tools: &[&Tool]) -> Option<String> {
        let first = calls::bare(syntax)?;
        let (before, names) = match syntax {
            Syntax::Envelope(_) => {
                let names: Vec<String> = tools.iter().map(|tool| text(&tool.name)).collect();
                (r#"("type"S:S"function"S,S)?"name"S:S"#, names)
            }
            Syntax::Literal(_) => {
                let name = |tool: &&Tool| json::quoted(&format!("{}(", tool.name));
                ("", tools.iter().map(name).collect())
            }
            Syntax::Framed(_) | Syntax::Channels(_) => return None,
        };
        let before = format!("\\{first}S{before}");
        let [any, few] = [r"[ \n\r\t]*", SPACE].map(|space| before.replace('S', space));
        let named = format!("/{any}/ ({}) /(?s:.*)/", names.join(" | "));
        let answer = self.terminal(&format!("/\\{first}(?s:.*)/ & ~({named})"));
        let heads: Vec<String> =
            names.iter().map(|name| self.terminal(&format!("/{few}/ {name}"))).collect();
        let calls = match syntax {
            Syntax::Literal(literal) => {
                let ends: Vec<String> = tools
                    .iter()
                    .map(|tool| {
                        let end = self.literal_end(literal, tool);
                        self.rule("", &end)
                    })
                    .collect();
                let [first, next] = [&heads, &names].map(|heads| {
                    let calls: Vec<String> = heads
                        .iter()
                        .zip(&ends)
                        .map(|(head, end)| format!("{head} {end}"))
                        .collect();
                    calls.join(" | ")
                });
                let more =
                    if self.is_parallel { format!(" (\", \" ({next}))*") } else { String::new() };
                format!("({first}){more} \"]\"")
            }
            Syntax::Envelope(Envelope { keys: Keys::Arguments(key), .. }) => {
                let key = text(key);
                let call = |(head, tool): (&String, &&Tool)| {
                    let arguments = self.arguments(tool);
                    format!(
                        "{head} /{SPACE}/ \",\" /{SPACE}/ {key} \":\" /{SPACE}/ {arguments} /{SPACE}/ \"}}\""
                    )
                };
                let calls: Vec<String> = heads.iter().zip(tools).map(call).collect();
                let call = self.rule("", &calls.join(" | "));
                match self.is_parallel {
                    true => format!("{call} (/;? ?\\n?/ {call})* \"\\n\"?"),
                    false => call,
                }
            }
            _ => return None,
        };
        Some(format!("{calls} | {answer}"))
    }
}

/// White space between the parts of a call.
const SPACE: &str = r"[ \n]{0,9}";

/// A text of JSON as a terminal.
fn text(text: &str) -> String {
    json::quoted(&json::quoted(text))
}
