//! Reads a checkpoint folder: configuration, sharded weights, tokenizer, templates and model card.
//!
//! [`Checkpoint::open`] reads small files completely and only the headers of the shards. Weights are read
//! later, in ranges.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use bilayer_models::Settings;
use serde_json::Value;

use crate::Error;

mod card;
mod sentencepiece;
mod shards;
mod template;
mod tokenizer;

pub(crate) use card::Card;
pub(crate) use shards::{Float, Shards, Stored};
pub(crate) use template::templates;
pub(crate) use tokenizer::tokenizer;

/// Limit for small files (configuration, tokenizer, templates). The largest known, a tokenizer of 260 thousand
/// tokens, has 33 MB.
const SMALL_BYTES: u64 = 256 << 20;

/// An open checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    folder: PathBuf,
    config: Value,
    /// The small files read so far.
    read: RefCell<Vec<PathBuf>>,
    /// The weights.
    pub shards: Shards,
}

/// A `Dense` module of Sentence Transformers.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its folder.
    pub folder: String,
    /// The stem of its tensors, numbered as in llama.cpp's files.
    pub stem: String,
}

/// The settings of a multimodal checkpoint, with those of its text model in their place. A null of the latter is kept unless
/// the former have a value: it is no absent field, which would get a default.
fn of_text(mut config: Value) -> Value {
    let Some(Value::Object(text)) = config.get_mut("text_config").map(Value::take) else {
        return config;
    };
    let own = ["architectures", "model_type"];
    for (field, value) in text {
        let is_kept = value.is_null() && config.get(&field).is_some();
        if !own.contains(&field.as_str()) && !is_kept {
            config[field] = value;
        }
    }
    config
}

/// Parses JSON, also with the numbers that JSON lacks and Python writes: `NaN`, `Infinity` and `-Infinity` become
/// `{"__float__": "NaN"}` and so on, as newer versions of transformers write them.
fn parsed(bytes: &[u8]) -> serde_json::Result<Value> {
    let strict = serde_json::from_slice(bytes);
    strict.or_else(|error| serde_json::from_slice(&tagged(bytes)).map_err(|_| error))
}

/// JSON with each of those words replaced that is not in a string.
fn tagged(bytes: &[u8]) -> Vec<u8> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut is_quoted) = (bytes, false);
    while let [first, after @ ..] = rest {
        let word = WORDS.iter().find(|word| !is_quoted && rest.starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend_from_slice(format!("{{\"__float__\": \"{word}\"}}").as_bytes());
            rest = &rest[word.len()..];
            continue;
        }
        // What follows a backslash ends no string.
        let taken = if is_quoted && *first == b'\\' { rest.len().min(2) } else { 1 };
        is_quoted ^= *first == b'"';
        out.extend_from_slice(&rest[..taken]);
        rest = if taken == 1 { after } else { &rest[taken..] };
    }
    out
}

impl Checkpoint {
    /// Reads `config.json` and the headers of the weights.
    ///
    /// # Errors
    /// [`Error::NoFolder`]; [`Error::Checkpoint`] names the file and the problem.
    pub fn open(folder: &Path) -> Result<Checkpoint, Error> {
        let mut checkpoint = Checkpoint::described(folder, "config.json")?;
        let mut shards = Shards::open(&checkpoint)?;
        shards.join_scales(&checkpoint)?;
        for Module { folder, stem } in checkpoint.dense_modules()? {
            shards.add_dense(&checkpoint, &folder, &stem)?;
        }
        checkpoint.shards = shards;
        Ok(checkpoint)
    }

    /// The `Dense` modules after pooling, if the folder is a Sentence Transformers model.
    ///
    /// # Errors
    /// Those of [`Checkpoint::json`].
    pub fn dense_modules(&self) -> Result<Vec<Module>, Error> {
        let modules = self.json("modules.json")?.unwrap_or_default();
        let is_dense =
            |module: &&Value| module["type"].as_str().is_some_and(|kind| kind.ends_with(".Dense"));
        let dense = modules.as_array().into_iter().flatten().filter(is_dense);
        let named = |(number, module): (usize, &Value)| Module {
            folder: module["path"].as_str().unwrap_or_default().to_owned(),
            stem: format!("dense_{}", number + 2),
        };
        Ok(dense.enumerate().map(named).collect())
    }

    /// Reads the configuration `config` of a folder, without weights.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn described(folder: &Path, config: &str) -> Result<Checkpoint, Error> {
        if !folder.exists() {
            return Err(Error::NoFolder { folder: folder.display().to_string() });
        }
        if !folder.is_dir() {
            let reason = "it is no folder; give the folder of a checkpoint".to_owned();
            return Err(Error::Checkpoint { file: folder.display().to_string(), reason });
        }
        let mut checkpoint = Checkpoint {
            folder: folder.into(),
            config: Value::Null,
            read: RefCell::default(),
            shards: Shards::default(),
        };
        let found = checkpoint.json(config)?;
        let found = found
            .ok_or_else(|| checkpoint.wrong(config, "is missing; give the folder that holds it"))?;
        checkpoint.config = of_text(found);
        Ok(checkpoint)
    }

    /// `config.json`.
    pub fn settings(&self) -> Settings<'_> {
        Settings(&self.config)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads a text file of the folder, if it exists.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it cannot be read, is too large or is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, Error> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| self.wrong(name, "is no UTF-8 text"))
    }

    /// Reads a JSON file of the folder, if it exists.
    ///
    /// # Errors
    /// Those of [`Checkpoint::text`]; [`Error::Checkpoint`] if it is not JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>, Error> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let value = parsed(&bytes);
        value.map(Some).map_err(|error| self.wrong(name, &format!("is no JSON: {error}")))
    }

    /// Reads a small file of the folder, if it exists.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it cannot be read or is too large.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.folder.join(name);
        match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.unreadable(name, &error)),
            // Opening a pipe would wait for its other end, and a device may have no end.
            Ok(file) if !file.is_file() => return Err(self.wrong(name, "is no regular file")),
            Ok(file) if file.len() > SMALL_BYTES => {
                return Err(self.wrong(name, &format!("has more than {SMALL_BYTES} bytes")));
            }
            Ok(_) => {}
        }
        let bytes = fs::read(&path).map_err(|error| self.unreadable(name, &error))?;
        self.read.borrow_mut().push(path);
        Ok(Some(bytes))
    }

    /// All input files of the model.
    pub fn inputs(&self) -> impl Iterator<Item = PathBuf> {
        let shards = self.shards.names().map(|name| self.folder.join(name));
        shards.chain(self.read.borrow().clone())
    }

    /// The error for a file of the folder.
    pub fn wrong(&self, name: &str, reason: &str) -> Error {
        let file = self.folder.join(name).display().to_string();
        Error::Checkpoint { file, reason: reason.to_owned() }
    }

    /// The error for a file of the folder that cannot be read.
    pub fn unreadable(&self, name: &str, error: &std::io::Error) -> Error {
        self.wrong(name, &format!("cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{of_text, parsed};

    #[test]
    fn nulls_of_a_text_model_hide_no_value_and_are_not_absent() {
        let config = json!({
            "architectures": ["A"], "dtype": "bfloat16", "hidden_size": 1,
            "text_config": {
                "architectures": null, "dtype": null, "hidden_size": 2, "sliding_window": null,
            },
        });
        let expected = json!({
            "architectures": ["A"], "dtype": "bfloat16", "hidden_size": 2, "sliding_window": null, "text_config": null,
        });
        assert_eq!(of_text(config), expected);
    }

    #[test]
    fn numbers_that_json_lacks_are_tagged_outside_of_strings() {
        let text =
            br#"{"a": [0.0, Infinity], "b": -Infinity, "Infinity": "say \"NaN\" \\", "c": NaN}"#;
        let float = |word: &str| json!({"__float__": word});
        let expected = json!({
            "a": [0.0, float("Infinity")], "b": float("-Infinity"), "Infinity": "say \"NaN\" \\", "c": float("NaN"),
        });
        assert_eq!(parsed(text).unwrap(), expected);
        for broken in ["{", "{\"a\": Infinit}", "{\"a\": InfinityInfinity}", "\"a\\"] {
            let error = parsed(broken.as_bytes()).unwrap_err().to_string();
            let strict = serde_json::from_str::<serde_json::Value>(broken).unwrap_err();
            assert_eq!(error, strict.to_string(), "{broken}");
        }
    }
}
