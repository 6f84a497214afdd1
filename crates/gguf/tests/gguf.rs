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
#[path = "../../../tests/support/listing.rs"]
mod listing;
#[cfg(target_os = "linux")]
#[path = "gguf/memory.rs"]
mod memory;
#[path = "gguf/models.rs"]
mod models;
#[path = "../../../tests/support/noting_disk.rs"]
mod noting_disk;
#[path = "gguf/on_disk.rs"]
mod on_disk;
#[path = "gguf/shards.rs"]
mod shards;
#[path = "gguf/values.rs"]
mod values;

use hostile::{file, hostile, key, kind, tensor, u32s};
use listing::listing;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

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
