//! Splits the source of a template into text and code.

use std::borrow::Cow;

/// The kind of a source segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentKind {
    /// Text copied to the output.
    Data,
    /// Code, including its braces and the quotes of its literals.
    Code,
    /// The contents of a string literal in code.
    Literal,
    /// A comment.
    Comment,
}

/// The source with a line feed for each end of a line, as Jinja2 reads it.
pub fn with_line_feeds(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// The source with `{% generation %}` blocks, which mark assistant text for training, replaced by blocks without
/// effect.
pub fn without_generation(source: &str) -> String {
    mapped(source, |kind, text| {
        let word = text.trim_matches(['{', '}', '%', '-', '+', ' ', '\t', '\r', '\n']);
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => return Cow::Borrowed(text),
        };
        let is_tag = kind == SegmentKind::Code && text.starts_with("{%");
        if is_tag { Cow::Owned(text.replacen(word, instead, 1)) } else { Cow::Borrowed(text) }
    })
}

/// The source after applying `change` to all text that it can output: data and literals.
pub fn with_texts(source: &str, change: impl Fn(&str) -> String) -> String {
    mapped(source, |kind, text| match kind {
        SegmentKind::Data | SegmentKind::Literal => Cow::Owned(change(text)),
        SegmentKind::Code | SegmentKind::Comment => Cow::Borrowed(text),
    })
}

fn mapped<'s>(source: &'s str, map: impl Fn(SegmentKind, &'s str) -> Cow<'s, str>) -> String {
    parts(source).into_iter().map(|(kind, text)| map(kind, text)).collect()
}

/// The segments, whose concatenation is the source.
fn parts(source: &str) -> Vec<(SegmentKind, &str)> {
    let mut parts = Vec::new();
    let mut rest = source;
    while !rest.is_empty() {
        let opens = |(at, _): &(usize, char)| {
            ["{{", "{%", "{#"].iter().any(|open| rest[*at..].starts_with(open))
        };
        let at = rest.char_indices().find(opens).map_or(rest.len(), |(at, _)| at);
        let (data, code) = rest.split_at(at);
        parts.push((SegmentKind::Data, data));
        rest = if code.starts_with("{#") {
            let end = code.find("#}").map_or(code.len(), |at| at + 2);
            parts.push((SegmentKind::Comment, &code[..end]));
            &code[end..]
        } else {
            code_parts(code, &mut parts)
        };
    }
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

/// Splits the code at the start of `source` and returns the rest.
fn code_parts<'s>(source: &'s str, parts: &mut Vec<(SegmentKind, &'s str)>) -> &'s str {
    let close = if source.starts_with("{{") { "}}" } else { "%}" };
    let bytes = source.as_bytes();
    let (mut start, mut at, mut braces) = (0, 2.min(bytes.len()), 0usize);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                let mut end = at + 1;
                while end < bytes.len() && bytes[end] != quote {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                // A backslash may precede a multi-byte character.
                let end = (end..=bytes.len()).find(|&at| source.is_char_boundary(at));
                let end = end.unwrap_or(bytes.len());
                parts.push((SegmentKind::Code, &source[start..=at]));
                parts.push((SegmentKind::Literal, &source[at + 1..end]));
                (start, at) = (end, (end + 1).min(bytes.len()));
            }
            _ if braces == 0 && bytes[at..].starts_with(close.as_bytes()) => {
                parts.push((SegmentKind::Code, &source[start..at + 2]));
                return &source[at + 2..];
            }
            byte => {
                match byte {
                    b'{' => braces += 1,
                    b'}' => braces = braces.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
    }
    parts.push((SegmentKind::Code, &source[start..]));
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart_and_none_is_lost() {
        let source = "a{{ 'b}}' + x['c\\''] }}d{# 'e' #}{% if {'f': {}}['f'] %}g{{ \"é\\é\" }}";
        let parts = parts(source);
        let joined: String = parts.iter().map(|(_, text)| *text).collect();
        assert_eq!(joined, source);
        let of = |wanted| -> Vec<&str> {
            parts.iter().filter(|(kind, _)| *kind == wanted).map(|(_, text)| *text).collect()
        };
        assert_eq!(of(SegmentKind::Data), ["a", "d", "g"]);
        assert_eq!(of(SegmentKind::Literal), ["b}}", "c\\'", "f", "f", "é\\é"]);
        assert_eq!(of(SegmentKind::Comment), ["{# 'e' #}"]);
        for end in 0..source.len() {
            // A truncated source is not a valid template, but must not panic here.
            if let Some(cut) = source.get(..end) {
                let joined: String = super::parts(cut).iter().map(|(_, text)| *text).collect();
                assert_eq!(joined, cut);
            }
        }
    }

    #[test]
    fn lines_end_with_line_feeds() {
        let source = "a\r\n{% if true %}\r\nb\r{% endif %}\r\nc{{ '\r\n\\r' }}\r";
        let template = crate::chat::Template::new("lines", source).expect("it is valid");
        let rendered = template.render(&crate::chat::Inputs::new(&[]));
        assert_eq!(rendered.as_deref(), Ok("a\nb\nc\n\r"));
    }

    #[test]
    fn generation_blocks_do_nothing() {
        let source = "{%- generation -%}generation{{ 'generation' }}{% endgeneration %}";
        let expected = "{%- if true -%}generation{{ 'generation' }}{% endif %}";
        assert_eq!(without_generation(source), expected);
    }
}
