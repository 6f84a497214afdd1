//! Ids of tool calls in the form that a chat template takes.

use std::collections::{HashMap, HashSet};

use bilayer_text::chat::{Inputs, Template};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Length of the ids that templates of Mistral's models take, all others they refuse: letters and digits.
const SHORT: usize = 9;

/// Whether a template refuses ids as servers make them, long ones or numbers, and takes those of nine characters.
pub fn are_short(template: &Template) -> bool {
    let takes = |id: &str| {
        let function = json!({ "name": "f", "arguments": {} });
        let call = json!({ "id": id, "type": "function", "function": function });
        let messages = [
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": id, "content": "b" }),
        ];
        template.render(&Inputs::new(&messages)).is_ok()
    };
    let takes_all = takes("call_0123456789abcdef") && takes("1");
    !takes_all && takes("a1B2c3D4e")
}

/// Messages whose ids of calls are short. Each id has one short form in a conversation, the same as long as the messages
/// before are the same.
pub fn shortened(messages: &[Value]) -> Vec<Value> {
    let mut ids = Ids::default();
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(id) = message.get_mut("tool_call_id") {
            ids.shorten(id);
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        let calls = calls.into_iter().flatten();
        calls.filter_map(|call| call.get_mut("id")).for_each(|id| ids.shorten(id));
    }
    messages
}

#[derive(Default)]
struct Ids {
    known: HashMap<String, String>,
    used: HashSet<String>,
}

impl Ids {
    fn shorten(&mut self, id: &mut Value) {
        let Some(text) = id.as_str() else { return };
        if let Some(short) = self.known.get(text) {
            *id = json!(short);
            return;
        }
        let is_short = text.len() == SHORT && text.bytes().all(|c| c.is_ascii_alphanumeric());
        let digest = Sha256::digest(text);
        let mut hash = digest[..8].iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte));
        let mut short = if is_short { text.to_owned() } else { digits(hash) };
        while !self.used.insert(short.clone()) {
            hash = hash.wrapping_add(1);
            short = digits(hash);
        }
        self.known.insert(text.to_owned(), short.clone());
        *id = json!(short);
    }
}

/// The last digits of a number in base 62.
fn digits(mut number: u64) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digit = |_| {
        let digit = DIGITS[(number % 62) as usize];
        number /= 62;
        char::from(digit)
    };
    (0..SHORT).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Mistral's models write calls and results.
    const STRICT: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}\
        {{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}\
        {{ c.id }};{% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}\
        {{ raise_exception('length') }}{% endif %}{{ m.tool_call_id }};{% endif %}{% endfor %}";

    #[test]
    fn a_template_that_demands_short_ids_gets_them() {
        let strict = Template::new("strict", STRICT).expect("a template");
        assert!(are_short(&strict));
        for other in ["{{ messages }}", "{{ raise_exception('no tools') }}", ""] {
            assert!(!are_short(&Template::new("other", other).expect("a template")), "{other}");
        }
        let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": {} } });
        let mut messages = vec![
            json!({ "role": "assistant", "tool_calls": [call("call_18a1"), call("keep12345")] }),
            json!({ "role": "tool", "tool_call_id": "call_18a1", "content": "a" }),
            json!({ "role": "tool", "tool_call_id": "keep12345", "content": "b" }),
        ];
        let first = strict.render(&Inputs::new(&shortened(&messages))).expect("short ids");
        let ids: Vec<&str> = first.split_terminator(';').collect();
        assert_eq!([ids[0], ids[1]], [ids[2], "keep12345"]);
        assert!(ids[0] != ids[1] && ids[0].bytes().all(|c| c.is_ascii_alphanumeric()), "{ids:?}");
        messages
            .push(json!({ "role": "assistant", "tool_calls": [call("call_18a2"), call(ids[0])] }));
        let second = strict.render(&Inputs::new(&shortened(&messages))).expect("short ids");
        let rest = second.strip_prefix(&first).expect("the cached part stays as it is");
        let more: Vec<&str> = rest.split_terminator(';').collect();
        assert!(
            more[0] != more[1] && !ids.contains(&more[0]) && !ids.contains(&more[1]),
            "{second}"
        );
    }
}
