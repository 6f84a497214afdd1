//! Flags of `quantize`, named as llama-quantize's.

use std::path::PathBuf;

use bilayer_convert::smooth::Alpha;
use clap::{ArgGroup, Args};

use super::OutPath;

const AFTER: &str = "\
Types are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, \
Q5_K_M, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ2_M, IQ3_XXS, IQ3_XS, IQ3_S, IQ3_M, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, \
MXFP4, MXFP4_MOE, NVFP4, W8A8, and the sparse S4_N_64 and S8_N_64; COPY keeps the type of every tensor. Most are mixes as in \
llama.cpp: the most sensitive tensors get more bits. IQ1, IQ2, IQ3_XXS and Q2_K_S need --imatrix. Rows that are not a multiple of a \
type's block get a type with smaller blocks, with a message.";

const USAGE: &str = "bilayer quantize [OPTIONS] <IN> [OUT] <TYPE> [THREADS]";

/// `bilayer quantize`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER, override_usage = USAGE)]
#[command(group = ArgGroup::new("uses_text").multiple(true).args(["target_bpw", "smooth", "gptq"]))]
pub struct Quantize {
    /// GGUF file to read, or the first of its shards
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write; an existing file is replaced once the new one is complete [default: ggml-model-TYPE.gguf beside IN]
    #[arg(value_name = "OUT")]
    pub out: OutPath,
    /// A mix such as Q4_K_M, one type, llama.cpp's number of it (15), or COPY
    #[arg(value_name = "TYPE")]
    pub r#type: Option<String>,
    /// Threads; 0 or less is the default [default: the available cores]
    #[arg(value_name = "THREADS", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Importance matrix in GGUF format, which weights the quantization error of each column
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of the tensors whose names match; repeatable, the first match counts
    #[arg(long, value_name = "REGEX=TYPE")]
    pub tensor_type: Vec<String>,
    /// File with more --tensor-type values, separated by spaces or newlines; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub tensor_type_file: Option<PathBuf>,
    /// Replace a value of the metadata in the new file; TYPE is int, float, bool or str. Repeatable; commas separate several
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_delimiter = ',')]
    #[arg(value_parser = bilayer_gguf::MetadataOverride::parse)]
    pub override_kv: Vec<bilayer_gguf::MetadataOverride>,
    /// Instead of TYPE: choose the types of all tensors without --tensor-type so that predictions on the --calibration text
    /// change least within X bits per weight
    #[arg(long, value_name = "X", requires = "calibration", conflicts_with_all = ["type", "pure"])]
    pub target_bpw: Option<f64>,
    /// Move outliers of activations into the weights before quantizing (SmoothQuant): the exponent of the activations, 0 to
    /// 1, or auto, which searches it per input on the --calibration text
    #[arg(long, value_name = "ALPHA", requires = "calibration", conflicts_with_all = ["imatrix", "target_bpw"])]
    pub smooth: Option<Alpha>,
    /// Round the layers' matrices column by column and let later columns make up for the error on the --calibration text
    /// (GPTQ), where the type is W8A8, Q8_0, Q4_0 or sparse
    #[arg(long, requires = "calibration", conflicts_with_all = ["imatrix", "target_bpw"])]
    pub gptq: bool,
    /// Text that --target-bpw runs through the model once per tensor, --smooth once and --gptq twice, for W8A8 once more; of an
    /// encoder each line is a text of its own. Use another to judge the result
    #[arg(long, value_name = "FILE", requires = "uses_text")]
    pub calibration: Option<PathBuf>,
    /// Most windows of the calibration text; with --gptq 64 is better, for encoders hundreds
    #[arg(long, value_name = "N", default_value_t = 8, requires = "uses_text")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: u32,
    /// Tokens per window of the calibration text
    #[arg(short, long, value_name = "N", default_value_t = 512, requires = "uses_text")]
    pub ctx_size: usize,
    /// Write the types chosen by --target-bpw to a file for --tensor-type-file
    #[arg(long, value_name = "FILE", requires = "target_bpw")]
    pub tensor_types_out: Option<OutPath>,
    /// Type of the output head
    #[arg(long, value_name = "TYPE")]
    pub output_tensor_type: Option<String>,
    /// Leave the output head in its type
    #[arg(long, conflicts_with = "output_tensor_type")]
    pub leave_output_tensor: bool,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE")]
    pub token_embedding_type: Option<String>,
    /// Use the mix's base type for all matrices, W8A8 for those that --smooth or --gptq would keep in Q8_0, too
    #[arg(long)]
    pub pure: bool,
    /// Quantize tensors that are already quantized, which loses more than quantizing once
    #[arg(long)]
    pub allow_requantize: bool,
    /// List the tensors that would be written, without writing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
