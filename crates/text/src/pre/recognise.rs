//! Identifies the pre-tokenizer of a `tokenizer.json` by its behaviour on probe texts.
//!
//! The patterns of the `tokenizer.json` and those of each table row are run on the probes; a row matches if it splits
//! every probe at the same places and normalizes alike. The spelling of patterns does not matter.

use std::ops::Range;
use std::sync::OnceLock;

use serde_json::Value;

use super::maker::Step;
use super::{Pre, TABLE, names};
use crate::Error;
use crate::bpe::Words;

/// Texts on which any two rows differ: contractions, capitals, runs of digits and white space, punctuation, scripts.
const PROBES: &[&str] = &[
    "I'm sure they've said we'll, it's HE'S I'D 'Twas don'tt l'amour '  'S x'RE",
    "a1 12 123 1234 12345678 3.14 x86 1st 2,000,000 ١٢٣٤ ½ ²³ Ⅷ",
    "one  two   three\tfour\n\nfive \n six\r\n  seven   \n\n\n   end   ",
    "foo(bar); baz[0] += qux->y; // !!! ??? ... -- ==> @user #tag $5 100% a_b ~/x.y\n}\n\n{\r\n",
    "camelCase HTTPServer iPhoneX McDonald ÉCOLE école straße ΑΒΓ абв ДОМ ǅ",
    "北京2024年你好,世界。 こんにちは カタカナ 한국어 텍스트 ㄱㄴ ㄅㄆㄇ ไทย हिन्दी नमस्ते العربية עברית",
    "e\u{301}a\u{308} x\u{20d0} \u{a0}nbsp\u{3000}wide “quoted” ‘single’ —dash… «x» 。、！ ！？ ￥",
    "😀😀 👍🏽 🇩🇪 \u{200d}\u{feff} ± × ÷ ∑ ∞ © ™ → <|x|> <sentinel:12> IMGIMGABCZ ^^ `` || $$ ++ <<>>",
    "x   12  7 \n  9\t\t3",
    "\n",
    " ",
    "   ",
    "\t\t\tx",
    " \n \n x",
    "x \u{85}\u{2028}y",
    "a\n/b/\n//c !/\n",
    " 7 77 777 7777",
    "a/b //\n .\r\n/ x ,a ,ab (a -b 'b \"c é.é #x",
    "مرحبا، كيف؟ हिन्दी। ಕನ್ನಡ ᾩ ǆ ĳ ﬁ ʰ ª",
];

/// The splits of the probes by each row; empty if a row cannot be run.
fn rows() -> &'static [Vec<Vec<Range<usize>>>] {
    static ROWS: OnceLock<Vec<Vec<Vec<Range<usize>>>>> = OnceLock::new();
    let cuts = |row: &Pre| {
        let words = Words::new(row)?;
        PROBES.iter().map(|probe| words.of(probe)).collect::<Result<_, Error>>()
    };
    ROWS.get_or_init(|| TABLE.iter().map(|row| cuts(row).unwrap_or_default()).collect())
}

/// The value of `tokenizer.ggml.pre` for the byte-level vocabulary of a `tokenizer.json`: the first name of the
/// matching row, or `like` if the row has that name.
///
/// # Errors
/// [`Error::UnrecognisedPre`] if no row matches, or if its parts cannot be read or run.
///
/// ```
/// let tokenizer = serde_json::json!({
///     "model": {"type": "BPE"}, "normalizer": null,
///     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
/// });
/// assert_eq!(bilayer_text::recognise(&tokenizer, "olmo")?, "gpt-2");
/// # Ok::<(), bilayer_text::Error>(())
/// ```
pub fn recognise(tokenizer: &Value, like: &str) -> Result<&'static str, Error> {
    let unrecognised = |reason: String| Error::UnrecognisedPre {
        found: shown(&tokenizer["pre_tokenizer"]),
        reason,
        known: names(),
    };
    let composes = composes(&tokenizer["normalizer"]).map_err(unrecognised)?;
    let cuts = cuts(&tokenizer["pre_tokenizer"]).map_err(unrecognised)?;
    let whole_words = tokenizer["model"]["ignore_merges"].as_bool().unwrap_or(false);
    let rows = TABLE.iter().zip(rows());
    let same_cuts: Vec<&Pre> =
        rows.filter(|(_, row_cuts)| **row_cuts == cuts).map(|(row, _)| row).collect();
    let is_same = |row: &&Pre| {
        row.whole_words == whole_words && (row.nfc == composes || row.makers_nfc == composes)
    };
    let same: Vec<&Pre> = same_cuts.iter().copied().filter(is_same).collect();
    if let Some(row) = same.iter().find(|row| row.names.contains(&like)).or(same.first()) {
        return Ok(row.names.iter().find(|name| **name == like).unwrap_or(&row.names[0]));
    }
    let near: Vec<&str> = same_cuts.iter().map(|row| row.names[0]).collect();
    Err(unrecognised(match near.is_empty() {
        true => "none of the known ways cuts the probes as it does".to_owned(),
        false => format!(
            "it cuts as {}, but {} characters and {} whole words",
            near.join(", "),
            if composes { "composes" } else { "does not compose" },
            if whole_words { "takes" } else { "merges" },
        ),
    }))
}

/// Whether text is normalized to NFC; any other normalization is an error.
fn composes(normalizer: &Value) -> Result<bool, String> {
    match (normalizer["type"].as_str(), normalizer["normalizers"].as_array()) {
        _ if normalizer.is_null() => Ok(false),
        (Some("NFC"), _) => Ok(true),
        (Some("Sequence"), Some(all)) => {
            all.iter().try_fold(false, |nfc, one| Ok(nfc | composes(one)?))
        }
        _ => Err("its normalizer changes text in another way than NFC".to_owned()),
    }
}

/// The splits of the probes by a `pre_tokenizer`.
fn cuts(pre_tokenizer: &Value) -> Result<Vec<Vec<Range<usize>>>, String> {
    if pre_tokenizer.is_null() {
        return Err("it cuts text in no way".to_owned());
    }
    let steps = Step::all(pre_tokenizer)?;
    PROBES.iter().map(|probe| Step::cut(&steps, probe)).collect()
}

/// JSON, truncated for a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(300).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rows whose different patterns split every text alike: bailingmoe's differences have no effect.
    const ALIKE: [&str; 3] = ["qwen2", "stablelm2", "bailingmoe"];

    #[test]
    fn rows_that_differ_cut_some_probe_differently() {
        for (row, cuts) in TABLE.iter().zip(rows()) {
            assert_eq!(cuts.len(), PROBES.len(), "{:?}", row.names);
            let same = TABLE.iter().zip(rows()).filter(|(_, other)| *other == cuts);
            for (other, _) in same {
                let named = [row.names[0], other.names[0]];
                let alike = named.iter().all(|name| ALIKE.contains(name));
                assert!(row.patterns == other.patterns || alike, "{named:?}");
            }
        }
    }

    /// Each row expressed as a `tokenizer.json`: a sequence of patterns, then bytes.
    #[test]
    fn every_row_is_recognised_by_what_it_does() {
        for row in TABLE {
            let mut steps: Vec<Value> = row.patterns.iter().map(|pattern| split(pattern)).collect();
            steps
                .push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false}));
            let tokenizer = json!({
                "normalizer": if row.nfc { json!({"type": "NFC"}) } else { Value::Null },
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
                "model": {"type": "BPE", "ignore_merges": row.whole_words},
            });
            let name = recognise(&tokenizer, row.names.last().unwrap()).unwrap();
            let found = super::super::find(name).unwrap();
            assert_eq!(found.patterns, row.patterns, "{:?} as {name}", row.names);
            assert_eq!((found.nfc, found.whole_words), (row.nfc, row.whole_words));
            assert_eq!(name, *row.names.last().unwrap());
        }
    }

    /// Published spellings of pre-tokenizers that the table has as patterns.
    #[test]
    fn makers_spellings_are_recognised() {
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": use_regex})
        };
        let digits = |each: bool| json!({"type": "Digits", "individual_digits": each});
        let steps = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
        let removed = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true});
        let cases = [
            ("GPT-2", Value::Null, bytes(true), false, "gpt-2"),
            (
                "StarCoder 2, SmolLM",
                Value::Null,
                steps(&[digits(true), bytes(true)]),
                false,
                "starcoder",
            ),
            (
                "Command R",
                json!({"type": "NFC"}),
                steps(&[digits(true), bytes(true)]),
                false,
                "command-r",
            ),
            ("OLMo", json!({"type": "NFC"}), bytes(true), false, "mpt"),
            (
                "Llama 3",
                Value::Null,
                steps(&[split(super::super::GPT4), bytes(false)]),
                true,
                "llama-bpe",
            ),
            (
                "GPT-4",
                Value::Null,
                steps(&[removed(super::super::GPT4), bytes(false)]),
                false,
                "dbrx",
            ),
            (
                "Qwen 2.5",
                json!({"type": "NFC"}),
                steps(&[split(super::super::GPT4_DIGITS), bytes(false)]),
                false,
                "qwen2",
            ),
        ];
        for (maker, normalizer, pre_tokenizer, whole_words, expected) in cases {
            let tokenizer = json!({
                "normalizer": normalizer,
                "pre_tokenizer": pre_tokenizer,
                "model": {"type": "BPE", "ignore_merges": whole_words},
            });
            assert_eq!(recognise(&tokenizer, "").ok(), Some(expected), "{maker}");
        }
    }

    /// A row that composes is not one that does not, even if its name is asked for.
    #[test]
    fn rows_are_told_apart_by_what_they_do_besides() {
        let nfc = json!({"type": "NFC"});
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}, nfc]});
        let twice = json!({"type": "Sequence", "normalizers": [nfc, nfc]});
        let none = json!({"type": "Sequence", "normalizers": []});
        let digits = [split(r"\p{N}")];
        let steps = |first: &[Value]| {
            let steps = [first, &[split(super::super::GPT2)]].concat();
            json!({"type": "Sequence", "pretokenizers": steps})
        };
        let cases = [
            (Value::Null, steps(&[]), false, "olmo", Ok("gpt-2")),
            (Value::Null, steps(&[]), false, "phi-2", Ok("phi-2")),
            (nfc.clone(), steps(&[]), false, "phi-2", Ok("mpt")),
            (nested, steps(&[]), false, "olmo", Ok("olmo")),
            (twice, steps(&[]), false, "", Ok("mpt")),
            (none, steps(&[]), false, "", Ok("gpt-2")),
            (Value::Null, steps(&digits), false, "command-r", Ok("starcoder")),
            (nfc.clone(), steps(&digits), false, "starcoder", Ok("command-r")),
            (Value::Null, split(super::super::GPT4), true, "glm4", Ok("glm4")),
            (Value::Null, split(super::super::GPT4), false, "glm4", Ok("dbrx")),
            (nfc.clone(), split(super::super::GPT4_DIGITS), false, "", Ok("qwen2")),
            (Value::Null, split(super::super::GPT4_DIGITS), false, "", Ok("qwen2")),
            (Value::Null, split(super::super::GPT4_DIGITS), false, "grok-2", Ok("grok-2")),
            (
                nfc,
                split(super::super::GPT4),
                true,
                "",
                Err(
                    "it cuts as llama-bpe, dbrx, glm4, but composes characters and takes whole words",
                ),
            ),
            (
                Value::Null,
                steps(&[]),
                true,
                "",
                Err("it cuts as gpt-2, mpt, but does not compose characters and takes whole words"),
            ),
            (
                json!({"type": "NFC"}),
                split(super::super::BLOOM),
                false,
                "",
                Err("but composes characters and merges whole words"),
            ),
        ];
        for (normalizer, pre_tokenizer, whole_words, like, expected) in cases {
            let model = json!({"type": "BPE", "ignore_merges": whole_words});
            let tokenizer =
                json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model});
            match (recognise(&tokenizer, like), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{tokenizer}"),
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (found, _) => panic!("{tokenizer}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_is_shown_has_300_characters() {
        for (len, dots) in [(298, ""), (299, "...")] {
            let text = "é".repeat(len);
            let shown = shown(&Value::from(text.as_str()));
            assert!(
                shown.starts_with("\"éé")
                    && shown.ends_with(if dots.is_empty() { "\"" } else { dots })
            );
            assert_eq!(shown.chars().count(), 300 + dots.len());
        }
    }

    #[test]
    fn qwens_composition_is_what_its_files_go_without() {
        let tokenizer = json!({
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": split(super::super::GPT4_DIGITS),
            "model": {"type": "BPE", "ignore_merges": false},
        });
        assert_eq!(recognise(&tokenizer, "qwen2").unwrap(), "qwen2");
    }

    #[test]
    fn what_nobody_does_is_unknown_and_shown() {
        let cases = [
            (Value::Null, split(r"\p{L}{2}|."), "none of the known ways"),
            (Value::Null, Value::Null, "in no way"),
            (json!({"type": "Lowercase"}), split(super::super::GPT2), "another way than NFC"),
            (json!({"type": "NFC"}), split(super::super::DEEPSEEK3), "none of the known"),
            (json!({"type": "NFC"}), split(super::super::BLOOM), "composes characters"),
            (Value::Null, json!({"type": "Magic"}), "Magic"),
            (Value::Null, split("(unclosed"), "unclosed"),
        ];
        for (normalizer, pre_tokenizer, expected) in cases {
            let tokenizer = json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer});
            let error = recognise(&tokenizer, "").unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    fn split(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }
}
