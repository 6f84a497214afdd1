//! The rules for metadata keys and tensor names, shared by reader and writer.

use crate::error::REMAKE;
use crate::{Error, limits};

/// Refuses a key that is empty, too long or holds control characters.
pub(crate) fn check_key(file: &str, key: &str) -> Result<(), Error> {
    check(file, "key", key, limits::KEY_BYTES)
}

/// Refuses a tensor name that is empty, too long or holds control characters.
pub(crate) fn check_tensor(file: &str, name: &str) -> Result<(), Error> {
    check(file, "tensor", name, limits::NAME_BYTES)
}

/// `name` for messages: control characters escaped, truncated to 64 characters.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    if name.chars().nth(64).is_some() {
        shown.push_str("...");
    }
    shown
}

fn check(file: &str, kind: &str, name: &str, max: u64) -> Result<(), Error> {
    let found = name.len() as u64;
    if found > max {
        let field = format!("length of the name of {kind} {}", shown(name));
        return Err(Error::Limit { file: file.into(), field, max, found });
    }
    let invalid = |found: &str| Error::Invalid {
        file: file.into(),
        field: format!("name of {kind} {}", shown(name)),
        expected: "a name of visible characters",
        found: found.into(),
        advice: REMAKE,
    };
    if name.is_empty() {
        return Err(invalid("an empty name"));
    }
    // A NUL or line feed in a name would forge lines in listings and end C strings early.
    if name.chars().any(char::is_control) {
        return Err(invalid("a control character"));
    }
    Ok(())
}
