//! Grammars that force tool calls, in llguidance's dialect of Lark.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::families::{Body, Envelope, Framed, Keys, Layout, Syntax, Tags};
use super::out::{ArgumentType, Tool};
use super::{Format, calls, json};
use crate::Tokenizer;
use crate::special::{Fragment, Matcher};
use limits::Limits;
use schemas::{object, properties, with_definitions};

/// Bytes of rules after which no more are written. The grammar then refers to rules that it does not have, so that it
/// is refused, if not for its length.
const RULES_BYTES: usize = 1 << 20;

/// Bytes of rules after which patterns are written as they are. Before, one that is no regular expression is no limit.
const CHECKED_BYTES: usize = 64 << 10;

/// Most arguments of a function that are written one by one. A function with more gets the schema of all of them, which
/// is refused for their number with the function's name.
const ARGUMENTS_MAX: usize = 1000;

/// Line breaks between calls and after the last. A model that may write any number may write nothing else.
const BREAKS: &str = "/\\n{0,2}/";

/// The id of a call.
const ID: &str = "/[a-zA-Z0-9]{9}/";

/// The number of a call.
const NUMBER: &str = "/[0-9]{1,9}/";

/// Which calls a reply makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice<'a> {
    /// The model decides; the grammar applies once a call has begun.
    Auto,
    /// At least one.
    Required,
    /// One of this function.
    Named(&'a str),
}

/// What a grammar for calls depends on.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    /// The functions that may be called.
    pub tools: &'a [Tool],
    /// Which of them are.
    pub choice: ToolChoice<'a>,
    /// Whether a reply may make several calls.
    pub parallel: bool,
    /// Whether the prompt ends within a block of reasoning, which then comes first.
    pub thinking_is_open: bool,
    /// Whether a block of reasoning may come first.
    pub may_think: bool,
    /// The vocabulary, whose control tokens are written as tokens; None for a model that spells its markers.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// Where a grammar for calls begins in a reply; the grammar describes this beginning as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// It begins with any of these texts.
    pub texts: Vec<String>,
    /// It begins with this character where only white space or reasoning came before.
    pub first: Option<char>,
}

/// A grammar for calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallGrammar {
    /// Where the grammar begins; None if it applies to the whole reply.
    pub trigger: Option<Trigger>,
    /// The grammar in Lark, with the rule `start`.
    pub lark: String,
}

mod bare;
mod channels;
mod limits;
mod literal;
mod schemas;
#[cfg(test)]
mod tests;

pub use channels::answer_grammar;

/// See [`Format::call_grammar`].
pub fn call_grammar(format: &Format, rules: &CallRules<'_>) -> Option<CallGrammar> {
    grammar(format, rules, None)
}

/// See [`Format::call_or_answer_grammar`].
pub fn call_or_answer_grammar(
    format: &Format,
    rules: &CallRules<'_>,
    answer: &str,
) -> Option<CallGrammar> {
    trigger(&format.family.calls)?;
    // The whole reply is described, as for a call that is required.
    grammar(format, &CallRules { choice: ToolChoice::Required, ..*rules }, Some(answer))
}

/// The control tokens of a vocabulary.
fn controls(tokenizer: &Tokenizer) -> Matcher {
    Matcher::new(tokenizer.controls().map(|(text, id)| (text, id, false)))
}

/// A grammar for calls, or for either calls or an answer.
fn grammar(format: &Format, rules: &CallRules<'_>, answer: Option<&str>) -> Option<CallGrammar> {
    let is_asked = |tool: &&Tool| match rules.choice {
        ToolChoice::Named(name) => tool.name == name,
        ToolChoice::Auto | ToolChoice::Required => true,
    };
    let tools: Vec<&Tool> = rules.tools.iter().filter(is_asked).collect();
    if tools.is_empty() {
        return None;
    }
    let is_parallel = rules.parallel && !matches!(rules.choice, ToolChoice::Named(_));
    let controls = rules.tokenizer.map(controls);
    let is_lazy = rules.choice == ToolChoice::Auto;
    let thinking_is_open = rules.thinking_is_open;
    let mut writer =
        Writer { is_lazy, thinking_is_open, controls, is_parallel, ..Writer::default() };
    let syntax = &format.family.calls;
    let trigger = if is_lazy { Some(trigger(syntax)?) } else { None };
    let calls = match syntax {
        Syntax::Envelope(envelope) => writer.envelope(envelope, &tools),
        Syntax::Framed(framed) => writer.framed(framed, &tools),
        Syntax::Literal(literal) => writer.literal(literal, &tools),
        Syntax::Channels(channels) => writer.channels(channels, &tools, answer)?,
    };
    let calls = match answer {
        Some(answer) if !matches!(syntax, Syntax::Channels(_)) => {
            let bare = writer.bare(syntax, &tools).map(|calls| format!(" | {calls}"));
            format!("({calls}{} | {})", bare.unwrap_or_default(), writer.rule("", answer))
        }
        None if is_lazy => {
            let unmarked = writer.unmarked(syntax, &tools).map(|calls| format!(" | {calls}"));
            calls + &unmarked.unwrap_or_default()
        }
        _ => calls,
    };
    let thinking = match syntax {
        Syntax::Channels(_) => String::new(),
        Syntax::Framed(framed) if framed.is_begun => String::new(),
        _ if is_lazy || !(rules.may_think || thinking_is_open) => String::new(),
        _ => writer.thinking(format),
    };
    let lark = format!("start: {thinking}{calls}\n{}", writer.lines);
    Some(CallGrammar { trigger, lark })
}

/// What begins a call, if the format has something that does.
fn trigger(syntax: &'static Syntax) -> Option<Trigger> {
    let texts = match syntax {
        Syntax::Framed(framed) if framed.is_begun => return None,
        Syntax::Channels(channels) => vec![channels.recipient()],
        _ => calls::triggers(syntax),
    };
    let first = calls::bare(syntax).and_then(|bare| bare.chars().next());
    Some(Trigger { texts: texts.into_iter().map(str::to_owned).collect(), first })
}

/// Writes rules.
#[derive(Default)]
struct Writer {
    /// Whether any of the markers that begin calls does, rather than the first of them.
    is_lazy: bool,
    /// Whether reasoning comes first.
    thinking_is_open: bool,
    lines: String,
    controls: Option<Matcher>,
    /// The names of the rules written so far, by their text.
    rules: HashMap<String, String>,
    is_parallel: bool,
}

impl Writer {
    /// The name of a rule, which is added unless there is one with this text.
    fn rule(&mut self, head: &str, body: &str) -> String {
        self.named("r", format!("{head}: {body}"))
    }

    /// The name of a terminal, which is added unless there is one with this text.
    fn terminal(&mut self, body: &str) -> String {
        self.named("T", format!(": {body}"))
    }

    fn named(&mut self, letter: &str, text: String) -> String {
        let name = format!("{letter}{}", self.rules.len() + 1);
        if self.is_full() {
            return name;
        }
        if let Some(known) = self.rules.get(&text) {
            return known.clone();
        }
        let _ = writeln!(self.lines, "{name}{text}");
        self.rules.insert(text, name.clone());
        name
    }

    /// Whether no more rules are written.
    fn is_full(&self) -> bool {
        self.lines.len() > RULES_BYTES
    }

    /// `text` as a sequence of strings and control tokens.
    fn text(&self, text: &str) -> String {
        let fragments = match &self.controls {
            Some(controls) => controls.split(text),
            None => vec![Fragment::Text(text)],
        };
        let parts: Vec<String> = fragments
            .into_iter()
            .filter(|fragment| *fragment != Fragment::Text(""))
            .map(|fragment| match fragment {
                Fragment::Text(text) => json::quoted(text),
                Fragment::Token(id) => format!("<[{id}]>"),
            })
            .collect();
        parts.join(" ")
    }

    /// One of the texts.
    fn any_of(&self, texts: &[&str]) -> String {
        let texts: Vec<String> = texts.iter().map(|text| self.text(text)).collect();
        format!("({})", texts.join(" | "))
    }

    /// The marker that begins calls.
    fn opening(&self, markers: &[&str]) -> String {
        if self.is_lazy && markers.len() > 1 { self.any_of(markers) } else { self.text(markers[0]) }
    }

    /// Any text up to and with `end`.
    fn until(&mut self, end: &str) -> String {
        let end = self.text(end);
        match end.split_once(' ') {
            // The text cannot contain the token.
            _ if end.starts_with("<[") => format!("/(?s:.*)/ {end}"),
            Some((first, rest)) if rest.starts_with("<[") => {
                let name = self.rule(&format!("[suffix={first}]"), "/(?s:.*)/");
                format!("{name} {rest}")
            }
            _ => self.rule(&format!("[suffix={end}]"), "/(?s:.*)/"),
        }
    }

    /// Text within the limits of its schema, up to and with `end`.
    fn limited(&mut self, schema: &Value, end: &str) -> String {
        let limits = self.limits(schema).and_then(Limits::raw);
        let Some(limits) = limits else { return self.until(end) };
        let end = self.text(end);
        match end.split_once(' ') {
            _ if end.starts_with("<[") => format!("{} {end}", self.terminal(&limits.terminal())),
            Some((first, rest)) if rest.starts_with("<[") => {
                format!("{} {rest}", self.before(&limits, first))
            }
            _ => self.before(&limits, &end),
        }
    }

    /// Text within limits, and then `end`, a quoted text that does not occur before.
    fn before(&mut self, limits: &Limits, end: &str) -> String {
        match limits.lazy(end) {
            Some(text) => self.rule(&format!("[suffix={end}]"), &text),
            None => self.terminal(&limits.before(end)),
        }
    }

    /// The limits of a text.
    fn limits(&self, schema: &Value) -> Option<Limits> {
        if self.is_full() {
            return None;
        }
        Limits::of(schema, CHECKED_BYTES.saturating_sub(self.lines.len()))
    }

    /// The block of reasoning before the calls.
    fn thinking(&mut self, format: &Format) -> String {
        let (open, close) = format.thinking_tags();
        let block = format!("{} /[ \\n]{{0,2}}/", self.until(close));
        if self.thinking_is_open {
            format!("{block} ")
        } else {
            format!("({} {block})? ", self.text(open))
        }
    }

    /// One of the calls, or several with `between` them.
    fn several(&mut self, calls: &[String], between: &str) -> String {
        let call = self.rule("", &calls.join(" | "));
        if !self.is_parallel {
            return call;
        }
        let between = if between.is_empty() { String::new() } else { self.text(between) + " " };
        format!("{call} ({between}{call})*")
    }

    /// Calls on lines of their own.
    fn lines(&mut self, calls: &[String]) -> String {
        let calls = self.several(calls, "\n");
        // Without it a line break would demand another call.
        if self.is_parallel { calls + " \"\\n\"?" } else { calls }
    }

    /// What may follow a call: further ones, each after `open`.
    fn further(&self, open: &str, call: &str) -> String {
        match self.is_parallel {
            true => format!(" ({BREAKS} {open} {call})* {BREAKS}"),
            false => String::new(),
        }
    }

    /// JSON of a schema of a tool, which `title` names in errors.
    fn schema(&mut self, tool: &Tool, title: &str, mut schema: Value) -> String {
        // Fixed white space, as templates write JSON; otherwise a model may go on with blanks forever.
        if let Some(fields) = schema.as_object_mut() {
            fields.insert("title".to_owned(), Value::from(title));
            let mut style = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            });
            if !tool.is_strict {
                style["best_effort"] = true.into();
            }
            fields.insert("x-guidance".to_owned(), style);
        }
        self.rule("", &format!("%json {schema}"))
    }

    /// The arguments of a tool as JSON.
    fn arguments(&mut self, tool: &Tool) -> String {
        if self.is_full() {
            return self.rule("", "");
        }
        self.schema(tool, &tool.name, object(&tool.parameters))
    }

    /// One argument of a tool as JSON.
    fn argument(&mut self, key: &str, schema: &Value, tool: &Tool) -> String {
        if self.is_full() {
            return self.rule("", "");
        }
        self.schema(tool, &format!("{}.{key}", tool.name), with_definitions(schema, tool))
    }

    fn envelope(&mut self, envelope: &Envelope, tools: &[&Tool]) -> String {
        let objects: Vec<String> = tools
            .iter()
            .map(|tool| {
                let name = json::quoted(&tool.name);
                let before = match envelope.keys {
                    Keys::Arguments(key) => format!("{{\"name\": {name}, \"{key}\": "),
                    Keys::Numbered => format!("\", \"tool_name\": {name}, \"parameters\": "),
                    Keys::ToolName => format!("{{\"tool_name\": {name}, \"parameters\": "),
                    Keys::Name => format!("{{{name}: "),
                };
                let number = match envelope.keys {
                    Keys::Numbered => format!("\"{{\\\"tool_call_id\\\": \\\"\" {NUMBER} "),
                    _ => String::new(),
                };
                let arguments = self.arguments(tool);
                format!("{number}{} {arguments} \"}}\"", self.text(&before))
            })
            .collect();
        let open = self.opening(envelope.open);
        let close = envelope.close.first().map(|close| self.text(close)).unwrap_or_default();
        let close = if close.is_empty() { close } else { format!(" \"\\n\"? {close}") };
        let space = "\"\\n\"?";
        if envelope.list {
            let list = self.several(&objects, ", ");
            return format!("{open} {space} \"[\" {list} \"]\"{close}");
        }
        if close.is_empty() {
            let calls = self.lines(&objects);
            return format!("{open} {space} {calls}");
        }
        let object = self.rule("", &objects.join(" | "));
        let first = format!("{space} {object}{close}");
        let further = self.further(&open, &first);
        format!("{open} {first}{further}")
    }

    fn framed(&mut self, framed: &'static Framed, tools: &[&Tool]) -> String {
        let call = self.text(framed.call);
        let bodies: Vec<String> = tools.iter().map(|tool| self.frame(framed, tool)).collect();
        let body = self.rule("", &bodies.join(" | "));
        let further = self.further(&call, &body);
        if framed.is_begun {
            return format!("{body}{further}");
        }
        let space = if self.is_parallel { "" } else { " \"\\n\"?" };
        let unwrapped = format!("{call} {body}{further}");
        let sections = if self.is_lazy { framed.section.len() } else { 1 };
        let mut choices = Vec::new();
        for (at, section) in framed.section.iter().enumerate().take(sections) {
            let end = framed.section_end.get(at).or(framed.section_end.first());
            let end = end.map(|end| self.text(end)).unwrap_or_default();
            let section = self.text(section);
            let mut calls = format!("\"\\n\"? {unwrapped}{space} {end}");
            if framed.repeats_section {
                calls += &self.further(&section, &calls);
            }
            choices.push(format!("{section} {calls}"));
        }
        if choices.is_empty() {
            return unwrapped;
        }
        if self.is_lazy {
            // A model may write the end of a section that it did not begin.
            choices.push(match framed.section_end {
                [] => unwrapped,
                ends => format!("{unwrapped}{space} {}?", self.any_of(ends)),
            });
        }
        choices.join(" | ")
    }

    /// A call after its marker.
    fn frame(&mut self, framed: &Framed, tool: &Tool) -> String {
        let head = self.text(&format!("{}{}", framed.prefix, tool.name));
        let name_end = self.name_end(framed);
        let arguments = match &framed.body {
            Body::Json => self.arguments(tool),
            Body::Tagged(tags) => self.tagged(tags, tool),
        };
        let end = match framed.call_end.first() {
            Some(end) if end.starts_with("```") => self.text(&format!("\n{end}")),
            Some(end) => self.text(end),
            None => String::new(),
        };
        format!("{head} {name_end} {arguments} {end}")
    }

    /// What follows a name.
    fn name_end(&self, framed: &Framed) -> String {
        let end = self.numbered(framed.name_end);
        let is_own = |&&(start, until): &&(&str, &str)| {
            !until.is_empty() && !framed.name_end.starts_with(start)
        };
        match (&framed.body, framed.name_ends.iter().find(is_own)) {
            // The key of an argument ends the name as well.
            (Body::Tagged(tags), _) if framed.name_ends.contains(&(tags.key, "")) => {
                format!("({end})?")
            }
            (_, Some((start, _))) => format!("({} {ID})? {end}", self.text(start)),
            _ => end,
        }
    }

    /// `text`, in which a number stands for any number.
    fn numbered(&self, text: &str) -> String {
        let is_digit = |c: char| c.is_ascii_digit();
        let Some(start) = text.find(is_digit) else { return self.text(text) };
        let rest = text[start..].trim_start_matches(is_digit);
        format!("{} {NUMBER} {}", self.text(&text[..start]), self.text(rest))
    }

    fn tagged(&mut self, tags: &Tags, tool: &Tool) -> String {
        let items: Vec<Item> = properties(tool)
            .map(|(key, schema, is_required)| {
                let kind = ArgumentType::of(tool, key);
                let attribute = match (tags.attributes_end, schema.get("type")) {
                    ("", _) => String::new(),
                    _ if tags.key.contains("DSML") => {
                        format!(" string=\"{}\"", kind == ArgumentType::Text)
                    }
                    ("<|sep|>", Some(Value::String(name))) => format!(" type=\"{name}\""),
                    ("<|sep|>", _) => " type=\"object\"".to_owned(),
                    _ => String::new(),
                };
                let line = if tags.layout == Layout::Lines { "\n" } else { "" };
                let head = [tags.key, key, tags.key_end, &attribute, tags.attributes_end, line];
                let mut head = self.text(&head.concat());
                if !tags.value.is_empty() {
                    head += &format!(" \"\\n\"? {}", self.text(tags.value));
                }
                let end = match tags.layout {
                    Layout::Mirrored => format!("{}{key}>", tags.value_end),
                    _ => format!("{line}{}", tags.value_end),
                };
                let value = self.value(kind, (key, &schema), tool, &end);
                Item { text: format!("{head} {value} \"\\n\"?"), is_required }
            })
            .collect();
        self.sequence(tool, &items, "")
    }

    /// A value with its end.
    fn value(
        &mut self,
        kind: ArgumentType,
        (key, schema): (&str, &Value),
        tool: &Tool,
        end: &str,
    ) -> String {
        match (kind, limits::texts(schema)) {
            (ArgumentType::Text, Some(texts)) => {
                let texts = texts.iter().map(|text| json::quoted(text));
                let texts = texts.collect::<Vec<_>>().join(" | ");
                format!("({texts}) {}", self.text(end))
            }
            (ArgumentType::Json, _) => {
                let value = self.argument(key, schema, tool);
                format!("{value} {}", self.text(end))
            }
            (ArgumentType::Text, None) => self.limited(schema, end),
            (ArgumentType::Either, _) => self.until(end),
        }
    }

    /// The arguments of a tool in order; those that are not required may be left out. The text is linear in theirs.
    fn sequence(&mut self, tool: &Tool, items: &[Item], comma: &str) -> String {
        if items.len() > ARGUMENTS_MAX {
            return self.arguments(tool);
        }
        let following = |item: &Item| match item.is_required {
            true => format!("{comma} {}", item.text),
            false => format!("({comma} {})?", item.text),
        };
        let all = |items: &[Item]| items.iter().map(following).collect::<Vec<_>>().join(" ");
        if comma.is_empty() {
            return all(items);
        }
        // Up to the first required item, each may be the first of the sequence.
        let required = items.iter().position(|item| item.is_required);
        let firsts = required.map_or(items.len(), |at| at + 1);
        let mut rest = all(&items[firsts..]);
        let mut choices = Vec::new();
        for (at, item) in items[..firsts].iter().enumerate().rev() {
            choices.push(format!("{} {rest}", item.text).trim_end().to_owned());
            if at > 0 {
                rest = self.rule("", format!("{} {rest}", following(item)).trim_end());
            }
        }
        choices.reverse();
        match (choices.is_empty(), required) {
            (true, _) => String::new(),
            (false, Some(_)) => format!("({})", choices.join(" | ")),
            (false, None) => format!("({})?", choices.join(" | ")),
        }
    }
}

/// An argument in a grammar.
struct Item {
    text: String,
    is_required: bool,
}
