//! What can go wrong between a model's name and its file.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

use bilayer_settings::{Phrase, Setting};

/// Why a model cannot be found or downloaded. Each message ends with what to do; `{:#}` names variables of the environment in
/// place of flags.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that is none.
    #[error("`{name}` is not the name of a model: {reason}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong, and an example.
        reason: &'static str,
    },
    /// No folder to cache downloads in.
    #[error("there is no folder for the Hugging Face cache; set HF_HOME or HOME")]
    NoCache,
    /// Missing in the cache, and connections are not allowed.
    #[error(fmt = offline)]
    Offline {
        /// The model.
        wanted: String,
        /// The folder that was searched.
        cache: PathBuf,
    },
    /// Missing in the cache, and the program cannot download.
    #[error(
        "{wanted} is not in {} and this program was built without feature `hub`, which downloads; build it with that feature",
        .cache.display()
    )]
    NoDownload {
        /// The model.
        wanted: String,
        /// The folder that was searched.
        cache: PathBuf,
    },
    /// A repository without GGUF files.
    #[error(
        "{repo} has no GGUF files; try {repo}-GGUF, or convert a checkpoint with `bilayer convert`"
    )]
    NoGguf {
        /// The repository or folder.
        repo: String,
    },
    /// A repository that has other files.
    #[error("{repo} has no file {asked}; it has {}", .offered.join(", "))]
    NoSuchFile {
        /// The repository or folder.
        repo: String,
        /// The file or quantization that was asked for.
        asked: String,
        /// What could be asked for.
        offered: Vec<String>,
    },
    /// A split file of which parts are missing.
    #[error("{repo}: {file} has {found} of {count} parts; it is incomplete there")]
    Shards {
        /// The repository or folder.
        repo: String,
        /// The first part.
        file: String,
        /// Parts that are there.
        found: usize,
        /// Parts that there should be.
        count: usize,
    },
    /// The hub wants a token, or another one.
    #[error(fmt = denied)]
    Denied {
        /// Repository or file.
        what: String,
        /// 401 or 403.
        status: u16,
        /// How to get access.
        advice: Phrase,
    },
    /// The hub does not know it.
    #[error("{what}: not on the hub (HTTP 404); check the name on {endpoint}")]
    NotFound {
        /// Repository or file.
        what: String,
        /// Address of the hub.
        endpoint: String,
    },
    /// An answer that makes no sense.
    #[error("{url}: {reason}; check HF_ENDPOINT, or try again later")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A variable of the environment whose value cannot be used.
    #[error("{variable}: {reason}; correct it, or unset it")]
    Setting {
        /// The variable.
        variable: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// No connection.
    #[error(fmt = unreachable)]
    Unreachable {
        /// What was asked.
        url: String,
        /// The system's reason.
        reason: String,
    },
    /// The connection broke more often than it was worth trying.
    #[error(
        "{file}: the download stopped after {done_bytes} of {total_bytes} bytes: {reason}; run the command again, it goes on from there"
    )]
    Broken {
        /// File name in the repository.
        file: String,
        /// Bytes that are kept.
        done_bytes: u64,
        /// Bytes of the file.
        total_bytes: u64,
        /// The last reason.
        reason: String,
    },
    /// Bytes that are not those that the hub announced.
    #[error(
        "{file}: its SHA-256 is {found}, the hub says {expected}; the download was deleted, run the command again"
    )]
    Checksum {
        /// File name in the repository.
        file: String,
        /// From the hub.
        expected: String,
        /// Of what arrived.
        found: String,
    },
    /// The disk is full.
    #[error(
        "{}: no space for {file}: {needed_bytes} bytes are needed, {free_bytes} are free; make room or set HF_HOME",
        .folder.display()
    )]
    NoSpace {
        /// Where it was to go.
        folder: PathBuf,
        /// File name in the repository.
        file: String,
        /// Bytes still to come.
        needed_bytes: u64,
        /// Bytes that the disk has.
        free_bytes: u64,
    },
    /// The caller ended it.
    #[error("the download was interrupted; the same command goes on from there")]
    Interrupted,
    /// A link in a store that leads out of it.
    #[error(
        "{} leads out of {} to {}; it is not followed, give the path itself with -m",
        .link.display(), .root.display(), .target.display()
    )]
    Escapes {
        /// The link.
        link: PathBuf,
        /// The store.
        root: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A store that does not have the model.
    #[error("{store} has no model {name}{}", searched(.folders))]
    NotInStore {
        /// ollama or LM Studio.
        store: &'static str,
        /// The model.
        name: String,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// A manifest that does not say where the model is.
    #[error("{}: {reason}; pull the model again with ollama", .path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A model of ollama that is another one with LoRA adapters.
    #[error("{name} is a model with a LoRA adapter; give both files: -m {} {}",
        .model.display(), lora(.adapters))]
    Adapter {
        /// As given.
        name: String,
        /// The file of the model.
        model: PathBuf,
        /// The files of the adapters.
        adapters: Vec<PathBuf>,
    },
    /// The file system said no.
    #[error("{}: {source}; check its permissions, or set HF_HOME to another folder", .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }
}

fn offline(wanted: &str, cache: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (flag, variable) = (Setting::Offline.flag(), Setting::Offline.name());
    let advice =
        Phrase::from("downloads are off; allow them (").either(&format!("no {flag}, "), "");
    let advice = advice.text(&format!("no {variable}), or fetch it elsewhere"));
    write!(f, "{wanted} is not in {} and ", cache.display())?;
    advice.fmt(f)
}

fn denied(what: &str, status: &u16, advice: &Phrase, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{what}: the hub refused access (HTTP {status}): ")?;
    advice.fmt(f)
}

fn unreachable(url: &str, reason: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (flag, variable) = (Setting::Offline.flag(), Setting::Offline.name());
    let advice = Phrase::from("check the connection, or use ");
    let advice = advice.either(flag, &format!("{variable}=1")).text(" with what is in the cache");
    write!(f, "{url}: {reason}; ")?;
    advice.fmt(f)
}

/// Flags that name adapters.
fn lora(adapters: &[PathBuf]) -> String {
    let flags: Vec<String> =
        adapters.iter().map(|path| format!("--lora {}", path.display())).collect();
    flags.join(" ")
}

/// The end of a message that names folders.
fn searched(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    match names.is_empty() {
        true => "; none of its folders is on this machine".to_owned(),
        false => format!(" in {}; `bilayer models` lists what is there", names.join(" or ")),
    }
}
