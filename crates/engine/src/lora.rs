//! Adapters (LoRA) in GGUF files, as llama.cpp's converter writes them.

use std::path::Path;

use bilayer_gguf::{File, OpenOptions};
use bilayer_graph::Lora;

use crate::Error;
use crate::file::open_with;

/// Who sets the strength of a model's adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strength {
    /// The scales that they were opened with, in every sequence.
    #[default]
    Fixed,
    /// Each sequence; those scales where it says nothing.
    OfSequence,
}

/// An opened adapter and its strength.
#[derive(Debug)]
pub struct LoraFile {
    file: File,
    scale: f32,
}

impl LoraFile {
    /// Opens an adapter; `scale` is its strength, 1 as it was trained.
    ///
    /// # Errors
    /// The file is missing or damaged, or not an adapter that can be applied.
    pub fn open(path: &Path, scale: f32) -> Result<LoraFile, Error> {
        LoraFile::open_with(path, scale, OpenOptions::default())
    }

    /// [`LoraFile::open`] with options.
    ///
    /// # Errors
    /// Those of [`LoraFile::open`].
    pub fn open_with(path: &Path, scale: f32, options: OpenOptions<'_>) -> Result<LoraFile, Error> {
        let file = open_with(path, options)?;
        let wrong = |problem: String| Error::Adapter { file: file.name().to_owned(), problem };
        let metadata = file.metadata();
        let is = |key: &str, expected: &str| {
            let found = metadata.opt_str(key).map_err(Error::File)?.unwrap_or("nothing");
            match found == expected {
                true => Ok(()),
                false => Err(wrong(format!("{key} is {found}, expected {expected}"))),
            }
        };
        is("general.type", "adapter")?;
        is("adapter.type", "lora")?;
        if metadata.get("adapter.alora.invocation_tokens").is_some() {
            return Err(wrong(
                "adapters that begin at certain tokens (aLoRA) are not applied".to_owned(),
            ));
        }
        if !scale.is_finite() {
            return Err(wrong(format!("its scale is {scale}, expected a finite number")));
        }
        for tensor in file.tensors() {
            let name = tensor.name();
            let of = name.strip_suffix(".lora_a").or_else(|| name.strip_suffix(".lora_b"));
            match of {
                Some(of) if of.starts_with("token_embd") => {
                    return Err(wrong(format!("tensor {name}: embeddings are not adapted")));
                }
                Some(_) => {}
                None => {
                    return Err(wrong(format!(
                        "tensor {name}: expected a name in .lora_a or .lora_b"
                    )));
                }
            }
        }
        Ok(LoraFile { file, scale })
    }

    /// Puts its tensors beside those of the model `base`.
    pub(crate) fn join(self, base: File, loras: &mut Vec<Lora>) -> Result<File, Error> {
        let LoraFile { file, scale } = self;
        let name = file.name().to_owned();
        let wrong = |problem: String| Error::Adapter { file: name.clone(), problem };
        let key = "general.architecture";
        let [own, its] = [&file, &base].map(|file| file.metadata().str(key).map(str::to_owned));
        let (own, its) = (own.map_err(Error::File)?, its.map_err(Error::File)?);
        if own != its {
            return Err(wrong(format!("it adapts {own}, and {} is {its}", base.name())));
        }
        for tensor in file.tensors() {
            let of = tensor.name().rsplit_once('.').map_or("", |(of, _)| of);
            if base.tensor(of).is_none() {
                return Err(wrong(format!("tensor {of} is not in {}", base.name())));
            }
        }
        let alpha = file.metadata().opt_f32("adapter.lora.alpha").map_err(Error::File)?;
        let mut prefix = format!("{name}: ");
        if loras.iter().any(|lora| lora.prefix == prefix) {
            // The strengths of an adapter that is given again add up.
            prefix = format!("{name} ({}): ", loras.len());
        }
        loras.push(Lora {
            prefix: prefix.clone(),
            scale,
            alpha: alpha.filter(|&alpha| alpha != 0.0),
        });
        base.joined(file, &prefix).map_err(Error::File)
    }
}

/// The error for a tensor of an adapter that no part of the model uses, such as one for a block that is not computed.
pub(crate) fn adapts_nothing(loras: &[Lora], tensor: &str) -> Option<Error> {
    let mut found =
        loras.iter().filter_map(|lora| Some((lora, tensor.strip_prefix(&lora.prefix)?)));
    let (lora, name) = found.next()?;
    let file = lora.prefix.trim_end_matches(": ").to_owned();
    Some(Error::Adapter { file, problem: format!("tensor {name} adapts nothing that is computed") })
}
