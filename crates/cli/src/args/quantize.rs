//! Flags of `quantize`, named as llama-quantize's.

use std::path::PathBuf;

use clap::Args;

const AFTER: &str = "\
Types are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, \
Q5_K_M, Q6_K, IQ4_NL, IQ4_XS, MXFP4 and MXFP4_MOE. Most are mixes as llama.cpp makes them: the tensors that matter most \
get better types. Rows that are not whole blocks of a type get one of smaller blocks, which is said.";

/// `bilayer quantize`.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Quantize {
    /// GGUF file to start from, the first of its shards if it has several
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write; one that is there is replaced when the new one is complete
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// What to make: a mix such as Q4_K_M, or one type
    #[arg(value_name = "TYPE", required_unless_present = "target_bpw")]
    pub r#type: Option<String>,
    /// Threads; 0 or less is the default [default: the cores allowed to us]
    #[arg(value_name = "THREADS", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Importance matrix in GGUF form: spend the error where the columns matter least
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of the tensors whose names the pattern is found in, repeatable; the first that is found counts
    #[arg(long, value_name = "REGEX=TYPE")]
    pub tensor_type: Vec<String>,
    /// File with more of these, parted by blanks or line breaks; those of the command line come first
    #[arg(long, value_name = "FILE")]
    pub tensor_type_file: Option<PathBuf>,
    /// Instead of TYPE: choose the type of every tensor for which none is given, so that all take at most X bits a weight
    /// and the predictions change least, as measured on the text of --calibration
    #[arg(long, value_name = "X", requires = "calibration", conflicts_with_all = ["type", "pure"])]
    pub target_bpw: Option<f64>,
    /// Text that --target-bpw runs through the model once for each tensor; not the one that quality is judged by
    #[arg(long, value_name = "FILE", requires = "target_bpw")]
    pub calibration: Option<PathBuf>,
    /// Most windows of the calibration text
    #[arg(long, value_name = "N", default_value_t = 8, requires = "target_bpw")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: u32,
    /// Tokens of a window of the calibration text
    #[arg(short, long, value_name = "N", default_value_t = 512, requires = "target_bpw")]
    pub ctx_size: usize,
    /// Write what --target-bpw chose to a file that --tensor-type-file reads
    #[arg(long, value_name = "FILE", requires = "target_bpw")]
    pub tensor_types_out: Option<PathBuf>,
    /// Type of the output head
    #[arg(long, value_name = "TYPE")]
    pub output_tensor_type: Option<String>,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE")]
    pub token_embedding_type: Option<String>,
    /// One type for all matrices, the base of the mix
    #[arg(long)]
    pub pure: bool,
    /// Quantize also what is quantized already, which loses more than doing it once
    #[arg(long)]
    pub allow_requantize: bool,
    /// Say what would be written, tensor by tensor, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}
