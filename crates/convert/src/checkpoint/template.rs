//! Finds the chat templates of a checkpoint in the places where they may be stored.

use serde_json::Value;

use super::Checkpoint;
use crate::Error;

/// The folder of named templates, beside `chat_template.jinja`.
const FOLDER: &str = "additional_chat_templates";

/// Templates by name, starting with the unnamed default if there is one.
///
/// Separate files, `chat_template.jinja` and those in [`FOLDER`], take precedence over `tokenizer_config.json`, which
/// contains one template or a list of named ones.
///
/// # Errors
/// [`Error::Checkpoint`] if a file cannot be read or has unexpected contents.
pub(crate) fn templates(
    checkpoint: &Checkpoint,
    config: &Value,
) -> Result<Vec<(Option<String>, String)>, Error> {
    let mut templates = match &config["chat_template"] {
        Value::Null => Vec::new(),
        Value::String(source) => vec![(None, source.clone())],
        Value::Array(list) => list
            .iter()
            .map(|entry| {
                let (name, source) = (entry["name"].as_str(), entry["template"].as_str());
                let name = name.filter(|name| *name != "default").map(str::to_owned);
                let found = source.filter(|_| entry["name"].is_string());
                found.map(|source| (name, source.to_owned())).ok_or_else(|| odd(checkpoint))
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(odd(checkpoint)),
    };
    let own = match checkpoint.text("chat_template.jinja")? {
        Some(source) => Some(source),
        None => {
            let json = checkpoint.json("chat_template.json")?;
            json.and_then(|json| json["chat_template"].as_str().map(str::to_owned))
        }
    };
    let own = own.map(|own| (None, own)).into_iter();
    for (name, source) in own.chain(additional(checkpoint)?) {
        templates.retain(|(other, _)| *other != name);
        templates.push((name, source));
    }
    templates.sort();
    Ok(templates)
}

/// The templates of [`FOLDER`], each under its file's stem; `default` is the one without a name.
fn additional(checkpoint: &Checkpoint) -> Result<Vec<(Option<String>, String)>, Error> {
    let unreadable = |error: std::io::Error| checkpoint.unreadable(FOLDER, &error);
    let entries = match std::fs::read_dir(checkpoint.folder().join(FOLDER)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut templates = Vec::new();
    for entry in entries {
        let file = entry.map_err(unreadable)?.file_name();
        let file = file.to_string_lossy();
        let Some(name) = file.strip_suffix(".jinja") else { continue };
        if let Some(source) = checkpoint.text(&format!("{FOLDER}/{file}"))? {
            templates.push(((name != "default").then(|| name.to_owned()), source));
        }
    }
    Ok(templates)
}

fn odd(checkpoint: &Checkpoint) -> Error {
    let reason =
        "`chat_template`: expected a template or a list of them, each with `name` and `template`";
    checkpoint.wrong("tokenizer_config.json", reason)
}
