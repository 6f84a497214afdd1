//! Temporary files and what becomes of them: links, permissions, files of killed writers, disks that refuse.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use bilayer_files::{Access, Operation, create, on_disk, target, write};

#[path = "../../../tests/support/listing.rs"]
mod listing;
#[path = "../../../tests/support/noting_disk.rs"]
mod noting_disk;

use listing::listing;
use noting_disk::Noting;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Operations of content that is written as a whole.
const WRITTEN: [Operation; 5] = [
    Operation::Create,
    Operation::Write,
    Operation::Sync,
    Operation::Rename,
    // The folder.
    Operation::Sync,
];

#[test]
fn whatever_operation_fails_leaves_the_old_file_or_the_new_one() {
    let folder = folder();
    let path = folder.path().join("file");
    for (passes, operation) in WRITTEN.into_iter().enumerate() {
        std::fs::write(&path, "old").unwrap();
        let disk = Noting::refusing(passes, std::io::ErrorKind::StorageFull);
        on_disk(disk, || write(&path, "new")).expect_err("a full disk");
        let is_new = WRITTEN[..passes].contains(&Operation::Rename);
        let expected = if is_new { "new" } else { "old" };
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected, "{operation:?}");
        // A complete file that cannot take its name is kept, until the next draft.
        let others = usize::from(operation == Operation::Rename);
        assert_eq!(listing(folder.path()).len(), 1 + others, "{operation:?}");
    }
}

#[test]
fn a_complete_file_that_cannot_take_its_name_is_kept() {
    let folder = folder();
    let path = folder.path().join("file.bin");
    let mut draft = create(&path, Access::Usual).unwrap();
    draft.write_all(b"whole").unwrap();
    std::fs::create_dir(&path).unwrap();
    let error = draft.finish(&path).expect_err("a folder is not replaced").to_string();
    let [kept, _] = listing(folder.path()).try_into().expect("the file and the folder");
    assert!(error.ends_with(&kept), "{error}");
    assert_eq!(std::fs::read(folder.path().join(kept)).unwrap(), b"whole");
    std::fs::remove_dir(&path).unwrap();
    write(&path, "new").unwrap();
    assert_eq!(listing(folder.path()), ["file.bin"]);
}

#[test]
fn a_disk_serves_the_work_that_it_was_given_to_alone() {
    let folder = folder();
    let path = folder.path().join("file.bin");
    let (outer, inner) = (Arc::new(Noting::default()), Arc::new(Noting::default()));
    on_disk(outer.clone(), || {
        let failed = std::panic::catch_unwind(|| {
            on_disk(inner.clone(), || {
                write(&path, "new").unwrap();
                std::panic::resume_unwind(Box::new("the work fails"));
            });
        });
        assert!(failed.is_err());
        write(&path, "new").unwrap();
        assert_eq!(on_disk(inner.clone(), || 7), 7);
    });
    write(&path, "new").unwrap();
    assert_eq!((outer.operations(), inner.operations()), (WRITTEN.to_vec(), WRITTEN.to_vec()));
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
    let path = folder.path().join("file.bin");
    // Another writer of the same path is at work.
    let mut working = create(&path, Access::Usual).unwrap();
    let locked = listing(folder.path()).pop().unwrap();
    let others = [".file.bin.kept", ".other.gguf.kept.part", "file.bin.kept.part"];
    for name in [".file.bin.killed.part", ".file.bin.twice.part"].iter().chain(&others) {
        std::fs::write(folder.path().join(name), b"half a file").unwrap();
    }
    write(&path, "new").unwrap();
    let mut expected = vec![locked, "file.bin".to_owned()];
    expected.extend(others.map(str::to_owned));
    expected.sort();
    assert_eq!(listing(folder.path()), expected);

    working.write_all(b"whole").unwrap();
    working.finish(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"whole");
}
