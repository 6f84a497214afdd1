//! A temporary file that is renamed to its target when complete.
//!
//! A symbolic link is followed, not replaced, and what is no regular file is refused: a device or pipe has other users.
//!
//! A killed writer cannot remove its temporary file, and a complete file whose target cannot be replaced is kept. Therefore
//! the name contains the target's name, and the writer holds a lock that ends with it: the next writer of the same target
//! removes unlocked files. Drafts of this process are never removed, even while unlocked to be read on Windows.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::{NamedTempFile, PersistError};

use crate::flush::{flush, sync_folder};
use crate::place::{folder_of, follow, target};

pub mod disk;
pub mod folder;

use disk::{Disk, Operation};

/// Suffix of temporary files.
const SUFFIX: &str = ".part";

/// How often a target that another process has open is tried on Windows, and the wait between two tries: a virus scanner
/// looks at a file for less than a second.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Who may read a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever may read the file that it replaces, or other new files.
    Usual,
    /// The owner.
    Owner,
}

/// A file under construction. [`Draft::finish`] gives it its name; dropped before, it leaves nothing behind.
pub struct Draft {
    file: NamedTempFile,
    disk: Option<Arc<dyn Disk>>,
    /// Dropped after the file.
    _name: HeldName,
}

/// Names of this process's drafts, without folders, which may have several paths. A file of such a name in another folder
/// is removed later than it could be.
static HELD: Mutex<Vec<OsString>> = Mutex::new(Vec::new());

/// The name of a draft, from its creation until it has its final name or is gone.
struct HeldName(OsString);

impl HeldName {
    fn of(file: &Path) -> HeldName {
        let name = file.file_name().unwrap_or_default().to_owned();
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        HeldName(name)
    }

    fn is_held(name: &OsStr) -> bool {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|held| held == name)
    }
}

impl Drop for HeldName {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = held.iter().position(|name| *name == self.0) {
            held.swap_remove(at);
        }
    }
}

impl Draft {
    fn before(&self, operation: Operation) -> io::Result<()> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.before(operation))
    }

    /// Sets the length; what was not written is zeros.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.before(Operation::Write)?;
        self.file.as_file().set_len(bytes)
    }

    /// Appends what is left of another file, without passing it through memory where the system can.
    ///
    /// # Errors
    /// The disk is full or fails, or the other file cannot be read.
    pub fn append_file(&self, mut other: &fs::File) -> io::Result<u64> {
        self.before(Operation::Write)?;
        io::copy(&mut other, &mut self.file.as_file())
    }

    /// Where it is until it has its name, to be read. On Windows another process that writes the same target may remove it
    /// from then on; later drafts of this process leave it alone.
    pub fn path(&self) -> &Path {
        // There a lock keeps readers out, too.
        if cfg!(windows) {
            let _ = self.file.as_file().unlock();
        }
        self.file.path()
    }

    /// Flushes the content to the disk.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn sync(&self) -> io::Result<()> {
        self.before(Operation::Sync)?;
        flush(self.file.as_file())
    }

    /// Renames it to `path`, replacing a file of that name; where that fails, it is removed.
    ///
    /// # Errors
    /// The target cannot be replaced.
    pub fn rename(self, path: &Path) -> io::Result<()> {
        self.replace(&follow(path)?).map_err(|failed| failed.error)
    }

    /// Flushes it to the disk and renames it to `path`; then there is the whole file or the one before, also after a loss
    /// of power.
    ///
    /// # Errors
    /// The disk is full or fails, or the target cannot be replaced. The complete file is then kept under its temporary name,
    /// which the error has, until the next draft of the same target.
    pub fn finish(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        let (disk, path) = (self.disk.clone(), follow(path)?);
        self.replace(&path).map_err(kept)?;
        if let Some(disk) = disk {
            disk.before(Operation::Sync)?;
        }
        sync_folder(folder_of(&path))
    }

    /// Renames it to `path`; the error has the file.
    fn replace(self, path: &Path) -> Result<(), PersistError> {
        if let Err(error) = self.before(Operation::Rename) {
            return Err(PersistError { error, file: self.file });
        }
        let mut file = self.file;
        for _ in 1..TRIES {
            match file.persist(path) {
                Err(failed) if is_in_use(&failed.error) => file = failed.file,
                done => return done.map(drop),
            }
            std::thread::sleep(PAUSE);
        }
        file.persist(path).map(drop)
    }
}

/// Whether a file cannot be replaced because another process has it open: ERROR_ACCESS_DENIED or ERROR_SHARING_VIOLATION.
fn is_in_use(error: &io::Error) -> bool {
    cfg!(windows) && matches!(error.raw_os_error(), Some(5 | 32))
}

/// A complete file whose target could not be replaced.
#[derive(Debug, thiserror::Error)]
#[error("{error}; the complete file is {}", path.display())]
struct Kept {
    error: io::Error,
    path: PathBuf,
}

/// Keeps the file that could not be renamed, and says where it is.
fn kept(failed: PersistError) -> io::Error {
    match failed.file.keep() {
        Ok((_, path)) => io::Error::new(failed.error.kind(), Kept { error: failed.error, path }),
        Err(_) => failed.error,
    }
}

impl Write for &Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.before(Operation::Write)?;
        self.file.as_file().write(bytes)
    }

    /// Nothing is buffered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &Draft {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.as_file().seek(to)
    }
}

/// Creates the temporary file of `path` in the folder of its [`target`], and removes those abandoned by writers that were
/// killed. With [`Access::Usual`] it has the permissions of the file that it will replace.
///
/// # Errors
/// The target is no regular file, or its folder cannot be written to.
pub fn create(path: &Path, access: Access) -> io::Result<Draft> {
    let disk = disk::current();
    if let Some(disk) = &disk {
        disk.before(Operation::Create)?;
    }
    let path = &target(path)?;
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let folder = folder_of(path);
    if !folder.exists() {
        let problem = format!("the folder {} does not exist", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, problem));
    }
    remove_abandoned(folder, &prefix);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    #[cfg(unix)]
    let file = match access {
        Access::Usual => in_folder(&mut builder, folder, path)?,
        // The library's default is a private file.
        Access::Owner => builder.tempfile_in(folder)?,
    };
    #[cfg(not(unix))]
    let file = builder.tempfile_in(folder)?;
    #[cfg(not(unix))]
    let _ = access;
    // Where file locks are unsupported, no temporary file is considered abandoned either.
    let _ = file.as_file().try_lock();
    let name = HeldName::of(file.path());
    Ok(Draft { file, disk, _name: name })
}

/// Replaces the content of a file, or creates it, as [`create`] and [`Draft::finish`] do.
///
/// # Errors
/// Those of [`create`] and [`Draft::finish`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let mut draft = create(path, Access::Usual)?;
    draft.write_all(content.as_ref())?;
    draft.finish(path)
}

/// A temporary file with the permissions of the file at `path`, or those of other new files.
#[cfg(unix)]
fn in_folder(
    builder: &mut tempfile::Builder<'_, '_>,
    folder: &Path,
    path: &Path,
) -> io::Result<NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;

    let old = fs::metadata(path).ok().map(|old| old.permissions().mode() & 0o777);
    let mode = old.unwrap_or(0o666);
    // Its owner writes it, whoever may write the file that it replaces.
    let file = builder.permissions(fs::Permissions::from_mode(mode | 0o600)).tempfile_in(folder)?;
    if old.is_some() {
        // The process's mask narrows the permissions of a new file. Where they cannot be set they have no meaning.
        let _ = file.as_file().set_permissions(fs::Permissions::from_mode(mode));
    }
    Ok(file)
}

/// Removes files abandoned by writers of the same target. Failure only costs disk space.
fn remove_abandoned(folder: &Path, prefix: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_candidate = is_temporary(&name, prefix) && !HeldName::is_held(&name);
        if is_candidate && is_abandoned(&entry.path()).unwrap_or(false) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a name is that of a draft.
fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(prefix.as_encoded_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Whether a temporary file is unlocked, hence abandoned.
fn is_abandoned(file: &Path) -> io::Result<bool> {
    Ok(fs::File::open(file)?.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_can_be_read_before_it_has_its_name_and_leaves_nothing_without() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a");
        let draft = || -> io::Result<Draft> {
            let mut draft = create(&path, Access::Usual)?;
            draft.write_all(b"whole")?;
            Ok(draft)
        };
        let (first, second) = (draft()?, draft()?);
        assert_eq!(
            (fs::read(first.path())?, fs::read(second.path())?),
            (b"whole".into(), b"whole".into())
        );
        drop(second);
        first.finish(&path)?;
        assert_eq!(fs::read_dir(folder.path())?.count(), 1);
        assert_eq!(fs::read(&path)?, b"whole");
        Ok(())
    }

    #[test]
    fn a_file_is_written_as_a_whole_or_copied() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let (path, copy) = (folder.path().join("a"), folder.path().join("b"));
        for content in ["first", "second"] {
            write(&path, content)?;
            let draft = create(&copy, Access::Usual)?;
            assert_eq!(draft.append_file(&fs::File::open(&path)?)?, content.len() as u64);
            draft.finish(&copy)?;
            assert_eq!(fs::read_to_string(&copy)?, content);
        }
        assert_eq!(fs::read_dir(folder.path())?.count(), 2);
        Ok(())
    }

    #[test]
    fn a_draft_that_is_unlocked_for_readers_outlives_others_of_its_target() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a");
        let mut best = create(&path, Access::Usual)?;
        best.write_all(b"best")?;
        let place = best.path().to_owned();
        // As on Windows.
        best.file.as_file().unlock()?;
        let next = create(&path, Access::Usual)?;
        assert_eq!(fs::read(&place)?, b"best");
        drop(next);
        best.finish(&path)?;
        assert_eq!(fs::read(&path)?, b"best");
        // Once no draft has the name, a file of it is an abandoned one.
        fs::write(&place, b"abandoned")?;
        drop(create(&path, Access::Usual)?);
        assert_eq!(fs::read_dir(folder.path())?.count(), 1);
        Ok(())
    }
}
