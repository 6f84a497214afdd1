//! Strings to tokens and back: tokenizers from GGUF vocabularies, streaming decode.
