//! The tokenizer of a model: special tokens, encoding by vocabulary type, decoding.

use std::sync::Arc;

use crate::bpe::Bpe;
use crate::pieces::{Alphabet, Pieces};
use crate::pre::{self, Pre};
use crate::special::{Fragment, Matcher};
use crate::spm::{Spm, UNIGRAM};
use crate::view::decode;
use crate::vocabulary::TokenType;
use crate::wordpiece::Words;
use crate::{Error, Vocabulary};

/// Supported values of `tokenizer.ggml.model`.
const MODELS: &str = "llama and t5 (SentencePiece), gpt2 (byte-level), gemma4, bert (WordPiece), no_vocab (ids alone)";

/// A vocabulary of unknown tokens: it spells ids and encodes no text.
const IDS: &str = "no_vocab";

/// A spelling in [`ENDS`] that is also a tag of HTML: an ordinary token of Gemma, Qwen and Phi, which ends a turn only where
/// the file says that it is a control token, or names it.
const CLOSING_TAG: &str = "</s>";

/// Spellings of tokens that end a model's turn. They are control tokens, whatever type the file gives them, except
/// [`CLOSING_TAG`] and what merges make of text.
///
/// Source: the list in llama.cpp (`llama-vocab.cpp`), from published chat formats.
const ENDS: &[&str] = &[
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|call|>",
    "<|calls|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|flush|>",
    "<|im_end|>",
    "<|return|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Tokens after which white space is kept in every model.
const KEEPS_SPACE: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// Options of encoding; the default encodes the text alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encode {
    /// Add the tokens that the model expects around a text: `bos`, `eos`, `[CLS]`, `[SEP]`.
    pub add_special: bool,
    /// Parse the spellings of control tokens in the text as those tokens. Right for the output of chat templates,
    /// never for user input.
    pub parse_special: bool,
}

/// Converts text to tokens and back. Immutable; can be shared by threads.
///
/// ```
/// use bilayer_text::{Encode, Tokenizer, Vocabulary};
///
/// let strings = |list: &[&'static str]| list.iter().map(|&item| item.into()).collect();
/// let tokenizer = Tokenizer::new(Vocabulary {
///     model: "llama".into(),
///     tokens: strings(&["<unk>", "<s>", "▁", "h", "i", "hi", "▁hi"]),
///     scores: vec![0.0, 0.0, -3.0, -4.0, -5.0, -1.0, -2.0],
///     types: vec![2, 3, 1, 1, 1, 1, 1],
///     bos: Some(1),
///     unk: Some(0),
///     ..Vocabulary::default()
/// })?;
/// let ids = tokenizer.encode("hi hi", Encode { add_special: true, parse_special: false })?;
/// assert_eq!(ids, [1, 6, 6]);
/// assert_eq!(tokenizer.decode(&ids), "hi hi");
/// # Ok::<(), bilayer_text::Error>(())
/// ```
pub struct Tokenizer {
    model: Model,
    pieces: Arc<Pieces>,
    /// User-defined tokens: matched in every text.
    user_defined: Matcher,
    /// User-defined, control and unknown tokens: matched if special tokens are parsed.
    special: Matcher,
    ends: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    sep: Option<u32>,
    pad: Option<u32>,
    /// Added before each text.
    first: Option<u32>,
    /// Added after each text.
    last: Option<u32>,
    adds_sep: bool,
    notes: Vec<String>,
}

/// The algorithm of a vocabulary.
pub(crate) enum Model {
    Spm(Spm),
    Bpe(Box<Bpe>),
    Words(Box<Words>),
    Ids,
}

impl Tokenizer {
    /// Validates `vocabulary` and builds its tokenizer.
    ///
    /// # Errors
    /// Any [`Error`] except [`Error::NoToken`] and [`Error::Pattern`].
    pub fn new(mut vocabulary: Vocabulary<'_>) -> Result<Self, Error> {
        let (mut types, notes) = vocabulary.check()?;
        for (token, kind) in vocabulary.tokens.iter().zip(&mut types) {
            if is_unmarked_end(token, *kind, &vocabulary) {
                *kind = TokenType::Control;
            }
        }
        let (alphabet, pre) = recipe(&vocabulary)?;
        let mut pieces = Pieces::new(&vocabulary.tokens, types, alphabet)?;
        let types: Vec<TokenType> =
            (0..pieces.len() as u32).filter_map(|id| pieces.kind(id)).collect();
        let is_bert = vocabulary.model == "bert";
        let (first, last) =
            if is_bert { around_words(&vocabulary)? } else { around(&vocabulary, pre)? };
        let strips = vocabulary.strips_after_special();
        let matcher = |wanted: fn(TokenType) -> bool| {
            let tokens = vocabulary.tokens.iter().zip(0..).zip(&types);
            Matcher::new(tokens.filter(|(_, kind)| wanted(**kind)).map(|((token, id), _)| {
                (token.as_ref(), id, strips && !KEEPS_SPACE.contains(&token.as_ref()))
            }))
        };
        let user_defined = matcher(|kind| kind == TokenType::UserDefined);
        let special = matcher(TokenType::is_plain);
        let ends = ends(&vocabulary, &types);
        let model = match pre {
            Some(pre) => Model::Bpe(Box::new(Bpe::new(&vocabulary, &types, pre, alphabet)?)),
            None if vocabulary.model == IDS => Model::Ids,
            None if is_bert => Model::Words(Box::new(Words::new(&mut vocabulary, &types)?)),
            None => Model::Spm(Spm::new(&vocabulary, &types)?),
        };
        pieces.adds_space = match &model {
            Model::Spm(spm) => spm.adds_space(),
            Model::Bpe(_) | Model::Ids => false,
            Model::Words(_) => true,
        };
        Ok(Self {
            model,
            pieces: Arc::new(pieces),
            user_defined,
            special,
            ends,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            sep: vocabulary.sep,
            pad: vocabulary.pad,
            first,
            last,
            // BERT's separator ends the first text, whatever follows.
            adds_sep: match is_bert {
                true => vocabulary.add_sep.unwrap_or(true) && vocabulary.sep != last,
                false => vocabulary.add_sep.unwrap_or(false),
            },
            notes,
        })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] if the file has none; [`Error::NoToken`] if the vocabulary cannot express the text;
    /// [`Error::Pattern`], [`Error::Library`].
    pub fn encode(&self, text: &str, options: Encode) -> Result<Vec<u32>, Error> {
        self.encode_except(text, options, &[])
    }

    /// The tokens of `text`, in which those of `except` are not looked for.
    pub(crate) fn encode_except(
        &self,
        text: &str,
        options: Encode,
        except: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let matcher = if options.parse_special { &self.special } else { &self.user_defined };
        ids.extend(self.first.filter(|_| options.add_special));
        for fragment in matcher.split_except(text, except) {
            match (fragment, &self.model) {
                (Fragment::Token(id), _) => ids.push(id),
                (Fragment::Text(text), Model::Spm(spm)) => spm.encode(text, &mut ids)?,
                (Fragment::Text(text), Model::Bpe(bpe)) => bpe.encode(text, &mut ids)?,
                (Fragment::Text(text), Model::Words(words)) => words.encode(text, &mut ids),
                (Fragment::Text(_), Model::Ids) => return Err(Error::NoTokenizer),
            }
        }
        ids.extend(self.last.filter(|_| options.add_special));
        Ok(ids)
    }

    /// The text of `ids`: control and unknown tokens are omitted, as are ids outside the vocabulary; the space added
    /// by encoding is dropped; bytes that are not UTF-8 become U+FFFD. [`Decoder`](crate::Decoder) has more options.
    pub fn decode(&self, ids: &[u32]) -> String {
        decode(&self.pieces, ids)
    }

    /// The bytes of token `id`, including a leading space, not always whole characters; the spelling of a control
    /// token.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// The bytes that token `id` adds to a text: those of [`piece`](Self::piece), unless it is a control token or
    /// the unknown token.
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        let is_hidden = self.pieces.kind(id)?.is_hidden();
        self.pieces.get(id).filter(|_| !is_hidden)
    }

    /// Whether token `id` is a control token rather than text.
    pub fn is_control(&self, id: u32) -> bool {
        self.pieces.kind(id) == Some(TokenType::Control)
    }

    /// Whether token `id` ends the model's answer: `eos`, `eot`, `eom`, or a control token of a well-known spelling such
    /// as `<|im_end|>`, which is one whatever type the vocabulary gives it.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens for which [`is_end`](Self::is_end) holds, in rising order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Number of tokens in the vocabulary.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary is never empty")]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The token that begins a text, whether or not it is added automatically.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token between the parts of an input.
    pub fn sep(&self) -> Option<u32> {
        self.sep
    }

    /// The padding token of batches.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Whether [`Encode::add_special`] adds a token before the text: `bos` or `[CLS]`.
    pub fn adds_bos(&self) -> bool {
        self.first.is_some()
    }

    /// Whether [`Encode::add_special`] adds a token after the text: `eos` or `[SEP]`.
    pub fn adds_eos(&self) -> bool {
        self.last.is_some()
    }

    /// Whether [`sep`](Self::sep) belongs between the two texts of a pair, behind the token that ends the first.
    pub fn adds_sep(&self) -> bool {
        self.adds_sep
    }

    /// What the vocabulary says and this tokenizer ignores, such as a special token beyond the vocabulary: one sentence
    /// each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The spellings and ids of control and unknown tokens.
    pub fn controls(&self) -> impl Iterator<Item = (&str, u32)> {
        let is_control =
            |id| matches!(self.pieces.kind(id), Some(TokenType::Control | TokenType::Unknown));
        self.special.tokens().filter(move |(_, id)| is_control(*id))
    }

    /// The matcher for parsing special tokens.
    pub(crate) fn special(&self) -> &Matcher {
        &self.special
    }

    /// The token added before each text.
    pub(crate) fn first(&self) -> Option<u32> {
        self.first
    }

    /// The matcher for tokens that every text may have.
    pub(crate) fn user_defined(&self) -> &Matcher {
        &self.user_defined
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let model = match &self.model {
            Model::Spm(_) => "SentencePiece",
            Model::Bpe(_) => "byte pairs",
            Model::Words(_) => "WordPiece",
            Model::Ids => "ids",
        };
        f.debug_struct("Tokenizer").field("model", &model).field("len", &self.len()).finish()
    }
}

/// The spelling of tokens and, for BPE, the pre-tokenizer.
fn recipe(vocabulary: &Vocabulary<'_>) -> Result<(Alphabet, Option<&'static Pre>), Error> {
    match vocabulary.model.as_str() {
        "llama" | UNIGRAM | "bert" | IDS => Ok((Alphabet::Escaped, None)),
        "gemma4" => Ok((Alphabet::Escaped, Some(&pre::GEMMA4))),
        "gpt2" => {
            let name = vocabulary.pre.as_deref();
            let name = name.ok_or_else(|| Error::MissingPre { known: pre::names() })?;
            if let Some(pre) = pre::find_escaped(name) {
                return Ok((Alphabet::Escaped, Some(pre)));
            }
            let unknown = || Error::UnknownPre { found: name.to_owned(), known: pre::names() };
            Ok((Alphabet::Bytes, Some(pre::find(name).ok_or_else(unknown)?)))
        }
        found => Err(Error::UnknownModel { found: found.to_owned(), known: MODELS }),
    }
}

/// The tokens added before and after each text, for generative models.
fn around(
    vocabulary: &Vocabulary<'_>,
    pre: Option<&Pre>,
) -> Result<(Option<u32>, Option<u32>), Error> {
    let missing = |flag, place, key| Error::MissingSpecial { flag, place, key };
    // By default texts begin with `bos` for `llama`, end with `eos` for `t5`, and for others are as their table row says.
    let is_unigram = vocabulary.model == UNIGRAM;
    let by_default = pre.is_none_or(|pre| pre.add_bos) && !is_unigram && vocabulary.bos.is_some();
    // Files of Gemma 4 say that nothing is added, though its texts begin with `bos`; llama.cpp adds it in spite of them.
    let must_begin = pre.is_some_and(|pre| pre.always_bos) && vocabulary.bos.is_some();
    let first = if must_begin || vocabulary.add_bos.unwrap_or(by_default) {
        let absent = || missing("tokenizer.ggml.add_bos_token", "start", "bos_token_id");
        Some(vocabulary.bos.ok_or_else(absent)?)
    } else {
        None
    };
    let last = if vocabulary.add_eos.unwrap_or(is_unigram && vocabulary.eos.is_some()) {
        let absent = || missing("tokenizer.ggml.add_eos_token", "end", "eos_token_id");
        Some(vocabulary.eos.ok_or_else(absent)?)
    } else {
        None
    };
    Ok((first, last))
}

/// The tokens added before and after each text, for BERT: always `[CLS]` and `[SEP]`.
fn around_words(vocabulary: &Vocabulary<'_>) -> Result<(Option<u32>, Option<u32>), Error> {
    let named = |name| vocabulary.tokens.iter().position(|token| token == name);
    let named = |name| named(name).map(|id| id as u32);
    let missing = |place, key| Error::MissingSpecial { flag: "the model 'bert'", place, key };
    let first = vocabulary.cls.or(vocabulary.bos).or_else(|| named("[CLS]"));
    let last = vocabulary.sep.or(vocabulary.eos).or_else(|| named("[SEP]"));
    let first = first.ok_or_else(|| missing("start", "cls_token_id"))?;
    let last = last.ok_or_else(|| missing("end", "seperator_token_id"))?;
    Ok((Some(first), Some(last)))
}

/// Whether a token that ends a turn has another type in the file than that of a control token.
fn is_unmarked_end(token: &str, kind: TokenType, vocabulary: &Vocabulary<'_>) -> bool {
    let is_merged = || {
        let mut merges = vocabulary.merges.iter();
        merges.any(|merge| merge.chars().filter(|&c| c != ' ').eq(token.chars()))
    };
    let is_named = ENDS.contains(&token) && token != CLOSING_TAG;
    is_named && kind != TokenType::Control && !is_merged()
}

/// The tokens that end the model's answer.
fn ends(vocabulary: &Vocabulary<'_>, types: &[TokenType]) -> Vec<u32> {
    let named = vocabulary.tokens.iter().zip(0..).zip(types).filter(|((token, _), kind)| {
        **kind == TokenType::Control && ENDS.contains(&token.as_ref())
    });
    let mut ends: Vec<u32> = named.map(|((_, id), _)| id).collect();
    ends.extend([vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten());
    ends.sort_unstable();
    ends.dedup();
    // In formats that have both of a pair, `<|end|>` ends only one message of a turn.
    let has = |name| ends.iter().any(|&id| vocabulary.tokens[id as usize] == name);
    let turn_goes_on = (has("<|return|>") && has("<|call|>"))
        || (has("<|flush|>") && (has("<|call|>") || has("<|calls|>")));
    let kept = |id: u32| !turn_goes_on || vocabulary.tokens[id as usize] != "<|end|>";
    ends.iter().copied().filter(|&id| kept(id)).collect()
}
