//! Messages of several lines: a line that ends in `\` continues, and `"""` begins and ends a block.

/// Delimiter of a block.
const QUOTES: &str = "\"\"\"";

/// Whether `text` is a complete message.
pub fn is_complete(text: &str) -> bool {
    match text.strip_prefix(QUOTES) {
        Some(block) => block.trim_end().ends_with(QUOTES),
        None => !text.ends_with('\\'),
    }
}

/// The contents of a complete message; of an incomplete one, what there is.
pub fn said(text: &str) -> String {
    let Some(block) = text.strip_prefix(QUOTES) else {
        let text = text.strip_suffix('\\').unwrap_or(text);
        return text.replace("\\\n", "\n");
    };
    let block = block.trim_end();
    let block = block.strip_suffix(QUOTES).unwrap_or(block);
    // Line breaks next to the delimiters belong to them.
    let block = block.strip_prefix('\n').unwrap_or(block);
    block.strip_suffix('\n').unwrap_or(block).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_line_or_say_that_they_have_more() {
        let cases = [
            ("one", Some("one")),
            ("one\\", None),
            ("one\\\ntwo", Some("one\ntwo")),
            ("one\\\ntwo\\", None),
            ("a \"\"\" b", Some("a \"\"\" b")),
            ("\"\"\"", None),
            ("\"\"\"\none\n", None),
            ("\"\"\"\none\n\ntwo\n\"\"\"", Some("one\n\ntwo")),
            ("\"\"\"one\"\"\"", Some("one")),
            ("\"\"\"one\\\n\"\"\" ", Some("one\\")),
            ("\"\"\"\"\"\"", Some("")),
        ];
        for (text, expected) in cases {
            let found = is_complete(text).then(|| said(text));
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
