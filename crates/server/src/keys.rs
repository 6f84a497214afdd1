//! API keys: compared in constant time by their hashes, with roles, and read again from their file on SIGHUP.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use bilayer_engine::requests::KeyId;
use bilayer_files::hash::sha256;
use hyper::HeaderMap;
use subtle::ConstantTimeEq;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read `/metrics`.
    Metrics,
    /// Ask models.
    Inference,
    /// Everything: slots, loading and unloading models.
    Admin,
}

#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    role: Role,
    id: KeyId,
}

/// The keys of a server. Without any, everybody may do everything.
#[derive(Default)]
pub struct Keys {
    entries: RwLock<Vec<Entry>>,
}

impl Keys {
    /// Keys given directly, and those of a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is wrong.
    pub fn load(given: &[String], file: Option<&Path>) -> Result<Keys, String> {
        let keys = Keys::default();
        keys.reload(given, file)?;
        Ok(keys)
    }

    /// Replaces all keys. After an error the old ones stay.
    ///
    /// # Errors
    /// As [`Keys::load`].
    pub fn reload(&self, given: &[String], file: Option<&Path>) -> Result<(), String> {
        let mut entries: Vec<Entry> = given.iter().map(|key| entry(key, Role::Admin)).collect();
        if let Some(path) = file {
            let shown = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("the key file {shown} cannot be read: {error}"))?;
            for (line, number) in text.lines().zip(1..) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (key, role) = line.split_once(char::is_whitespace).unwrap_or((line, "admin"));
                let role = match role.trim() {
                    "metrics" => Role::Metrics,
                    "inference" => Role::Inference,
                    "admin" => Role::Admin,
                    _ => {
                        // The line may hold a key, so it is not shown.
                        return Err(format!(
                            "{shown}, line {number}: the role behind the key must be metrics, inference or admin"
                        ));
                    }
                };
                entries.push(entry(key, role));
            }
            if entries.is_empty() {
                return Err(format!("the key file {shown} has no keys"));
            }
        }
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        Ok(())
    }

    /// Whether keys are needed.
    pub fn are_needed(&self) -> bool {
        !self.entries.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Role and number of a key; `None` if it is unknown. Every entry is compared, whichever matches.
    pub fn find(&self, key: &str) -> Option<(Role, KeyId)> {
        let hash = sha256(key);
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for entry in entries.iter() {
            if bool::from(entry.hash.ct_eq(&hash)) {
                found = Some((entry.role, entry.id));
            }
        }
        found
    }
}

/// The keys that a request has: clients that need a key of OpenAI's send any there and their own in the other header.
pub fn given(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    bearer.into_iter().chain(text("x-api-key")).map(str::trim)
}

fn entry(key: &str, role: Role) -> Entry {
    let hash = sha256(key);
    let mut id = [0; 8];
    id.copy_from_slice(&hash[..8]);
    // 0 stands for callers without a key.
    Entry { hash, role, id: u64::from_le_bytes(id).max(1) }
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::{HeaderName, HeaderValue};

    use super::{Keys, Role, given};

    #[test]
    fn keys_are_in_either_header() {
        type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);
        let cases: [Case; 6] = [
            (&[("authorization", "Bearer a")], &["a"]),
            (&[("authorization", "bEARER  a ")], &["a"]),
            (&[("x-api-key", " b ")], &["b"]),
            (&[("authorization", "Bearer a"), ("x-api-key", "b")], &["a", "b"]),
            (&[("authorization", "Basic eDp5"), ("x-api-key", "b")], &["b"]),
            (&[("authorization", "Bearer"), ("cookie", "c")], &[]),
        ];
        for (headers, expected) in cases {
            let header = |&(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            let headers: HeaderMap = headers.iter().map(header).collect();
            assert_eq!(given(&headers).collect::<Vec<_>>(), expected, "{headers:?}");
        }
    }

    #[test]
    fn keys_have_roles_and_a_bad_file_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("bilayer-keys-{}", std::process::id()));
        std::fs::write(&folder, "# team\nsk-a inference\nsk-b metrics\n\nsk-c\n").expect("a file");
        let keys = Keys::load(&["sk-own".to_owned()], Some(&folder)).expect("good keys");
        let role = |key| keys.find(key).map(|(role, _)| role);
        assert_eq!(role("sk-own"), Some(Role::Admin));
        assert_eq!(role("sk-a"), Some(Role::Inference));
        assert_eq!(role("sk-b"), Some(Role::Metrics));
        assert_eq!(role("sk-c"), Some(Role::Admin));
        assert_eq!(role("sk-"), None);
        std::fs::write(&folder, "sk-x boss\n").expect("a file");
        let error = keys.reload(&[], Some(&folder)).expect_err("an unknown role");
        assert!(error.contains("line 1") && !error.contains("sk-x"), "{error}");
        assert_eq!(role("sk-a"), Some(Role::Inference), "the old keys stay");
        std::fs::remove_file(&folder).expect("it is there");
        assert!(keys.reload(&[], Some(&folder)).is_err());
    }
}
