//! Converts checkpoint folders of tests, with their tokenizer if they have one.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use bilayer_convert::convert::Convert;
use bilayer_gguf::File;
use bilayer_graph::SharedBytes;
use bilayer_quant::Type;

/// The folder's model, F32 throughout.
pub fn gguf(folder: &Path) -> File {
    File::from_bytes(&folder.display().to_string(), bytes(folder, Type::F32)).unwrap()
}

/// The file's bytes, with its matrices as `outtype`.
pub fn bytes(folder: &Path, outtype: Type) -> SharedBytes {
    let tokenizers = ["tokenizer.json", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt"];
    let no_vocab = !tokenizers.iter().any(|name| folder.join(name).exists());
    let convert = Convert { outtype: Some(outtype), no_vocab, ..Convert::default() };
    convert.plan(folder).and_then(|plan| plan.to_bytes()).unwrap()
}
