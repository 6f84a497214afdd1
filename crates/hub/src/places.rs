//! Where models lie on this machine, and how the hub is reached: folders, address, token, from the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The hub's address where nothing else is said.
const ENDPOINT: &str = "https://huggingface.co";

/// Whether connections may be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// What is missing is downloaded.
    #[default]
    Online,
    /// No socket is opened.
    Offline,
}

/// A secret that the hub takes; it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(String);

impl AccessToken {
    /// A token without the blanks around it; `None` if nothing is left or it has characters that no header can carry.
    pub fn new(token: &str) -> Option<AccessToken> {
        let token = token.trim();
        let is_good = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        is_good.then(|| AccessToken(token.to_owned()))
    }

    #[cfg(feature = "download")]
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(..)")
    }
}

/// Folders of models, the hub's address, and the token for it.
#[derive(Clone, Debug)]
pub struct Places {
    /// The Hugging Face cache: `models--org--repo` folders.
    pub cache: Option<PathBuf>,
    /// LM Studio's folders of publishers.
    pub lm_studio: Vec<PathBuf>,
    /// ollama's folders with `manifests` and `blobs`.
    pub ollama: Vec<PathBuf>,
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// For private and gated repositories.
    pub token: Option<AccessToken>,
    /// Whether the hub may be asked.
    pub access: Access,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            cache: None,
            lm_studio: Vec::new(),
            ollama: Vec::new(),
            endpoint: ENDPOINT.to_owned(),
            token: None,
            access: Access::Online,
        }
    }
}

impl Places {
    /// As the environment of this process says.
    pub fn from_env() -> Places {
        Places::from_variables(&|name| std::env::var_os(name))
    }

    /// As variables say, which are those of `huggingface_hub`, llama.cpp and ollama:
    ///
    /// - the cache is in `LLAMA_CACHE`, `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `$HF_HOME/hub`,
    ///   `$XDG_CACHE_HOME/huggingface/hub` or `~/.cache/huggingface/hub`, whichever is set first; `~`, also at the beginning
    ///   of a value, is the user's folder;
    /// - the token is `HF_TOKEN`, or in the file `HF_TOKEN_PATH` or `$HF_HOME/token`;
    /// - `HF_ENDPOINT` is the hub's address, `HF_HUB_OFFLINE=1` forbids connections;
    /// - `OLLAMA_MODELS` is ollama's folder.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Places {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).and_then(|value| value.into_string().ok());
        // A shell on Windows may have a HOME of its own, which Python does not read.
        let homes = if cfg!(windows) { ["USERPROFILE", "HOME"] } else { ["HOME", "USERPROFILE"] };
        let home = homes.iter().find_map(|name| given(name)).map(PathBuf::from);
        let folder = |name: &str| {
            let path = PathBuf::from(given(name)?);
            Some(match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => home.join(rest),
                _ => path,
            })
        };
        let below = |path: &str| home.as_ref().map(|home| home.join(path));
        let hf_home = folder("HF_HOME")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| below(".cache/huggingface"));
        let named = ["LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
        let cache = named.iter().find_map(|name| folder(name));
        let cache = cache.or_else(|| Some(hf_home.as_ref()?.join("hub")));
        let token_file = folder("HF_TOKEN_PATH").or_else(|| Some(hf_home.as_ref()?.join("token")));
        let token = text("HF_TOKEN").and_then(|token| AccessToken::new(&token));
        let token = token.or_else(|| read_token(&token_file?));
        let ollama = match folder("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => {
                let system = PathBuf::from("/usr/share/ollama/.ollama/models");
                below(".ollama/models").into_iter().chain([system]).collect()
            }
        };
        let lm_studio = [".lmstudio/models", ".cache/lm-studio/models"];
        let is_offline = text("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
        });
        Places {
            cache,
            lm_studio: lm_studio.iter().filter_map(|path| below(path)).collect(),
            ollama,
            endpoint: endpoint(variable),
            token,
            access: if is_offline { Access::Offline } else { Access::Online },
        }
    }
}

/// The hub's address as `HF_ENDPOINT` says, without a slash at the end.
pub(crate) fn endpoint(variable: &dyn Fn(&str) -> Option<OsString>) -> String {
    let given = variable("HF_ENDPOINT").and_then(|given| given.into_string().ok());
    let given = given.filter(|given| !given.is_empty());
    given.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/').to_owned()
}

fn read_token(path: &Path) -> Option<AccessToken> {
    AccessToken::new(&std::fs::read_to_string(path).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(set: &[(&str, &str)]) -> Places {
        Places::from_variables(&|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_cache_is_where_other_programs_have_it() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "/f")], "/f/hub"),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HUB_CACHE", "/c"), ("LLAMA_CACHE", "/l")], "/l"),
            (&[("HOME", "/h"), ("HF_HOME", "")], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "~/f")], "/h/f/hub"),
            (&[("HOME", "/h"), ("HF_HUB_CACHE", "~")], "/h"),
            (&[("HOME", "/h"), ("HF_HOME", "~other/f")], "~other/f/hub"),
            (&[("HF_HOME", "~/f")], "~/f/hub"),
        ];
        for (set, expected) in cases {
            assert_eq!(places(set).cache, Some(PathBuf::from(expected)), "{set:?}");
        }
        assert_eq!(places(&[]).cache, None);
    }

    #[test]
    fn the_hub_is_as_variables_say() {
        let given = places(&[
            ("HF_ENDPOINT", "https://mirror.example/"),
            ("HF_TOKEN", " hf_abc\n"),
            ("HF_HUB_OFFLINE", "True"),
            ("OLLAMA_MODELS", "/o"),
        ]);
        assert_eq!(given.endpoint, "https://mirror.example");
        assert_eq!(given.token, AccessToken::new("hf_abc"));
        assert_eq!(given.access, Access::Offline);
        assert_eq!(given.ollama, [PathBuf::from("/o")]);
        assert!(!format!("{given:?}").contains("abc"));
        let usual = places(&[("HOME", "/h"), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!((usual.endpoint.as_str(), usual.access), (ENDPOINT, Access::Online));
        assert_eq!(usual.ollama[0], PathBuf::from("/h/.ollama/models"));
        assert_eq!(usual.lm_studio[0], PathBuf::from("/h/.lmstudio/models"));
        assert_eq!(AccessToken::new("two words"), None);
    }

    #[test]
    fn the_token_may_be_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("token"), "hf_file\n").expect("a file");
        let home = folder.path().to_str().expect("a name in UTF-8");
        assert_eq!(places(&[("HF_HOME", home)]).token, AccessToken::new("hf_file"));
        let path = format!("{home}/token");
        assert_eq!(places(&[("HF_TOKEN_PATH", &path)]).token, AccessToken::new("hf_file"));
        let both = places(&[("HF_HOME", home), ("HF_TOKEN", "hf_variable")]);
        assert_eq!(both.token, AccessToken::new("hf_variable"));
    }
}
