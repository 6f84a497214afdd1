//! Texts that a model expects before those it embeds, by name: Sentence Transformers' prompts, such as that of a query.

use bilayer_gguf::Metadata;
use bilayer_settings::Setting;

use crate::Error;

/// The prompts of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    named: Vec<(String, String)>,
    default: Option<String>,
}

impl Prompts {
    /// Reads the keys that `convert` writes, which are ours: `{architecture}.prompt.names`, `.texts` and `.default`. Without
    /// them there are no prompts.
    ///
    /// # Errors
    /// A key has another type.
    pub fn read(metadata: &Metadata, architecture: &str) -> Result<Prompts, Error> {
        let key = |name: &str| format!("{architecture}.prompt.{name}");
        let texts = |name: &str| -> Result<Vec<String>, Error> {
            let found = metadata.opt_strings(&key(name)).map_err(Error::File)?;
            Ok(found.into_iter().flat_map(|list| list.iter()).map(str::to_owned).collect())
        };
        let named = texts("names")?.into_iter().zip(texts("texts")?).collect();
        let default = metadata.opt_str(&key("default")).map_err(Error::File)?;
        Ok(Prompts { named, default: default.map(str::to_owned) })
    }

    /// The prompt of a name, or without one the model's default, which is empty unless the model names it.
    ///
    /// # Errors
    /// The model has no such prompt.
    pub fn find(&self, name: Option<&str>) -> Result<&str, Error> {
        let Some(wanted) = name.or(self.default.as_deref()) else { return Ok("") };
        let found = self.named.iter().find(|(name, _)| name == wanted);
        match (found, name) {
            (Some((_, text)), _) => Ok(text),
            (None, None) => Ok(""),
            (None, Some(_)) => {
                let names: Vec<&str> = self.named.iter().map(|(name, _)| &**name).collect();
                let expected = match names.is_empty() {
                    true => "left out: the model has no prompts".to_owned(),
                    false => names.join(", "),
                };
                Err(Error::setting(Setting::PromptName, wanted, expected))
            }
        }
    }
}
