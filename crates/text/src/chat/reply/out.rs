//! What a reply is taken apart into, and the tools it may call.

use serde_json::Value;

use super::json;

/// A part of a reply, in the order written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// The beginning of a tool call.
    Call {
        /// The number of the call within the reply, from 0.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments as JSON text. The texts of a complete call joined are a JSON object.
    Arguments {
        /// The number of the call within the reply.
        index: usize,
        /// A piece of JSON; it may end anywhere.
        text: String,
    },
}

/// A function that the model may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; null for any object.
    pub parameters: Value,
    /// Whether a schema that cannot be followed as a whole is an error. Otherwise arguments follow what can be.
    pub is_strict: bool,
}

impl Tool {
    /// Reads the `tools` of a request: objects with `function`, or the functions themselves. `None` if it is no list or
    /// an entry has no name.
    pub fn list(tools: &Value) -> Option<Vec<Tool>> {
        let functions = tools.as_array()?.iter().map(|tool| tool.get("function").unwrap_or(tool));
        functions
            .map(|function| {
                let name = function.get("name")?.as_str()?.to_owned();
                let parameters = function.get("parameters").cloned().unwrap_or_default();
                let is_strict = function.get("strict") == Some(&Value::Bool(true));
                Some(Tool { name, parameters, is_strict })
            })
            .collect()
    }
}

/// Most schemas that are looked at for the type of one argument.
const SCHEMAS_MAX: usize = 1000;

/// How an argument's text becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentType {
    /// The text is the value.
    Text,
    /// The text is JSON.
    Json,
    /// JSON if it reads as a value other than a string.
    Either,
}

impl ArgumentType {
    /// The type of `key` by the tool's schema.
    pub fn of(tool: &Tool, key: &str) -> Self {
        let schema = tool.parameters.get("properties").and_then(|all| all.get(key));
        schema.map_or(Self::Either, |schema| Self::of_schema(schema, &tool.parameters, 0, &mut 0))
    }

    fn of_schema(schema: &Value, root: &Value, depth: usize, seen: &mut usize) -> Self {
        *seen += 1;
        if depth > 8 || *seen > SCHEMAS_MAX {
            return Self::Either;
        }
        let of = |schema| Self::of_schema(schema, root, depth + 1, seen);
        if let Some(path) = schema.get("$ref").and_then(Value::as_str) {
            let found = path.strip_prefix('#').and_then(|path| root.pointer(path));
            return found.map_or(Self::Either, of);
        }
        let joined = |types: Vec<Self>| {
            let first = types.first().copied().unwrap_or(Self::Either);
            if types.iter().all(|&other| other == first) { first } else { Self::Either }
        };
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(any) = schema.get(key).and_then(Value::as_array) {
                return joined(any.iter().map(of).collect());
            }
        }
        let named = |name: &Value| match name.as_str() {
            Some("string") => Self::Text,
            Some(_) => Self::Json,
            None => Self::Either,
        };
        let valued = |value: &Value| if value.is_string() { Self::Text } else { Self::Json };
        match (schema.get("type"), schema.get("enum"), schema.get("const")) {
            (Some(Value::Array(names)), ..) => joined(names.iter().map(named).collect()),
            (Some(name), ..) => named(name),
            (None, Some(Value::Array(values)), _) => joined(values.iter().map(valued).collect()),
            (None, None, Some(value)) => valued(value),
            _ => Self::Either,
        }
    }

    /// `text` as JSON of this type; text that is not what the type asks for becomes a string. JSON stays as it is
    /// written, with all digits of its numbers.
    pub fn json(self, text: &str) -> String {
        if self == Self::Text {
            return json::quoted(text);
        }
        let lower = text.trim();
        let lower = match lower {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        match serde_json::from_str::<Value>(lower) {
            Ok(Value::String(_)) if self == Self::Either => json::quoted(text),
            Ok(_) => lower.to_owned(),
            Err(_) => json::quoted(text),
        }
    }
}

/// Collects deltas, joining neighbours that say alike.
#[derive(Debug, Default)]
pub struct Out {
    deltas: Vec<Delta>,
    /// Calls begun so far.
    pub calls: usize,
    /// Whether the last of them is not complete.
    pub is_open: bool,
    /// Whether no text came after it.
    pub is_last: bool,
}

impl Out {
    /// Adds content.
    pub fn content(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Content(last)) => last.push_str(text),
            _ => self.deltas.push(Delta::Content(text.to_owned())),
        }
        self.is_last &= text.trim().is_empty();
    }

    /// Adds reasoning.
    pub fn reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ => self.deltas.push(Delta::Reasoning(text.to_owned())),
        }
        self.is_last &= text.trim().is_empty();
    }

    /// Begins a call.
    pub fn call(&mut self, name: &str) {
        self.deltas.push(Delta::Call { index: self.calls, name: name.to_owned() });
        self.calls += 1;
        (self.is_open, self.is_last) = (true, true);
    }

    /// Adds to the arguments of the last call.
    pub fn arguments(&mut self, more: &str) {
        let Some(current) = self.calls.checked_sub(1) else { return };
        match self.deltas.last_mut() {
            _ if more.is_empty() => {}
            Some(Delta::Arguments { text, .. }) => text.push_str(more),
            _ => self.deltas.push(Delta::Arguments { index: current, text: more.to_owned() }),
        }
    }

    /// Whether a complete call came last.
    pub fn ends_with_call(&self) -> bool {
        self.is_last && !self.is_open
    }

    /// Takes what was collected.
    pub fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `schema` within as many schemas that have one choice.
    fn within(levels: usize, schema: Value) -> Value {
        (0..levels).fold(schema, |inner, _| json!({ "anyOf": [inner] }))
    }

    #[test]
    fn types_are_those_of_the_schema() {
        use ArgumentType::{Either, Json, Text};
        let cases = [
            (json!({ "type": "string" }), Text),
            (json!({ "type": "integer" }), Json),
            (json!({ "type": ["string"] }), Text),
            (json!({ "type": ["number", "null"] }), Json),
            (json!({ "type": ["string", "null"] }), Either),
            (json!({ "type": 3 }), Either),
            (json!({ "enum": ["a", "b"] }), Text),
            (json!({ "enum": [1, null] }), Json),
            (json!({ "enum": ["a", 1] }), Either),
            (json!({ "enum": [] }), Either),
            (json!({ "const": "a" }), Text),
            (json!({ "const": 1 }), Json),
            (json!({ "type": "string", "enum": [1], "const": 2 }), Text),
            (json!({}), Either),
            (json!({ "oneOf": [{ "type": "string" }, { "const": "a" }] }), Text),
            (json!({ "allOf": [{ "type": "object" }, { "type": "array" }] }), Json),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), Either),
            (json!({ "$ref": "#/$defs/text" }), Text),
            (json!({ "$ref": "#/$defs/absent" }), Either),
            (json!({ "$ref": "elsewhere" }), Either),
            (json!({ "$ref": "#/$defs/circle" }), Either),
            (within(8, json!({ "type": "string" })), Text),
            (within(9, json!({ "type": "string" })), Either),
            // As many paths as the fourth power of the options.
            (json!({ "$ref": "#/$defs/wide" }), Either),
        ];
        for (schema, expected) in cases {
            let wide = vec![json!({ "$ref": "#/$defs/wide" }); 1000];
            let definitions = json!({
                "text": { "type": "string" }, "circle": { "$ref": "#/$defs/circle" },
                "wide": { "anyOf": wide },
            });
            let parameters = json!({ "properties": { "a": schema }, "$defs": definitions });
            let tool = Tool { name: "f".into(), parameters, ..Tool::default() };
            assert_eq!(ArgumentType::of(&tool, "a"), expected, "{schema}");
            assert_eq!(ArgumentType::of(&tool, "b"), Either);
        }
        assert_eq!(ArgumentType::of(&Tool { name: "f".into(), ..Tool::default() }, "a"), Either);
    }

    #[test]
    fn texts_become_values_of_their_type() {
        use ArgumentType::{Either, Json, Text};
        let cases = [
            (Text, "1", r#""1""#),
            (Json, " 1 ", "1"),
            (Json, "True", "true"),
            (Json, "False", "false"),
            (Json, " None", "null"),
            (Json, " {\"a\": [1]}\n", r#"{"a": [1]}"#),
            (Json, "[12345678901234567890123, 1.0, 1e2]", "[12345678901234567890123, 1.0, 1e2]"),
            (Json, r#"{"a": 1, "a": 2}"#, r#"{"a": 1, "a": 2}"#),
            (Json, r#""a""#, r#""a""#),
            (Json, "soon ", r#""soon ""#),
            (Either, "1.5", "1.5"),
            (Either, "98765432109876543210", "98765432109876543210"),
            (Either, "null", "null"),
            // Quotes are part of a text that may be one.
            (Either, r#""a""#, r#""\"a\"""#),
            (Either, "a", r#""a""#),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(kind.json(text), expected, "{kind:?} {text}");
        }
    }

    #[test]
    fn tools_are_listed_in_either_form() {
        let parameters = json!({ "type": "object" });
        let tools = json!([
            { "type": "function", "function": { "name": "f", "parameters": parameters } },
            { "name": "g" },
        ]);
        let tool =
            |name: &str, parameters| Tool { name: name.into(), parameters, ..Tool::default() };
        let both = vec![tool("f", parameters), tool("g", Value::Null)];
        assert_eq!(Tool::list(&tools), Some(both));
        assert_eq!(Tool::list(&json!([])), Some(Vec::new()));
        for wrong in [json!({}), json!([{ "function": {} }]), json!([{ "name": 3 }]), json!([4])] {
            assert_eq!(Tool::list(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn neighbours_that_say_alike_are_one() {
        let mut out = Out::default();
        out.arguments("lost, since no call began");
        ["a", "", "b"].iter().for_each(|text| out.content(text));
        ["c", "", "d"].iter().for_each(|text| out.reasoning(text));
        out.content("e");
        for name in ["f", "g"] {
            out.call(name);
            ["{", "", "}"].iter().for_each(|text| out.arguments(text));
        }
        let call = |index, name: &str| Delta::Call { index, name: name.into() };
        let arguments = |index| Delta::Arguments { index, text: "{}".into() };
        let [ab, cd, e] = ["ab", "cd", "e"].map(str::to_owned);
        let expected = [
            Delta::Content(ab),
            Delta::Reasoning(cd),
            Delta::Content(e),
            call(0, "f"),
            arguments(0),
            call(1, "g"),
            arguments(1),
        ];
        assert_eq!(out.take(), expected);
        assert_eq!(out.take(), []);
    }
}
