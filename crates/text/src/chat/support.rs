//! What a chat template can show: found by rendering conversations and searching the prompts for their texts.

use serde_json::{Map, Value as Json, json};

use super::messages::{ArgumentForm, Form, prepared};
use super::{Inputs, Template};

/// Texts that no template contains: letters alone, which no template escapes or trims.
const SYSTEM: &str = "Wubrinalo";
const FUNCTION: &str = "moxetirra";
const ARGUMENT: &str = "Kaxulanni";
const RESULT: &str = "Tovelumpi";

/// Which parts of a conversation a template writes into the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Support {
    /// A system message before the user's.
    pub system: bool,
    /// The functions that the model may call.
    pub tools: bool,
    /// The calls of an assistant message.
    pub calls: bool,
    /// The messages of tools.
    pub results: bool,
    /// Whether it tells calls by a content that is null: with an empty one it shows no call, or an empty answer beside it.
    pub null_content: bool,
}

impl Support {
    /// Everything.
    const ALL: Support =
        Support { system: true, tools: true, calls: true, results: true, null_content: false };

    /// What a template shows. One that does not even render a message of the user counts as one that shows everything:
    /// its own error says more.
    pub fn of(template: &Template) -> Support {
        let mut probe = Probe { template, null_content: false };
        let user = json!({ "role": "user", "content": "Hello" });
        if probe.render(std::slice::from_ref(&user), None).is_none() {
            return Support::ALL;
        }
        let instructions = json!({ "role": "system", "content": SYSTEM });
        let system = probe.shows(&[instructions, user.clone()], None, SYSTEM);
        let given = functions();
        let tools = probe.shows(std::slice::from_ref(&user), Some(&given), FUNCTION);
        let given = tools.then_some(&given);
        let [answer, call, result] = history();
        let called = [user.clone(), call.clone(), result.clone()];
        probe.null_content = takes_null(template, &called, given);
        let (calls, results) = match probe.render(&called, given) {
            Some(prompt) => {
                // A template for certain functions writes only the arguments that it knows.
                let mut silent = call.clone();
                silent.as_object_mut().and_then(|fields| fields.remove("tool_calls"));
                let without = probe.render(&[user.clone(), silent, result.clone()], given);
                let adds = without.is_some_and(|without| without.len() < prompt.len());
                (adds || prompt.contains(ARGUMENT), prompt.contains(RESULT))
            }
            None if probe.shows(&[user.clone(), answer, result], given, RESULT) => (false, true),
            None => (probe.shows(&[user, call], given, ARGUMENT), false),
        };
        // A template that writes any role as it is knows nothing of the role of tools.
        let results = results && (tools || calls);
        Support { system, tools, calls, results, null_content: probe.null_content }
    }
}

/// Whether a template shows the call of `messages` if its content is null, writes no null, and writes something else if
/// the content is empty.
fn takes_null(template: &Template, messages: &[Json], tools: Option<&Json>) -> bool {
    let render = |null_content| Probe { template, null_content }.render(messages, tools);
    let nulls = |prompt: &str| prompt.matches("None").count() + prompt.matches("null").count();
    let (null, empty) = (render(true), render(false).unwrap_or_default());
    null.is_some_and(|null| {
        null != empty && null.contains(ARGUMENT) && nulls(&null) <= nulls(&empty)
    })
}

/// A template that is given conversations.
struct Probe<'t> {
    template: &'t Template,
    null_content: bool,
}

impl Probe<'_> {
    /// A prompt with either form of arguments; `None` if the template fails or refuses.
    fn render(&self, messages: &[Json], tools: Option<&Json>) -> Option<String> {
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
            self.template.render(&inputs).ok()
        };
        with(ArgumentForm::Object).or_else(|| with(ArgumentForm::Text))
    }

    /// Whether a prompt contains `text`.
    fn shows(&self, messages: &[Json], tools: Option<&Json>, text: &str) -> bool {
        self.render(messages, tools).is_some_and(|prompt| prompt.contains(text))
    }
}

fn functions() -> Json {
    let place = json!({ "type": "string", "description": "A place" });
    json!([{ "type": "function", "function": { "name": FUNCTION, "description": "Looks", "parameters": {
        "type": "object", "properties": { "place": place }, "required": ["place"] } } }])
}

/// An answer, an answer that calls a function, and the function's result. The id is one that templates of Mistral's models
/// take.
fn history() -> [Json; 3] {
    let function = json!({ "name": FUNCTION, "arguments": { "place": ARGUMENT } });
    let call = json!({ "id": "a1B2c3D4e", "type": "function", "function": function });
    [
        json!({ "role": "assistant", "content": "Hello" }),
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "a1B2c3D4e", "name": FUNCTION, "content": RESULT }),
    ]
}
