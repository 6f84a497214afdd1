//! A temporary folder that becomes a new folder when its files are complete.
//!
//! As long as its writer lives, a file in it is locked: the next writer of the same target removes folders whose file is not.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::flush::{flush, rename, sync_folder};
use crate::place::folder_of;

/// The file that is locked.
const LOCK: &str = ".bilayer-lock";

/// A folder under construction. [`FolderDraft::finish`] gives it its name; dropped before, it leaves nothing behind.
#[derive(Debug)]
pub struct FolderDraft {
    /// Closed before its folder is removed.
    lock: File,
    folder: TempDir,
}

/// Creates a temporary folder beside `path`, with the permissions of other new folders, and removes those abandoned by
/// writers that were killed. A file in it, `.bilayer-lock`, is locked until it has its name.
///
/// # Errors
/// The folder around `path` cannot be written to.
pub fn create_folder(path: &Path) -> io::Result<FolderDraft> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(super::SUFFIX);
    #[cfg(unix)]
    // Less what the process's mask takes away.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    remove_abandoned(folder_of(path), &prefix);
    let folder = builder.tempdir_in(folder_of(path))?;
    let lock = File::create_new(folder.path().join(LOCK))?;
    // Where file locks are unsupported, no folder is considered abandoned either.
    let _ = lock.try_lock();
    Ok(FolderDraft { lock, folder })
}

/// Removes folders abandoned by writers of the same target. Failure only costs disk space.
fn remove_abandoned(folder: &Path, prefix: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let lock = || File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if super::is_temporary(&entry.file_name(), prefix) && lock() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl FolderDraft {
    /// Where it is until it has its name.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Flushes its files to the disk and renames it to `path`; then there is the whole folder or none, also after a loss of
    /// power. On Unix an empty folder at `path` is replaced.
    ///
    /// # Errors
    /// The disk is full or fails, or there is something at `path`, on Unix something but an empty folder. It is then removed,
    /// unless it has its name already.
    pub fn finish(self, path: &Path) -> io::Result<()> {
        sync_all(self.path())?;
        fs::remove_file(self.path().join(LOCK))?;
        sync_folder(self.path())?;
        // Windows does not rename folders with open files.
        drop(self.lock);
        rename(self.folder.path(), path)?;
        // It has moved.
        let _ = self.folder.keep();
        Ok(())
    }
}

/// Flushes the files of a folder and of those in it.
fn sync_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let ty = entry.file_type()?;
        if ty.is_dir() {
            sync_all(&entry.path())?;
        } else if ty.is_file() {
            flush(&to_flush(&entry.path())?)?;
        }
    }
    sync_folder(folder)
}

/// Opens a file to be flushed, which Windows allows to writers alone.
fn to_flush(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(cfg!(not(windows))).write(cfg!(windows)).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_appears_when_it_is_complete_and_leaves_nothing_otherwise() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let path = place.path().join("new");
        for is_finished in [false, true] {
            let draft = create_folder(&path)?;
            fs::create_dir(draft.path().join("inner"))?;
            fs::write(draft.path().join("inner/file"), b"whole")?;
            assert!(!path.exists());
            if is_finished {
                draft.finish(&path)?;
                assert_eq!(fs::read(path.join("inner/file"))?, b"whole");
                assert_eq!(fs::read_dir(&path)?.count(), 1);
            } else {
                drop(draft);
            }
            assert_eq!(fs::read_dir(place.path())?.count(), usize::from(is_finished));
        }
        // A folder that is not empty is not replaced.
        let draft = create_folder(&path)?;
        assert!(draft.finish(&path).is_err());
        assert_eq!(fs::read_dir(place.path())?.count(), 1);
        Ok(())
    }

    #[test]
    fn the_next_writer_removes_the_folder_that_a_killed_one_left() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let at = |name: &str| place.path().join(name);
        let working = create_folder(&at("new"))?;
        let others = [".new.kept", ".other.kept.part", "new.kept.part"];
        for name in others.into_iter().chain([".new.killed.part"]) {
            fs::create_dir(at(name))?;
            fs::write(at(name).join(LOCK), "")?;
            fs::write(at(name).join("file"), "half")?;
        }
        // Not of this program.
        fs::create_dir(at(".new.foreign.part"))?;
        drop(create_folder(&at("new"))?);
        assert!(!at(".new.killed.part").exists());
        let kept = others.into_iter().chain([".new.foreign.part"]);
        assert!(kept.clone().all(|name| at(name).exists()));
        assert_eq!(fs::read_dir(place.path())?.count(), kept.count() + 1);
        working.finish(&at("new"))?;
        assert!(fs::read_dir(at("new"))?.next().is_none());
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn an_empty_folder_is_replaced() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let path = place.path().join("new");
        fs::create_dir(&path)?;
        let draft = create_folder(&path)?;
        fs::write(draft.path().join("file"), "whole")?;
        draft.finish(&path)?;
        assert_eq!(fs::read(path.join("file"))?, b"whole");
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_has_the_permissions_of_other_new_ones() -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;

        let place = tempfile::tempdir()?;
        let (path, other) = (place.path().join("new"), place.path().join("other"));
        create_folder(&path)?.finish(&path)?;
        fs::create_dir(&other)?;
        let mode = |path: &Path| fs::metadata(path).map(|facts| facts.permissions().mode());
        assert_eq!(mode(&path)?, mode(&other)?);
        Ok(())
    }
}
