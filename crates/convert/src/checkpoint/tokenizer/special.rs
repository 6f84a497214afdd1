//! Special tokens, and which of them are added around a text.

use std::collections::HashMap;

use bilayer_text::Vocabulary;
use serde_json::Value;

use super::Source;

impl Source<'_> {
    /// Sets the ids of the special tokens and whether they are added at the beginning and end of texts.
    ///
    /// Names in tokenizer files take precedence over ids in model files, and both over SentencePiece's.
    pub(super) fn specials(&self, vocabulary: &mut Vocabulary<'_>) {
        let tokens = std::mem::take(&mut vocabulary.tokens);
        let ids: HashMap<&str, u32> = tokens.iter().map(|token| &**token).zip(0..).collect();
        let named = |name: &str| {
            let key = format!("{name}_token");
            let by_text = [self.config, &self.map].into_iter().find_map(|file| {
                let token = &file[&key];
                let text = token.as_str().or_else(|| token["content"].as_str())?;
                ids.get(text).copied()
            });
            by_text.or_else(|| {
                let id = self.checkpoint.settings().0[format!("{key}_id")].as_u64()?;
                u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.len())
            })
        };
        vocabulary.bos = named("bos").or(vocabulary.bos);
        vocabulary.eos = named("eos").or(self.ends().first().copied()).or(vocabulary.eos);
        vocabulary.unk = named("unk").or(vocabulary.unk);
        vocabulary.sep = named("sep").or(vocabulary.sep);
        vocabulary.pad = named("pad").or(vocabulary.pad);
        vocabulary.cls = named("cls").or(vocabulary.cls);
        vocabulary.mask = named("mask").or(vocabulary.mask);
        let Around { first, last, between } = around(&self.json["post_processor"]);
        let flag = |name: &str| self.config[name].as_bool();
        let text = |id: Option<u32>| id.map(|id| &*tokens[id as usize]);
        // The token behind a text is what GGUF files call the end of sequence. Embedding models made of chat models add
        // another than the one that ends an answer.
        let behind = last.flatten().filter(|&last| Some(last) != text(vocabulary.sep));
        let behind = behind.and_then(|last| ids.get(last).copied());
        let is_added = vocabulary.model != "bert" && flag("add_eos_token") != Some(false);
        let behind = behind.filter(|_| is_added);
        let end = behind.and(vocabulary.eos);
        vocabulary.eos = behind.or(vocabulary.eos);
        let mut others = Vec::new();
        for id in end.into_iter().chain(self.ends()) {
            let is_other = Some(id) != vocabulary.eos && (id as usize) < tokens.len();
            if is_other && !others.contains(&id) {
                others.push(id);
            }
        }
        (vocabulary.eot, vocabulary.eom) = (others.first().copied(), others.get(1).copied());
        // BERT vocabularies always add theirs.
        if vocabulary.model != "bert" {
            let (bos, eos) = (text(vocabulary.bos), text(vocabulary.eos));
            let is = |place: &Option<Option<&str>>, token: Option<&str>| {
                place.map(|found| found.is_some() && (found == token))
            };
            let (add_bos, add_eos) = (flag("add_bos_token"), flag("add_eos_token"));
            vocabulary.add_bos = add_bos.or(is(&first, bos)).or(vocabulary.add_bos);
            // Without a template the original tokenizer adds nothing, but readers of GGUF files would, for some
            // pre-tokenizers.
            if !vocabulary.merges.is_empty() && bos.is_some() {
                vocabulary.add_bos = vocabulary.add_bos.or(Some(false));
            }
            vocabulary.add_eos = add_eos.or(is(&last, eos)).or(vocabulary.add_eos);
            let sep = text(vocabulary.sep);
            if first.is_some() {
                vocabulary.add_sep = (sep.is_some() && between == sep).then_some(true);
            }
        }
        vocabulary.tokens = tokens;
    }

    /// End-of-sequence tokens, if the files list several.
    fn ends(&self) -> Vec<u32> {
        let ids = |value: &Value| -> Vec<u32> {
            let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            list.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
        };
        let generation = ids(&self.generation["eos_token_id"]);
        match generation.is_empty() {
            true => ids(&self.checkpoint.settings().0["eos_token_id"]),
            false => generation,
        }
    }
}

/// The tokens that the template of `tokenizer.json` adds around texts.
#[derive(Default)]
struct Around<'j> {
    /// Before a text; outer `None` without a template.
    first: Option<Option<&'j str>>,
    /// After a text; outer `None` without a template.
    last: Option<Option<&'j str>>,
    /// Between the texts of a pair, behind the token that is after each.
    between: Option<&'j str>,
}

fn around(template: &Value) -> Around<'_> {
    if let Some(parts) = template["processors"].as_array() {
        return parts.iter().map(around).find(|found| found.first.is_some()).unwrap_or_default();
    }
    // The names of these without a template; between texts, RoBERTa has its separator twice.
    if let Some("RobertaProcessing" | "BertProcessing") = template["type"].as_str() {
        let (first, last) = (template["cls"][0].as_str(), template["sep"][0].as_str());
        let between = last.filter(|_| template["type"] == "RobertaProcessing");
        return Around { first: Some(first), last: Some(last), between };
    }
    let Some(single) = template["single"].as_array() else { return Around::default() };
    let pair = template["pair"].as_array().map_or(&[][..], Vec::as_slice);
    let last = token(single.last());
    let mut behind_first = pair.iter().skip_while(|step| step["Sequence"].is_null()).skip(1);
    let mut between = token(behind_first.next());
    if between == last {
        between = token(behind_first.next());
    }
    Around { first: Some(token(single.first())), last: Some(last), between }
}

/// The token of a template step; `None` if the step is a text.
fn token(step: Option<&Value>) -> Option<&str> {
    step.and_then(|step| step["SpecialToken"]["id"].as_str())
}
