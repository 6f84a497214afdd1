//! Models where users have them: the Hugging Face cache and hub, LM Studio's and ollama's stores, plain folders.
//!
//! **Purpose.** Finds the file of a model by its name, lists what is on the machine, and downloads from the Hugging Face
//! hub into the cache that Python's `huggingface_hub` and llama.cpp share. Files are used where they lie and never copied.
//!
//! **What it does not know.** What a GGUF file contains, how progress is shown, flags.
//!
//! **Read first.** [`Places`] (the folders, the hub's address, the token), [`Wanted`] (`org/repo:Q4_K_M`), [`Hub`]
//! (from the one to the other).
//!
//! ```
//! use bilayer_hub::{Access, Error, Hub, Places, Wanted};
//!
//! let places = Places { cache: Some("no-such-folder".into()), access: Access::Offline, ..Places::default() };
//! let wanted: Wanted = "ggml-org/tiny-llamas:Q8_0".parse()?;
//! let missing = Hub::new(places).fetch(&wanted, &mut |_| std::ops::ControlFlow::Continue(()));
//! assert!(matches!(missing, Err(Error::Offline { .. })));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Features
//!
//! `download` fetches what is missing. Without it nothing in this crate can open a connection.

mod cache;
mod choose;
#[cfg(feature = "download")]
mod download;
mod error;
mod exit_code;
mod fetch;
mod folder;
mod found;
mod listing;
mod lm_studio;
mod name;
mod ollama;
mod places;
mod transfer;
mod walk;

pub use choose::quant;
pub use error::Error;
pub use fetch::Hub;
pub use folder::Folder;
pub use found::{Found, Origin};
pub use listing::{in_folder, list, near, stem};
pub use name::{Repo, Wanted};
pub use places::{Access, AccessToken, Places};
pub use transfer::Transfer;

use std::path::PathBuf;

/// A model's name with the store it is in: `hf:org/repo:Q4_K_M`, `ollama:llama3.2:1b`, `lmstudio:publisher/model/file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// On the Hugging Face hub, or in its cache.
    Hub(Wanted),
    /// In ollama's store, by name and tag.
    Ollama(String),
    /// In LM Studio's folders, by their path.
    LmStudio(String),
}

impl Reference {
    /// The reference that `name` is; `None` where it begins with no store.
    ///
    /// # Errors
    /// `hf:` without a name of the form `org/repo[:quant]`.
    pub fn parse(name: &str) -> Result<Option<Reference>, Error> {
        Ok(match name.split_once(':') {
            Some(("hf", rest)) => Some(Reference::Hub(rest.parse()?)),
            Some(("ollama", rest)) => Some(Reference::Ollama(rest.to_owned())),
            Some(("lmstudio", rest)) => Some(Reference::LmStudio(rest.to_owned())),
            _ => None,
        })
    }

    /// The file of the model, the first of its shards; `tell` hears of downloads.
    ///
    /// # Errors
    /// The model is in none of the store's folders, or cannot be downloaded.
    pub fn locate(&self, places: &Places, tell: &mut transfer::Tell<'_>) -> Result<PathBuf, Error> {
        match self {
            Reference::Hub(wanted) => Hub::new(places.clone()).fetch(wanted, tell),
            Reference::Ollama(name) => ollama::locate(&places.ollama, name),
            Reference::LmStudio(name) => lm_studio::locate(&places.lm_studio, name),
        }
    }
}
