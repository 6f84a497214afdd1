//! Open models put together from others: other weights, names, metadata, and what they share.

use bilayer_gguf::{Error, File, Metadata, MetadataOverride, NewTensor, OpenOptions, to_bytes};
use bilayer_quant::Type;
use bytes::Bytes;

use super::shards::shards;
use super::{folder, open_bytes};

/// Two tensors of two rows, 32 bytes each.
fn two() -> File {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "tiny");
    metadata.set("tiny.block_count", 2u32);
    metadata.set("list", vec![1u32, 2]);
    let tensors = [("a", 1), ("b", 2)]
        .map(|(name, byte)| NewTensor::bytes(name, Type::F32, &[2, 4], vec![byte; 32]));
    open_bytes(to_bytes(&metadata, tensors).unwrap()).unwrap()
}

fn bytes(file: &File, name: &str) -> Bytes {
    file.bytes(file.tensor(name).unwrap())
}

/// `len` threes whose address is `odd` above a multiple of 64.
fn threes(len: usize, odd: usize) -> Bytes {
    let all = Bytes::from(vec![3u8; len + 128]);
    let start = all.as_ptr().addr().next_multiple_of(64) - all.as_ptr().addr() + odd;
    all.slice(start..start + len)
}

#[test]
fn a_tensor_may_get_other_weights_of_another_type() {
    let file = two();
    for odd in [0, 1] {
        let given = threes(16, odd);
        let changed = file.with_tensor("b", Type::F16, given.clone()).unwrap();
        let tensor = changed.tensor("b").unwrap();
        assert_eq!((tensor.layout().ty(), tensor.layout().shape()), (Type::F16, &[2, 4][..]));
        let found = changed.bytes(tensor);
        assert_eq!(found, given);
        assert!(found.as_ptr().addr().is_multiple_of(64));
        assert_eq!(found.as_ptr() == given.as_ptr(), odd == 0, "aligned bytes are not copied");
        assert_eq!(bytes(&changed, "a").as_ptr(), bytes(&file, "a").as_ptr(), "it is shared");
        assert_eq!((changed.name(), changed.version()), ("in memory", 3));
        assert_eq!(changed.metadata(), file.metadata());
    }
    assert_eq!(bytes(&file, "b")[..], [2; 32], "the model itself is as before");

    for (name, ty, len, wanted) in
        [("b", Type::F16, 15, 16), ("b", Type::F32, 33, 32), ("c", Type::F16, 16, 0)]
    {
        let error = file.with_tensor(name, ty, threes(len, 0)).unwrap_err();
        let Error::SourceLength { tensor, expected, found, .. } = error else { panic!("{error}") };
        assert_eq!((&*tensor, expected, found), (name, wanted, len as u64));
    }
    let error = file.with_tensor("b", Type::Q8_0, threes(34, 0)).unwrap_err();
    assert!(matches!(error, Error::Quant { .. }), "{error}");
}

#[test]
fn another_model_is_joined_under_a_prefix() {
    let folder = folder();
    let paths = shards(folder.path(), |_, _| ());
    let other = File::open(&paths[0]).unwrap();
    let joined = two().joined(other, "v.").unwrap();
    let names: Vec<_> = joined.tensors().iter().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["a", "b", "v.t.0", "v.t.1", "v.t.2", "v.t.3", "v.t.4", "v.t.5"]);
    let of: Vec<_> = joined.tensors().iter().map(|tensor| tensor.shard()).collect();
    assert_eq!(of, [0, 0, 1, 1, 2, 2, 3, 3]);
    let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(joined.shard_names().skip(1).collect::<Vec<_>>(), paths);
    for tensor in &joined.tensors()[2..] {
        assert_eq!(joined.tensor(tensor.name()).unwrap().name(), tensor.name());
        assert_eq!(joined.bytes(tensor)[..], [tensor.shard() as u8 - 1; 32]);
    }
    assert_eq!(joined.metadata().u32("tiny.block_count").unwrap(), 2);

    let error = two().joined(two(), "").unwrap_err().to_string();
    assert!(error.contains("tensor a: expected each name once, found it again (in memory has it)"));
}

#[test]
fn tensors_may_be_renamed_or_left_out() {
    let file = two();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "other");
    let renamed = file.renamed(metadata.clone(), &|name| match name {
        "b" => Some("c".to_owned()),
        _ => None,
    });
    let renamed = renamed.unwrap();
    assert_eq!(renamed.tensors().len(), 1);
    assert_eq!(renamed.tensor("c").unwrap().name(), "c");
    assert!(renamed.tensor("b").is_none() && renamed.tensor("a").is_none());
    assert_eq!(bytes(&renamed, "c").as_ptr(), bytes(&file, "b").as_ptr(), "it is shared");
    assert_eq!((renamed.metadata(), renamed.name()), (&metadata, "in memory"));

    let error = file.renamed(metadata, &|_| Some("same".to_owned())).unwrap_err().to_string();
    assert!(error.contains("tensor same: expected each name once"), "{error}");
}

#[test]
fn metadata_may_be_overridden_and_forgotten() {
    let overrides = |text| [MetadataOverride::parse(text).unwrap()];
    let mut file = two().overridden(&overrides("{arch}.block_count=int:1")).unwrap();
    assert_eq!(file.metadata().u32("tiny.block_count").unwrap(), 1);
    let error = two().overridden(&overrides("tiny.block_count=int:-1")).unwrap_err();
    assert!(matches!(error, Error::Override { .. }), "{error}");
    file.forget("list");
    assert_eq!((file.metadata().get("list"), file.metadata().len()), (None, 2));
    assert_eq!(file.metadata().str("general.architecture").unwrap(), "tiny");
}

#[test]
fn a_model_is_shown_with_its_shards() {
    let file = two();
    let shown = format!("{file:?}");
    let shard = format!("Shard {{ name: \"in memory\", bytes: {} }}", file.file_bytes());
    assert!(shown.contains(&shard), "{shown}");
}

#[test]
fn maps_are_whole_files() {
    let folder = folder();
    let paths = shards(folder.path(), |_, _| ());
    let mapped = File::open(&paths[0]).unwrap();
    let maps: Vec<_> = mapped.maps().collect();
    assert_eq!(maps.len(), 3);
    for (map, path) in maps.into_iter().zip(&paths) {
        assert_eq!(map[..], std::fs::read(path).unwrap());
        assert!(map.as_ptr().addr().is_multiple_of(4096));
    }
    let options = OpenOptions { map: false, ..OpenOptions::default() };
    let read = File::open_with(&paths[0], options).unwrap();
    assert_eq!((read.maps().count(), two().maps().count()), (0, 0));
}

#[test]
fn a_read_file_says_how_far_it_is_after_each_16_mib() {
    const MIB: u64 = 1 << 20;
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let tensor = NewTensor::zeros("t", Type::I8, &[17 * MIB]);
    bilayer_gguf::write(&path, &Metadata::new(), [tensor]).unwrap();
    let mut steps = Vec::new();
    let mut note = |step: bilayer_gguf::Progress<'_>| {
        steps.push((step.file.to_owned(), step.done_bytes, step.total_bytes));
    };
    let options = OpenOptions { map: false, progress: Some(&mut note), ..OpenOptions::default() };
    File::open_with(&path, options).unwrap();
    // Header and one row of the directory have 57 bytes, and the data starts at a multiple of 32.
    let (name, total) = (path.display().to_string(), 64 + 17 * MIB);
    assert_eq!(steps, [(name.clone(), 16 * MIB, total), (name, total, total)]);
}

/// A change of the size or of the time of the last change is enough.
#[test]
fn a_change_of_size_or_of_time_alone_is_noticed() {
    use std::io::Write;
    let folder = folder();
    let path = folder.path().join("model.gguf");
    bilayer_gguf::write(&path, &Metadata::new(), []).unwrap();
    let len = path.metadata().unwrap().len();
    let file = File::open(&path).unwrap();
    let opened = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let before = opened.metadata().unwrap().modified().unwrap();
    let later = before + std::time::Duration::from_secs(7);
    let change = |time, more: usize| {
        (&opened).write_all(&vec![0; more]).unwrap();
        opened.set_modified(time).unwrap();
        file.check_unchanged()
    };
    change(before, 0).unwrap();
    assert!(matches!(change(later, 0), Err(Error::Changed { .. })), "time");
    change(before, 0).unwrap();
    let error = change(before, 64).unwrap_err();
    let Error::Changed { expected, found, .. } = error else { panic!("{error}") };
    assert_eq!((expected, found), (len, len + 64));
}
