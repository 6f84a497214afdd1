//! A model on this machine: its name, where it is from, its file and its size.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::choose::{self, choose_in};
use crate::walk;

/// What put the file there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The Hugging Face cache.
    HuggingFace,
    /// LM Studio.
    LmStudio,
    /// ollama.
    Ollama,
    /// A folder that was named.
    Folder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::HuggingFace => "huggingface",
            Origin::LmStudio => "lmstudio",
            Origin::Ollama => "ollama",
            Origin::Folder => "folder",
        })
    }
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What finds it again: [`Reference::parse`](crate::Reference::parse) reads it, or it is a path.
    pub name: String,
    /// Where it is from.
    pub origin: Origin,
    /// Its file, the first of its shards.
    pub path: PathBuf,
    /// Bytes of all shards.
    pub bytes: u64,
}

impl Found {
    /// The model at a path, with all shards that lie beside it; `None` if there is no such file.
    pub fn at(path: &Path) -> Option<Found> {
        let name = path.display().to_string();
        let file = path.file_name()?.to_str().unwrap_or_default();
        let mut parts = Vec::new();
        // Only the shards of a split file are looked for.
        if choose::part(file).is_some() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let files = walk::files(folder.unwrap_or(Path::new(".")), 0);
            parts = choose_in("", &files, Some(file), None).map_or(Vec::new(), |of| of.files);
        }
        let more = parts.get(1..).unwrap_or_default();
        Found::new(name, Origin::Folder, path.to_owned(), more)
    }

    /// A model at `path` whose other shards, if any, have the file names of `more` beside it.
    pub(crate) fn new(
        name: String,
        origin: Origin,
        path: PathBuf,
        more: &[String],
    ) -> Option<Found> {
        let bytes_of = |path: &Path| path.metadata().ok().map(|facts| facts.len());
        let mut bytes = bytes_of(&path)?;
        for file in more {
            bytes += bytes_of(&path.with_file_name(Path::new(file).file_name()?))?;
        }
        Some(Found { name, origin, path, bytes })
    }
}
