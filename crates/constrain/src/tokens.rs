//! The vocabulary as a trie of bytes, which grammars are matched against.

use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};

use crate::Error;

/// Longest token in bytes that a grammar may use; the trie has no room for longer ones.
const TOKEN_BYTES_MAX: usize = 1000;

/// Most bytes of all tokens together.
const BYTES_MAX: usize = 4_000_000;

/// Most tokens.
const TOKENS_MAX: usize = 8_000_000;

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// These bytes of text.
    Text(&'a [u8]),
    /// A control token with this spelling. Only Lark and GBNF grammars can ask for one.
    Control(&'a [u8]),
    /// Nothing: it is never allowed.
    Unused,
}

/// A vocabulary prepared for grammars. It takes up to half a second for 128k tokens to make, once per model; clones share it.
#[derive(Clone)]
pub struct Tokens {
    pub(crate) shared: Arc<Shared>,
}

/// Most tokens that have stand-ins.
pub(crate) const STAND_INS_MAX: usize = u8::MAX as usize;

pub(crate) struct Shared {
    pub factory: ParserFactory,
    /// Of the vocabulary with stand-ins, once a grammar needs it.
    with_stand_ins: OnceLock<ParserFactory>,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
}

impl Tokens {
    /// Prepares a vocabulary: what each token stands for, by rising id, and the tokens that end a text.
    ///
    /// # Errors
    /// [`Error::Vocabulary`].
    pub fn new<'a>(
        tokens: impl IntoIterator<Item = Token<'a>>,
        ends: &[u32],
    ) -> Result<Tokens, Error> {
        // A token that ends a text is never part of it, however it is spelled.
        let token = |(id, token): (u32, Token<'a>)| match token {
            Token::Text(bytes) if ends.contains(&id) => word(Token::Control(bytes)),
            token => word(token),
        };
        let words: Vec<Vec<u8>> = (0..).zip(tokens).map(token).collect();
        let too_large = |reason: String| Error::Vocabulary { reason };
        if words.is_empty() || words.len() > TOKENS_MAX {
            let count = words.len();
            return Err(too_large(format!("{count} tokens, where 1 to {TOKENS_MAX} are allowed")));
        }
        let bytes: usize = words.iter().map(Vec::len).sum();
        if bytes > BYTES_MAX {
            return Err(too_large(format!("{bytes} bytes of text, more than {BYTES_MAX}")));
        }
        let ends: Vec<u32> =
            ends.iter().copied().filter(|&id| (id as usize) < words.len()).collect();
        let factory = factory(&words, &ends)?;
        let shared = Shared { factory, with_stand_ins: OnceLock::new(), ends };
        Ok(Tokens { shared: Arc::new(shared) })
    }

    /// The vocabulary followed by stand-ins for tokens that a grammar names, and one for all others. They are spelled as
    /// no text is.
    ///
    /// # Errors
    /// [`Error::Vocabulary`].
    pub(crate) fn with_stand_ins(&self) -> Result<&ParserFactory, Error> {
        let known = &self.shared.with_stand_ins;
        if let Some(factory) = known.get() {
            return Ok(factory);
        }
        let trie = self.trie();
        let words = (0..self.len() as u32).map(|id| trie.token(id).to_vec());
        let stand_ins = (0..=u8::MAX).map(|at| vec![MARK, MARK, at]);
        let words: Vec<Vec<u8>> = words.chain(stand_ins).collect();
        let made = factory(&words, &self.shared.ends)?;
        Ok(known.get_or_init(|| made))
    }

    /// Number of tokens.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary is never empty")]
    pub fn len(&self) -> usize {
        self.trie().vocab_size()
    }

    /// Tokens that spell a text: control tokens where it has their names.
    pub(crate) fn tokens_of(&self, text: &[u8]) -> Vec<u32> {
        let trie = self.trie();
        let (mut tokens, mut start, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let Some((control, len)) = self.control(&text[at..]) else {
                at += 1;
                continue;
            };
            tokens.extend(trie.greedy_tokenize(&text[start..at]));
            tokens.push(control);
            at += len;
            start = at;
        }
        tokens.extend(trie.greedy_tokenize(&text[start..]));
        tokens
    }

    /// The one token with this spelling: a control token, or one of text.
    pub(crate) fn token_of(&self, spelling: &str) -> Option<u32> {
        match self.tokens_of(spelling.as_bytes())[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// The control token with the longest name that `text` begins with, and the bytes of the name.
    fn control(&self, text: &[u8]) -> Option<(u32, usize)> {
        let trie = self.trie();
        let mut node = trie.child_at_byte(trie.root(), TokTrie::SPECIAL_TOKEN_MARKER)?;
        let mut found = None;
        for (len, &byte) in (1..).zip(text) {
            let Some(next) = trie.child_at_byte(node, byte) else { break };
            node = next;
            found = node.token_id().map(|id| (id, len)).or(found);
        }
        found
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        self.shared.factory.tok_env().tok_trie()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("len", &self.len()).finish_non_exhaustive()
    }
}

fn factory(words: &[Vec<u8>], ends: &[u32]) -> Result<ParserFactory, Error> {
    let info = TokRxInfo::new(words.len() as u32, *ends.first().unwrap_or(&INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(ends);
    }
    // Any tokenization of an allowed text is allowed, so the trie's own tokenizer is never asked.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::json_slices();
    let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
    factory.map_err(|error| Error::Vocabulary { reason: error.to_string() })
}

/// The first byte of control tokens in the trie, which UTF-8 never has.
const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The bytes of a token in the trie; tokens that no grammar can use have none.
fn word(token: Token<'_>) -> Vec<u8> {
    match token {
        Token::Text(bytes) if bytes.len() <= TOKEN_BYTES_MAX && !bytes.contains(&MARK) => {
            bytes.to_vec()
        }
        Token::Control(name) if name.len() < TOKEN_BYTES_MAX => [&[MARK], name].concat(),
        _ => Vec::new(),
    }
}
