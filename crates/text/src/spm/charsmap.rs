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
