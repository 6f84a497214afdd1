//! Fields of an encoder's checkpoint, as keys.

use bilayer_gguf::Strings;

use super::{MULTI_LABEL, PER_TOKEN};
use crate::{Draft, Error, Settings};

/// Reads the encoder fields of a checkpoint besides sizes: token types, separator token, labels.
pub(crate) fn draft(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft_of(draft, "absolute")
}

/// [`draft`] of a checkpoint whose positions are of that type.
pub(crate) fn draft_of(draft: &mut Draft<'_>, positions: &str) -> Result<(), Error> {
    let feature = "positions of another type";
    draft.refuse("position_embedding_type", &[positions.into()], feature)?;
    draft.set("attention.causal", false);
    if let Some(types) = draft.settings.size(&["type_vocab_size"])? {
        draft.metadata.set("tokenizer.ggml.token_type_count", types);
    }
    if let Some(id) = draft.settings.size(&["sep_token_id"])? {
        draft.metadata.set("tokenizer.ggml.seperator_token_id", id);
    }
    if classifies(draft.settings) {
        let labels: Strings = labels(draft.settings).iter().map(String::as_str).collect();
        draft.set("classifier.output_labels", labels);
    }
    if classifies_tokens(draft.settings) {
        draft.set(PER_TOKEN, true);
    }
    if draft.settings.0["problem_type"] == "multi_label_classification" {
        draft.set(MULTI_LABEL, true);
    }
    Ok(())
}

/// Whether the checkpoint's class has a classification head for texts or tokens.
fn classifies(settings: Settings<'_>) -> bool {
    classifies_texts(settings) || classifies_tokens(settings)
}

/// Whether the checkpoint's class has a head that scores texts.
pub(crate) fn classifies_texts(settings: Settings<'_>) -> bool {
    is_for(settings, "ForSequenceClassification")
}

/// Whether the checkpoint's class has a head that scores each token.
pub(crate) fn classifies_tokens(settings: Settings<'_>) -> bool {
    is_for(settings, "ForTokenClassification")
}

fn is_for(settings: Settings<'_>, task: &str) -> bool {
    settings.0["architectures"][0].as_str().is_some_and(|class| class.ends_with(task))
}

/// The labels ordered by their numbers; two generic ones if the checkpoint names none.
fn labels(settings: Settings<'_>) -> Vec<String> {
    let Some(given) = settings.0["id2label"].as_object() else {
        return ["LABEL_0", "LABEL_1"].map(str::to_owned).to_vec();
    };
    let number = |key: &str| key.parse::<usize>().unwrap_or(usize::MAX);
    let mut labels: Vec<_> = given.iter().map(|(key, label)| (number(key), label)).collect();
    labels.sort_by_key(|(number, _)| *number);
    labels.into_iter().map(|(_, label)| label.as_str().unwrap_or_default().to_owned()).collect()
}
