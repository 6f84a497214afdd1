//! The key-value section of a file, in file order, with typed access that explains failures.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::REMAKE;
use crate::{Array, DEFAULT_ALIGNMENT, Error, Strings, Value, limits};

/// Keys and values in the order of the file.
///
/// The typed getters come in pairs: `u32(key)` fails if the key is absent, `opt_u32(key)` returns `None`; both fail
/// if the value has another type. An integer of any width and sign is accepted if its value fits, since converters
/// differ in the width they write; a float of either width is accepted as `f32`; a number is never accepted as a
/// string, flag or float.
#[derive(Clone)]
pub struct Metadata {
    file: Arc<str>,
    /// Limit on counts that no list backs; see [`Self::opt_count`].
    declared_max: u64,
    entries: Vec<(String, Value)>,
    places: HashMap<String, usize>,
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new()
    }
}

/// Formats entries by [`Value`]'s `Display`, which truncates vocabularies.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in self.iter() {
            map.entry(&key, &format_args!("{value}"));
        }
        map.finish()
    }
}

/// Equal if the same keys have the same values in the same order, whatever the file.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// One pair of getters per row.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt_name:ident -> $type:ty, $expected:literal, $read:expr;)*)
    => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`Error::MissingKey`], [`Error::WrongType`].
        pub fn $name(&self, key: &str) -> Result<$type, Error> {
            self.$opt_name(key)?.ok_or_else(|| self.missing(key, $expected))
        }

        $(#[$doc])*
        /// `None` if the key is absent.
        ///
        /// # Errors
        /// [`Error::WrongType`].
        pub fn $opt_name(&self, key: &str) -> Result<Option<$type>, Error> {
            self.typed(key, $expected, $read)
        }
    )*};
}

impl Metadata {
    /// Empty metadata.
    pub fn new() -> Self {
        let mut metadata = Self::with_capacity("metadata", 0);
        metadata.declared_max = u64::MAX;
        metadata
    }

    /// Empty metadata of `file`, which errors will name.
    pub(crate) fn with_capacity(file: &str, keys: usize) -> Self {
        let places = HashMap::with_capacity(keys);
        let entries = Vec::with_capacity(keys);
        Self { file: file.into(), declared_max: limits::DECLARED_ENTRIES, entries, places }
    }

    /// Sets the size of the model's files, which bounds the counts that they may declare.
    pub(crate) fn set_file_bytes(&mut self, bytes: u64) {
        self.declared_max = limits::DECLARED_ENTRIES.saturating_add(bytes);
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.places.get(key).map(|&place| &self.entries[place].1)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets `key`, in its old position if it exists, otherwise at the end. Keys are validated when the metadata is
    /// written.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        if let Some(&place) = self.places.get(key) {
            self.entries[place].1 = value;
        } else {
            self.places.insert(key.into(), self.entries.len());
            self.entries.push((key.into(), value));
        }
    }

    /// Removes `key`, preserving the order of the others. Linear in the number of keys.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let place = self.places.remove(key)?;
        self.places.values_mut().filter(|other| **other > place).for_each(|other| *other -= 1);
        Some(self.entries.remove(place).1)
    }

    /// The alignment of tensor data in bytes: `general.alignment`, strictly a `u32` and a power of two within
    /// [`limits`]; [`DEFAULT_ALIGNMENT`] if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Invalid`].
    pub fn alignment(&self) -> Result<u32, Error> {
        let key = "general.alignment";
        let found = match self.get(key) {
            None => return Ok(DEFAULT_ALIGNMENT),
            Some(&Value::U32(alignment)) => alignment,
            Some(value) => return Err(self.wrong(key, "a u32", value)),
        };
        let allowed = limits::ALIGNMENT_MIN..=limits::ALIGNMENT_MAX;
        if found.is_power_of_two() && allowed.contains(&found) {
            return Ok(found);
        }
        Err(Error::Invalid {
            file: self.file.to_string(),
            field: format!("key {key}"),
            expected: "a power of two from 8 to 1048576",
            found: found.to_string(),
            advice: REMAKE,
        })
    }

    getters! {
        /// An integer that fits `u32`.
        u32, opt_u32 -> u32, "an integer from 0 to 4294967295", Value::integer;
        /// An integer that fits `u64`.
        u64, opt_u64 -> u64, "an integer from 0 to 18446744073709551615", Value::integer;
        /// An integer that fits `i32`.
        i32, opt_i32 -> i32, "an integer from -2147483648 to 2147483647", Value::integer;
        /// An integer that fits `usize`.
        usize, opt_usize -> usize, "an integer that is not negative", Value::integer;
        /// A float.
        f32, opt_f32 -> f32, "a float", |value| match *value {
            Value::F32(number) => Some(number),
            Value::F64(number) => Some(number as f32),
            _ => None,
        };
        /// A flag.
        bool, opt_bool -> bool, "a bool", |value| match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        };
        /// A string.
        str, opt_str -> &str, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        };
        /// An array of strings.
        strings, opt_strings -> &Strings, "an array of strings", |value| match value {
            Value::Array(Array::String(strings)) => Some(strings),
            _ => None,
        };
        /// An array of floats, borrowed where they are stored as `f32`.
        f32s, opt_f32s -> Cow<'_, [f32]>, "an array of floats", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(Cow::Borrowed(numbers.as_slice())),
            Value::Array(Array::F64(numbers)) => {
                Some(Cow::Owned(numbers.iter().map(|&number| number as f32).collect()))
            }
            _ => None,
        };
        /// An array of integers that fit `i32`, borrowed where they are stored as such.
        i32s, opt_i32s -> Cow<'_, [i32]>, "an array of integers that fit i32", |value| match value {
            Value::Array(Array::I32(numbers)) => Some(Cow::Borrowed(numbers.as_slice())),
            Value::Array(array) => array.integers().map(Cow::Owned),
            _ => None,
        };
        /// An array of integers that fit `u32`, borrowed where they are stored as such.
        u32s, opt_u32s -> Cow<'_, [u32]>, "an array of integers that fit u32", |value| match value {
            Value::Array(Array::U32(numbers)) => Some(Cow::Borrowed(numbers.as_slice())),
            Value::Array(array) => array.integers().map(Cow::Owned),
            _ => None,
        };
        /// An array of bytes, which some files store as signed numbers; borrowed where they are not.
        bytes, opt_bytes -> Cow<'_, [u8]>, "an array of 8-bit integers", |value| match value {
            Value::Array(Array::U8(bytes)) => Some(Cow::Borrowed(bytes.as_slice())),
            Value::Array(Array::I8(bytes)) => {
                Some(Cow::Owned(bytes.iter().map(|byte| byte.cast_unsigned()).collect()))
            }
            _ => None,
        };
        /// An array of flags.
        bools, opt_bools -> &[bool], "an array of bools", |value| match value {
            Value::Array(Array::Bool(flags)) => Some(flags.as_slice()),
            _ => None,
        };
    }

    /// `count` integers that fit `u32`, for example one per layer. Files contain either an array of that length or a
    /// single number for all.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::Limit`].
    pub fn u32_each(&self, key: &str, count: usize) -> Result<Vec<u32>, Error> {
        let expected = "an integer, or an array of one integer each";
        self.opt_u32_each(key, count)?.ok_or_else(|| self.missing(key, expected))
    }

    /// [`Self::u32_each`] of an optional key; `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::Limit`] if the file is too small for so many, as in [`Self::opt_count`].
    pub fn opt_u32_each(&self, key: &str, count: usize) -> Result<Option<Vec<u32>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        self.check_declared(key, count)?;
        let numbers = match value {
            Value::Array(array) => array.integers().filter(|numbers| numbers.len() == count),
            value => value.integer().map(|number| vec![number; count]),
        };
        let expected = "an integer that fits u32, or an array of one for each (layer)";
        numbers.map(Some).ok_or_else(|| self.wrong(key, expected, value))
    }

    /// A number of things of which each takes memory, such as tokens or layers: at most one for each byte of the
    /// model's files and [`limits::DECLARED_ENTRIES`] more. Metadata that was not read from a file has no limit.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Limit`].
    pub fn opt_count(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(count) = self.opt_usize(key)? else { return Ok(None) };
        self.check_declared(key, count).map(|()| Some(count))
    }

    /// [`Self::opt_count`] of a key that must exist.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::Limit`].
    pub fn count(&self, key: &str) -> Result<usize, Error> {
        let count = self.usize(key)?;
        self.check_declared(key, count).map(|()| count)
    }

    fn check_declared(&self, key: &str, count: usize) -> Result<(), Error> {
        let (max, found) = (self.declared_max, count as u64);
        if found <= max {
            return Ok(());
        }
        Err(Error::Limit { file: self.file.to_string(), field: format!("key {key}"), max, found })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(key, expected, value))
    }

    fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::MissingKey { file: self.file.to_string(), key: key.into(), expected }
    }

    fn wrong(&self, key: &str, expected: &'static str, value: &Value) -> Error {
        let found = match value {
            Value::Array(_) => format!("the array {value}"),
            value => format!("the {} {value}", value.type_name()),
        };
        Error::WrongType { file: self.file.to_string(), key: key.into(), expected, found }
    }
}
