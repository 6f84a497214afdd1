//! What a chat template can show: found by rendering conversations and searching the prompts for their texts.

use serde_json::{Map, Value as Json, json};

use super::messages::{ArgumentForm, Form, prepared};
use super::{Inputs, Template};
use crate::Error;

/// Texts that no template contains: letters alone, which no template escapes or trims.
const SYSTEM: &str = "Wubrinalo";
const FUNCTION: &str = "moxetirra";
const ARGUMENT: &str = "Kaxulanni";
const RESULT: &str = "Tovelumpi";
const ROLE: &str = "quendrobil";

/// The id of a call, one that templates of Mistral's models take.
const ID: &str = "a1B2c3D4e";
const SECOND_ID: &str = "f5G6h7I8j";

/// Which parts of a conversation a template writes into the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Support {
    /// A system message before the user's.
    pub system: bool,
    /// The functions that the model may call.
    pub tools: bool,
    /// The calls of an assistant message.
    pub calls: bool,
    /// The messages of tools, and what these refer to.
    pub results: bool,
    /// Whether it tells calls by a content that is null: with an empty one it shows no call, or an empty answer beside it.
    pub null_content: bool,
    /// Several calls of one assistant message; false if it refuses such a message.
    pub parallel_calls: bool,
    /// Whether it takes ids of calls that have nine letters and digits, and refuses those that servers make, long ones or
    /// numbers.
    pub short_ids: bool,
}

impl Support {
    /// Everything.
    const ALL: Support = Support {
        system: true,
        tools: true,
        calls: true,
        results: true,
        null_content: false,
        parallel_calls: true,
        short_ids: false,
    };

    /// What a template shows. One that does not even render a message of the user counts as one that shows everything:
    /// its own error says more. So does one that is too costly to find out.
    pub fn of(template: &Template) -> Support {
        Support::found(template).unwrap_or(Support::ALL)
    }

    /// What a template shows, by the prompts of some conversations.
    ///
    /// # Errors
    /// A rendering takes more work than a probe may.
    fn found(template: &Template) -> Result<Support, Error> {
        let mut probe = Probe { template, null_content: false };
        let user = json!({ "role": "user", "content": "Hello" });
        if probe.render(std::slice::from_ref(&user), None)?.is_none() {
            return Ok(Support::ALL);
        }
        let instructions = json!({ "role": "system", "content": SYSTEM });
        let system = probe.shows(&[instructions, user.clone()], None, SYSTEM)?;
        let given = functions();
        let tools = probe.shows(std::slice::from_ref(&user), Some(&given), FUNCTION)?;
        let given = tools.then_some(&given);
        let [answer, call, result] = history(ID);
        let called = [user.clone(), call.clone(), result.clone()];
        probe.null_content = takes_null(template, &called, given)?;
        let answered = [user.clone(), answer, result.clone()];
        let prompt = probe.render(&called, given)?;
        let short_ids = prompt.is_some() && refuses_ids(&probe, &user, given)?;
        let parallel_calls = prompt.is_none() || !refuses_parallel(&probe, &user, given)?;
        let (calls, mut results) = match prompt {
            Some(prompt) => {
                let mut silent = call.clone();
                silent.as_object_mut().and_then(|fields| fields.remove("tool_calls"));
                let without = probe.render(&[user, silent, result], given)?;
                // A template for certain functions writes only the arguments that it knows.
                let adds = without.as_ref().is_some_and(|without| without.len() < prompt.len());
                let calls = adds || prompt.contains(ARGUMENT);
                let is_same = without.as_ref() == Some(&prompt);
                (calls, prompt.contains(RESULT) && (calls || is_same))
            }
            None if probe.shows(&answered, given, RESULT)? => (false, true),
            None => (probe.shows(&[user, call], given, ARGUMENT)?, false),
        };
        if results && !calls {
            let refers = probe.shows(&answered, given, ID)?;
            results = !refers && (tools || !writes_any_role(&probe, answered)?);
        }
        let null_content = probe.null_content;
        Ok(Support { system, tools, calls, results, null_content, parallel_calls, short_ids })
    }
}

/// Whether a template refuses a call with an id as servers make it.
fn refuses_ids(probe: &Probe<'_>, user: &Json, tools: Option<&Json>) -> Result<bool, Error> {
    for id in ["call_0123456789abcdef", "1"] {
        let [_, call, result] = history(id);
        if probe.render(&[user.clone(), call, result], tools)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a template refuses a message with two calls.
fn refuses_parallel(probe: &Probe<'_>, user: &Json, tools: Option<&Json>) -> Result<bool, Error> {
    let [_, mut calls, first] = history(ID);
    let [_, call, second] = history(SECOND_ID);
    if let Some(calls) = calls["tool_calls"].as_array_mut() {
        calls.push(call["tool_calls"][0].clone());
    }
    Ok(probe.render(&[user.clone(), calls, first, second], tools)?.is_none())
}

/// Whether a template writes the last message under any role, so that it need not know the role of tools.
fn writes_any_role(probe: &Probe<'_>, mut messages: [Json; 3]) -> Result<bool, Error> {
    messages[2]["role"] = json!(ROLE);
    probe.shows(&messages, None, RESULT)
}

/// Whether a template shows the call of `messages` if its content is null, writes no null, and writes something else if
/// the content is empty.
fn takes_null(template: &Template, messages: &[Json], tools: Option<&Json>) -> Result<bool, Error> {
    let render = |null_content| Probe { template, null_content }.render(messages, tools);
    let nulls = |prompt: &str| prompt.matches("None").count() + prompt.matches("null").count();
    let (null, empty) = (render(true)?, render(false)?.unwrap_or_default());
    Ok(null.is_some_and(|null| {
        null != empty && null.contains(ARGUMENT) && nulls(&null) <= nulls(&empty)
    }))
}

/// A template that is given conversations.
struct Probe<'t> {
    template: &'t Template,
    null_content: bool,
}

impl Probe<'_> {
    /// A prompt with either form of arguments; `None` if the template fails or refuses.
    ///
    /// # Errors
    /// It takes more work than a probe may.
    fn render(&self, messages: &[Json], tools: Option<&Json>) -> Result<Option<String>, Error> {
        let functions = tools.map(Json::to_string).unwrap_or_default();
        // Variables that servers give.
        let extra = Map::from_iter([
            ("functions".to_owned(), json!(functions)),
            ("enable_thinking".to_owned(), json!(true)),
            ("date_string".to_owned(), json!("01 Jan 2026")),
            ("datetime".to_owned(), json!("Jan 01 2026 00:00:00")),
        ]);
        let with = |arguments| {
            let form = Form { arguments, null_content: self.null_content };
            let messages: Vec<Json> =
                messages.iter().map(|message| prepared(message, form)).collect();
            let inputs = Inputs { tools, extra: extra.clone(), ..Inputs::new(&messages) };
            match self.template.probe(&inputs) {
                Ok(prompt) => Ok(Some(prompt)),
                Err(Error::Refused { .. } | Error::Template { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        match with(ArgumentForm::Object)? {
            None => with(ArgumentForm::Text),
            found => Ok(found),
        }
    }

    /// Whether a prompt contains `text`.
    ///
    /// # Errors
    /// Those of [`render`](Self::render).
    fn shows(&self, messages: &[Json], tools: Option<&Json>, text: &str) -> Result<bool, Error> {
        Ok(self.render(messages, tools)?.is_some_and(|prompt| prompt.contains(text)))
    }
}

fn functions() -> Json {
    let place = json!({ "type": "string", "description": "A place" });
    json!([{ "type": "function", "function": { "name": FUNCTION, "description": "Looks", "parameters": {
        "type": "object", "properties": { "place": place }, "required": ["place"] } } }])
}

/// An answer, an answer that calls a function, and the function's result.
fn history(id: &str) -> [Json; 3] {
    let function = json!({ "name": FUNCTION, "arguments": { "place": ARGUMENT } });
    let call = json!({ "id": id, "type": "function", "function": function });
    [
        json!({ "role": "assistant", "content": "Hello" }),
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": id, "name": FUNCTION, "content": RESULT }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> Support {
        Support::of(&Template::new("probed", source).unwrap())
    }

    #[test]
    fn results_have_a_role_unless_any_role_is_written_or_they_refer_to_text() {
        let each = |branches: &str| format!("{{% for m in messages %}}{branches}{{% endfor %}}");
        let tool = |writes: &str| {
            each(&format!(
                "{{% if m.role == 'tool' %}}{writes}{{% elif m.role in ['user', 'assistant'] %}}{{{{ m.content }}}}\
                 {{% endif %}}"
            ))
        };
        let named = "{% set calls = messages[1].tool_calls or [{'id': '123456789'}] %}{{ calls[0].id ~ m.content }}";
        let cases = [
            (tool("<result>{{ m.content }}"), true),
            (each("{{ m.role ~ m.content }}"), false),
            ("{{ tools }}".to_owned() + &tool("{{ m.content }}"), true),
            ("{{ tools }}".to_owned() + &tool("{{ m.tool_call_id ~ m.content }}"), false),
            // As long without calls, so that the length shows none.
            ("{{ tools }}".to_owned() + &tool(named), false),
            // A template with calls may write results as other messages.
            (each("{{ m.role ~ m.content ~ m.tool_calls }}"), true),
        ];
        for (source, results) in cases {
            assert_eq!(of(&source).results, results, "{source}");
        }
    }

    #[test]
    fn a_template_may_refuse_several_calls() {
        let all = "{% for m in messages %}{{ m.role ~ m.content ~ m.tool_calls }}{% endfor %}";
        let one = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}\
                   {{ raise_exception('one at a time') }}{% endif %}{% endfor %}";
        assert!(of(all).parallel_calls && of("").parallel_calls);
        assert!(!of(&(one.to_owned() + all)).parallel_calls);
    }

    /// The template renders conversations, but it would take long to find out what it shows.
    #[test]
    fn costly_templates_count_as_those_that_show_everything() {
        let text = "{% set x = 'a' * 1000000 %}{% for i in range(20) %}{% if x == x %}{% endif %}{% endfor %}";
        let many = "{% for i in range(300) %}{% for j in range(1000) %}{% endfor %}{% endfor %}";
        for work in [text, many] {
            for condition in ["true", "tools"] {
                let source = format!("{{{{ messages }}}}{{% if {condition} %}}{work}{{% endif %}}");
                let template = Template::new("costly", &source).unwrap();
                let tools = functions();
                let inputs = Inputs { tools: Some(&tools), ..Inputs::new(&[]) };
                assert!(template.render(&inputs).is_ok(), "{source}");
                assert_eq!(Support::of(&template), Support::ALL, "{source}");
            }
        }
    }
}
