//! Pre-tokenizers of byte-level vocabularies: one table, indexed by `tokenizer.ggml.pre`.
//!
//! Merges never cross a word boundary. Each row holds the patterns of an original tokenizer; a pattern is applied to
//! each piece left by the previous one, and its matches and the gaps between them become pieces.
//!
//! NFC: MPT, OLMo, ModernBERT and Command R as in their tokenizers. Qwen's tokenizers normalize too, but the recorded
//! ids for `qwen2` and `qwen35` are without it, as in llama.cpp, and those decide.
//!
//! Sources: the `tokenizer.json` and `tiktoken` files of the publishers, found through the names in llama.cpp
//! (`llama-vocab.cpp`). Where llama.cpp adapts a pattern to its engine, the original is used here.

mod maker;
mod recognise;

pub use recognise::recognise;

/// A pre-tokenizer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pre {
    /// Its values of `tokenizer.ggml.pre`.
    pub names: &'static [&'static str],
    /// The patterns, in order.
    pub patterns: &'static [&'static str],
    /// Whether text is normalized to NFC first.
    pub nfc: bool,
    /// Whether the original tokenizer normalizes to NFC, even if the recorded ids do not.
    pub makers_nfc: bool,
    /// Whether a word that is itself a token skips merging.
    pub whole_words: bool,
    /// Whether `bos` is added by default if the file does not say.
    pub add_bos: bool,
    /// Whether `bos` is added even if the file says that it is not.
    pub always_bos: bool,
}

const PLAIN: Pre = Pre {
    names: &[],
    patterns: &[],
    nfc: false,
    makers_nfc: false,
    whole_words: false,
    add_bos: false,
    always_bos: false,
};

/// GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-4 (`cl100k`) and with it Llama 3: digits in threes.
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4 with single digits: Qwen 2.
const GPT4_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o (`o200k`): words are cut before a capital, contractions stay with their word.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The last pattern of DeepSeek V3 and related models.
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Numbers in groups of three counted from their end, as in `1 234 567`: Arcee's AFMoE.
pub(crate) const THREES: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
/// [`THREES`] of decimal digits, unless a letter follows the number: Tiny Aya.
pub(crate) const THREES_OF_WORDS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// The places before each group of three digits counted from the end of a number: SuperBPE.
pub(crate) const BEFORE_THREES: &str = r"(?=(\d{3})+(?!\d))";
/// BLOOM: runs without space and common punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// The letters of the DeepSeek LLM: those of scripts with capitals.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    r"\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}",
    r"\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}",
    r"\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}",
    r"\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}",
    r"\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}",
    r"\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}",
    r"\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}",
    r"\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}",
    r"\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}",
    r"\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}",
    r"\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}",
    r"\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}",
    r"\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}",
    r"\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}",
    r"\u{1e900}-\u{1e943}]+",
);
/// Runs of CJK ideographs and kana.
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
/// Runs of the scripts of Asia without spaces, and of Hangul and Burmese.
const ASIAN: &str = concat!(
    r"[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}",
    r"\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e00}-\u{e7f}\u{e80}-\u{eff}",
    r"\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}",
    r"\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
);
/// [`CJK`] with Hangul, in the first DeepSeek models.
const CJK_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";

/// All pre-tokenizers.
pub(crate) const TABLE: &[Pre] = &[
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "roberta-bpe",
            "jina-v1-en",
            "jina-v2-code",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        patterns: &[GPT2],
        ..PLAIN
    },
    Pre {
        names: &["mpt", "olmo", "modern-bert"],
        patterns: &[GPT2],
        nfc: true,
        makers_nfc: true,
        ..PLAIN
    },
    Pre {
        names: &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Pre {
        names: &["command-r"],
        patterns: &[r"\p{N}", GPT2],
        nfc: true,
        makers_nfc: true,
        ..PLAIN
    },
    Pre {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    Pre {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    Pre {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[GPT4],
        whole_words: true,
        add_bos: true,
        ..PLAIN
    },
    Pre { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], patterns: &[GPT4], ..PLAIN },
    Pre { names: &["laguna"], patterns: &[LINES, GPT4_DIGITS], ..PLAIN },
    Pre { names: &["glm4", "glm5"], patterns: &[GPT4], whole_words: true, ..PLAIN },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
        patterns: &[GPT4_DIGITS],
        makers_nfc: true,
        ..PLAIN
    },
    Pre {
        names: &["stablelm2", "hunyuan", "solar-open", "grok-2"],
        patterns: &[GPT4_DIGITS],
        ..PLAIN
    },
    Pre {
        names: &["qwen35"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        makers_nfc: true,
        ..PLAIN
    },
    Pre {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        patterns: &[GPT4O],
        ..PLAIN
    },
    Pre { names: &["granite-embed-multi-97m"], patterns: &[GPT4O], whole_words: true, ..PLAIN },
    Pre { names: &["tiny_aya", "cohere2moe"], patterns: &[THREES_OF_WORDS, GPT4O], ..PLAIN },
    Pre { names: &["superbpe"], patterns: &[r"\p{N}+", BEFORE_THREES], ..PLAIN },
    Pre { names: &["afmoe"], patterns: &[THREES, ASIAN, DEEPSEEK3], ..PLAIN },
    Pre {
        names: &["tekken"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: true,
        add_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["deepseek-llm"],
        patterns: &[
            "[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            CJK_HANGUL,
            r"\p{N}+",
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-coder"],
        patterns: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, r"\p{N}"],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: &[r"\p{N}{1,3}", CJK, DEEPSEEK3],
        ..PLAIN
    },
    Pre {
        names: &["spark2_5"],
        patterns: &[
            r"\p{N}{1,3}",
            CJK,
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            r"\p{N}",
        ],
        ..PLAIN
    },
    Pre {
        names: &["kimi-k2"],
        patterns: &[
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    Pre { names: &["bloom", "poro-chat", "gpt3-finnish"], patterns: &[BLOOM], ..PLAIN },
    Pre { names: &["viking"], patterns: &[BLOOM, r"\p{N}"], ..PLAIN },
    Pre {
        names: &["jais-2"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        ],
        ..PLAIN
    },
    Pre {
        names: &["chameleon"],
        patterns: &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        add_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["youtu"],
        patterns: &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: true,
        ..PLAIN
    },
    Pre {
        names: &["exaone-moe"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    Pre {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    Pre {
        names: &["seed-coder"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    Pre {
        names: &["minicpm5"],
        patterns: &[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: true,
        ..PLAIN
    },
    Pre {
        names: &["ufakzeka"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
];

/// Lines and runs of line breaks.
const LINES: &str = r"[^\n]+|\n+";

/// The `gemma4` vocabulary merges over the whole text; since no token contains both newlines and other characters,
/// splitting there changes only the time.
pub(crate) const GEMMA4: Pre = Pre { patterns: &[LINES], add_bos: true, always_bos: true, ..PLAIN };

/// [`GEMMA4`] of Sarvam, whose texts do not begin with `bos`.
const SARVAM: Pre = Pre { patterns: &[LINES], ..PLAIN };

/// The pre-tokenizer for values of `tokenizer.ggml.pre` whose vocabularies are of characters as that of `gemma4`, though
/// `tokenizer.ggml.model` is `gpt2`.
pub(crate) fn find_escaped(name: &str) -> Option<&'static Pre> {
    match name {
        "gemma4" | "granite-embed-multi-311m" => Some(&GEMMA4),
        "sarvam-moe" => Some(&SARVAM),
        _ => None,
    }
}

/// The row for a value of `tokenizer.ggml.pre`.
pub(crate) fn find(name: &str) -> Option<&'static Pre> {
    TABLE.iter().find(|pre| pre.names.contains(&name))
}

/// All names in the table, for messages.
pub(crate) fn names() -> String {
    let mut names: Vec<&str> = TABLE.iter().flat_map(|pre| pre.names).copied().collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_means_one_row_and_the_documentation_lists_it() {
        let documented = include_str!("lib.rs");
        for name in TABLE.iter().flat_map(|pre| pre.names) {
            let rows = TABLE.iter().filter(|pre| pre.names.contains(name)).count();
            assert_eq!(rows, 1, "{name}");
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in lib.rs");
        }
        let list = documented.split_once("Supported values of `tokenizer.ggml.pre`");
        let list = list.and_then(|(_, rest)| rest.split_once("\n//! Where ")).expect("the list").0;
        let listed: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed.len(), TABLE.iter().flat_map(|pre| pre.names).count());
        for name in listed {
            assert!(find(name).is_some_and(|pre| !pre.patterns.is_empty()), "{name} has no row");
        }
        let known = names();
        assert!(known.starts_with("a.x-4.0, afmoe, ") && known.ends_with(", viking, youtu"));
        assert!(find("gpt-5").is_none());
    }

    #[test]
    fn characters_are_composed_where_the_makers_do() {
        for pre in TABLE {
            let name = pre.names[0];
            let makers = ["mpt", "command-r", "qwen2", "qwen35"].contains(&name);
            let recorded = ["mpt", "command-r"].contains(&name);
            assert_eq!((pre.makers_nfc, pre.nfc), (makers, recorded), "{name}");
        }
    }
}
