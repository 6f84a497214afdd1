//! GGUF files: writing and reading round-trip; hostile files give errors that name the fault, never panics.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bilayer_gguf::{
    Array, Error, File, Metadata, NewTensor, OpenOptions, Strings, Value, to_bytes, write,
};
use bilayer_quant::Type;
use bytes::Bytes;
use proptest::prelude::*;

#[path = "gguf/bounds.rs"]
mod bounds;
#[path = "../../../tests/support/data.rs"]
mod data;
#[path = "gguf/disks.rs"]
mod disks;
#[path = "gguf/hostile.rs"]
mod hostile;
#[cfg(target_os = "linux")]
#[path = "gguf/memory.rs"]
mod memory;
#[path = "gguf/models.rs"]
mod models;
#[path = "gguf/values.rs"]
mod values;

use hostile::{file, hostile, key, kind, tensor, u32s};

// ---- Hostile files; the names share a prefix so that they can be run again in little memory ----

fn open_bytes(bytes: impl Into<Bytes>) -> Result<File, Error> {
    File::from_bytes("in memory", bytes.into())
}

/// Writes a file with the contents of another.
fn rewritten(file: &File) -> Bytes {
    let tensors = file.tensors().iter().map(|tensor| NewTensor::copied(file, tensor));
    to_bytes(file.metadata(), tensors).unwrap()
}

#[test]
fn hostile_files_are_refused_by_name_of_the_fault() {
    let valid = file(&[key("k", kind::U32, &u32s(&[1]))], &[tensor("t", &[32], 0, 0)], 128);
    open_bytes(valid).expect("the builder makes valid files, so the faults are the ones named");
    for (what, bytes, expected) in hostile() {
        let error = open_bytes(bytes).map(drop).expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {expected:?} is not in {error:?}");
        assert!(error.starts_with("in memory: "), "{what}: the file is not named in {error:?}");
        assert!(error.contains("expected") || error.contains("supported"), "{what}: {error:?}");
        assert!(error.len() < 400, "{what}: a message of {} bytes", error.len());
    }
}

/// Types outside of GGUF are listed, so that a reader without one can name it.
#[test]
fn private_types_are_listed_by_name() {
    use bilayer_quant::private::KEY;

    let id = Type::S4_8_64.gguf_id;
    let tensors = || [NewTensor::zeros("x", Type::S4_8_64, &[1, 256])];
    let bytes = to_bytes(&Metadata::default(), tensors()).unwrap();
    let read = open_bytes(bytes.clone()).unwrap();
    let listed = Array::String(Strings::from_iter([format!("{id}=S4_8_64")]));
    assert_eq!(read.metadata().get(KEY), Some(&Value::Array(listed)));
    // A type of a later version: another number, in the list and in the directory.
    let mut later = bytes.to_vec();
    let mut replace = |old: &[u8], new: &[u8]| {
        let at = later.windows(old.len()).position(|window| window == old).unwrap();
        later[at..at + new.len()].copy_from_slice(new);
    };
    replace(format!("{id}=").as_bytes(), format!("{}=", id + 1).as_bytes());
    replace(&id.to_le_bytes(), &(id + 1).to_le_bytes());
    let error = open_bytes(later).unwrap_err();
    assert!(matches!(error, Error::PrivateType { .. }), "{error}");
    assert!(error.to_string().contains("tensor x: this build does not know type S4_8_64"));
    // The list goes with the types.
    let dense = [NewTensor::zeros("x", Type::F32, &[1, 256])];
    let dense = open_bytes(to_bytes(read.metadata(), dense).unwrap()).unwrap();
    assert_eq!(dense.metadata().get(KEY), None);
}

#[test]
fn hostile_corpus_gives_the_results_of_its_manifest() {
    let Some(folder) = data::shared("gguf-malformed") else { return };
    let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    // The expected text of the error by the prefix of the file's name; the first match counts.
    let named = [
        ("align-", "general.alignment"),
        ("array-string-lengths", "length of string 1 of key "),
        ("array-elem", "element type of key "),
        ("array-nested", "element type of key "),
        ("array-of", "element type of key "),
        ("array-", "elements of key "),
        ("bad-magic", "GGUF"),
        ("bool-2", "value of key "),
        ("data-", "data of tensor "),
        ("dim-", "tensor "),
        ("header-truncated", "field "),
        ("key-duplicate", "key "),
        ("key-", "name of key "),
        ("magic-ggml", "GGUF"),
        ("n-dims", "dimension count of tensor "),
        ("n-kv-huge", "field key count"),
        ("n-kv-one-more", "key"),
        ("n-tensors", "field tensor count"),
        ("offset-", "tensor "),
        ("row-", "tensor "),
        ("short-magic", "field magic"),
        ("string-", "value of key "),
        ("tensor-name-", "tensor "),
        ("tensor-type", "tensor "),
        ("value-type", "value type of key "),
        ("version", "field version"),
        ("zero-length", "field magic"),
    ];
    let files = manifest["files"].as_object().unwrap();
    assert!(files.len() >= 64);
    for (name, entry) in files {
        let path = folder.join(name);
        let expect = entry["expect"].as_str().unwrap();
        let mut options = OpenOptions { map: false, ..OpenOptions::default() };
        let copied = File::open_with(&path, std::mem::take(&mut options)).map(|f| rewritten(&f));
        match (File::open(&path), expect) {
            (Ok(file), "accept" | "accept-or-reject") => {
                assert_eq!(copied.unwrap(), rewritten(&file), "{name}");
            }
            (Ok(_), _) => panic!("{name} was accepted: {}", entry["why"]),
            (Err(error), "accept") => panic!("{name} was refused: {error}"),
            (Err(error), _) => {
                let error = error.to_string();
                let (_, field) = named.iter().find(|(start, _)| name.starts_with(start)).unwrap();
                assert!(error.contains(field), "{name}: {field:?} is not in {error:?}");
                assert!(error.starts_with(&*path.to_string_lossy()), "{name}: {error}");
                assert_eq!(copied.expect_err(name).to_string(), error);
            }
        }
    }
}

/// A small file with every type of value and two types of tensor.
fn small() -> Bytes {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "tiny");
    metadata.set("a", 1u8);
    metadata.set("b", -1i8);
    metadata.set("c", 2u16);
    metadata.set("d", -2i16);
    metadata.set("e", 3u32);
    metadata.set("f", -3i32);
    metadata.set("g", 4u64);
    metadata.set("h", -4i64);
    metadata.set("i", 0.5f32);
    metadata.set("j", f64::NAN);
    metadata.set("k", true);
    metadata.set("l", vec![1u32, 2, 3]);
    metadata.set("m", vec![0.5f32; 5]);
    metadata.set("n", vec![true, false]);
    metadata.set("o", Strings::from_iter(["", "ä", "▁the", "<0x0A>"]));
    metadata.set("general.alignment", 64u32);
    let ones = vec![1u8; 2 * 34];
    let twos = vec![2u8; 2 * 3 * 4 * 4];
    let tensors = [
        NewTensor::bytes("q", Type::Q8_0, &[2, 32], ones),
        NewTensor::bytes("f", Type::F32, &[2, 3, 4], twos),
    ];
    to_bytes(&metadata, tensors).unwrap()
}

#[test]
fn hostile_truncation_at_every_byte_is_refused() {
    let whole = small();
    let file = open_bytes(whole.clone()).unwrap();
    let ends = file.tensors().iter().map(|tensor| {
        let layout = tensor.layout();
        layout.offset() + layout.len_bytes()
    });
    let end = ends.max().unwrap() as usize;
    assert!(end < whole.len(), "the last tensor is padded");
    for len in 0..whole.len() {
        // Only the padding after the last tensor may be missing, since many writers omit it.
        let opened = open_bytes(whole.slice(..len));
        assert_eq!(opened.is_ok(), len >= end, "{len} of {} bytes: {opened:?}", whole.len());
    }
}

#[test]
fn hostile_flip_of_every_bit_gives_a_file_or_an_error() {
    let whole = small();
    let file = open_bytes(whole.clone()).unwrap();
    let header = file.tensors().iter().map(|tensor| tensor.layout().offset()).min().unwrap();
    let (mut read, mut refused) = (0, 0);
    for bit in 0..header as usize * 8 {
        let mut bytes = whole.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match open_bytes(bytes) {
            Ok(file) => {
                read += 1;
                // The result is valid: every tensor lies in the file, and the file can be written.
                let again = rewritten(&file);
                assert_eq!(rewritten(&open_bytes(again.clone()).unwrap()), again, "bit {bit}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().starts_with("in memory: "), "bit {bit}: {error}");
            }
        }
    }
    assert!(read > 500 && refused > 2000, "{read} read, {refused} refused");
}

#[test]
fn hostile_extremes_at_every_byte_give_a_file_or_an_error() {
    let whole = small();
    let file = open_bytes(whole.clone()).unwrap();
    let header = file.tensors().iter().map(|tensor| tensor.layout().offset()).min().unwrap();
    for at in 0..header as usize {
        for (number, len) in [(0, 8), (u64::MAX, 8), (1 << 63, 8), (1 << 60, 8), (1 << 40, 8)]
            .into_iter()
            .chain([(u64::from(u32::MAX), 4), (1 << 31, 4), (1 << 24, 4), (9, 4), (0, 4)])
        {
            let mut bytes = whole.to_vec();
            bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
            if let Ok(file) = open_bytes(bytes) {
                let again = rewritten(&file);
                assert_eq!(rewritten(&open_bytes(again.clone()).unwrap()), again, "byte {at}");
            }
        }
    }
}

/// Runs the hostile tests in an address space of 512 MiB (including the runtime's own reservations), so that allocating
/// a declared length would abort the process.
#[cfg(target_os = "linux")]
#[test]
fn little_memory_suffices() {
    const INNER: &str = "BILAYER_TEST_IN_LITTLE_MEMORY";
    assert!(std::env::var_os(INNER).is_none(), "this test would start itself for ever");
    let limited = "ulimit -v 524288 && exec \"$0\" hostile_ --test-threads=1";
    let tests = std::env::current_exe().unwrap();
    let output = Command::new("sh").arg("-c").arg(limited).arg(tests).env(INNER, "1").output();
    let output = output.unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("5 passed"), "{}\n{out}\n{err}", output.status);
}

// ---- write and read ----

fn any_array() -> impl Strategy<Value = Array> {
    use prop::collection::vec;
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<String>(), 0..9).prop_map(|all| Array::String(all.iter().collect())),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        any_array().prop_map(Value::Array),
    ]
}

/// Type, shape and bytes of a tensor.
fn any_tensor() -> impl Strategy<Value = (Type, Vec<u64>, Vec<u8>)> {
    let types = [Type::F32, Type::F16, Type::BF16, Type::Q4_0, Type::Q8_0, Type::Q4_K, Type::Q6_K];
    let shape = prop::collection::vec(1u64..4, 0..4);
    (prop::sample::select(types.to_vec()), shape, 1u64..4, any::<u8>()).prop_map(
        |(ty, mut shape, blocks, seed)| {
            let cols = blocks as usize * ty.block_weights;
            let len = shape.iter().product::<u64>() * ty.row_bytes(cols).unwrap() as u64;
            shape.push(cols as u64);
            (ty, shape, (0..len).map(|at| seed.wrapping_add((at * 7) as u8)).collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        entries in prop::collection::vec(("[a-z_.]{0,20}", any_value()), 0..12),
        tensors in prop::collection::vec(any_tensor(), 0..6),
        alignment in prop::option::of(3u32..8),
    ) {
        let mut metadata = Metadata::new();
        for (number, (key, value)) in entries.into_iter().enumerate() {
            metadata.set(&format!("{key}{number}"), value);
        }
        if let Some(power) = alignment {
            metadata.set("general.alignment", 1u32 << power);
        }
        let named: Vec<_> = tensors.iter().enumerate().map(|(n, t)| (format!("t.{n}"), t)).collect();
        let new = named.iter().map(|(name, (ty, shape, bytes))| {
            NewTensor::bytes(name, *ty, shape, bytes.clone())
        });
        let bytes = to_bytes(&metadata, new).unwrap();
        let file = open_bytes(bytes.clone()).unwrap();

        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!((file.version(), file.file_bytes()), (3, bytes.len() as u64));
        prop_assert_eq!(file.tensors().len(), named.len());
        for (name, (ty, shape, bytes)) in &named {
            let tensor = file.tensor(name).unwrap();
            let layout = tensor.layout();
            prop_assert_eq!((layout.ty(), layout.shape()), (*ty, shape.as_slice()));
            prop_assert_eq!(layout.len_bytes(), layout.rows() * layout.row_bytes());
            prop_assert_eq!(layout.elements(), shape.iter().product::<u64>());
            let read = file.bytes(tensor);
            prop_assert_eq!(&read[..], &bytes[..]);
            let aligned = metadata.alignment().unwrap().min(64) as usize;
            prop_assert_eq!(read.as_ptr().addr() % aligned, 0);
        }
        prop_assert_eq!(rewritten(&file), bytes);
    }
}

#[test]
fn files_of_other_programs_are_reproduced_byte_for_byte() {
    for folder in ["stories260k", "quant/llama-256", "gguf-real", "vocab"] {
        let Some(folder) = data::shared(folder) else { continue };
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "gguf") {
                continue;
            }
            let file = File::open(&path).unwrap();
            let (theirs, ours) = (std::fs::read(&path).unwrap(), rewritten(&file));
            // The Python writer omits the padding after a header without tensors.
            let missing = ours.len() - theirs.len();
            assert!(missing == 0 || file.tensors().is_empty() && missing < 32, "{path:?}");
            // One writer pads with 0xab instead of zeros; nothing else may differ.
            let odd = if path.ends_with("weightless-tiny.gguf") { 0xab } else { 0 };
            let differ = ours.iter().zip(&theirs).find(|&(&o, &t)| o != t && (o, t) != (0, odd));
            assert_eq!(differ, None, "{path:?}");
            assert!(ours[theirs.len()..].iter().all(|&byte| byte == 0), "{path:?}");
            seen += 1;
        }
        assert!(seen >= 2);
    }
}

#[test]
fn real_files_are_listed() {
    let Some(folder) = data::shared("gguf-real") else { return };
    let llama = File::open(&folder.join("llama-2-tiny-random.gguf")).unwrap();
    assert_eq!(llama.metadata().str("general.architecture").unwrap(), "llama");
    let tokens = llama.metadata().strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(
        (tokens.len(), tokens.get(0), tokens.get(3)),
        (32_000, Some("<unk>"), Some("<0x00>"))
    );
    assert_eq!(llama.metadata().f32s("tokenizer.ggml.scores").unwrap().len(), 32_000);
    let embedding = llama.tensor("token_embd.weight").unwrap().layout();
    assert_eq!((embedding.ty(), embedding.shape()), (Type::F16, &[32_000, 8][..]));
    let weightless = File::open(&folder.join("weightless-tiny.gguf")).unwrap();
    assert_eq!(weightless.tensors().len(), 4);
}

#[test]
fn both_versions_and_foreign_order_of_data_are_read() {
    let rows = [tensor("late", &[32], kind::F32, 256), tensor("early", &[32, 1], kind::F32, 0)];
    for version in [2, 3] {
        let mut bytes = file(&[], &rows, 384);
        bytes[4] = version;
        let at = bytes.len() - 128;
        bytes[at] = 7;
        let file = open_bytes(bytes).unwrap();
        assert_eq!(file.version(), u32::from(version));
        let names: Vec<_> = file.tensors().iter().map(|tensor| tensor.name()).collect();
        assert_eq!(names, ["late", "early"]);
        assert_eq!(file.bytes(file.tensor("late").unwrap())[0], 7);
        assert_eq!(file.tensor("early").unwrap().layout().shape(), [1, 32]);
    }
}

// ---- typed access ----

type Get = fn(&Metadata) -> Result<String, Error>;

#[test]
fn typed_access_accepts_valid_types_and_explains_errors() {
    let u32: Get = |m| m.u32("k").map(|n| n.to_string());
    let i32: Get = |m| m.i32("k").map(|n| n.to_string());
    let u64: Get = |m| m.u64("k").map(|n| n.to_string());
    let f32: Get = |m| m.f32("k").map(|n| n.to_string());
    let bool: Get = |m| m.bool("k").map(|n| n.to_string());
    let str: Get = |m| m.str("k").map(str::to_owned);
    let strings: Get = |m| m.strings("k").map(|all| all.iter().collect::<Vec<_>>().join("|"));
    let f32s: Get = |m| m.f32s("k").map(|all| format!("{all:?}"));
    let i32s: Get = |m| m.i32s("k").map(|all| format!("{all:?}"));
    let u32s: Get = |m| m.u32s("k").map(|all| format!("{all:?}"));
    let bools: Get = |m| m.bools("k").map(|all| format!("{all:?}"));
    let each: Get = |m| m.u32_each("k", 3).map(|all| format!("{all:?}"));
    let names = || Strings::from_iter(["a", "", "ß"]);
    assert!(!names().is_empty() && Strings::default().is_empty());
    let rows: Vec<(Value, Get, Result<&str, &str>)> = vec![
        (7u8.into(), u32, Ok("7")),
        (7i64.into(), u32, Ok("7")),
        (u32::MAX.into(), u32, Ok("4294967295")),
        ((-1i32).into(), u32, Err("expected an integer from 0 to 4294967295, found the i32 -1")),
        ((1u64 << 32).into(), u32, Err("found the u64 4294967296")),
        (1f32.into(), u32, Err("found the f32 1.0")),
        (true.into(), u32, Err("found the bool true")),
        ("7".into(), u32, Err("found the string \"7\"")),
        (vec![7u32].into(), u32, Err("found the array 1 x u32 [7]")),
        ((-7i8).into(), i32, Ok("-7")),
        (u32::MAX.into(), i32, Err("found the u32 4294967295")),
        (u64::MAX.into(), u64, Ok("18446744073709551615")),
        ((-1i64).into(), u64, Err("found the i64 -1")),
        (0.5f32.into(), f32, Ok("0.5")),
        (0.25f64.into(), f32, Ok("0.25")),
        (1u32.into(), f32, Err("expected a float, found the u32 1")),
        (true.into(), bool, Ok("true")),
        (1u8.into(), bool, Err("expected a bool, found the u8 1")),
        ("text".into(), str, Ok("text")),
        (1u8.into(), str, Err("expected a string, found the u8 1")),
        (names().into(), strings, Ok("a||ß")),
        ("a".into(), strings, Err("expected an array of strings")),
        (vec![0.5f32].into(), f32s, Ok("[0.5]")),
        (vec![0.5f64].into(), f32s, Ok("[0.5]")),
        (vec![1i32].into(), f32s, Err("expected an array of floats")),
        (vec![1i32, -2].into(), i32s, Ok("[1, -2]")),
        (vec![1u64, 2].into(), i32s, Ok("[1, 2]")),
        (vec![u32::MAX].into(), i32s, Err("expected an array of integers that fit i32")),
        (vec![1u32].into(), u32s, Ok("[1]")),
        (vec![1i8].into(), u32s, Ok("[1]")),
        (vec![-1i8].into(), u32s, Err("expected an array of integers that fit u32")),
        (vec![true].into(), bools, Ok("[true]")),
        (vec![1u8].into(), bools, Err("expected an array of bools")),
        (4u16.into(), each, Ok("[4, 4, 4]")),
        (vec![1i32, 2, 3].into(), each, Ok("[1, 2, 3]")),
        (vec![1i32, 2].into(), each, Err("found the array 2 x i32 [1, 2]")),
    ];
    for (value, get, expected) in rows {
        let mut metadata = Metadata::new();
        let absent = get(&metadata).unwrap_err().to_string();
        assert!(absent.contains("key k: expected") && absent.contains("found nothing"), "{absent}");
        metadata.set("k", value.clone());
        match (get(&metadata), expected) {
            (Ok(found), expected) => assert_eq!(Ok(found.as_str()), expected, "{value:?}"),
            (Err(error), Ok(expected)) => panic!("{value:?}: {error}, not {expected}"),
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.contains("key k: ") && error.contains(expected), "{error}");
            }
        }
    }
}

#[test]
fn optional_access_distinguishes_absent_from_invalid() {
    let mut metadata = Metadata::new();
    assert_eq!(metadata.opt_u32("k").unwrap(), None);
    assert!(metadata.opt_strings("k").unwrap().is_none());
    assert_eq!(metadata.opt_u32_each("k", 2).unwrap(), None);
    metadata.set("k", "text");
    assert!(metadata.opt_u32("k").is_err() && metadata.opt_u32_each("k", 2).is_err());
    assert_eq!(metadata.opt_str("k").unwrap(), Some("text"));
}

#[test]
fn metadata_keeps_its_order() {
    let mut metadata = Metadata::new();
    for (key, value) in [("z", 1u32), ("a", 2), ("m", 3), ("a", 4)] {
        metadata.set(key, value);
    }
    assert_eq!(metadata.remove("z"), Some(Value::U32(1)));
    assert_eq!(metadata.remove("z"), None);
    metadata.set("z", 5u32);
    let entries: Vec<_> = metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(entries, ["a=4", "m=3", "z=5"]);
    assert_eq!((metadata.u32("m").unwrap(), metadata.len()), (3, 3));
}

// ---- files on disk ----

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The files in `folder` by name.
fn listing(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn streamed_files_equal_those_made_in_memory() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let (first, last) = (numbers(3 * 100_000 * 2), numbers(5 * 34));
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "tiny");
    let shape = [3, 100_000];
    let zeros = || NewTensor::zeros("zeros", Type::F32, &[1000, 100]);
    let end = || NewTensor::bytes("last", Type::Q8_0, &[5, 32], last.clone());
    let streamed = NewTensor::stream("first", Type::F16, &shape, |out| {
        first.chunks(4097).try_for_each(|chunk| out.write_all(chunk))?;
        Ok(())
    });
    write(&path, &metadata, [streamed, zeros(), end()]).unwrap();
    let whole = NewTensor::bytes("first", Type::F16, &shape, first.clone());
    let expected = to_bytes(&metadata, [whole, zeros(), end()]).unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
    assert_eq!(listing(folder.path()), ["model.gguf"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let plain = folder.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain), "a new file has the rights of any new file");
    }

    // The bytes are the same whether mapped or read, and advice does not change them.
    let mapped = File::open(&path).unwrap();
    let mut steps = vec![];
    let mut note =
        |step: bilayer_gguf::Progress<'_>| steps.push((step.done_bytes, step.total_bytes));
    let options = OpenOptions { map: false, progress: Some(&mut note), ..OpenOptions::default() };
    let read = File::open_with(&path, options).unwrap();
    assert_eq!((mapped.is_mapped(), read.is_mapped()), (true, false));
    assert_eq!(steps.last(), Some(&(mapped.file_bytes(), mapped.file_bytes())));
    // A thread reads the map ahead, possibly until after the file is closed.
    let ahead = File::open_with(&path, OpenOptions { ahead: true, ..OpenOptions::default() });
    let ahead = ahead.unwrap();
    for file in [&mapped, &read, &ahead] {
        for round in 0..2 {
            let tensor = file.tensor("first").unwrap();
            assert!(file.bytes(tensor) == first, "round {round}");
            file.prefetch(tensor);
            file.release(tensor);
            // A range of another file has no effect on either.
            mapped.release(read.tensor("first").unwrap());
            read.release(mapped.tensor("first").unwrap());
        }
        assert!(file.bytes(file.tensor("last").unwrap()) == last);
        file.check_unchanged().unwrap();
    }
    // Tensors outlive their file.
    let bytes = mapped.bytes(mapped.tensor("last").unwrap());
    drop(mapped);
    assert!(bytes == last);
}

#[test]
fn an_open_model_may_be_shared_by_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&open_bytes(small()).unwrap());
}

#[test]
fn input_may_be_the_output() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, small()).unwrap();
    let file = File::open(&path).unwrap();
    let tensors = file.tensors().iter().map(|tensor| NewTensor::copied(&file, tensor));
    let mut metadata = file.metadata().clone();
    metadata.set("general.name", "second");
    write(&path, &metadata, tensors).unwrap();
    file.check_unchanged().expect("the old file is still mapped");
    assert_eq!(file.bytes(&file.tensors()[0])[0], 1);
    let again = File::open(&path).unwrap();
    assert_eq!(again.metadata().str("general.name").unwrap(), "second");
    assert_eq!((again.metadata().len(), again.tensors().len()), (metadata.len(), 2));
}

#[test]
#[cfg(unix)]
fn links_are_written_through_and_devices_are_not_replaced() {
    use std::os::unix::fs::symlink;
    let folder = folder();
    let (path, link) = (folder.path().join("model.gguf"), folder.path().join("link.gguf"));
    std::fs::write(&path, b"the old file").unwrap();
    symlink(&path, &link).unwrap();
    let tensor = || [NewTensor::zeros("t", Type::F32, &[1])];
    write(&link, &Metadata::new(), tensor()).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(File::open(&path).unwrap().tensors().len(), 1);

    // A link, so that nothing is lost should it be replaced.
    let null = folder.path().join("null");
    symlink("/dev/null", &null).unwrap();
    let error = write(&null, &Metadata::new(), tensor()).unwrap_err().to_string();
    assert!(error.contains("found a pipe or device"), "{error}");
    assert_eq!(listing(folder.path()), ["link.gguf", "model.gguf", "null"]);
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    fn bad(shape: &[u64]) -> NewTensor<'static> {
        NewTensor::zeros("t", Type::Q4_0, shape)
    }
    fn source(
        fill: impl FnOnce(&mut dyn Write) -> Result<(), bilayer_gguf::SourceError> + 'static,
    ) -> Vec<NewTensor<'static>> {
        let before = NewTensor::zeros("before", Type::F32, &[1024, 1024]);
        vec![before, NewTensor::stream("t", Type::F32, &[2, 32], fill)]
    }
    let plain = Metadata::new;
    let set = |key: &str, value: Value| {
        let mut metadata = Metadata::new();
        metadata.set(key, value);
        metadata
    };
    let twice =
        || vec![NewTensor::zeros("t", Type::F32, &[1]), NewTensor::zeros("t", Type::F32, &[1])];
    let rows: Vec<(Metadata, Vec<NewTensor<'_>>, &str)> = vec![
        (
            plain(),
            source(|_| Err("out of ideas".into())),
            "its source failed, nothing was written: out of",
        ),
        (plain(), source(|_| Ok(())), "tensor t: expected 256 bytes from its source, found 0"),
        (plain(), source(|out| Ok(out.write_all(&[0; 255])?)), "found 255"),
        (plain(), source(|out| Ok(out.write_all(&[0; 257])?)), "found 257"),
        (
            plain(),
            source(|out| {
                out.write_all(&[0; 256])?;
                let _ = out.write_all(&[0]);
                Ok(())
            }),
            "found 257",
        ),
        (plain(), twice(), "tensor t: expected each name once"),
        (plain(), vec![NewTensor::bytes("t", Type::F32, &[1], vec![0; 3])], "found 3"),
        (plain(), vec![bad(&[33])], "tensor t: type or shape not supported"),
        (plain(), vec![bad(&[])], "shape of tensor t"),
        (plain(), vec![bad(&[0, 32])], "shape of tensor t"),
        (plain(), vec![bad(&[1, 1, 1, 1, 32])], "shape of tensor t"),
        (plain(), vec![bad(&[1 << 62, 32])], "shape of tensor t"),
        (plain(), vec![NewTensor::zeros("", Type::F32, &[1])], "name of tensor"),
        (plain(), vec![NewTensor::zeros(&"n".repeat(65), Type::F32, &[1])], "at most 64"),
        (set("", 1u32.into()), vec![], "name of key"),
        (set("a\0", 1u32.into()), vec![], "name of key a\\0"),
        (set("k", "x".repeat((1 << 26) + 1).into()), vec![], "length of key k: expected at most"),
        (set("k", vec![0u8; (1 << 26) + 1].into()), vec![], "elements of key k: expected at most"),
        (set("general.alignment", 33u32.into()), vec![], "key general.alignment"),
        (set("general.alignment", 32u64.into()), vec![], "key general.alignment"),
    ];
    let folder = folder();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, b"the old file").unwrap();
    for (metadata, tensors, expected) in rows {
        let error = write(&path, &metadata, tensors).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"the old file");
        assert_eq!(listing(folder.path()), ["model.gguf"]);
    }
}

#[test]
fn unwritable_paths_are_named() {
    let folder = folder();
    let used = folder.path().join("used");
    std::fs::create_dir(&used).unwrap();
    std::fs::write(folder.path().join("file"), b"").unwrap();
    for path in [used, folder.path().join("missing/model.gguf"), folder.path().join("file/m.gguf")]
    {
        let error = write(&path, &Metadata::new(), []).unwrap_err().to_string();
        assert!(error.starts_with(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(listing(folder.path()), ["file", "used"]);
}

#[test]
fn paths_that_are_not_files_are_refused() {
    let folder = folder();
    for (path, expected) in [
        (folder.path().join("missing.gguf"), "cannot open it"),
        (folder.path().to_owned(), "found a folder"),
        (PathBuf::from("/dev/null"), "found a pipe or device"),
    ] {
        let error = File::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(File::open(&empty).unwrap_err().to_string().contains("field magic"));
}

#[test]
fn a_change_in_place_is_noticed() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, small()).unwrap();
    let file = File::open(&path).unwrap();
    file.check_unchanged().unwrap();
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&[0; 64]).unwrap();
    assert!(matches!(file.check_unchanged(), Err(Error::Changed { .. })));
}

#[test]
fn a_file_of_forty_gigabytes_opens_at_once() {
    const TENSORS: usize = 2000;
    let folder = folder();
    let path = folder.path().join("hollow.gguf");
    let mut metadata = Metadata::new();
    let tokens = 150_000;
    metadata
        .set("tokenizer.ggml.tokens", (0..tokens).map(|n| format!("tok{n}")).collect::<Strings>());
    metadata
        .set("tokenizer.ggml.merges", (0..tokens).map(|n| format!("t ok{n}")).collect::<Strings>());
    metadata.set("tokenizer.ggml.scores", vec![0f32; tokens]);
    let names: Vec<_> = (0..TENSORS).map(|n| format!("blk.{n}.ffn_up.weight")).collect();
    let tensors = names.iter().map(|name| NewTensor::zeros(name, Type::F32, &[1280, 4096]));
    if let Err(error) = write(&path, &metadata, tensors) {
        // The disk does not support a file of this size, even a sparse one.
        eprintln!("skipped: {error}");
        return;
    }
    let opened = || {
        let start = Instant::now();
        (File::open(&path).unwrap(), start.elapsed())
    };
    // On a busy machine the fastest of several.
    let (file, taken) = (0..8).map(|_| opened()).min_by_key(|(_, taken)| *taken).unwrap();
    assert!(file.file_bytes() > 40_000_000_000);
    let last = file.tensor(&names[TENSORS - 1]).unwrap();
    assert_eq!(file.bytes(last).last(), Some(&0));
    assert_eq!(file.metadata().strings("tokenizer.ggml.tokens").unwrap().get(7), Some("tok7"));
    eprintln!("opened {} bytes, {TENSORS} tensors in {taken:?}", file.file_bytes());
    // Opening takes some 20 ms; reading 40 GB takes at least 4 s on the fastest disks.
    assert!(taken.as_millis() < 1500, "{taken:?}");
}

// ---- models in several files ----

/// Writes a model of three shards with two tensors each; `edit` may damage the metadata of one.
fn shards(folder: &Path, edit: impl Fn(usize, &mut Metadata)) -> Vec<PathBuf> {
    (0..3)
        .map(|number| {
            let mut metadata = Metadata::new();
            if number == 0 {
                metadata.set("general.architecture", "tiny");
            }
            metadata.set("split.no", number as u16);
            metadata.set("split.count", 3u16);
            metadata.set("split.tensors.count", 6i32);
            edit(number, &mut metadata);
            let path = folder.join(format!("m-{:05}-of-00003.gguf", number + 1));
            let names = [format!("t.{}", number * 2), format!("t.{}", number * 2 + 1)];
            let tensors = names
                .iter()
                .map(|name| NewTensor::bytes(name, Type::F32, &[2, 4], vec![number as u8; 32]));
            write(&path, &metadata, tensors).unwrap();
            path
        })
        .collect()
}

#[test]
fn the_first_shard_opens_all() {
    let folder = folder();
    let paths = shards(folder.path(), |_, _| ());
    for map in [true, false] {
        let file =
            File::open_with(&paths[0], OpenOptions { map, ..OpenOptions::default() }).unwrap();
        assert_eq!(file.metadata().str("general.architecture").unwrap(), "tiny");
        assert_eq!((file.tensors().len(), file.shard_names().len()), (6, 3));
        for (index, tensor) in file.tensors().iter().enumerate() {
            assert_eq!((tensor.name(), tensor.shard()), (&*format!("t.{index}"), index / 2));
            assert_eq!(file.bytes(tensor)[..], [index as u8 / 2; 32]);
        }
        let size: u64 = paths.iter().map(|path| path.metadata().unwrap().len()).sum();
        assert_eq!(file.file_bytes(), size);
        file.check_unchanged().unwrap();
    }
}

#[test]
fn a_merged_or_single_file_needs_no_shards() {
    let folder = folder();
    for (name, count) in [("merged", 0u16), ("one", 1), ("m-00001-of-00001", 1)] {
        let mut metadata = Metadata::new();
        metadata.set("split.count", count);
        let path = folder.path().join(format!("{name}.gguf"));
        write(&path, &metadata, []).unwrap();
        File::open(&path).unwrap();
        let bytes = to_bytes(&metadata, []).unwrap();
        assert_eq!(open_bytes(bytes).unwrap().shard_names().collect::<Vec<_>>(), ["in memory"]);
    }
    // Without keys, names that are not those of a shard of several.
    for name in [
        "m-00001-of-00001",
        "m-0001-of-0003",
        "m-000001-of-000003",
        "m-+0001-of-+0003",
        "m-00001-of-0000x",
        "00001-of-00003",
    ] {
        let path = folder.path().join(format!("{name}.gguf"));
        write(&path, &Metadata::new(), []).unwrap();
        File::open(&path).unwrap();
    }
}

#[test]
fn the_name_and_the_number_of_shards_agree() {
    let open = |name: &str, count: Option<u16>| {
        let folder = folder();
        let path = folder.path().join(name);
        let mut metadata = Metadata::new();
        metadata.set("split.no", 0u16);
        if let Some(count) = count {
            metadata.set("split.count", count);
        }
        write(&path, &metadata, []).unwrap();
        File::open(&path).map(drop).expect_err(name).to_string()
    };
    let rows = [
        ("m-00001-of-00001.gguf", Some(3), "split.count: expected 1 as in the file name, found 3"),
        ("m-00001-of-00003.gguf", None, "split.count: expected 3 as in the file name, found 0"),
        ("m-00001-of-00003.gguf", Some(1), "split.count: expected 3 as in the file name, found 1"),
        ("m-00002-of-00003.gguf", Some(3), "expected m-00001-of-00003.gguf, found shard 2"),
        ("m-00001-of-01025.gguf", Some(1025), "expected at most 1024, found 1025"),
        ("m-00001-of-01024.gguf", Some(1024), "m-00002-of-01024.gguf: file name: expected all"),
    ];
    for (name, count, expected) in rows {
        let error = open(name, count);
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

/// Writers need not say how many tensors all shards have.
#[test]
fn shards_without_the_number_of_tensors_are_opened() {
    let folder = folder();
    let paths = shards(folder.path(), |_, metadata| {
        metadata.remove("split.tensors.count");
    });
    assert_eq!(File::open(&paths[0]).unwrap().tensors().len(), 6);
}

#[test]
fn shards_with_odd_keys_are_refused_by_name() {
    let (count, number, tensors) = ("split.count", "split.no", "split.tensors.count");
    // Shard, key, new value (or `None` to remove it), message.
    let rows: [(usize, &str, Option<Value>, &str); 8] = [
        (0, count, Some(4u16.into()), "1-of-00003.gguf: split.count: expected 3 as in the file na"),
        (0, count, None, "1-of-00003.gguf: split.count: expected 3 as in the file name, found 0"),
        (0, count, Some("3".into()), "1-of-00003.gguf: key split.count: expected an integer"),
        (0, count, Some(u64::MAX.into()), "1-of-00003.gguf: split.count: expected 3 as in"),
        (2, count, Some(5u16.into()), "3-of-00003.gguf: split.count: expected 3, found 5"),
        (2, number, Some(1u16.into()), "3-of-00003.gguf: split.no: expected 2, found 1"),
        (1, number, None, "2-of-00003.gguf: split.no: expected 1, found nothing"),
        (0, tensors, Some(7i32.into()), "1-of-00003.gguf: split.tensors.count: expected 7 tensors"),
    ];
    for (shard, key, value, expected) in rows {
        let folder = folder();
        let paths = shards(folder.path(), |at, metadata| match &value {
            Some(value) if at == shard => metadata.set(key, value.clone()),
            None if at == shard => assert!(metadata.remove(key).is_some()),
            _ => (),
        });
        let error = File::open(&paths[0]).map(drop).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

#[test]
fn missing_and_foreign_shards_are_refused_by_name() {
    type Spoil = fn(&[PathBuf]) -> std::io::Result<()>;
    let copy: Spoil = |paths| std::fs::copy(&paths[1], &paths[2]).map(drop);
    let rows: [(Spoil, usize, &str); 4] = [
        (|paths| std::fs::remove_file(&paths[1]), 0, "2-of-00003.gguf: file name: expected all 3"),
        (|_| Ok(()), 1, "file name: expected m-00001-of-00003.gguf, found shard 2"),
        (copy, 0, "3-of-00003.gguf: split.no: expected 2, found 1"),
        (|paths| std::fs::write(&paths[2], b"GGUF"), 0, "3-of-00003.gguf: field version"),
    ];
    for (spoil, open, expected) in rows {
        let folder = folder();
        let paths = shards(folder.path(), |_, _| ());
        spoil(&paths).unwrap();
        let error = File::open(&paths[open]).map(drop).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let folder = folder();
    let paths = shards(folder.path(), |_, _| ());
    let mut metadata = File::open(&paths[0]).unwrap().metadata().clone();
    metadata.set("split.no", 2u16);
    write(&paths[2], &metadata, [NewTensor::zeros("t.1", Type::F32, &[1])]).unwrap();
    let mut first = metadata.clone();
    first.set("split.no", 0u16);
    first.set("split.tensors.count", 5i32);
    let names = ["t.0", "t.1"];
    write(&paths[0], &first, names.map(|name| NewTensor::zeros(name, Type::F32, &[1]))).unwrap();
    let error = File::open(&paths[0]).unwrap_err().to_string();
    assert!(
        error.contains("m-00003-of-00003.gguf: tensor t.1: expected each name once"),
        "{error}"
    );
    assert!(error.contains("(first in ") && error.contains("m-00001-of-00003.gguf)"), "{error}");
}

#[test]
fn a_shard_under_another_name_is_refused() {
    let folder = folder();
    let paths = shards(folder.path(), |_, _| ());
    let other = folder.path().join("model.gguf");
    std::fs::rename(&paths[0], &other).unwrap();
    let error = File::open(&other).unwrap_err().to_string();
    assert!(error.contains("file name: expected NAME-00001-of-00003.gguf"), "{error}");
    let bytes = std::fs::read(&other).unwrap();
    assert!(open_bytes(bytes).unwrap_err().to_string().contains("split.count"));
}
