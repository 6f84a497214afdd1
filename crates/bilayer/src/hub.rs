//! Models on the Hugging Face hub.

use std::ops::ControlFlow;
use std::path::PathBuf;

#[doc(inline)]
pub use bilayer_hub::{
    Access, AccessToken, Error as HubError, Hub, Places, Repo, Transfer, Wanted,
};

/// The file of a model on the Hugging Face hub: `org/repo`, `org/repo:Q4_K_M` or `org/repo/file.gguf`.
///
/// A model in the cache is used as it is, without asking the hub; else it is downloaded. Folder, token and address are those
/// of the environment ([`Places::from_env`]): `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`. [`Hub::fetch`] takes
/// others, and tells how the download proceeds. [`HubError::exit_code`] is the code that a program should end with.
///
/// # Errors
/// A name of another form; a model that is neither in the cache nor on the hub; a repository that asks for a token; a
/// download that fails, which the next call continues.
pub fn hub(model: &str) -> Result<PathBuf, HubError> {
    let wanted: Wanted = model.parse()?;
    Hub::new(Places::from_env()).fetch(&wanted, &mut |_| ControlFlow::Continue(()))
}
