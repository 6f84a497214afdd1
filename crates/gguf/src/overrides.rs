//! Metadata that the user gives instead of the file's.

use crate::{Error, Metadata, Value};

/// Stands for the file's architecture in a key.
const ARCHITECTURE: &str = "{arch}";

/// A key with a value other than the file's.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataOverride {
    key: String,
    value: Value,
}

impl MetadataOverride {
    /// `key` may begin with `{arch}`, which stands for the file's architecture.
    pub fn new(key: impl Into<String>, value: impl Into<Value>) -> Self {
        MetadataOverride { key: key.into(), value: value.into() }
    }

    /// Reads llama.cpp's notation: `KEY=TYPE:VALUE`, with the types `int`, `float`, `bool` and `str`.
    ///
    /// # Errors
    /// The text has another form; says what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected KEY=TYPE:VALUE, found `{text}`");
        let (key, typed) = text.split_once('=').ok_or_else(expected)?;
        let (ty, value) = typed.split_once(':').ok_or_else(expected)?;
        if key.is_empty() {
            return Err(expected());
        }
        let wrong = |what: &str| format!("`{value}` is no {what}");
        let value = match ty {
            "int" => Value::I64(value.parse().map_err(|_| wrong("integer"))?),
            "float" => match value.parse::<f32>() {
                Ok(number) if number.is_finite() => Value::F32(number),
                _ => return Err(wrong("finite number")),
            },
            "bool" => Value::Bool(value.parse().map_err(|_| wrong("`true` or `false`"))?),
            "str" => Value::String(value.to_owned()),
            _ => return Err(format!("the type `{ty}` is not int, float, bool or str")),
        };
        Ok(MetadataOverride { key: key.to_owned(), value })
    }

    /// Sets the key in the metadata of `file`, which errors name. A value takes the type that the file has for it,
    /// an integer also that of a float.
    ///
    /// # Errors
    /// [`Error::Override`]: the file's value is of another kind, or the number is out of its range.
    pub fn apply(&self, file: &str, metadata: &mut Metadata) -> Result<(), Error> {
        let key = match self.key.strip_prefix(ARCHITECTURE) {
            Some(rest) => format!("{}{rest}", metadata.str("general.architecture")?),
            None => self.key.clone(),
        };
        let found = metadata.get(&key);
        let value = fitted(&self.value, found).ok_or_else(|| Error::Override {
            file: file.to_owned(),
            key: key.clone(),
            given: self.value.to_string(),
            expected: found.map_or("a 64-bit integer", kind),
        })?;
        metadata.set(&key, value);
        Ok(())
    }
}

/// `given` with the type of `found`, if it fits.
fn fitted(given: &Value, found: Option<&Value>) -> Option<Value> {
    let number = match given {
        Value::I64(number) => Some(*number),
        _ => None,
    };
    let Some(found) = found else {
        let small = |number: i64| u32::try_from(number).ok().map(Value::U32);
        return Some(number.and_then(small).unwrap_or_else(|| given.clone()));
    };
    match (found, given) {
        (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_))
        | (Value::F32(_), Value::F32(_)) => Some(given.clone()),
        (Value::F64(_), Value::F32(number)) => Some(Value::F64((*number).into())),
        (Value::F32(_), _) => number.map(|number| Value::F32(number as f32)),
        (Value::F64(_), _) => number.map(|number| Value::F64(number as f64)),
        (Value::U8(_), _) => u8::try_from(number?).ok().map(Value::U8),
        (Value::I8(_), _) => i8::try_from(number?).ok().map(Value::I8),
        (Value::U16(_), _) => u16::try_from(number?).ok().map(Value::U16),
        (Value::I16(_), _) => i16::try_from(number?).ok().map(Value::I16),
        (Value::U32(_), _) => u32::try_from(number?).ok().map(Value::U32),
        (Value::I32(_), _) => i32::try_from(number?).ok().map(Value::I32),
        (Value::U64(_), _) => u64::try_from(number?).ok().map(Value::U64),
        (Value::I64(_), _) => number.map(Value::I64),
        _ => None,
    }
}

/// What a value may be replaced by.
fn kind(found: &Value) -> &'static str {
    match found {
        Value::String(_) => "a text",
        Value::Bool(_) => "true or false",
        Value::F32(_) | Value::F64(_) => "a number",
        Value::Array(_) => "nothing: lists cannot be replaced",
        Value::U8(_) => "an integer of 8 bits, not negative",
        Value::U16(_) => "an integer of 16 bits, not negative",
        Value::U32(_) => "an integer of 32 bits, not negative",
        Value::U64(_) => "an integer that is not negative",
        Value::I8(_) => "an integer of 8 bits",
        Value::I16(_) => "an integer of 16 bits",
        Value::I32(_) => "an integer of 32 bits",
        Value::I64(_) => "an integer of 64 bits",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_is_llama_cpps() {
        let good = [
            ("a.b=int:-3", Value::I64(-3)),
            ("a.b=float:0.5", Value::F32(0.5)),
            ("a.b=bool:true", Value::Bool(true)),
            ("a.b=str:x=y:z", Value::String("x=y:z".to_owned())),
        ];
        for (text, value) in good {
            assert_eq!(
                MetadataOverride::parse(text),
                Ok(MetadataOverride::new("a.b", value)),
                "{text}"
            );
        }
        let bad = [
            ("a.b", "expected KEY=TYPE:VALUE"),
            ("a.b=3", "expected KEY=TYPE:VALUE"),
            ("=int:3", "expected KEY=TYPE:VALUE"),
            ("a=int:x", "`x` is no integer"),
            ("a=float:inf", "`inf` is no finite number"),
            ("a=bool:1", "`1` is no `true` or `false`"),
            ("a=u8:1", "not int, float, bool or str"),
        ];
        for (text, error) in bad {
            let found = MetadataOverride::parse(text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn values_take_the_types_of_the_file() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.context_length", 4096u32);
        metadata.set("llama.rope.freq_base", 1e4f32);
        metadata.set("general.name", "a");
        let set = |text: &str, metadata: &mut Metadata| {
            MetadataOverride::parse(text).unwrap().apply("m.gguf", metadata)
        };
        set("{arch}.context_length=int:8192", &mut metadata).unwrap();
        set("llama.rope.freq_base=float:5e5", &mut metadata).unwrap();
        set("llama.new=int:7", &mut metadata).unwrap();
        set("llama.less=int:-7", &mut metadata).unwrap();
        assert_eq!(metadata.get("llama.context_length"), Some(&Value::U32(8192)));
        assert_eq!(metadata.get("llama.rope.freq_base"), Some(&Value::F32(5e5)));
        assert_eq!(metadata.get("llama.new"), Some(&Value::U32(7)));
        assert_eq!(metadata.get("llama.less"), Some(&Value::I64(-7)));
        for text in ["general.name=int:3", "llama.context_length=int:-1", "llama.new=float:1"] {
            let error = set(text, &mut metadata).unwrap_err().to_string();
            let key = text.split_once('=').unwrap().0;
            assert!(error.contains("m.gguf") && error.contains(key), "{text}: {error}");
        }
    }

    /// The value of the file; what is given and what comes of it; what does not fit; what the error expects.
    type Row<'a> = (Value, &'a [(&'a str, Value)], &'a [&'a str], &'a str);

    #[test]
    fn each_type_takes_what_fits_it_and_nothing_else() {
        let (u8s, i8s) = ("an integer of 8 bits, not negative", "an integer of 8 bits");
        let (u16s, i16s) = ("an integer of 16 bits, not negative", "an integer of 16 bits");
        let (u32s, i32s) = ("an integer of 32 bits, not negative", "an integer of 32 bits");
        let (u64s, i64s) = ("an integer that is not negative", "an integer of 64 bits");
        let (float, bools) = ("a number", "true or false");
        let rows: &[Row<'_>] = &[
            (1u8.into(), &[("int:255", 255u8.into())], &["int:256", "int:-1", "float:1"], u8s),
            (1i8.into(), &[("int:-128", (-128i8).into())], &["int:128", "bool:true"], i8s),
            (1u16.into(), &[("int:65535", 65_535u16.into())], &["int:65536", "str:1"], u16s),
            (1i16.into(), &[("int:-32768", i16::MIN.into())], &["int:32768", "float:1"], i16s),
            (1u32.into(), &[("int:4294967295", u32::MAX.into())], &["int:4294967296"], u32s),
            (1i32.into(), &[("int:-2147483648", i32::MIN.into())], &["int:2147483648"], i32s),
            (1u64.into(), &[("int:7", 7u64.into())], &["int:-1", "float:1"], u64s),
            (1i64.into(), &[("int:-7", (-7i64).into())], &["float:1", "str:1"], i64s),
            (
                1f32.into(),
                &[("float:0.5", 0.5f32.into()), ("int:-2", (-2f32).into())],
                &["str:1"],
                float,
            ),
            (
                1f64.into(),
                &[("float:0.5", 0.5f64.into()), ("int:7", 7f64.into())],
                &["bool:true"],
                float,
            ),
            (true.into(), &[("bool:false", false.into())], &["int:0", "str:false"], bools),
            ("a".into(), &[("str:", "".into())], &["int:0", "bool:true"], "a text"),
            (vec![1u8].into(), &[], &["int:1", "str:1"], "nothing: lists cannot be replaced"),
        ];
        for (old, good, bad, wanted) in rows {
            let mut metadata = Metadata::new();
            metadata.set("k", old.clone());
            let over = |given: &str| MetadataOverride::parse(&format!("k={given}")).unwrap();
            for given in *bad {
                let error = over(given).apply("m.gguf", &mut metadata).unwrap_err();
                let Error::Override { expected, .. } = error else { panic!("{given}: {error}") };
                assert_eq!(expected, *wanted, "{given} for {old:?}");
                assert_eq!(metadata.get("k"), Some(old));
            }
            for (given, value) in *good {
                over(given).apply("m.gguf", &mut metadata).unwrap();
                assert_eq!(metadata.get("k"), Some(value), "{given} for {old:?}");
            }
        }
    }
}
