//! Writers on a disk that counts or refuses operations.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bilayer_files::{Operation, on_disk};
use bilayer_gguf::{Error, Metadata, NewTensor, write};
use bilayer_quant::Type;

use super::noting_disk::Noting;
use super::{folder, listing};

/// Operations of a small file: created, written, set to its length; flushed, renamed, its folder flushed.
const SMALL: [Operation; 6] = [
    Operation::Create,
    Operation::Write,
    Operation::Write,
    Operation::Sync,
    Operation::Rename,
    Operation::Sync,
];

fn write_small(path: &Path) -> Result<(), Error> {
    write(path, &Metadata::new(), [NewTensor::bytes("a", Type::F32, &[2], vec![1; 8])])
}

#[test]
fn a_file_is_flushed_then_renamed_then_its_folder_is_flushed() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let disk = Arc::new(Noting::default());
    on_disk(disk.clone(), || write_small(&path)).unwrap();
    assert_eq!(disk.operations(), SMALL);
    assert_eq!(listing(folder.path()), ["model.gguf"]);
}

#[test]
fn whatever_operation_fails_is_named_and_leaves_whole_files() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    for (passes, operation) in SMALL.into_iter().enumerate() {
        std::fs::write(&path, b"the old file").unwrap();
        let disk = Noting::refusing(passes, ErrorKind::StorageFull);
        let error = on_disk(disk.clone(), || write_small(&path)).expect_err("a full disk");
        let Error::Io { file, action, source } = error else { panic!("{operation:?}: {error}") };
        let expected = match operation {
            Operation::Create => "create a temporary file in its folder",
            Operation::Write => "write it",
            Operation::Sync | Operation::Rename => "flush it to the disk and put it in place",
        };
        assert_eq!((file, action), (path.display().to_string(), expected));
        assert_eq!(source.kind(), ErrorKind::StorageFull);
        assert!(disk.operations().starts_with(&SMALL[..=passes]), "{:?}", disk.operations());
        let is_old = std::fs::read(&path).unwrap() == b"the old file";
        assert_eq!(is_old, !SMALL[..passes].contains(&Operation::Rename), "{operation:?} {passes}");
        if operation == Operation::Rename {
            let mut names = listing(folder.path());
            names.retain(|name| name != "model.gguf");
            let [kept] = &names[..] else { panic!("{names:?}") };
            assert!(source.to_string().contains(kept.as_str()), "{source}");
            bilayer_gguf::File::open(&folder.path().join(kept)).expect("a complete file");
            continue;
        }
        // A kept file is removed by the next writer of the same path.
        assert_eq!(listing(folder.path()), ["model.gguf"], "{operation:?}");
    }
}

/// Two MiB go past the buffer, so that their source sees what the disk says.
#[test]
fn an_error_of_the_disk_is_not_taken_for_one_of_the_source() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let big = || {
        [NewTensor::stream("t", Type::I8, &[2 << 20], |out| {
            out.write_all(&vec![5; 2 << 20]).map_err(|error| format!("I cannot: {error}"))?;
            out.flush()?;
            Ok(())
        })]
    };
    for passes in [1, 2] {
        let disk = Noting::refusing(passes, ErrorKind::StorageFull);
        let error = on_disk(disk, || write(&path, &Metadata::new(), big())).unwrap_err();
        let Error::Io { action, source, .. } = error else { panic!("{error}") };
        assert_eq!((action, source.kind()), ("write it", ErrorKind::StorageFull));
        assert!(listing(folder.path()).is_empty());

        // An interrupted write is tried again.
        let disk = Noting::refusing(passes, ErrorKind::Interrupted);
        on_disk(disk, || write(&path, &Metadata::new(), big())).unwrap();
        let written = std::fs::read(&path).unwrap();
        assert!(written[64..] == [5; 2 << 20]);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn small_pieces_are_written_together_and_zeros_from_64_kib_on_are_a_hole() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    for (zeros, writes) in [(100, 2), (65_535, 2), (65_536, 3), (65_537, 3), (3 << 20, 3)] {
        let tensors = [
            NewTensor::stream("first", Type::I8, &[1000], |out| {
                (0..1000).try_for_each(|_| out.write_all(&[7]))?;
                Ok(())
            }),
            NewTensor::zeros("zeros", Type::I8, &[zeros]),
            NewTensor::bytes("last", Type::I8, &[3], vec![9; 3]),
        ];
        let disk = Arc::new(Noting::default());
        on_disk(disk.clone(), || write(&path, &Metadata::new(), tensors)).unwrap();
        let found = disk.operations();
        let found = found.iter().filter(|operation| **operation == Operation::Write).count();
        // A hole ends the write before it; setting the length counts as one.
        assert_eq!(found, writes, "{zeros} zeros");

        let file = bilayer_gguf::File::open(&path).unwrap();
        let bytes = |name| file.bytes(file.tensor(name).unwrap());
        assert_eq!(bytes("first")[..], [7; 1000]);
        assert!(bytes("zeros").iter().all(|&byte| byte == 0));
        assert_eq!(bytes("last")[..], [9; 3]);
    }
}

#[test]
#[cfg(unix)]
fn a_disk_without_room_is_told_before_anything_is_written() {
    const LEN: u64 = 1 << 60;
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let tensors = [
        NewTensor::zeros("h", Type::I8, &[LEN]),
        NewTensor::stream("t", Type::I8, &[LEN], |_| panic!("nothing is written")),
    ];
    let error = write(&path, &Metadata::new(), tensors).unwrap_err();
    let Error::NoRoom { file, needed, free } = error else { panic!("{error}") };
    assert_eq!(file, path.display().to_string());
    // The header and two rows of the directory; a hole needs no room.
    assert_eq!(needed, 24 + 2 * 33 + LEN);
    assert!(free > 1 && free < LEN, "{free}");
    assert!(listing(folder.path()).is_empty());
}

#[test]
fn folders_are_not_replaced() {
    let folder = folder();
    let error = write_small(folder.path()).unwrap_err();
    assert!(matches!(error, Error::NotAFile { found: "a folder", .. }), "{error}");
}
