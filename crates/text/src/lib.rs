//! Strings to tokens and back: tokenizers from GGUF vocabularies, chat templates, streaming decode.
//!
//! A tokenizer is built solely from a GGUF file's vocabulary and produces the ids of the original tokenizer.
//! [`Vocabulary`] is that vocabulary as plain data, so this crate reads no files.
//!
//! What this crate deliberately does not know: files, models, conversations, sampling.
//!
//! Read first: [`Tokenizer`], [`Decoder`], [`Vocabulary`], [`chat::Template`].
//!
//! | `tokenizer.ggml.model` | how |
//! |---|---|
//! | `llama` | SentencePiece's merging by score, with bytes for characters that have no token |
//! | `t5` | SentencePiece's unigrams: the pieces with the greatest sum of scores, after normalization by the file's rules |
//! | `gpt2` | byte pairs over bytes: words by `tokenizer.ggml.pre`, then the merges by rank |
//! | `gemma4` | byte pairs over characters, spaces as U+2581, with bytes for the rest; texts always begin with `bos`, since files say otherwise without cause |
//! | `gpt2` with `tokenizer.ggml.pre` `gemma4`, `granite-embed-multi-311m` or `sarvam-moe` | as `gemma4`; texts for `sarvam-moe` begin with `bos` only where the file says so |
//! | `no_vocab` | not at all: ids are spelled as such, and a text is an error |
//! | `bert` | BERT's normalisation, then WordPiece |
//!
//! Supported values of `tokenizer.ggml.pre`; any other is an error, as is its absence:
//!
//! `a.x-4.0` `afmoe` `bailingmoe` `bailingmoe2` `bloom` `chameleon` `chatglm-bpe` `codeshell`
//! `cohere2moe` `command-r` `dbrx` `deepseek-coder` `deepseek-llm` `deepseek-r1-qwen` `deepseek-v3`
//! `default` `exaone` `exaone-moe` `exaone4` `f2llmv2` `falcon` `falcon-h1` `falcon3` `gigachat`
//! `glm4` `glm5` `gpt-2` `gpt-4o` `gpt3-finnish` `granite-docling` `granite-embed-multi-97m`
//! `grok-2` `hunyuan` `hunyuan-dense` `hy_v4` `jais` `jais-2` `jina-de` `jina-es` `jina-v1-en`
//! `jina-v2-code` `jina-v2-de` `jina-v2-es` `jina-v5-nano` `joyai-llm` `kanana2` `kimi-k2` `kormo`
//! `laguna` `lfm2` `llada-moe` `llama-bpe` `llama-v3` `llama3` `llama4` `megrez` `mellum` `mellum2`
//! `midm-2.0` `minerva-7b` `minicpm5` `minimax-m2` `modern-bert` `mpt` `olmo` `phi-2` `pixtral`
//! `poro-chat` `qwen2` `qwen35` `refact` `roberta-bpe` `seed-coder` `smaug-bpe` `smollm`
//! `solar-open` `spark2_5` `stablelm2` `starcoder` `superbpe` `talkie` `tekken` `tiny_aya`
//! `trillion` `ufakzeka` `viking` `youtu`
//!
//! Where llama.cpp and the original tokenizers differ, this crate follows the originals: BERT's vowel signs and
//! Hangul, SentencePiece's ties, and NFC text for `mpt`, `olmo`, `modern-bert` and `command-r`. The exception is
//! Qwen: its original tokenizer composes characters too, but the recorded ids do not, so text for `qwen2` and
//! `qwen35` is not normalized.
//!
//! ```
//! use bilayer_text::{Decode, Decoder, Encode, Tokenizer, Vocabulary};
//!
//! let strings = |list: &[&'static str]| list.iter().map(|&item| item.into()).collect();
//! let tokenizer = Tokenizer::new(Vocabulary {
//!     model: "gpt2".into(),
//!     pre: Some("gpt-2".into()),
//!     tokens: strings(&["a", "b", "Ġ", "Ġa", "<|endoftext|>"]),
//!     types: vec![1, 1, 1, 1, 3],
//!     merges: strings(&["Ġ a"]),
//!     eos: Some(4),
//!     ..Vocabulary::default()
//! })?;
//! let ids = tokenizer.encode("b a<|endoftext|>", Encode { parse_special: true, ..Encode::default() })?;
//! assert_eq!(ids, [1, 3, 4]);
//! assert!(tokenizer.is_end(4));
//!
//! let mut decoder = Decoder::new(&tokenizer, Decode::default());
//! let texts: Vec<String> = ids.iter().map(|&id| decoder.push(id).text).collect();
//! assert_eq!(texts, ["b", " a", ""]);
//! # Ok::<(), bilayer_text::Error>(())
//! ```

mod alignment;
mod bpe;
pub mod chat;
mod decode;
mod error;
mod found;
mod hash_index;
mod merging;
mod pieces;
mod pre;
mod spans;
mod special;
mod spellings;
mod spm;
mod stops;
mod tokenizer;
mod view;
mod vocabulary;
mod wordpiece;

pub use decode::{Decode, Decoder, Piece};
pub use error::Error;
pub use pre::recognise;
pub use spans::TokenSpan;
pub use stops::StopStrings;
pub use tokenizer::{Encode, Tokenizer};
pub use vocabulary::Vocabulary;
