//! Cached files in one folder: compiled pipelines, measured times.
//!
//! A file is the FNV-1a hash of its content as eight bytes, little-endian, then the content. A damaged file is
//! ignored. All files can be deleted at any time and are recreated.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bilayer_files::Access;
use bilayer_files::hash::fnv;

/// The folder.
#[derive(Clone, Debug)]
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Uses a folder, which is created when something is stored.
    pub fn new(folder: &Path) -> Kept {
        Kept { folder: folder.to_owned() }
    }

    /// The content of a file, if it exists and is valid.
    pub fn load(&self, name: &str) -> Option<Vec<u8>> {
        let file = fs::read(self.folder.join(name)).ok()?;
        let (hash, content) = file.split_first_chunk()?;
        (u64::from_le_bytes(*hash) == fnv(content)).then(|| content.to_vec())
    }

    /// Writes a file under a temporary name and renames it. What cannot be written is made again when it is missed.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn store(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = fnv(content).to_le_bytes().to_vec();
        file.extend_from_slice(content);
        let path = self.folder.join(name);
        fs::create_dir_all(&self.folder)?;
        let mut made = bilayer_files::create(&path, Access::Usual)?;
        made.write_all(&file)?;
        // Not flushed: what a loss of power damages is made again.
        made.rename(&path)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Deletes a file.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.folder.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn a_damaged_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(&folder.path().join("made"));
        assert_eq!(kept.load("a"), None);
        kept.store("a", b"some data").unwrap();
        assert_eq!(kept.load("a").as_deref(), Some(&b"some data"[..]));
        let path = folder.path().join("made/a");
        let whole = std::fs::read(&path).unwrap();
        for (place, len) in [(0, 17), (9, 17), (16, 17), (0, 16), (0, 3)] {
            let mut file = whole[..len].to_vec();
            file[place.min(len - 1)] ^= u8::from(len == 17);
            std::fs::write(&path, file).unwrap();
            assert_eq!(kept.load("a"), None, "byte {place} of {len}");
        }
        assert_eq!(std::fs::read_dir(folder.path().join("made")).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let kept = Kept::new(&file);
        assert!(kept.store("a", b"data").is_err());
        assert_eq!(kept.load("a"), None);
    }
}
