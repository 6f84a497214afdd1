//! Rules of SentencePiece's normalizer (`precompiled_charsmap`): which characters become which.
//!
//! ```text
//! u32 size in bytes │ units of a double array, u32 each │ replacements, each with a zero behind it
//!
//! unit       31 │ 30 … 10 │    9    │    8    │ 7 … 0      bit 31 and 7 … 0 of it are compared with a byte
//!             0 │  offset │ shifted │ has end │ label      offset << 8 if shifted
//! end of key  1 │ 30 … 0: where its replacement begins
//! ```
//!
//! The children of the unit at `at` begin at `at ^ offset`; that for a byte is at `at ^ offset ^ byte` and labelled with it. If
//! the unit has an end, it is at `at ^ offset`. Source: `darts.h` of darts-clone and `normalizer.cc` of SentencePiece.

use crate::Error;

/// Bytes of the longest key that is looked for; NFKC has some of 18.
const KEY_BYTES_MAX: usize = 256;

/// Bytes of the longest replacement; NFKC's longest has 33.
const REPLACEMENT_BYTES_MAX: usize = 128;

/// The rules; all replacements are valid.
#[derive(Debug)]
pub(super) struct Charsmap {
    units: Box<[Unit]>,
    replacements: Box<str>,
}

#[derive(Debug, Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xFF)
    }

    fn has_end(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn offset(self) -> usize {
        let shift = if self.0 >> 9 & 1 == 1 { 8 } else { 0 };
        ((self.0 >> 10) << shift) as usize
    }

    /// Of the end of a key: where its replacement begins.
    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }
}

impl Charsmap {
    /// Validates the rules; `None` if there are none.
    pub fn new(bytes: &[u8]) -> Result<Option<Charsmap>, Error> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let wrong = |problem| Error::Charsmap { problem };
        let (size, rest) = bytes.split_first_chunk().ok_or(wrong("has less than 4 bytes"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (units, text) =
            rest.split_at_checked(size).ok_or(wrong("is shorter than the table it begins with"))?;
        let (units, rest) = units.as_chunks();
        if !rest.is_empty() {
            return Err(wrong("has a table whose size is no multiple of 4"));
        }
        let text = std::str::from_utf8(text);
        let map = Charsmap {
            units: units.iter().map(|&unit| Unit(u32::from_le_bytes(unit))).collect(),
            replacements: text.map_err(|_| wrong("has replacements that are not UTF-8"))?.into(),
        };
        for (at, unit) in map.units.iter().enumerate() {
            if unit.label() <= 0xFF
                && unit.has_end()
                && map.replacement(at ^ unit.offset()).is_none()
            {
                return Err(wrong("has a rule whose replacement is missing or too long"));
            }
        }
        Ok(Some(map))
    }

    /// The replacement for the longest key at the beginning of `text`, and the number of bytes of the key.
    pub fn longest<'a>(&'a self, text: &str) -> Option<(&'a str, usize)> {
        let mut at = self.units.first()?.offset();
        let mut found = None;
        for (&byte, end) in text.as_bytes().iter().zip(1..=KEY_BYTES_MAX) {
            at ^= usize::from(byte);
            let Some(unit) = self.units.get(at).filter(|unit| unit.label() == u32::from(byte))
            else {
                break;
            };
            at ^= unit.offset();
            if unit.has_end() && text.is_char_boundary(end) {
                found = Some((at, end));
            }
        }
        let (at, end) = found?;
        Some((self.replacement(at)?, end))
    }

    /// The replacement of the key whose end is the unit at `at`.
    fn replacement(&self, at: usize) -> Option<&str> {
        let rest = self.replacements.get(self.units.get(at)?.value()..)?;
        let len = rest.bytes().take(REPLACEMENT_BYTES_MAX + 1).position(|byte| byte == 0)?;
        Some(&rest[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the children of the unit at `at` and returns where they begin, which ends in the same byte as `at`, so that
    /// the offset is a multiple of 256; it is written in units of `step`, 1 or 256.
    fn branch(units: &mut Vec<u32>, at: usize, step: u32) -> usize {
        let begin = units.len() | (at & 0xFF);
        units.resize(units.len() + 256, 0);
        let offset = (at ^ begin) as u32;
        units[at] |= (offset / step) << 10 | u32::from(step == 256) << 9;
        begin
    }

    /// The rules that make each key its replacement.
    fn rules(keys: &[(&[u8], &str)], step: u32) -> Result<Charsmap, Error> {
        let (mut units, mut text) = (vec![0u32; 256], String::new());
        let mut branches = std::collections::HashMap::new();
        for (key, replacement) in keys {
            let mut at = 0;
            for len in 0..=key.len() {
                let begin = branches.entry(&key[..len]);
                let begin = *begin.or_insert_with(|| branch(&mut units, at, step));
                match key.get(len) {
                    Some(&byte) => {
                        at = begin ^ usize::from(byte);
                        units[at] |= u32::from(byte);
                    }
                    None => {
                        units[at] |= 1 << 8;
                        units[begin] = 1 << 31 | text.len() as u32;
                    }
                }
            }
            text.push_str(replacement);
            text.push('\0');
        }
        let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(text.bytes());
        Charsmap::new(&bytes).map(|map| map.expect("there are rules"))
    }

    #[test]
    fn the_longest_key_is_replaced() {
        let long = "k".repeat(300);
        let keys: &[(&[u8], &str)] = &[
            (b"a", "x"),
            (b"ab", "yy"),
            (b"abcd", ""),
            ("é".as_bytes(), "e"),
            ("日本".as_bytes(), "Nippon"),
            // The first byte of a character is no key of a text.
            (b"\xE6", "?"),
            (&long.as_bytes()[..256], "256"),
            (&long.as_bytes()[..257], "257"),
        ];
        let cases = [
            ("a", Some(("x", 1))),
            ("ac", Some(("x", 1))),
            ("ab", Some(("yy", 2))),
            ("abc", Some(("yy", 2))),
            ("abcde", Some(("", 4))),
            ("é!", Some(("e", 2))),
            ("è", None),
            ("日本語", Some(("Nippon", 6))),
            ("日曜", None),
            ("b", None),
            ("", None),
            // Keys of more than 256 bytes are not looked for.
            (long.as_str(), Some(("256", 256))),
            (&long[..255], None),
        ];
        for step in [1, 256] {
            let map = rules(keys, step).expect("valid rules");
            for (text, expected) in cases {
                assert_eq!(map.longest(text), expected, "{text:?} {step}");
            }
        }
    }

    #[test]
    fn replacements_have_a_limit() {
        let made = |len: usize| rules(&[(b"a", &"r".repeat(len))], 1);
        let map = made(128).expect("128 bytes are allowed");
        assert_eq!(map.longest("a"), Some((&*"r".repeat(128), 1)));
        assert!(made(129).is_err());
        assert!(Charsmap::new(&[]).is_ok_and(|map| map.is_none()));
    }
}
