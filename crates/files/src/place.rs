//! Where a path leads: symbolic links, folders, and the disk under them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Symbolic links that may follow one another, as on Linux.
const LINKS_MAX: usize = 40;

/// The file that is written for a path: that to which a symbolic link leads, which need not exist.
///
/// # Errors
/// There is something else than a regular file, or links lead nowhere.
pub fn target(path: &Path) -> io::Result<PathBuf> {
    let target = follow(path)?;
    let problem = match fs::symlink_metadata(&target) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => "it is a pipe or device, which no file replaces",
        _ => return Ok(target),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// Where symbolic links lead.
pub(crate) fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        if !fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink()) {
            return Ok(target);
        }
        target = folder_of(&target).join(fs::read_link(&target)?);
    }
    let problem = format!("it leads over more than {LINKS_MAX} symbolic links");
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// Whether two paths lead to one regular file, by links of either kind (on Windows, symbolic links only). A device, such as
/// the null device, and a folder are no such file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let facts = |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file);
        let place = |path: &Path| facts(path).map(|facts| (facts.dev(), facts.ino()));
        place(a).is_some_and(|place_of_a| Some(place_of_a) == place(b))
    }
    #[cfg(not(unix))]
    fs::canonicalize(a).is_ok_and(|a| a.is_file() && Some(a) == fs::canonicalize(b).ok())
}

/// The folder of a file: the working directory, `.`, for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Free bytes on the folder's disk, if the system reports them.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Free bytes on the folder's disk, if the system reports them.
#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_plain_name_is_the_current_one() {
        let rows = [("a/b", "a"), ("/a/b", "/a"), ("/b", "/"), ("b", "."), ("", "."), ("/", ".")];
        for (path, folder) in rows {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
        }
    }
}
