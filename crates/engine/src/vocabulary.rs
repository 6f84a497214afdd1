//! The vocabulary of a GGUF file: its keys `tokenizer.ggml.*` as plain data for `bilayer-text`.

use bilayer_gguf::{Error, Metadata};
use bilayer_text::Vocabulary;

/// Reads the vocabulary out of `metadata`. What the keys say is checked by
/// [`bilayer_text::Tokenizer::new`]; absent keys stay absent, for most have defaults that depend
/// on the kind of tokenizer.
///
/// # Errors
/// [`Error::MissingKey`] without a model and tokens, [`Error::WrongType`].
pub fn vocabulary(metadata: &Metadata) -> Result<Vocabulary, Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.opt_u32(&key(name));
    let flag = |name: &str| metadata.opt_bool(&key(name));
    let strings = |name: &str| {
        let strings = metadata.opt_strings(&key(name))?;
        Ok(strings.map(|strings| strings.iter().map(str::to_owned).collect()).unwrap_or_default())
    };
    Ok(Vocabulary {
        name: metadata.opt_str("general.name")?.unwrap_or_default().to_owned(),
        model: metadata.str(&key("model"))?.to_owned(),
        pre: metadata.opt_str(&key("pre"))?.map(str::to_owned),
        tokens: metadata.strings(&key("tokens"))?.iter().map(str::to_owned).collect(),
        scores: metadata.opt_f32s(&key("scores"))?.unwrap_or_default().into_owned(),
        types: metadata.opt_i32s(&key("token_type"))?.unwrap_or_default().into_owned(),
        merges: strings("merges")?,
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        sep: id("seperator_token_id")?,
        pad: id("padding_token_id")?,
        cls: id("cls_token_id")?,
        mask: id("mask_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
    })
}
