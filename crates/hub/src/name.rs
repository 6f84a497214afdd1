//! Names of repositories and of models in them: `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::{Error, places};

/// What the folder of a repository in the cache begins with.
const FOLDER_PREFIX: &str = "models--";

/// A repository of models on the hub: an owner and a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repo(String);

impl Repo {
    /// `org/repo`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its folder in the cache, `models--org--repo`.
    pub(crate) fn folder(&self) -> String {
        format!("{FOLDER_PREFIX}{}", self.0.replace('/', "--"))
    }

    /// The repository that a folder of the cache is for.
    pub(crate) fn of_folder(folder: &str) -> Option<Repo> {
        folder.strip_prefix(FOLDER_PREFIX)?.replacen("--", "/", 1).parse().ok()
    }
}

impl FromStr for Repo {
    type Err = Error;

    fn from_str(name: &str) -> Result<Repo, Error> {
        // The hub's own rule: letters, digits, `_`, and between them `-` and `.`.
        let is_part = |part: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            part.len() <= 96
                && part.chars().all(inner)
                && outer(part.chars().next())
                && outer(part.chars().last())
                && !part.contains("..")
        };
        match name.split_once('/') {
            Some((owner, repo)) if is_part(owner) && is_part(repo) => Ok(Repo(name.to_owned())),
            _ => Err(Error::Name {
                name: name.to_owned(),
                reason: "a repository is like ggml-org/gemma-3-1b-it-GGUF",
            }),
        }
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A model in a repository: by quantization, by file, or whatever the repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The repository.
    pub repo: Repo,
    /// The quantization, in any case: `Q4_K_M`.
    pub quant: Option<String>,
    /// The file, relative to the repository; it counts before the quantization.
    pub file: Option<String>,
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Wanted, Error> {
        let wrong = |reason| Error::Name { name: text.to_owned(), reason };
        let hubs = [&places::endpoint(&|name| std::env::var_os(name)), "huggingface.co", "hf.co"];
        if let Some(path) = hubs.iter().find_map(|hub| below(text, hub)) {
            return of_page(path).ok_or_else(|| {
                wrong("the address of a model is like https://huggingface.co/org/repo, of a file ...org/repo/blob/main/file.gguf")
            });
        }
        let text = text.strip_suffix('/').unwrap_or(text);
        if let [owner, repo, file] = text.splitn(3, '/').collect::<Vec<_>>()[..] {
            if !is_model(file) {
                return Err(wrong("it is like org/repo, org/repo:Q4_K_M or org/repo/file.gguf"));
            }
            let repo = format!("{owner}/{repo}").parse()?;
            return Ok(Wanted { repo, quant: None, file: Some(file.to_owned()) });
        }
        let (repo, quant) = match text.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (text, None),
        };
        let is_quant = |quant: &str| {
            !quant.is_empty()
                && quant.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        };
        if quant.is_some_and(|quant| !is_quant(quant)) {
            return Err(wrong("the quantization behind the colon is like Q4_K_M"));
        }
        Ok(Wanted { repo: repo.parse()?, quant: quant.map(str::to_owned), file: None })
    }
}

/// The path of a URL, with or without its scheme, on the server `hub`.
fn below<'t>(text: &'t str, hub: &str) -> Option<&'t str> {
    let without_scheme = |url: &'t str| url.split_once("://").map_or(url, |(_, rest)| rest);
    let hub = hub.split_once("://").map_or(hub, |(_, rest)| rest);
    without_scheme(text).strip_prefix(hub)?.strip_prefix('/')
}

/// The model of a page of the hub: a repository's, or a file's on its main branch.
fn of_page(path: &str) -> Option<Wanted> {
    let path = path.split(['?', '#']).next()?.trim_end_matches('/');
    let mut parts = path.splitn(3, '/');
    let (owner, repo, rest) = (parts.next()?, parts.next()?, parts.next());
    let repo = format!("{owner}/{repo}");
    match rest {
        // ollama writes hf.co/org/repo:Q4_K_M.
        None => repo.parse().ok(),
        Some("tree/main") => Some(Wanted { repo: repo.parse().ok()?, quant: None, file: None }),
        Some(rest) => {
            let file = rest.strip_prefix("blob/main/").or(rest.strip_prefix("resolve/main/"))?;
            let file = percent_decoded(file).filter(|file| is_model(file))?;
            Some(Wanted { repo: repo.parse().ok()?, quant: None, file: Some(file) })
        }
    }
}

/// A path with the bytes that `%` and two hexadecimal digits stand for; `None` unless it is UTF-8.
fn percent_decoded(path: &str) -> Option<String> {
    let mut parts = path.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Whether a path in a repository is a GGUF file's.
fn is_model(file: &str) -> bool {
    file.to_ascii_lowercase().ends_with(".gguf") && relative(file).is_some()
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.quant) {
            (Some(file), _) => write!(f, "{}/{file}", self.repo),
            (None, Some(quant)) => write!(f, "{}:{quant}", self.repo),
            (None, None) => write!(f, "{}", self.repo),
        }
    }
}

/// A path that stays below the folder it is appended to.
pub(crate) fn relative(path: &str) -> Option<PathBuf> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let odd = path.is_empty() || path.contains(['\\', '\0']) || path.contains("//");
    (!odd && Path::new(path).components().all(is_plain)).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_repository_quantization_and_file() {
        let cases = [
            ("a/b", ("a/b", None, None)),
            ("a/b:q4_k_m", ("a/b", Some("q4_k_m"), None)),
            ("a/b:UD-Q2_K_XL", ("a/b", Some("UD-Q2_K_XL"), None)),
            ("a/b/c.gguf", ("a/b", None, Some("c.gguf"))),
            ("a/b/c/d.gguf", ("a/b", None, Some("c/d.gguf"))),
        ];
        for (text, (repo, quant, file)) in cases {
            let wanted: Wanted = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            let found = (wanted.repo.as_str(), wanted.quant.as_deref(), wanted.file.as_deref());
            assert_eq!(found, (repo, quant, file), "{text}");
            assert_eq!(wanted.to_string(), text);
        }
        let pages = [
            ("https://huggingface.co/a/b", "a/b"),
            ("https://huggingface.co/a/b/", "a/b"),
            ("http://hf.co/a/b:Q8_0", "a/b:Q8_0"),
            ("huggingface.co/a/b/tree/main", "a/b"),
            ("https://huggingface.co/a/b/blob/main/c/d.gguf", "a/b/c/d.gguf"),
            ("https://huggingface.co/a/b/resolve/main/d.gguf?download=true", "a/b/d.gguf"),
            ("huggingface.co/a/b/blob/main/c%20d%2fe%C3%A9.gguf", "a/b/c d/e\u{e9}.gguf"),
            ("a/b/", "a/b"),
            ("a/b:Q8_0/", "a/b:Q8_0"),
        ];
        for (text, expected) in pages {
            let wanted: Wanted = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(wanted.to_string(), expected, "{text}");
        }
        assert_eq!(
            below("https://mirror.example/hf/a/b", "https://mirror.example/hf"),
            Some("a/b")
        );
        for text in [
            "https://huggingface.co/a",
            "https://huggingface.co/a/b/blob/dev/c.gguf",
            "https://huggingface.co/a/b/blob/main/%2e%2e/c.gguf",
            "https://huggingface.co/a/b/blob/main/c%+1.gguf",
            "https://huggingface.co/a/b/blob/main/c%ff.gguf",
            "https://huggingface.co/a/b/blob/main/c.gguf%2",
        ] {
            let error = text.parse::<Wanted>().expect_err(text).to_string();
            assert!(error.contains("/blob/main/file.gguf"), "{error}");
        }
        let wrong =
            ["", "a", "a/", "/b", "../b", "a/..", "a/b:", "a/b:x y", "a/b/../c.gguf", "a/b/c.txt"];
        for text in wrong {
            assert!(text.parse::<Wanted>().is_err(), "{text}");
        }
    }

    #[test]
    fn folders_of_the_cache_are_names_of_repositories() {
        let repo: Repo = "org/some--name".parse().expect("a name");
        assert_eq!(repo.folder(), "models--org--some--name");
        assert_eq!(Repo::of_folder(&repo.folder()), Some(repo));
        assert_eq!(Repo::of_folder("datasets--a--b"), None);
        assert_eq!(Repo::of_folder("models--gpt2"), None);
    }

    #[test]
    fn paths_that_leave_their_folder_are_refused() {
        assert_eq!(relative("a/b.gguf"), Some(PathBuf::from("a/b.gguf")));
        for path in ["", "/a", "../a", "a/../b", "a\\b", "./a", "a//b"] {
            assert_eq!(relative(path), None, "{path}");
        }
    }
}
