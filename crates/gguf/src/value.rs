//! Metadata values: twelve scalar kinds and flat arrays of them.

use std::fmt;

/// One metadata value. The variants are the format's types.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array. All elements have one type; arrays of arrays are refused on reading.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is its element type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Many strings in one allocation: a vocabulary of 256,000 tokens costs two `Vec`s.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`, in bytes; each starts where the one before ends.
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    /// Adds a string at the end.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// Splits the strings concatenated in `text`. Fails with the index of the first string that is not UTF-8, the
    /// offset of the offending byte in it, and the byte.
    pub(crate) fn from_parts(text: Vec<u8>, ends: Vec<usize>) -> Result<Self, (usize, usize, u8)> {
        let locate = |at: usize, byte: u8| {
            let index = ends.partition_point(|&end| end <= at);
            let start = if index == 0 { 0 } else { ends[index - 1] };
            (index, at - start, byte)
        };
        let text = String::from_utf8(text).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            locate(at, error.as_bytes()[at])
        })?;
        // The whole is UTF-8; a string is too if it ends at a character boundary.
        if let Some(&end) = ends.iter().find(|&&end| !text.is_char_boundary(end)) {
            let start = text.floor_char_boundary(end);
            return Err(locate(start, text.as_bytes()[start]));
        }
        Ok(Self { text, ends })
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string.as_ref()));
        all
    }
}

/// Evaluates one expression for an array of any element type.
macro_rules! each {
    ($array:expr, $elements:ident => $do:expr) => {
        match $array {
            Array::U8($elements) => $do,
            Array::I8($elements) => $do,
            Array::U16($elements) => $do,
            Array::I16($elements) => $do,
            Array::U32($elements) => $do,
            Array::I32($elements) => $do,
            Array::F32($elements) => $do,
            Array::Bool($elements) => $do,
            Array::String($elements) => $do,
            Array::U64($elements) => $do,
            Array::I64($elements) => $do,
            Array::F64($elements) => $do,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, elements => elements.len())
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements at some places, in that order; `None` if there is no such place.
    #[must_use]
    pub fn select(&self, places: &[usize]) -> Option<Array> {
        fn of<T: Clone>(elements: &[T], places: &[usize]) -> Option<Vec<T>> {
            places.iter().map(|&place| elements.get(place).cloned()).collect()
        }
        Some(match self {
            Self::U8(elements) => Self::U8(of(elements, places)?),
            Self::I8(elements) => Self::I8(of(elements, places)?),
            Self::U16(elements) => Self::U16(of(elements, places)?),
            Self::I16(elements) => Self::I16(of(elements, places)?),
            Self::U32(elements) => Self::U32(of(elements, places)?),
            Self::I32(elements) => Self::I32(of(elements, places)?),
            Self::F32(elements) => Self::F32(of(elements, places)?),
            Self::Bool(elements) => Self::Bool(of(elements, places)?),
            Self::String(elements) => {
                let texts: Option<Vec<&str>> =
                    places.iter().map(|&place| elements.get(place)).collect();
                Self::String(texts?.into_iter().collect())
            }
            Self::U64(elements) => Self::U64(of(elements, places)?),
            Self::I64(elements) => Self::I64(of(elements, places)?),
            Self::F64(elements) => Self::F64(of(elements, places)?),
        })
    }

    /// The type of its elements.
    pub(crate) fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The elements, if they are integers that all fit `N`.
    pub(crate) fn integers<N: TryFrom<i128>>(&self) -> Option<Vec<N>> {
        fn fit<T: Copy + Into<i128>, N: TryFrom<i128>>(elements: &[T]) -> Option<Vec<N>> {
            elements.iter().map(|&element| N::try_from(element.into()).ok()).collect()
        }
        match self {
            Self::U8(elements) => fit(elements),
            Self::I8(elements) => fit(elements),
            Self::U16(elements) => fit(elements),
            Self::I16(elements) => fit(elements),
            Self::U32(elements) => fit(elements),
            Self::I32(elements) => fit(elements),
            Self::U64(elements) => fit(elements),
            Self::I64(elements) => fit(elements),
            Self::F32(_) | Self::Bool(_) | Self::String(_) | Self::F64(_) => None,
        }
    }
}

impl Value {
    /// The format's type of this value.
    pub(crate) fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value, if it is an integer that fits `N`.
    pub(crate) fn integer<N: TryFrom<i128>>(&self) -> Option<N> {
        let wide: i128 = match *self {
            Self::U8(number) => number.into(),
            Self::I8(number) => number.into(),
            Self::U16(number) => number.into(),
            Self::I16(number) => number.into(),
            Self::U32(number) => number.into(),
            Self::I32(number) => number.into(),
            Self::U64(number) => number.into(),
            Self::I64(number) => number.into(),
            _ => return None,
        };
        N::try_from(wide).ok()
    }

    /// The type's name in the format's documentation, such as `u32` or `string`; `array of u32` for an array.
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.kind().name()),
            _ => self.kind().name().into(),
        }
    }
}

/// Type and beginning of a value, on one line of about 100 characters at most.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        match self {
            Self::U8(number) => write!(f, "{number}"),
            Self::I8(number) => write!(f, "{number}"),
            Self::U16(number) => write!(f, "{number}"),
            Self::I16(number) => write!(f, "{number}"),
            Self::U32(number) => write!(f, "{number}"),
            Self::I32(number) => write!(f, "{number}"),
            Self::U64(number) => write!(f, "{number}"),
            Self::I64(number) => write!(f, "{number}"),
            Self::F32(number) => write!(f, "{number:?}"),
            Self::F64(number) => write!(f, "{number:?}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::String(text) => write!(f, "\"{}\"", crate::names::shown(text)),
            Self::Array(array) => {
                write!(f, "{} x {} [", array.len(), array.kind().name())?;
                let mut shown = String::new();
                match array {
                    Array::String(strings) => {
                        for string in strings.iter().take(SHOWN) {
                            let start: String = string.chars().take(10).collect();
                            shown.push_str(&format!("{start:?}, "));
                        }
                    }
                    _ => each!(array, elements => for element in elements.iter().take(SHOWN) {
                        shown.push_str(&format!("{element:?}, "));
                    }),
                }
                let more = if array.len() > SHOWN { ", ..." } else { "" };
                write!(f, "{}{more}]", shown.trim_end_matches(", "))
            }
        }
    }
}

/// The format's value types and their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// In numeric order.
const VALUE_TYPES: [(ValueType, &str); 13] = [
    (ValueType::U8, "u8"),
    (ValueType::I8, "i8"),
    (ValueType::U16, "u16"),
    (ValueType::I16, "i16"),
    (ValueType::U32, "u32"),
    (ValueType::I32, "i32"),
    (ValueType::F32, "f32"),
    (ValueType::Bool, "bool"),
    (ValueType::String, "string"),
    (ValueType::Array, "array"),
    (ValueType::U64, "u64"),
    (ValueType::I64, "i64"),
    (ValueType::F64, "f64"),
];

impl ValueType {
    pub fn by_id(id: u32) -> Option<Self> {
        VALUE_TYPES.get(usize::try_from(id).ok()?).map(|(kind, _)| *kind)
    }

    pub fn name(self) -> &'static str {
        VALUE_TYPES[self as usize].1
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64);
from!(f32 => F32, f64 => F64, bool => Bool, &str => String, String => String, Array => Array);
from!(Vec<u8> => Array, Vec<i8> => Array, Vec<u16> => Array, Vec<i16> => Array);
from!(Vec<u32> => Array, Vec<i32> => Array, Vec<u64> => Array, Vec<i64> => Array);
from!(Vec<f32> => Array, Vec<f64> => Array, Vec<bool> => Array, Strings => Array);

macro_rules! from_elements {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Array {
            fn from(elements: $from) -> Self {
                Self::$variant(elements)
            }
        }
    )*};
}
from_elements!(Vec<u8> => U8, Vec<i8> => I8, Vec<u16> => U16, Vec<i16> => I16, Vec<u32> => U32);
from_elements!(Vec<i32> => I32, Vec<u64> => U64, Vec<i64> => I64, Vec<f32> => F32);
from_elements!(Vec<f64> => F64, Vec<bool> => Bool, Strings => String);
