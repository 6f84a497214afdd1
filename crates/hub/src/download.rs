//! Downloads a model's files into the cache, in the layout and with the locks of `huggingface_hub`.

use std::path::{Path, PathBuf};

use bilayer_files::Access;

use crate::cache::HubCache;
use crate::choose::choose;
use crate::name::{Wanted, relative};
use crate::transfer::{Tell, Transfer};
use crate::{Error, Places};

mod blob;
mod client;
mod proxy;
mod roots;
mod url;

use client::{Blob, Client};

/// Fetches what is missing of a model and links it into the snapshot of the repository's newest commit. Where the
/// repository has not the usual quantization and its file of choice is `cached`, that serves, however old it is.
pub(crate) fn fetch(
    places: &Places,
    cache: &HubCache,
    wanted: &Wanted,
    cached: Option<&Path>,
    tell: &mut Tell<'_>,
) -> Result<PathBuf, Error> {
    let client = Client::new(places);
    let (repo, listing) = (&wanted.repo, client.listing(&wanted.repo)?);
    let files: Vec<String> =
        listing.files.into_iter().filter(|path| relative(path).is_some()).collect();
    let chosen = choose(&files, wanted)?;
    let is_same = |path: &&Path| !chosen.is_best && path.ends_with(&chosen.files[0]);
    if let Some(path) = cached.filter(is_same) {
        return Ok(path.to_owned());
    }
    let blobs: Vec<Blob> = chosen
        .files
        .iter()
        .map(|file| client.blob(repo, &listing.commit, file))
        .collect::<Result<_, _>>()?;
    let folder = cache.repo(repo);
    let snapshot = folder.join("snapshots").join(&listing.commit);
    let total_bytes = blobs.iter().map(|blob| blob.bytes).sum();
    blob::room_for_all(cache, repo, &blobs)?;
    let mut before = 0;
    for blob in &blobs {
        let mut within =
            |done: u64| tell(Transfer { file: &blob.file, done_bytes: before + done, total_bytes });
        let path = blob::ensure(&client, cache, repo, blob, &mut within)?;
        link(&path, blob.bytes, &snapshot, &blob.file)?;
        before += blob.bytes;
    }
    remember(&folder, &listing.commit)?;
    cache.checked(&snapshot, &chosen.files)
}

/// Makes `file` in the snapshot a link to the blob of `bytes`, or a copy where links are not allowed or not followed.
fn link(blob: &Path, bytes: u64, snapshot: &Path, file: &str) -> Result<(), Error> {
    let at = snapshot.join(file);
    let is_there = || at.metadata().is_ok_and(|facts| facts.is_file() && facts.len() == bytes);
    if is_there() {
        return Ok(());
    }
    let folder = at.parent().unwrap_or(snapshot);
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    // A link whose blob was deleted, or an incomplete copy.
    let _ = std::fs::remove_file(&at);
    let name = blob.file_name().unwrap_or_default();
    // Windows follows links whose separators are its own.
    let up = std::iter::repeat_n("..", Path::new(file).components().count() + 1);
    let target = up.chain(["blobs"]).collect::<PathBuf>().join(name);
    let made = link_followed(&target, &at)
        .or_else(|_| std::fs::hard_link(blob, &at))
        .or_else(|_| copy(blob, &at));
    match made {
        // Another process may have been faster.
        Err(_) if is_there() => Ok(()),
        made => made.map_err(Error::io(&at)),
    }
}

/// Makes a symbolic link that can be followed, or none.
fn link_followed(target: &Path, at: &Path) -> std::io::Result<()> {
    symlink(target, at)?;
    let followed = at.metadata().map(drop);
    if followed.is_err() {
        let _ = std::fs::remove_file(at);
    }
    followed
}

/// Copies a file: it appears when it is complete, and a copy that cannot take its name is removed.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let from = std::fs::File::open(from)?;
    let draft = bilayer_files::create(to, Access::Usual)?;
    draft.append_file(&from)?;
    draft.sync()?;
    draft.rename(to)
}

#[cfg(unix)]
fn symlink(target: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(windows)]
fn symlink(target: &Path, at: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Writes down which commit `main` is.
fn remember(folder: &Path, commit: &str) -> Result<(), Error> {
    let refs = folder.join("refs");
    std::fs::create_dir_all(&refs).map_err(Error::io(&refs))?;
    let main = refs.join("main");
    bilayer_files::write(&main, commit).map_err(Error::io(&main))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bilayer_files::{Disk, Operation, on_disk};

    use super::{link, remember};

    #[test]
    fn an_incomplete_copy_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (blob, snapshot) = (folder.path().join("blobs/x"), folder.path().join("snapshots/1"));
        std::fs::create_dir_all(folder.path().join("blobs")).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::write(&blob, "whole").unwrap();
        std::fs::write(snapshot.join("m.gguf"), "who").unwrap();
        for _ in 0..2 {
            link(&blob, 5, &snapshot, "m.gguf").unwrap();
            assert_eq!(std::fs::read_to_string(snapshot.join("m.gguf")).unwrap(), "whole");
        }
    }

    #[test]
    fn a_link_that_cannot_be_followed_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (blob, snapshot) = (folder.path().join("elsewhere"), folder.path().join("snapshots/1"));
        std::fs::write(&blob, "whole").unwrap();
        link(&blob, 5, &snapshot, "sub/m.gguf").unwrap();
        assert_eq!(std::fs::read_to_string(snapshot.join("sub/m.gguf")).unwrap(), "whole");
    }

    #[test]
    fn a_copy_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("m.gguf");
        super::copy(&folder.path().join("absent"), &to).unwrap_err();
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        std::fs::write(folder.path().join("blob"), "whole").unwrap();
        for failing in [Operation::Write, Operation::Sync, Operation::Rename] {
            let disk = Arc::new(Failing(failing));
            on_disk(disk, || super::copy(&folder.path().join("blob"), &to)).unwrap_err();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{failing:?}");
        }
        super::copy(&folder.path().join("blob"), &to).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "whole");
    }

    /// What is not on the disk does not get its name.
    #[test]
    fn a_commit_that_cannot_be_flushed_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("refs/main");
        remember(folder.path(), "first").unwrap();
        on_disk(Arc::new(Failing(Operation::Sync)), || remember(folder.path(), "second"))
            .unwrap_err();
        assert_eq!(std::fs::read_to_string(&main).unwrap(), "first");
        remember(folder.path(), "third").unwrap();
        assert_eq!(std::fs::read_to_string(&main).unwrap(), "third");
        assert_eq!(std::fs::read_dir(main.parent().unwrap()).unwrap().count(), 1);
    }

    /// A disk that refuses an operation.
    struct Failing(Operation);

    impl Disk for Failing {
        fn before(&self, operation: Operation) -> std::io::Result<()> {
            match operation == self.0 {
                true => Err(std::io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }
}
