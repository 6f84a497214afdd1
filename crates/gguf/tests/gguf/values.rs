//! Values and lists of every type: their bytes in a file, how they are shown, and which of them typed access accepts.

use bilayer_gguf::{Array, Error, Metadata, NewTensor, Strings, Value, limits, to_bytes};
use bilayer_quant::Type;

use super::open_bytes;

/// A value of each type, the type's name and number in the format, and the value's bytes there.
fn scalars() -> Vec<(Value, &'static str, u32, Vec<u8>)> {
    vec![
        (7u8.into(), "u8", 0, vec![7]),
        ((-2i8).into(), "i8", 1, vec![0xfe]),
        (0x0102u16.into(), "u16", 2, vec![2, 1]),
        ((-2i16).into(), "i16", 3, vec![0xfe, 0xff]),
        (0x0102_0304u32.into(), "u32", 4, vec![4, 3, 2, 1]),
        ((-2i32).into(), "i32", 5, vec![0xfe, 0xff, 0xff, 0xff]),
        (1.5f32.into(), "f32", 6, vec![0, 0, 0xc0, 0x3f]),
        (true.into(), "bool", 7, vec![1]),
        (false.into(), "bool", 7, vec![0]),
        ("aß".into(), "string", 8, vec![3, 0, 0, 0, 0, 0, 0, 0, b'a', 0xc3, 0x9f]),
        (0x0102_0304_0506_0708u64.into(), "u64", 10, vec![8, 7, 6, 5, 4, 3, 2, 1]),
        ((-2i64).into(), "i64", 11, vec![0xfe, 255, 255, 255, 255, 255, 255, 255]),
        (1.5f64.into(), "f64", 12, vec![0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
    ]
}

/// Lists of the same three to each type, whose last and first are picked below.
fn lists() -> Vec<(Array, Array)> {
    let strings = |all: &[&str]| Array::String(all.iter().collect());
    vec![
        (Array::U8(vec![1, 2, 3]), Array::U8(vec![3, 1])),
        (Array::I8(vec![1, 2, 3]), Array::I8(vec![3, 1])),
        (Array::U16(vec![1, 2, 3]), Array::U16(vec![3, 1])),
        (Array::I16(vec![1, 2, 3]), Array::I16(vec![3, 1])),
        (Array::U32(vec![1, 2, 3]), Array::U32(vec![3, 1])),
        (Array::I32(vec![1, 2, 3]), Array::I32(vec![3, 1])),
        (Array::F32(vec![1.0, 2.0, 3.0]), Array::F32(vec![3.0, 1.0])),
        (Array::Bool(vec![true, false, false]), Array::Bool(vec![false, true])),
        (strings(&["a", "bc", ""]), strings(&["", "a"])),
        (Array::U64(vec![1, 2, 3]), Array::U64(vec![3, 1])),
        (Array::I64(vec![1, 2, 3]), Array::I64(vec![3, 1])),
        (Array::F64(vec![1.0, 2.0, 3.0]), Array::F64(vec![3.0, 1.0])),
    ]
}

/// A file with the key `k` alone, byte by byte as the format says.
fn file_of(kind: u32, value: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([1, 0, 0, 0, 0, 0, 0, 0, b'k', kind as u8, 0, 0, 0]);
    file.extend_from_slice(value);
    file.resize(file.len().next_multiple_of(32), 0);
    file
}

#[test]
fn every_type_has_the_number_the_name_and_the_bytes_of_the_format() {
    let check = |value: &Value, kind, bytes: &[u8]| {
        let mut metadata = Metadata::new();
        metadata.set("k", value.clone());
        let written = to_bytes(&metadata, []).unwrap();
        assert_eq!(written, file_of(kind, bytes), "{value:?}");
        assert_eq!(open_bytes(written).unwrap().metadata().get("k"), Some(value));
    };
    for (value, name, kind, bytes) in scalars() {
        assert_eq!(value.type_name(), name);
        check(&value, kind, &bytes);
    }
    let elements = scalars().into_iter().filter(|(value, ..)| *value != Value::Bool(false));
    for ((list, _), (_, name, kind, _)) in lists().into_iter().zip(elements) {
        let mut metadata = Metadata::new();
        metadata.set("k", list.clone());
        assert_eq!(metadata.get("k").unwrap().type_name(), format!("array of {name}"));
        let written = to_bytes(&metadata, []).unwrap();
        let head = [kind, 3, 0].map(u32::to_le_bytes).concat();
        assert_eq!(written[37..49], head, "{name}");
        assert_eq!(open_bytes(written).unwrap().metadata().get("k"), Some(&Value::Array(list)));
    }
    check(&vec![0x0102u16, 3].into(), 9, &[2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 0]);
    check(&vec![true, false].into(), 9, &[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn elements_are_picked_in_the_order_of_their_places() {
    for (list, picked) in lists() {
        assert_eq!((list.len(), list.is_empty()), (3, false));
        assert_eq!(list.select(&[2, 0]), Some(picked), "{list:?}");
        assert_eq!(list.select(&[2, 3]), None, "{list:?} has no fourth element");
        let none = list.select(&[]).unwrap();
        assert_eq!((none.len(), none.is_empty()), (0, true), "{list:?}");
    }
}

#[test]
fn strings_are_found_by_their_place() {
    let strings = Strings::from_iter(["a", "", "bc"]);
    let all: Vec<_> = (0..4).map(|place| strings.get(place)).collect();
    assert_eq!(all, [Some("a"), Some(""), Some("bc"), None]);
    assert_eq!(strings.iter().rev().collect::<Vec<_>>(), ["bc", "", "a"]);
    assert_eq!((strings.len(), strings.is_empty()), (3, false));
    assert_eq!((Strings::default().len(), Strings::default().is_empty()), (0, true));
}

#[test]
fn values_are_shown_on_one_line_with_their_beginning() {
    let long = |len| "x".repeat(len);
    let rows: Vec<(Value, String)> = vec![
        (7u8.into(), "7".into()),
        ((-7i8).into(), "-7".into()),
        (7u16.into(), "7".into()),
        ((-7i16).into(), "-7".into()),
        (7u32.into(), "7".into()),
        ((-7i32).into(), "-7".into()),
        (7u64.into(), "7".into()),
        ((-7i64).into(), "-7".into()),
        (7f32.into(), "7.0".into()),
        (0.5f64.into(), "0.5".into()),
        (true.into(), "true".into()),
        ("a\n\"".into(), "\"a\\n\\\"\"".into()),
        (long(64).into(), format!("\"{}\"", long(64))),
        (long(65).into(), format!("\"{}...\"", long(64))),
        (Vec::<u32>::new().into(), "0 x u32 []".into()),
        (vec![1u8; 6].into(), "6 x u8 [1, 1, 1, 1, 1, 1]".into()),
        (vec![-1i8; 7].into(), "7 x i8 [-1, -1, -1, -1, -1, -1, ...]".into()),
        (vec![0.5f32, 1.0].into(), "2 x f32 [0.5, 1.0]".into()),
        (vec![true].into(), "1 x bool [true]".into()),
        (
            Strings::from_iter(["ten letter", "ten letters"]).into(),
            "2 x string [\"ten letter\", \"ten letter\"]".into(),
        ),
        (
            Strings::from_iter(["a"; 7]).into(),
            "7 x string [\"a\", \"a\", \"a\", \"a\", \"a\", \"a\", ...]".into(),
        ),
    ];
    for (value, shown) in rows {
        assert_eq!(value.to_string(), shown);
    }
    let mut metadata = Metadata::new();
    metadata.set("b", vec![1u8; 7]);
    metadata.set("a", "text");
    let shown = "{\"b\": 7 x u8 [1, 1, 1, 1, 1, 1, ...], \"a\": \"text\"}";
    assert_eq!(format!("{metadata:?}"), shown);
}

#[test]
fn integers_of_every_width_are_accepted_where_they_fit() {
    let one = |value: Value| {
        let mut metadata = Metadata::new();
        metadata.set("k", value);
        metadata
    };
    let whole: [(Value, Value); 8] = [
        (5u8.into(), vec![5u8, 6].into()),
        (5i8.into(), vec![5i8, 6].into()),
        (5u16.into(), vec![5u16, 6].into()),
        (5i16.into(), vec![5i16, 6].into()),
        (5u32.into(), vec![5u32, 6].into()),
        (5i32.into(), vec![5i32, 6].into()),
        (5u64.into(), vec![5u64, 6].into()),
        (5i64.into(), vec![5i64, 6].into()),
    ];
    for (number, list) in whole {
        let (number, list) = (one(number), one(list));
        assert_eq!((number.u32("k").unwrap(), number.i32("k").unwrap()), (5, 5), "{number:?}");
        assert_eq!((number.u64("k").unwrap(), number.usize("k").unwrap()), (5, 5), "{number:?}");
        assert_eq!(number.u32_each("k", 2).unwrap(), [5, 5], "{number:?}");
        assert_eq!(list.u32s("k").unwrap()[..], [5, 6], "{list:?}");
        assert_eq!(list.i32s("k").unwrap()[..], [5, 6], "{list:?}");
        assert_eq!(list.u32_each("k", 2).unwrap(), [5, 6], "{list:?}");
    }
    let others: [(Value, Value); 4] = [
        (5f32.into(), vec![5f32].into()),
        (5f64.into(), vec![5f64].into()),
        (true.into(), vec![true].into()),
        ("5".into(), Strings::from_iter(["5"]).into()),
    ];
    for (value, list) in others {
        let (value, list) = (one(value), one(list));
        assert!(matches!(value.u64("k"), Err(Error::WrongType { .. })), "{value:?}");
        assert!(matches!(list.i32s("k"), Err(Error::WrongType { .. })), "{list:?}");
        assert!(matches!(list.u32_each("k", 1), Err(Error::WrongType { .. })), "{list:?}");
    }
    assert_eq!(one(vec![1u8, 255].into()).bytes("k").unwrap()[..], [1, 255]);
    assert_eq!(one(vec![1i8, -1].into()).bytes("k").unwrap()[..], [1, 255]);
    assert!(one(vec![1u16].into()).bytes("k").is_err());
}

#[test]
fn metadata_is_equal_if_keys_values_and_order_are() {
    let of = |entries: &[(&str, u32)]| {
        let mut metadata = Metadata::new();
        entries.iter().for_each(|&(key, value)| metadata.set(key, value));
        metadata
    };
    let two = of(&[("a", 1), ("b", 2)]);
    assert_eq!(two, of(&[("a", 1), ("b", 2)]));
    assert_eq!(two, *open_bytes(to_bytes(&two, []).unwrap()).unwrap().metadata());
    for other in [of(&[("b", 2), ("a", 1)]), of(&[("a", 1), ("b", 3)]), of(&[("a", 1)])] {
        assert!(two != other, "{other:?}");
    }
    assert!(!two.is_empty() && of(&[]).is_empty());
    assert_eq!((two.len(), of(&[]).len()), (2, 0));
}

#[test]
fn the_alignment_is_a_power_of_two_in_its_range() {
    let aligned = |alignment: u32| {
        let mut metadata = Metadata::new();
        metadata.set("general.alignment", alignment);
        metadata.alignment()
    };
    assert_eq!(Metadata::new().alignment().unwrap(), 32);
    for alignment in [8, 16, 32, 1 << 20] {
        assert_eq!(aligned(alignment).unwrap(), alignment);
    }
    for alignment in [0, 1, 4, 12, 24, (1 << 20) - 8, (1 << 20) + 8, 1 << 21] {
        let error = aligned(alignment).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{alignment}: {error}");
    }
}

/// 160 bytes must not be able to ask for gigabytes.
#[test]
fn a_file_may_declare_an_entry_for_each_of_its_bytes_and_some_more() {
    let file = |count: u64| {
        let mut metadata = Metadata::new();
        metadata.set("n", count);
        let tensor = NewTensor::zeros("t", Type::F32, &[1000]);
        open_bytes(to_bytes(&metadata, [tensor]).unwrap()).unwrap()
    };
    let most = 262_144 + file(0).file_bytes();
    assert_eq!(limits::DECLARED_ENTRIES, 262_144);
    for count in [0, 1, 2, most] {
        let file = file(count);
        assert_eq!(file.metadata().count("n").unwrap() as u64, count);
        assert_eq!(file.metadata().opt_count("n").unwrap(), Some(count as usize));
    }
    let above = file(most + 1);
    for error in [above.metadata().count("n").err(), above.metadata().opt_count("n").err()] {
        let Some(Error::Limit { file, field, max, found }) = error else { panic!("{error:?}") };
        assert_eq!((&*file, &*field, max, found), ("in memory", "key n", most, most + 1));
    }
    let each = file(7);
    assert_eq!(each.metadata().u32_each("n", most as usize).unwrap().len() as u64, most);
    assert!(matches!(each.metadata().u32_each("n", most as usize + 1), Err(Error::Limit { .. })));

    let mut free = Metadata::new();
    free.set("n", u32::MAX);
    assert_eq!(free.count("n").unwrap(), u32::MAX as usize, "no file limits it");
    assert_eq!(free.opt_count("m").unwrap(), None);
    assert!(matches!(free.count("m"), Err(Error::MissingKey { .. })));
    free.set("n", "7");
    assert!(matches!(free.count("n"), Err(Error::WrongType { .. })));
    assert!(matches!(free.opt_count("n"), Err(Error::WrongType { .. })));
}
