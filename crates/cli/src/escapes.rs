//! Backslash escapes in texts from the command line, where shells make line breaks hard to enter.

use crate::failure::Failure;

/// `text` with `\n`, `\r`, `\t`, `\\`, `\'`, `\"` and `\xHH` replaced by what they stand for, as llama.cpp does; any
/// other backslash stays.
///
/// # Errors
/// Bytes written as `\xHH` that are not UTF-8 text.
pub fn resolve(text: &str) -> Result<String, Failure> {
    let mut resolved = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, used) = match (byte, after) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [same @ (b'\\' | b'\'' | b'"'), ..]) => (*same, 2),
            (b'\\', [b'x', high, low, ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (byte, 1),
            },
            _ => (byte, 1),
        };
        resolved.push(byte);
        rest = &rest[used..];
    }
    String::from_utf8(resolved).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let advice = "change the \\x escapes, or give --no-escape to leave backslashes alone";
        Failure::usage(format!("`{text}` is not UTF-8 text from byte {at} on; {advice}"))
    })
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_stand_for_what_they_do_in_llama_cpp() {
        let cases = [
            ("plain", "plain"),
            (r"a\nb\tc\rd", "a\nb\tc\rd"),
            (r#"\\n \' \""#, r#"\n ' ""#),
            (r"\x41\xc3\xa9", "Aé"),
            (r"\d \x4 \xzz \", r"\d \x4 \xzz \"),
        ];
        for (given, expected) in cases {
            assert_eq!(resolve(given).ok().as_deref(), Some(expected), "{given}");
        }
        assert!(resolve(r"\xff").is_err());
    }
}
