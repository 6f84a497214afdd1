//! Files with one fault each, built byte by byte, and the text expected in the error.

/// The numbers in the file's byte order.
pub fn u32s(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The numbers in the file's byte order.
pub fn u64s(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A string: its length, then its bytes.
pub fn text(text: &[u8]) -> Vec<u8> {
    [&u64s(&[text.len() as u64]), text].concat()
}

/// A key-value pair: its name, the number of its type, the bytes of its value.
pub fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name.as_bytes()), &u32s(&[kind]), value].concat()
}

/// A row of the directory; `ne` in the file's order, columns first.
pub fn tensor(name: &str, ne: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let (name, dimensions) = (text(name.as_bytes()), u32s(&[ne.len() as u32]));
    [name, dimensions, u64s(ne), u32s(&[kind]), u64s(&[offset])].concat()
}

/// Magic, version and counts, 24 bytes.
pub fn header(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    [b"GGUF".to_vec(), u32s(&[version]), u64s(&[tensors, keys])].concat()
}

/// A whole file with true counts and `data` zero bytes after the padding.
pub fn file(keys: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let head = header(3, tensors.len() as u64, keys.len() as u64);
    let mut file = [head, keys.concat(), tensors.concat()].concat();
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}

/// The numbers of the format's types.
pub mod kind {
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const F32: u32 = 0;
    pub const Q4_0: u32 = 2;
    pub const Q4_K: u32 = 12;
    pub const I8: u32 = 24;
    pub const I64: u32 = 27;
}

/// Files with one fault each, and the expected text of the message.
pub fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let mut all = hostile_headers();
    all.extend(hostile_keys());
    all.extend(hostile_lists());
    all.extend(hostile_tensors());
    all
}

fn hostile_headers() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let one = |count: fn(u64) -> Vec<u8>, n| [count(n), vec![0; 200]].concat();
    vec![
        ("nothing", vec![], "field magic: expected 4 bytes at byte 0, found 0"),
        ("two bytes", b"GG".to_vec(), "field magic"),
        ("another format", b"PK\x03\x04 and so on and on".to_vec(), "not a GGUF file"),
        ("the older container", b"ggml\x01\0\0\0aaaaaaaa".to_vec(), "\"ggml\""),
        ("no version", b"GGUF\x03".to_vec(), "field version"),
        ("version 0", header(0, 0, 0), "field version: expected 2 or 3, found 0"),
        ("version 1", header(1, 0, 0), "field version: expected 2 or 3, found 1"),
        ("version 4", header(4, 0, 0), "field version: expected 2 or 3, found 4"),
        ("big-endian 3", header(3 << 24, 0, 0), "big-endian"),
        ("big-endian 2", header(2 << 24, 0, 0), "big-endian"),
        ("cut in the counts", header(3, 0, 0)[..20].to_vec(), "field key count"),
        ("2^62 tensors", one(|n| header(3, n, 0), 1 << 62), "field tensor count"),
        ("-1 tensors", one(|n| header(3, n, 0), u64::MAX), "field tensor count"),
        ("2^63 keys", one(|n| header(3, 0, n), 1 << 63), "field key count"),
        // Times 14 bytes this wraps to a small number.
        ("2^60 keys", one(|n| header(3, 0, n), (1 << 60) + 1), "field key count"),
        (
            "more keys than allowed",
            [header(3, 0, 65_537), vec![0; 65_537 * 14]].concat(),
            "field key count: expected at most 65536, found 65537",
        ),
        (
            "more tensors than allowed",
            [header(3, 65_537, 0), vec![0; 65_537 * 33]].concat(),
            "field tensor count: expected at most 65536, found 65537",
        ),
        (
            "one key too few",
            [header(3, 0, 2), key("a", kind::U32, &u32s(&[1]))].concat(),
            "field key count",
        ),
        (
            "one key too few, with room for it",
            [header(3, 0, 2), key("a", kind::U32, &u32s(&[1])), vec![0; 64]].concat(),
            "name of key ",
        ),
        (
            "keys eat the tensors",
            [header(3, 3, 1), key("a", kind::STRING, &text(&[b'x'; 100]))].concat(),
            "field tensor count",
        ),
    ]
}

fn hostile_keys() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let good = key("k", kind::U32, &u32s(&[1]));
    let with = |one: Vec<u8>| file(&[one], &[], 64);
    let raw = |bytes: Vec<u8>| [header(3, 0, 1), bytes, vec![0; 64]].concat();
    let alignment = |kind, value: u32| {
        let tensors = [tensor("t", &[32], kind::F32, 0)];
        file(&[key("general.alignment", kind, &u32s(&[value]))], &tensors, 128)
    };
    vec![
        ("key of 2^60 bytes", raw(u64s(&[1 << 60])), "length of name of key 0"),
        ("key of 2^64-1 bytes", raw(u64s(&[u64::MAX])), "length of name of key 0"),
        ("no key", with(key("", kind::U32, &u32s(&[1]))), "name of key : expected a name"),
        ("a key twice", file(&[good.clone(), good], &[], 0), "key k: expected each name once"),
        (
            "a key that is not UTF-8",
            raw([text(b"a\xffb"), u32s(&[kind::U32, 1])].concat()),
            "name of key 0: expected UTF-8 text, found byte 0xff at its byte 1",
        ),
        ("a key with a NUL", with(key("a\0b", kind::U32, &u32s(&[1]))), "name of key a\\0b"),
        ("a key with a line feed", with(key("a\nb", kind::U32, &u32s(&[1]))), "name of key a\\nb"),
        ("a key too long", with(key(&"k".repeat(65_536), kind::U32, &u32s(&[1]))), "at most 65535"),
        ("value type 13", with(key("k", 13, &u32s(&[1]))), "value type of key k"),
        ("value type 2^32-1", with(key("k", u32::MAX, &[])), "value type of key k"),
        ("a bool of 2", with(key("k", kind::BOOL, &[2])), "value of key k: expected a bool"),
        ("string of 2^40", with(key("k", kind::STRING, &u64s(&[1 << 40]))), "value of key k"),
        ("string of 2^64-1", with(key("k", kind::STRING, &u64s(&[u64::MAX]))), "value of key k"),
        (
            "a string that is not UTF-8",
            with(key("k", kind::STRING, &text(b"\xc3("))),
            "value of key k: expected UTF-8 text, found byte 0xc3 at its byte 0",
        ),
        ("alignment 0", alignment(kind::U32, 0), "key general.alignment: expected a power of two"),
        ("alignment 3", alignment(kind::U32, 3), "key general.alignment: expected a power of two"),
        ("alignment 4", alignment(kind::U32, 4), "key general.alignment: expected a power of two"),
        ("alignment 2^31", alignment(kind::U32, 1 << 31), "key general.alignment"),
        ("alignment as i32", alignment(kind::I32, 32), "key general.alignment: expected a u32"),
    ]
}

fn hostile_lists() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let array = |of: u32, count: u64, rest: &[u8]| {
        let value = [&u32s(&[of]), &u64s(&[count]), rest].concat();
        file(&[key("k", kind::ARRAY, &value)], &[], 64)
    };
    let nested: Vec<u8> =
        (0..60_000).flat_map(|_| [u32s(&[kind::ARRAY]), u64s(&[1])].concat()).collect();
    vec![
        ("array of 2^61 u32", array(kind::U32, 1 << 61, &[0; 16]), "elements of key k"),
        ("array of 2^30 u32", array(kind::U32, 1 << 30, &[0; 16]), "elements of key k"),
        ("array of 2^64-1 bools", array(kind::BOOL, u64::MAX, &[0; 16]), "value of key k"),
        ("array of 2^61 strings", array(kind::STRING, 1 << 61, &[0; 16]), "elements of key k"),
        (
            "array with a bool of 3",
            array(kind::BOOL, 3, &[1, 0, 3]),
            "value of key k: expected a bool",
        ),
        ("array of type 99", array(99, 1, &[0; 16]), "element type of key k"),
        ("array of arrays", array(kind::ARRAY, 1, &[0; 32]), "found an array of arrays"),
        ("arrays 60,000 deep", array(kind::ARRAY, 1, &nested), "found an array of arrays"),
        (
            "a huge second string",
            array(kind::STRING, 2, &[text(b"fine"), u64s(&[1 << 50])].concat()),
            "length of string 1 of key k",
        ),
        (
            "a second string that is not UTF-8",
            array(kind::STRING, 3, &[text(b"fine"), text(b"ab\x80"), text(b"fine")].concat()),
            "string 1 of key k: expected UTF-8 text, found byte 0x80 at its byte 2",
        ),
        (
            "a third string that begins inside of a character",
            array(kind::STRING, 3, &[text(b"fine"), text(b""), text(b"\x80")].concat()),
            "string 2 of key k: expected UTF-8 text, found byte 0x80 at its byte 0",
        ),
        (
            "a character cut between the last two strings",
            array(kind::STRING, 3, &[text(b"fine"), text(b"a\xc3"), text(b"\xa4")].concat()),
            "string 1 of key k: expected UTF-8 text, found byte 0xc3 at its byte 1",
        ),
        (
            "a character cut between two strings",
            array(kind::STRING, 2, &[text(b"a\xc3"), text(b"\xa4")].concat()),
            "string 0 of key k: expected UTF-8 text, found byte 0xc3 at its byte 1",
        ),
    ]
}

fn hostile_tensors() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let with = |one: Vec<u8>| file(&[], &[one], 256);
    let shape = |ne: &[u64], kind| file(&[], &[tensor("t", ne, kind, 0)], 256);
    let two = |second: Vec<u8>| file(&[], &[tensor("a", &[32], kind::F32, 0), second], 512);
    let huge_name = [header(3, 1, 0), u64s(&[1 << 61]), vec![0; 64]].concat();
    let many_dimensions = [text(b"t"), u32s(&[u32::MAX]), vec![0; 64]].concat();
    let too_large = "shape of tensor t: expected a size below 2^63";
    vec![
        ("name of 2^61 bytes", huge_name, "length of name of tensor 0"),
        ("no name", with(tensor("", &[32], kind::F32, 0)), "name of tensor : expected a name"),
        ("name of 65 bytes", with(tensor(&"n".repeat(65), &[32], kind::F32, 0)), "at most 64"),
        ("name with a NUL", with(tensor("a\0", &[32], kind::F32, 0)), "name of tensor a\\0"),
        (
            "a name twice",
            two(tensor("a", &[32], kind::F32, 128)),
            "tensor a: expected each name once",
        ),
        ("no dimension", shape(&[], kind::F32), "dimension count of tensor t"),
        ("5 dimensions", shape(&[1, 1, 1, 1, 1], kind::F32), "dimension count of tensor t"),
        ("2^32-1 dimensions", with(many_dimensions), "dimension count of tensor t"),
        (
            "a dimension of 0",
            shape(&[32, 0], kind::F32),
            "shape of tensor t: expected no dimension",
        ),
        ("a dimension of -1", shape(&[32, u64::MAX], kind::F32), too_large),
        ("columns of -1", shape(&[u64::MAX], kind::I8), too_large),
        ("a product of 2^64", shape(&[1 << 32, 1 << 32], kind::F32), too_large),
        ("a product of 2^66", shape(&[1 << 22, 1 << 22, 1 << 22], kind::F32), too_large),
        ("bytes that wrap", shape(&[1 << 31, 1 << 31], kind::I64), too_large),
        ("padding that wraps", shape(&[(1 << 63) - 1, 2], kind::I8), too_large),
        ("a row stride that wraps", shape(&[1 << 20, (1 << 42) + 1], kind::F32), too_large),
        ("an exabyte", shape(&[1 << 20, 1 << 38], kind::F32), "data of tensor t: expected"),
        ("a Q4_0 row of 33", shape(&[33, 2], kind::Q4_0), "tensor t: type or shape not supported"),
        ("a Q4_K row of 128", shape(&[128, 2], kind::Q4_K), "tensor t: type or shape"),
        ("type 4, removed", shape(&[32], 4), "tensor t: type or shape not supported"),
        ("type 200", shape(&[32], 200), "tensor t: type or shape not supported"),
        ("type 2^32-1", shape(&[32], u32::MAX), "tensor t: type or shape not supported"),
        ("an odd offset", two(tensor("b", &[32], kind::F32, 129)), "offset of tensor b"),
        ("an offset past the end", two(tensor("b", &[32], kind::F32, 1 << 20)), "data of tensor b"),
        ("an offset that wraps", two(tensor("b", &[32], kind::F32, u64::MAX - 31)), "tensor b"),
        ("an offset into another", two(tensor("b", &[32], kind::F32, 96)), "inside tensor a"),
        ("two at one offset", two(tensor("b", &[32], kind::F32, 0)), "inside tensor a"),
        (
            "a last byte missing",
            file(&[], &[tensor("t", &[32], kind::F32, 0)], 127),
            "data of tensor t",
        ),
        ("no data", file(&[], &[tensor("t", &[32], kind::F32, 0)], 0), "data of tensor t"),
    ]
}
