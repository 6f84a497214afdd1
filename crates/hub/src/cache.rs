//! The Hugging Face cache, read in place.
//!
//! ```text
//! models--org--repo/
//!   blobs/<etag>                    the bytes; SHA-256 of large files
//!   refs/main                       the commit that `main` was when somebody last asked
//!   snapshots/<commit>/<file>       links to blobs
//! .locks/models--org--repo/<etag>.lock
//! ```

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::choose::{Chosen, choose};
use crate::name::{Repo, Wanted};
use crate::{Error, walk};

/// Folders within a repository that are looked into.
const DEPTH: usize = 5;

/// A cache folder.
#[derive(Clone, Debug)]
pub(crate) struct HubCache {
    root: PathBuf,
}

/// The files of a repository at one commit, as far as they are in the cache.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub folder: PathBuf,
    /// Relative to the folder.
    pub files: Vec<String>,
}

/// A model in the cache.
#[derive(Debug)]
pub(crate) struct Cached {
    pub path: PathBuf,
    /// Whether asking the hub cannot give a better fit.
    pub is_best: bool,
}

impl HubCache {
    pub fn new(root: PathBuf) -> HubCache {
        HubCache { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a repository.
    pub fn repo(&self, repo: &Repo) -> PathBuf {
        self.root.join(repo.folder())
    }

    /// The repositories that have a folder.
    pub fn repos(&self) -> Vec<Repo> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut repos: Vec<Repo> = names.filter_map(|name| Repo::of_folder(&name)).collect();
        repos.sort();
        repos
    }

    /// The snapshots of a repository: the one that `main` names, then the others, the newest first.
    pub fn snapshots(&self, repo: &Repo) -> Vec<Snapshot> {
        let folder = self.repo(repo);
        let main = std::fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let entries = std::fs::read_dir(folder.join("snapshots")).into_iter().flatten().flatten();
        let mut folders: Vec<(bool, SystemTime, PathBuf)> = entries
            .map(|entry| {
                let changed = entry.metadata().and_then(|facts| facts.modified());
                let is_main = entry.file_name() == main.trim();
                (is_main, changed.unwrap_or(SystemTime::UNIX_EPOCH), entry.path())
            })
            .collect();
        folders.sort_by(|a, b| b.cmp(a));
        let snapshot = |(_, _, folder): (bool, SystemTime, PathBuf)| {
            let files = walk::files(&folder, DEPTH);
            Snapshot { folder, files }
        };
        folders.into_iter().map(snapshot).collect()
    }

    /// The file of a model, the first of its shards; `None` where no snapshot has all of it.
    ///
    /// # Errors
    /// A link that leads out of the cache.
    pub fn find(&self, wanted: &Wanted) -> Result<Option<Cached>, Error> {
        let mut second = None;
        for snapshot in self.snapshots(&wanted.repo) {
            let Ok(Chosen { files, is_best }) = choose(&snapshot.files, wanted) else { continue };
            if is_best || second.is_none() {
                let path = self.checked(&snapshot.folder, &files)?;
                if is_best {
                    return Ok(Some(Cached { path, is_best }));
                }
                second = Some(Cached { path, is_best });
            }
        }
        Ok(second)
    }

    /// The path of the first of `files`, none of which may lead out of the cache.
    pub fn checked(&self, folder: &Path, files: &[String]) -> Result<PathBuf, Error> {
        let root = std::fs::canonicalize(&self.root).map_err(Error::io(&self.root))?;
        for file in files {
            let link = folder.join(file);
            let target = std::fs::canonicalize(&link).map_err(Error::io(&link))?;
            if !target.starts_with(&root) {
                return Err(Error::Escapes { link, root, target });
            }
        }
        let first = files.first().map(String::as_str).unwrap_or_default();
        // Not the blob itself: the other shards are found by their names beside it.
        Ok(folder.join(first))
    }
}
