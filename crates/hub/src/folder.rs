//! A folder of models that is read again, and the names of its models.

use std::io;
use std::path::{Path, PathBuf};

use crate::listing::{in_folder, stem};

/// A folder of models. Their names differ, and a model keeps its name while its file is there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Names that others have.
    taken: Vec<String>,
    /// What was found last.
    known: Vec<(String, PathBuf)>,
}

impl Folder {
    /// The folder at a path, in which no model gets a name of `taken`, and those of `known` keep their names.
    pub fn new(path: PathBuf, taken: Vec<String>, known: Vec<(String, PathBuf)>) -> Folder {
        Folder { path, taken, known }
    }

    /// The models of the folder in the order of their paths, without those that `is_left_out`. A new one has the name that
    /// [`in_folder`] gives it. If another has that name, it is named by its path in the folder, `old/model` or `model.gguf`;
    /// of new ones, those of the folder itself come before those of the folders in it.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read(
        &mut self,
        is_left_out: impl Fn(&Path) -> bool,
    ) -> io::Result<Vec<(String, PathBuf)>> {
        let listed = in_folder(&self.path)?;
        let known = self.known.iter().filter(|(_, path)| may_be_there(path));
        let mut found: Vec<(String, PathBuf)> = known.cloned().collect();
        // Files that were examined while the folder was away seem to be missing.
        std::fs::read_dir(&self.path)?;
        let is_new = |(_, path): &(String, PathBuf)| {
            !found.iter().any(|(_, known)| known == path) && !is_left_out(path)
        };
        let mut new: Vec<(String, PathBuf)> = listed.into_iter().filter(is_new).collect();
        new.sort_by_key(|(_, path)| path.parent() != Some(&self.path));
        for (name, path) in new {
            let is_free = |name: &String| {
                !self.taken.contains(name) && !found.iter().any(|(other, _)| other == name)
            };
            if let Some(name) = self.names(&name, &path).into_iter().find(is_free) {
                found.push((name, path));
            }
        }
        found.sort_by(|(_, a), (_, b)| a.as_os_str().cmp(b.as_os_str()));
        self.known.clone_from(&found);
        Ok(found)
    }

    /// The names that a file may have, the best first.
    fn names(&self, name: &str, path: &Path) -> Vec<String> {
        let inner = path.strip_prefix(&self.path).unwrap_or(path);
        let inner = inner.to_string_lossy().replace('\\', "/");
        let whole = match inner.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{}", stem(&inner)),
            None => stem(&inner),
        };
        vec![name.to_owned(), whole, inner]
    }
}

/// Whether a file is there, or it cannot be known.
fn may_be_there(path: &Path) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    match path.metadata() {
        Ok(facts) => facts.is_file(),
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, paths: &[&str]) {
        for path in paths {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }

    fn names(folder: &mut Folder) -> Vec<String> {
        let found = folder.read(|_| false).unwrap();
        found.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn names_differ_and_outer_files_come_first() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        write(path, &["Old/a.gguf", "Old/b.gguf", "a.gguf", "c.gguf", "c/x.gguf", "d.gguf"]);
        let mut folder = Folder::new(path.into(), vec!["d".into()], Vec::new());
        assert_eq!(names(&mut folder), ["Old/a", "b", "a", "c", "c/x", "d.gguf"]);
        let found = folder.read(|path| path.ends_with("Old/a.gguf")).unwrap();
        assert_eq!(found.len(), 6, "what is known stays");
        let mut folder = Folder::new(path.into(), Vec::new(), Vec::new());
        let found = folder.read(|path| path == place.path().join("a.gguf")).unwrap();
        assert_eq!(found[0].0, "a", "its name is free");
    }

    #[test]
    fn a_model_keeps_its_name_while_its_file_is_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        write(path, &["gem/x.gguf"]);
        let mut folder = Folder::new(path.into(), Vec::new(), Vec::new());
        assert_eq!(names(&mut folder), ["gem"]);
        write(path, &["gem/y.gguf", "gem.gguf"]);
        assert_eq!(names(&mut folder), ["gem.gguf", "gem", "y"]);
        std::fs::remove_file(path.join("gem/x.gguf")).unwrap();
        assert_eq!(names(&mut folder), ["gem.gguf", "y"]);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_an_error_and_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let (path, away) = (place.path().join("m"), place.path().join("away"));
        write(&path, &["a.gguf", "gem/x.gguf"]);
        let mut folder = Folder::new(path.clone(), Vec::new(), Vec::new());
        assert_eq!(names(&mut folder), ["a", "gem"]);
        std::fs::rename(&path, &away).unwrap();
        assert!(folder.read(|_| false).is_err());
        write(&away, &["gem/y.gguf"]);
        std::fs::rename(&away, &path).unwrap();
        assert_eq!(names(&mut folder), ["a", "gem", "y"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let inner = path.join("gem");
            let set = |mode| {
                std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(mode)).unwrap();
            };
            set(0);
            let found = names(&mut folder);
            set(0o755);
            assert_eq!(found, ["a", "gem", "y"]);
        }
    }
}
