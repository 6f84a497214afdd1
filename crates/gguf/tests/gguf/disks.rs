//! Writers between a disk that counts or refuses operations and the real one, and what becomes of temporary files.

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bilayer_gguf::temporary::{Access, Disk, Operation, create, on_disk, target};
use bilayer_gguf::{Error, Metadata, NewTensor, write};
use bilayer_quant::Type;

use super::{folder, listing};

/// A disk that notes all operations, and refuses the one after `passes` others.
#[derive(Default)]
struct Noting {
    operations: Mutex<Vec<Operation>>,
    refused: Option<(usize, ErrorKind)>,
}

impl Noting {
    fn refusing(passes: usize, kind: ErrorKind) -> Arc<Self> {
        Arc::new(Self { refused: Some((passes, kind)), ..Self::default() })
    }

    fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }
}

impl Disk for Noting {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let mut operations = self.operations.lock().unwrap();
        operations.push(operation);
        match self.refused {
            Some((passes, kind)) if operations.len() == passes + 1 => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

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

#[test]
fn a_complete_file_that_cannot_take_its_name_is_kept() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let mut draft = create(&path, Access::Usual).unwrap();
    draft.write_all(b"whole").unwrap();
    std::fs::create_dir(&path).unwrap();
    let error = draft.finish(&path).expect_err("a folder is not replaced").to_string();
    let [kept, _] = listing(folder.path()).try_into().expect("the file and the folder");
    assert!(error.ends_with(&kept), "{error}");
    assert_eq!(std::fs::read(folder.path().join(kept)).unwrap(), b"whole");
    std::fs::remove_dir(&path).unwrap();
    write_small(&path).unwrap();
    assert_eq!(listing(folder.path()), ["model.gguf"]);
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

#[test]
fn a_disk_serves_the_work_that_it_was_given_to_alone() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let (outer, inner) = (Arc::new(Noting::default()), Arc::new(Noting::default()));
    on_disk(outer.clone(), || {
        let failed = std::panic::catch_unwind(|| {
            on_disk(inner.clone(), || {
                write_small(&path).unwrap();
                std::panic::resume_unwind(Box::new("the work fails"));
            });
        });
        assert!(failed.is_err());
        write_small(&path).unwrap();
        assert_eq!(on_disk(inner.clone(), || 7), 7);
    });
    write_small(&path).unwrap();
    assert_eq!((outer.operations(), inner.operations()), (SMALL.to_vec(), SMALL.to_vec()));
}

#[test]
fn a_draft_is_a_file_without_its_name() {
    let folder = folder();
    let path = folder.path().join("file");
    let disk = Arc::new(Noting::default());
    let mut draft = on_disk(disk.clone(), || create(&path, Access::Owner)).unwrap();
    let name = listing(folder.path()).pop().unwrap();
    assert!(name.starts_with(".file.") && name.ends_with(".part"), "{name}");
    draft.write_all(b"one").unwrap();
    (&draft).write_all(b"two").unwrap();
    assert_eq!((&draft).seek(SeekFrom::Current(3)).unwrap(), 9);
    draft.write_all(b"end").unwrap();
    draft.set_len(14).unwrap();
    draft.flush().unwrap();
    draft.sync().unwrap();
    draft.rename(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"onetwo\0\0\0end\0\0");
    assert_eq!(listing(folder.path()), ["file"]);
    let [write, sync] = [Operation::Write, Operation::Sync];
    let expected = [Operation::Create, write, write, write, write, sync, Operation::Rename];
    assert_eq!(disk.operations(), expected);

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "its owner alone may read it");
    }
    drop(create(&folder.path().join("dropped"), Access::Usual).unwrap());
    assert_eq!(listing(folder.path()), ["file"]);
}

#[test]
#[cfg(unix)]
fn links_are_followed_and_pipes_and_devices_are_refused() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::fs::write(at("real/old"), b"old").unwrap();
    std::os::unix::fs::symlink("real/old", at("to-old")).unwrap();
    std::os::unix::fs::symlink("to-old", at("to-link")).unwrap();
    std::os::unix::fs::symlink(at("real/new"), at("to-new")).unwrap();
    for (link, file) in [("to-old", "real/old"), ("to-link", "real/old"), ("to-new", "real/new")] {
        for access in [Access::Usual, Access::Owner] {
            let mut draft = create(&at(link), access).unwrap();
            assert!(listing(&at("real")).iter().any(|name| name.ends_with(".part")), "{link}");
            draft.write_all(link.as_bytes()).unwrap();
            draft.finish(&at(link)).unwrap();
            assert!(at(link).is_symlink(), "{link}");
            assert_eq!(std::fs::read(at(file)).unwrap(), link.as_bytes());
        }
    }
    assert_eq!(listing(&at("real")), ["new", "old"]);

    std::os::unix::fs::symlink("round", at("round")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("pipe", at("to-pipe")).unwrap();
    let before = listing(folder.path());
    for path in [at("round"), at("pipe"), at("to-pipe"), "/dev/null".into(), at("real")] {
        let error = create(&path, Access::Usual).err().expect("no file").to_string();
        assert_eq!(error, target(&path).unwrap_err().to_string(), "{path:?}");
    }
    assert_eq!(listing(folder.path()), before);
}

#[test]
#[cfg(unix)]
fn a_file_that_is_replaced_keeps_its_permissions() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    let folder = folder();
    let path = folder.path().join("file");
    let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
    for kept in [0o600, 0o640, 0o666, 0o444] {
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
        let mut draft = create(&path, Access::Usual).unwrap();
        draft.write_all(b"new").unwrap();
        draft.finish(&path).unwrap();
        assert_eq!((mode(), &std::fs::read(&path).unwrap()[..]), (kept, &b"new"[..]));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::write(&path, b"old").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    create(&path, Access::Owner).unwrap().finish(&path).unwrap();
    assert_eq!(mode(), 0o600, "its owner alone may read it");
}

#[test]
fn the_next_writer_removes_what_a_killed_one_left() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    // Another writer of the same path is at work.
    let mut working = create(&path, Access::Usual).unwrap();
    let locked = listing(folder.path()).pop().unwrap();
    let others = [".model.gguf.kept", ".other.gguf.kept.part", "model.gguf.kept.part"];
    for name in [".model.gguf.killed.part", ".model.gguf.twice.part"].iter().chain(&others) {
        std::fs::write(folder.path().join(name), b"half a file").unwrap();
    }
    write_small(&path).unwrap();
    let mut expected = vec![locked, "model.gguf".to_owned()];
    expected.extend(others.map(str::to_owned));
    expected.sort();
    assert_eq!(listing(folder.path()), expected);

    working.write_all(b"whole").unwrap();
    working.finish(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"whole");
}
