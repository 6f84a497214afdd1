//! What lies exactly at a limit is read and written, what lies one beyond is refused; errors say the exact place.

use bilayer_gguf::{Error, Metadata, NewTensor, to_bytes};
use bilayer_quant::Type;

use super::hostile::{file, header, key, kind, tensor, text, u32s, u64s};
use super::open_bytes;

/// The error of a file.
fn refused(bytes: Vec<u8>) -> Error {
    open_bytes(bytes).expect_err("a fault")
}

#[test]
fn errors_say_where_something_ends_too_early() {
    let one_key = |kind, value: &[u8]| [header(3, 0, 1), key("k", kind, value)].concat();
    let rows = [
        // The smallest key has 14 bytes, the smallest row of the directory 33.
        ([header(3, 0, 1), vec![0; 13]].concat(), "field key count", 14, 24, 13),
        ([header(3, 0, 3), vec![0; 41]].concat(), "field key count", 42, 24, 41),
        ([header(3, 1, 0), vec![0; 32]].concat(), "field tensor count", 33, 24, 32),
        ([header(3, 2, 0), vec![0; 65]].concat(), "field tensor count", 66, 24, 65),
        // A key is read first: it ends at byte 24 + 8 + 1 + 4 + 4.
        (
            [header(3, 1, 1), key("k", kind::U32, &[0; 4]), vec![0; 32]].concat(),
            "field tensor count",
            33,
            41,
            32,
        ),
        (one_key(kind::U32, &[0; 3]), "value of key k", 4, 37, 3),
        (
            one_key(kind::STRING, &[u64s(&[10]), vec![b'x'; 9]].concat()),
            "length of value of key k",
            10,
            45,
            9,
        ),
        (
            one_key(kind::ARRAY, &[u32s(&[kind::U32]), u64s(&[3]), vec![0; 11]].concat()),
            "elements of key k",
            12,
            49,
            11,
        ),
        (
            one_key(kind::ARRAY, &[u32s(&[kind::STRING]), u64s(&[3]), vec![0; 23]].concat()),
            "elements of key k",
            24,
            49,
            23,
        ),
        // The directory ends at byte 24 + 33, the data starts at the next multiple of 32.
        (file(&[], &[tensor("t", &[32], kind::F32, 0)], 127), "data of tensor t", 128, 64, 127),
    ];
    for (bytes, expected, needed, at, rest) in rows {
        let error = refused(bytes);
        let Error::Truncated { file, field, offset, needs, left } = error else {
            panic!("{expected}: {error}")
        };
        assert_eq!((&*file, &*field), ("in memory", expected));
        assert_eq!((needs, offset, left), (needed, at, rest), "{expected}");
    }
}

#[test]
fn counts_at_their_bounds_are_read() {
    // All of the rest is zeros, so that the first name is the fault.
    let keys = |keys, bytes| [header(3, 0, keys), vec![0; bytes]].concat();
    let tensors = |tensors, bytes| [header(3, tensors, 0), vec![0; bytes]].concat();
    let rows = [
        (keys(1, 14), "name of key "),
        (keys(65_536, 65_536 * 14), "name of key "),
        (tensors(1, 33), "name of tensor "),
        (tensors(65_536, 65_536 * 33), "name of tensor "),
    ];
    for (bytes, expected) in rows {
        let error = refused(bytes);
        assert!(matches!(&error, Error::Invalid { field, .. } if field == expected), "{error}");
    }
    // The value ends with the file.
    let last = [header(3, 0, 1), key("k", kind::STRING, &text(b"xyz"))].concat();
    assert_eq!(open_bytes(last).unwrap().metadata().str("k").unwrap(), "xyz");
}

#[test]
fn overlapping_tensors_are_named_with_their_places() {
    // The directory ends at byte 24 + 66, so the data starts at 96 and tensor a ends at 224.
    let rows = [tensor("a", &[32], kind::F32, 0), tensor("b", &[32], kind::F32, 96)];
    let error = refused(file(&[], &rows, 512));
    let Error::Overlap { tensor, other, end, offset, .. } = error else { panic!("{error}") };
    assert_eq!((&*tensor, &*other, end, offset), ("b", "a", 224, 192));
}

#[test]
fn versions_of_the_other_byte_order_are_told_apart_from_unknown_ones() {
    for found in [0, 1, 4, 0xffff, 0x0300_0001, u32::MAX] {
        let error = refused(header(found, 0, 0));
        assert!(matches!(error, Error::Version { found: v, .. } if v == found), "{error}");
    }
    for found in [2 << 24, 3 << 24, 1 << 16] {
        let error = refused(header(found, 0, 0));
        assert!(matches!(error, Error::BigEndian { found: v, .. } if v == found), "{error}");
    }
}

#[test]
fn names_and_keys_of_the_greatest_length_are_written_and_read() {
    let tensor = |len| [NewTensor::zeros(&"n".repeat(len), Type::F32, &[1])];
    let with_key = |len| {
        let mut metadata = Metadata::new();
        metadata.set(&"k".repeat(len), 1u32);
        metadata
    };
    let file = open_bytes(to_bytes(&with_key(65_535), tensor(64)).unwrap()).unwrap();
    assert_eq!(file.tensors()[0].name(), "n".repeat(64));
    assert_eq!(file.metadata().iter().next().unwrap().0.len(), 65_535);

    let shown = format!("{}...", "n".repeat(64));
    let error = to_bytes(&Metadata::new(), tensor(65)).unwrap_err();
    let Error::Limit { field, max, found, .. } = error else { panic!("{error}") };
    assert_eq!(field, format!("length of the name of tensor {shown}"));
    assert_eq!((max, found), (64, 65));
    let error = to_bytes(&with_key(65_536), []).unwrap_err();
    assert!(matches!(error, Error::Limit { max: 65_535, found: 65_536, .. }), "{error}");
    for name in ["", "a\0b", "a\nb", "a\u{85}b"] {
        let error = to_bytes(&Metadata::new(), [NewTensor::zeros(name, Type::F32, &[1])]);
        assert!(matches!(error, Err(Error::Invalid { .. })), "{name:?}");
    }
}

#[test]
fn as_many_keys_as_allowed_are_written() {
    let mut metadata = Metadata::new();
    (0..65_536).for_each(|n| metadata.set(&format!("k{n}"), 0u8));
    assert!(to_bytes(&metadata, []).is_ok());
    metadata.set("more", 0u8);
    let error = to_bytes(&metadata, []).unwrap_err();
    let Error::Limit { field, max, found, .. } = error else { panic!("{error}") };
    assert_eq!((&*field, max, found), ("key count", 65_536, 65_537));
}

#[test]
fn a_file_that_fits_no_memory_is_an_error() {
    let tensor = NewTensor::zeros("t", Type::I8, &[(1 << 63) - 1]);
    let error = to_bytes(&Metadata::new(), [tensor]).unwrap_err();
    let Error::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::OutOfMemory);
}
