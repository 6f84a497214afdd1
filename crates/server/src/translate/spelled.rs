//! Which of the generated tokens spell a part of the answer.

use serde_json::Value;

/// Takes the log-probabilities of the tokens that spell a text out of those held, and drops those of tokens before them;
/// `None` if no tokens do.
pub fn spelled(held: &mut Vec<Value>, text: &str) -> Option<Vec<Value>> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for entry in &*held {
        match entry["bytes"].as_array() {
            Some(given) => bytes.extend(given.iter().map(|byte| byte.as_u64().unwrap_or(0) as u8)),
            None => bytes.extend_from_slice(entry["token"].as_str()?.as_bytes()),
        }
        ends.push(bytes.len());
    }
    // The last token may end within a character.
    let start = bytes.utf8_chunks().next()?.valid().find(text)?;
    let holds = |position: usize| ends.partition_point(|&end| end <= position);
    let (first, last) = (holds(start), holds(start + text.len() - 1));
    Some(held.drain(..=last).skip(first).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::spelled;

    #[test]
    fn tokens_of_a_text_are_taken_and_those_before_it_dropped() {
        let entries = |texts: &[&[u8]]| -> Vec<Value> {
            texts.iter().map(|bytes| json!({ "token": "", "bytes": bytes })).collect()
        };
        let all: [&[u8]; 6] = [b"Hm", b"</think>", b"\n\nH", "é".as_bytes(), b"llo", b"<call>"];
        for (text, taken, left) in
            [("Hm", 0..1, 1), ("Héllo", 2..5, 5), ("é", 3..4, 4), ("l", 4..5, 5)]
        {
            let mut held = entries(&all);
            assert_eq!(spelled(&mut held, text).as_deref(), Some(&entries(&all)[taken]), "{text}");
            assert_eq!(held, entries(&all)[left..], "{text}");
        }
        let mut held = entries(&all);
        assert_eq!((spelled(&mut held, "other"), held.len()), (None, 6));
        assert_eq!(spelled(&mut entries(&[b"a", &[0xc3]]), "a").map(|of| of.len()), Some(1));
        assert_eq!(spelled(&mut Vec::new(), "a"), None);
    }
}
