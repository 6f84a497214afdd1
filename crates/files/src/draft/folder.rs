//! A temporary folder that becomes a new folder when its files are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::flush::{flush, rename, sync_folder};
use crate::place::folder_of;

/// A folder under construction. [`FolderDraft::finish`] gives it its name; dropped before, it leaves nothing behind.
#[derive(Debug)]
pub struct FolderDraft(TempDir);

/// Creates a temporary folder beside `path`, with the permissions of other new folders.
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
    builder.tempdir_in(folder_of(path)).map(FolderDraft)
}

impl FolderDraft {
    /// Where it is until it has its name.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Flushes its files to the disk and renames it to `path`; then there is the whole folder or none, also after a loss of
    /// power.
    ///
    /// # Errors
    /// The disk is full or fails, or there is something at `path`. It is then removed.
    pub fn finish(self, path: &Path) -> io::Result<()> {
        sync_all(self.path())?;
        rename(self.path(), path)?;
        // It has moved.
        let _ = self.0.keep();
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
