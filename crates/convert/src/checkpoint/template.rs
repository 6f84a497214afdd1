//! Finds the chat templates of a checkpoint in the places where they may be stored.

use serde_json::Value;

use super::Checkpoint;
use crate::Error;

/// Templates by name, starting with the unnamed default if there is one.
///
/// A separate file takes precedence over `tokenizer_config.json`, which contains one template or a list of
/// named ones.
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
    if let Some(own) = own {
        templates.retain(|(name, _)| name.is_some());
        templates.push((None, own));
    }
    templates.sort();
    Ok(templates)
}

fn odd(checkpoint: &Checkpoint) -> Error {
    let reason =
        "`chat_template`: expected a template or a list of them, each with `name` and `template`";
    checkpoint.wrong("tokenizer_config.json", reason)
}
