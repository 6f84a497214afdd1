//! Models in several files.

use super::*;

/// Writes a model of three shards with two tensors each; `edit` may damage the metadata of one.
pub fn shards(folder: &Path, edit: impl Fn(usize, &mut Metadata)) -> Vec<PathBuf> {
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
