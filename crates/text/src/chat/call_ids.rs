//! Ids of tool calls in the form that templates of Mistral's models take.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

/// Length of the ids that these templates take, all others they refuse: letters and digits.
const SHORT: usize = 9;

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
    /// The number of the last id that was made. It only rises, so that ids of strangers cannot make the search long.
    made: u64,
}

impl Ids {
    fn shorten(&mut self, id: &mut Value) {
        let Some(text) = id.as_str() else { return };
        if let Some(short) = self.known.get(text) {
            *id = json!(short);
            return;
        }
        let is_short = text.len() == SHORT && text.bytes().all(|c| c.is_ascii_alphanumeric());
        let mut short = if is_short { text.to_owned() } else { self.next() };
        while !self.used.insert(short.clone()) {
            short = self.next();
        }
        self.known.insert(text.to_owned(), short.clone());
        *id = json!(short);
    }

    fn next(&mut self) -> String {
        self.made += 1;
        digits(self.made)
    }
}

/// The last digits of a number in base 62, the last one first.
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
    use crate::chat::support::Support;
    use crate::chat::{Inputs, Template};

    /// As Mistral's models write calls and results.
    const STRICT: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}\
        {{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}\
        {{ c.id }};{% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}\
        {{ raise_exception('length') }}{% endif %}{{ m.tool_call_id }};{% endif %}{% endfor %}";

    #[test]
    fn a_template_that_demands_short_ids_gets_them() {
        let strict = Template::new("strict", STRICT).unwrap();
        assert!(Support::of(&strict).short_ids);
        for other in ["{{ messages }}", "{{ raise_exception('no tools') }}", ""] {
            let other = Template::new("other", other).unwrap();
            assert!(!Support::of(&other).short_ids, "{}", other.source());
        }
        let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": {} } });
        let mut messages = vec![
            json!({ "role": "assistant", "tool_calls": [call("call_18a1"), call("keep12345")] }),
            json!({ "role": "tool", "tool_call_id": "call_18a1", "content": "a" }),
            json!({ "role": "tool", "tool_call_id": "keep12345", "content": "b" }),
        ];
        let first = strict.render(&Inputs::new(&shortened(&messages))).unwrap();
        let ids: Vec<&str> = first.split_terminator(';').collect();
        assert_eq!([ids[0], ids[1]], [ids[2], "keep12345"]);
        assert!(ids[0] != ids[1] && ids[0].bytes().all(|c| c.is_ascii_alphanumeric()), "{ids:?}");
        messages
            .push(json!({ "role": "assistant", "tool_calls": [call("call_18a2"), call(ids[0])] }));
        let second = strict.render(&Inputs::new(&shortened(&messages))).unwrap();
        let rest = second.strip_prefix(&first).expect("the cached part stays as it is");
        let more: Vec<&str> = rest.split_terminator(';').collect();
        assert!(
            more[0] != more[1] && !ids.contains(&more[0]) && !ids.contains(&more[1]),
            "{second}"
        );
    }

    /// Ids that are all used are passed once, however many others follow.
    #[test]
    fn many_ids_are_shortened_soon() {
        let taken = (1..50_000).map(|number| json!({ "id": digits(number) }));
        let others = (0..50_000).map(|number| json!({ "id": format!("call_{number}") }));
        let calls: Vec<Value> = taken.chain(others).collect();
        let began = std::time::Instant::now();
        let short = shortened(&[json!({ "role": "assistant", "tool_calls": calls })]);
        assert!(began.elapsed().as_secs() < 20);
        let ids = short[0]["tool_calls"].as_array().unwrap().iter();
        assert_eq!(
            ids.map(|call| call["id"].as_str().unwrap()).collect::<HashSet<_>>().len(),
            99_999
        );
    }
}
