//! Calls as a family of models writes them, for templates that do not write them.

use serde_json::Value;

use super::families::{Body, Envelope, Framed, Keys, Layout, Literal, Style, Syntax, Tags};
use crate::chat::json;

/// A function's name and its arguments.
type Call = (String, Value);

/// See [`Format::written`](super::Format::written).
pub fn written(syntax: &Syntax, calls: &[Call]) -> String {
    match syntax {
        Syntax::Envelope(envelope) => in_envelopes(envelope, calls),
        Syntax::Framed(framed) => in_frames(framed, calls),
        Syntax::Literal(literal) => literally(literal, calls),
        Syntax::Channels(channels) => {
            let call = |call: &Call| {
                let body = match channels.markup {
                    Some(framed) => in_frames(framed, std::slice::from_ref(call)),
                    None => json_of(&call.1),
                };
                let header: String =
                    channels.header.iter().filter_map(|part| part.first().copied()).collect();
                format!("{}{}{header}<|message|>{body}", channels.recipient(), call.0)
            };
            lines(calls.iter().map(call))
        }
    }
}

fn lines(calls: impl Iterator<Item = String>) -> String {
    calls.collect::<Vec<_>>().join("\n")
}

/// JSON with spaces, as templates write it.
fn json_of(value: &Value) -> String {
    let text = json::write(&crate::chat::value(value, &str::to_owned), &json::Style::default());
    text.unwrap_or_else(|_| value.to_string())
}

/// The first spelling of an end marker. The fence of a code block is on a line of its own.
fn end_of(markers: &[&str]) -> String {
    let end = markers.first().copied().unwrap_or_default();
    if end.starts_with("```") { format!("\n{end}") } else { end.to_owned() }
}

fn in_envelopes(envelope: &Envelope, calls: &[Call]) -> String {
    let object = |(at, (name, arguments)): (usize, &Call)| {
        let (name, arguments) = (json_of(&name.as_str().into()), json_of(arguments));
        match envelope.keys {
            Keys::Arguments(key) => format!("{{\"name\": {name}, \"{key}\": {arguments}}}"),
            Keys::Numbered => format!(
                "{{\"tool_call_id\": \"{at}\", \"tool_name\": {name}, \"parameters\": {arguments}}}"
            ),
            Keys::ToolName => format!("{{\"tool_name\": {name}, \"parameters\": {arguments}}}"),
            Keys::Name => format!("{{{name}: {arguments}}}"),
        }
    };
    let objects = calls.iter().enumerate().map(object);
    let open = envelope.open.first().copied().unwrap_or_default();
    let close = end_of(envelope.close);
    if envelope.list {
        return format!("{open}[{}]{close}", objects.collect::<Vec<_>>().join(", "));
    }
    if close.is_empty() {
        return format!("{open}{}", lines(objects));
    }
    lines(objects.map(|object| format!("{open}\n{object}\n{close}")))
}

fn in_frames(framed: &Framed, calls: &[Call]) -> String {
    let frame = |(at, (name, arguments)): (usize, &Call)| {
        let body = match &framed.body {
            Body::Json => json_of(arguments),
            Body::Tagged(tags) => tagged(tags, arguments),
        };
        let end = end_of(framed.call_end);
        let name_end = numbered(framed.name_end, at);
        format!("{}{}{name}{name_end}{body}{end}", framed.call, framed.prefix)
    };
    let section = framed.section.first().copied().unwrap_or_default();
    let frames = lines(calls.iter().enumerate().map(frame));
    format!("{section}{frames}{}", end_of(framed.section_end))
}

/// What follows a name, of the call after `at` others: its digit, if it has one, is the number of the first call.
fn numbered(name_end: &str, at: usize) -> String {
    let digit = name_end.char_indices().find_map(|(place, sign)| Some((place, sign.to_digit(10)?)));
    match digit {
        Some((place, first)) => {
            format!("{}{}{}", &name_end[..place], first as usize + at, &name_end[place + 1..])
        }
        None => name_end.to_owned(),
    }
}

fn tagged(tags: &Tags, arguments: &Value) -> String {
    let argument = |(key, value): (&String, &Value)| {
        let is_text = value.is_string();
        let attribute = match tags.key.contains("DSML") {
            true => format!(" string=\"{is_text}\""),
            false => String::new(),
        };
        let value = value.as_str().map_or_else(|| json_of(value), str::to_owned);
        let line = if tags.layout == Layout::Lines { "\n" } else { "" };
        let end = match tags.layout {
            Layout::Mirrored => format!("{}{key}>", tags.value_end),
            _ => tags.value_end.to_owned(),
        };
        let head = [tags.key, key, tags.key_end, &attribute, tags.attributes_end, tags.value];
        format!("{}{line}{value}{line}{end}\n", head.concat())
    };
    match arguments {
        Value::Object(arguments) => arguments.iter().map(argument).collect(),
        other => json_of(other) + "\n",
    }
}

fn literally(literal: &Literal, calls: &[Call]) -> String {
    let (sign, comma) = if literal.style == Style::Python { ("=", ", ") } else { (":", ",") };
    let call = |(name, arguments): &Call| {
        let argument = |(key, value): (&String, &Value)| match (literal.style, value) {
            (Style::Braces(quote), Value::String(text)) => {
                format!("{key}{sign}{quote}{text}{quote}")
            }
            _ => format!("{key}{sign}{}", json_of(value)),
        };
        let arguments = match arguments {
            Value::Object(arguments) => {
                arguments.iter().map(argument).collect::<Vec<_>>().join(comma)
            }
            other => json_of(other),
        };
        match literal.style {
            Style::Python => format!("{}{name}({arguments})", literal.prefix),
            Style::Braces(_) => format!("{}{name}{{{arguments}}}", literal.prefix),
        }
    };
    let open = literal.open.first().copied().unwrap_or_default();
    let close = end_of(literal.close);
    match literal.style {
        Style::Python => {
            let calls = calls.iter().map(call).collect::<Vec<_>>().join(", ");
            format!("{open}[{calls}]{close}")
        }
        Style::Braces(_) => {
            calls.iter().map(|each| format!("{open}{}{close}", call(each))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::families::{FAMILIES, THINKING};
    use super::super::{Delta, Format, Options, Tool};

    /// Every family reads what is written for it.
    #[test]
    fn written_calls_are_read_back() {
        let schema = json!({ "type": "object", "properties": {
            "place": { "type": "string" }, "days": { "type": "integer" } } });
        let tools = vec![Tool { name: "look".into(), parameters: schema, ..Tool::default() }];
        let arguments = json!({ "place": "Zürich", "days": 2 });
        for family in FAMILIES {
            let format = Format { family, thinking: THINKING[THINKING.len() - 1] };
            let text = format.written(&[("look".to_owned(), arguments.clone())]);
            // A prompt of this family ends with the marker of a call.
            let text = match family.name {
                "functionary-v3.2" => text.trim_start_matches(">>>"),
                _ => &text,
            };
            let options = Options { tools: tools.clone(), ..Options::default() };
            let mut parser = format.parser(options);
            let mut deltas = parser.push(text);
            deltas.extend(parser.finish());
            let mut found = String::new();
            for delta in &deltas {
                match delta {
                    Delta::Call { name, .. } => assert_eq!(name, "look", "{}", family.name),
                    Delta::Arguments { text, .. } => found += text,
                    other => panic!("{}: {other:?} of {text:?}", family.name),
                }
            }
            let found: Option<Value> = serde_json::from_str(&found).ok();
            assert_eq!(found.as_ref(), Some(&arguments), "{}: {deltas:?} of {text}", family.name);
        }
    }

    /// Templates find the calls of results by these numbers.
    #[test]
    fn calls_are_numbered() {
        let calls = ["look", "hear"].map(|name| (name.to_owned(), json!({})));
        let cases = [
            ("<|tool_call_begin|>", ["functions.look:0<", "functions.hear:1<"]),
            ("<|open|> <|end_of_msg|>", ["tool=\"look\" index=\"1\"", "tool=\"hear\" index=\"2\""]),
        ];
        for (source, parts) in cases {
            let text = Format::of(source).written(&calls);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
