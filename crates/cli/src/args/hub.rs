//! Flags of models that are not plain files: on the Hugging Face hub and in other programs' stores.

use std::path::PathBuf;

use bilayer_hub::{Access, AccessToken, Error, Places, Wanted};
use clap::Args;

use super::switch;

/// Which model of the hub, and how the hub is reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct HubArgs {
    /// Model on Hugging Face, downloaded unless cached; short form -hf [default QUANT: Q4_K_M, else Q8_0, else the first file]
    #[arg(long, value_name = "ORG/REPO[:QUANT]", env = "LLAMA_ARG_HF_REPO")]
    pub hf_repo: Option<Wanted>,
    /// File in the repository of -hf, instead of QUANT; short form -hff
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_HF_FILE")]
    pub hf_file: Option<String>,
    /// Token for gated and private repositories; short form -hft [default: the token of `hf auth login`]
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    pub hf_token: Option<String>,
    /// Use only models on this machine; never open a network connection
    #[arg(long, env = "LLAMA_ARG_OFFLINE", value_parser = switch())]
    pub offline: bool,
}

/// `bilayer models`.
#[derive(Args, Debug)]
pub struct Models {
    /// Also list the GGUF files in this folder and in the folders in it; repeatable
    #[arg(long, value_name = "DIR", env = "LLAMA_ARG_MODELS_DIR")]
    pub models_dir: Vec<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

impl HubArgs {
    /// The model of -hf and --hf-file.
    ///
    /// # Errors
    /// A file without a repository.
    pub fn wanted(&self) -> Result<Option<Wanted>, &'static str> {
        match (&self.hf_repo, &self.hf_file) {
            (None, Some(_)) => Err("--hf-file needs -hf ORG/REPO"),
            (None, None) => Ok(None),
            (Some(wanted), None) => Ok(Some(wanted.clone())),
            (Some(wanted), file) => Ok(Some(Wanted { file: file.clone(), ..wanted.clone() })),
        }
    }

    /// The places of the environment, as the flags change them.
    ///
    /// # Errors
    /// A token that no request can carry.
    pub fn places(&self) -> Result<Places, Error> {
        let mut places = Places::from_env();
        // An empty variable is none.
        if let Some(token) = self.hf_token.as_ref().filter(|token| !token.trim().is_empty()) {
            let reason = "a token is one word of ASCII characters, such as hf_...";
            let wrong = || Error::Name { name: "--hf-token".to_owned(), reason };
            places.token = Some(AccessToken::new(token).ok_or_else(wrong)?);
        }
        if self.offline {
            places.access = Access::Offline;
        }
        Ok(places)
    }
}
