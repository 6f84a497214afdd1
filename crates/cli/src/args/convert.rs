//! Flags of `convert`, named as those of llama.cpp's converter.

use std::path::PathBuf;

use bilayer_quant::Type;
use clap::Args;

use super::OutPath;

const AFTER: &str = "\
DIR is a checkpoint as published on Hugging Face: config.json, model.safetensors or its shards and their index, and \
tokenizer.json, a SentencePiece model (tokenizer.model, spiece.model, sentencepiece.bpe.model) or vocab.txt. Norm \
weights, biases and small tensors are always F32; matrices whose rows are not a multiple of Q8_0's block become F16.";

/// `bilayer convert`.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Convert {
    /// Folder of the checkpoint
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// File to write, {ftype} and {FTYPE} in its name being the type, or a folder for NAME-TYPE.gguf; an existing file is
    /// replaced once the new one is complete [default: DIR/NAME-TYPE.gguf]
    #[arg(long, value_name = "FILE")]
    pub outfile: Option<OutPath>,
    /// Type of the matrices: auto (the checkpoint's type), f32, f16, bf16, q8_0
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = outtype)]
    pub outtype: Outtype,
    /// Name of the model [default: derived from the folder's name]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Convert the LoRA adapter in this folder, as PEFT writes it, for the model in DIR, of which only config.json is read
    #[arg(long, value_name = "ADAPTER_DIR")]
    pub lora: Option<PathBuf>,
    /// Write no tokenizer; the model then works with token ids only
    #[arg(long)]
    pub no_vocab: bool,
    /// Threads; 0 or less is the default [default: the available cores]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// List the tensors that would be written, without writing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The type of matrices; `None` is the checkpoint's.
#[derive(Clone, Copy, Debug)]
pub struct Outtype(pub Option<Type>);

fn outtype(given: &str) -> Result<Outtype, String> {
    if given.eq_ignore_ascii_case("auto") {
        return Ok(Outtype(None));
    }
    let found = bilayer_convert::convert::outtype(given);
    found.map(|ty| Outtype(Some(ty))).map_err(|_| {
        "it must be auto, f32, f16, bf16 or q8_0; `bilayer quantize` makes other types of the file written".to_owned()
    })
}
