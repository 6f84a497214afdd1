//! The flags of `bench`: llama-bench's, most of them lists.

use std::path::PathBuf;

use bilayer_quant::Type;
use bilayer_scheduler::Offload;
use clap::{Args, ValueEnum};

use super::model::kv_type;
use super::placing::offload;
use super::{AdapterArgs, FlashAttn, switch};

/// Most values that one range may stand for.
const RANGE_MOST: usize = 1000;

/// `bilayer bench`. Every combination of the lists is measured; N is a number, FIRST-LAST, FIRST-LAST+STEP or
/// FIRST-LAST*FACTOR.
#[derive(Args, Debug)]
#[command(
    after_help = "LIST is one or several values, separated by commas or given by several flags, and each is a \
number or a range: 8-64, 0-32+8 or 128-2048*2. Every combination of the lists is measured. The fields of csv, json and \
jsonl are llama-bench's, and ours behind them."
)]
pub struct Bench {
    /// Tokens of a prompt, a test for each; 0 is none
    #[arg(short = 'p', long, value_name = "LIST", default_value = "512")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_prompt: Vec<Numbers>,
    /// Tokens to generate, a test for each; 0 is none
    #[arg(short = 'n', long, value_name = "LIST", default_value = "128")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_gen: Vec<Numbers>,
    /// A prompt and tokens generated behind it, as one test; repeatable; short form -pg
    #[arg(long, value_name = "PROMPT,GEN", value_parser = pair)]
    pub prompt_gen: Vec<(usize, usize)>,
    /// Tokens that are in the cache before each test
    #[arg(short = 'd', long, value_name = "LIST", default_value = "0")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_depth: Vec<Numbers>,
    /// Sequences that generate together, in each step a token of each; the speed counts them all; short form -np
    #[arg(long, value_name = "LIST", default_value = "1")]
    #[arg(value_delimiter = ',', value_parser = sizes)]
    pub parallel: Vec<Numbers>,
    /// Times that each test is repeated
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Do not run each test once untimed before
    #[arg(long)]
    pub no_warmup: bool,
    /// Do not measure how fast the model's file is read before and after each test that only generates
    #[arg(long)]
    pub no_probe: bool,
    /// Seconds to wait before each test, for machines that get hot
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=3600))]
    pub delay: u32,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "md", value_enum)]
    #[arg(conflicts_with = "json")]
    pub output: Form,
    /// The same as -o json
    #[arg(long)]
    pub json: bool,
    /// Write what ran when in the last tests, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub model: BenchModelArgs,
    #[command(flatten)]
    pub placing: BenchPlacingArgs,
}

/// Which models, on which cores, with which cache.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct BenchModelArgs {
    /// GGUF files, of one in shards the first; without them the embedded demo model
    #[arg(short, long, value_name = "PATHS", env = "LLAMA_ARG_MODEL", value_delimiter = ',')]
    pub model: Vec<PathBuf>,
    /// Worker threads; 0 or less is the default [default: the physical cores allowed to us]
    #[arg(short, long, value_name = "LIST", env = "LLAMA_ARG_THREADS", value_delimiter = ',')]
    #[arg(allow_negative_numbers = true, value_parser = threads)]
    pub threads: Vec<Numbers>,
    /// Most prompt tokens taken at once (logical batch)
    #[arg(short, long, value_name = "LIST", default_value = "2048", env = "LLAMA_ARG_BATCH")]
    #[arg(value_delimiter = ',', value_parser = sizes)]
    pub batch_size: Vec<Numbers>,
    /// Most tokens in one step (physical batch); short form -ub
    #[arg(long, value_name = "LIST", default_value = "512", env = "LLAMA_ARG_UBATCH")]
    #[arg(value_delimiter = ',', value_parser = sizes)]
    pub ubatch_size: Vec<Numbers>,
    /// Types of cached keys: f16, f32, q8_0; short form -ctk
    #[arg(long, value_name = "TYPES", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_K")]
    #[arg(value_delimiter = ',', value_parser = kv_type)]
    pub cache_type_k: Vec<Type>,
    /// Types of cached values: f16, f32, q8_0; short form -ctv
    #[arg(long, value_name = "TYPES", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_V")]
    #[arg(value_delimiter = ',', value_parser = kv_type)]
    pub cache_type_v: Vec<Type>,
    /// Attention is always tiled; off runs it and every other op by itself, for comparison; short form -fa
    #[arg(long, value_name = "WHEN", default_value = "auto", env = "LLAMA_ARG_FLASH_ATTN")]
    #[arg(num_args = 0..=1, default_missing_value = "on", value_delimiter = ',', value_enum)]
    #[arg(allow_negative_numbers = true)]
    pub flash_attn: Vec<FlashAttn>,
    /// Whether files are mapped (1) or read into memory (0); short form -mmp
    #[arg(long, value_name = "0|1", default_value = "1", value_delimiter = ',')]
    #[arg(value_parser = switch(), hide_possible_values = true)]
    pub mmap: Vec<bool>,
    /// The same as --mmap 0
    #[arg(long, env = "LLAMA_ARG_NO_MMAP", value_parser = switch())]
    pub no_mmap: bool,
    /// Keep the weights in memory
    #[arg(long, env = "LLAMA_ARG_MLOCK", value_parser = switch())]
    pub mlock: bool,
    /// Instruction levels: scalar, avx2, avxvnni, avx512vnni, amx, neon, neon-dotprod, neon-i8mm
    /// [default: the highest there is]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub cpu_level: Vec<String>,
}

/// What goes to the adapter.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct BenchPlacingArgs {
    /// Parts on the adapter: the output head first, then the last layers; auto, all, numbers or percentages; short form
    /// -ngl
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "LIST", default_value = "auto")]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS", value_delimiter = ',', value_parser = offloads)]
    #[arg(allow_negative_numbers = true)]
    pub gpu_layers: Vec<Offloads>,
    /// Keep the expert tensors of the first N layers on the CPU; short form -ncmoe
    #[arg(long, value_name = "LIST", env = "LLAMA_ARG_N_CPU_MOE", default_value = "0")]
    #[arg(hide_default_value = true, value_delimiter = ',', value_parser = numbers)]
    pub n_cpu_moe: Vec<Numbers>,
    /// Keep the KV cache, and attention with it, on the CPU; short form -nkvo
    #[arg(long, value_name = "0|1", env = "LLAMA_ARG_NO_KV_OFFLOAD", default_value = "0")]
    #[arg(hide_default_value = true, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_delimiter = ',', value_parser = switch(), hide_possible_values = true)]
    pub no_kv_offload: Vec<bool>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

impl Bench {
    /// The form that the flags ask for.
    pub fn form(&self) -> Form {
        if self.json { Form::Json } else { self.output }
    }
}

/// How results are written.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Md,
    Csv,
    Json,
    Jsonl,
}

/// The numbers of one item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

/// The placements of one item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloads(pub Vec<Offload>);

/// `512`, `8-64`, `0-32+8` or `128-2048*2`; the last number is part of a range that hits it.
fn numbers(given: &str) -> Result<Numbers, String> {
    let wrong = || "it must be a number or a range such as 8-64, 0-32+8 or 128-2048*2".to_owned();
    let number = |text: &str| text.parse::<u32>().map(|n| n as usize).map_err(|_| wrong());
    let Some((first, rest)) = given.split_once('-') else {
        return Ok(Numbers(vec![number(given)?]));
    };
    let (last, step, multiplies) = match rest.split_once(['+', '*']) {
        Some((last, step)) => (last, number(step)?, rest.contains('*')),
        None => (rest, 1, false),
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{first} is more than {last}; begin a range with the smaller one"));
    }
    if step == 0 || multiplies && (step == 1 || first == 0) {
        return Err(
            "the range does not come to an end; add at least 1, or multiply more than 0 by \
                    at least 2"
                .to_owned(),
        );
    }
    let next = |&n: &usize| Some(if multiplies { n * step } else { n + step });
    let values = std::iter::successors(Some(first), next).take_while(|&n| n <= last);
    let values: Vec<usize> = values.take(RANGE_MOST + 1).collect();
    if values.len() > RANGE_MOST {
        return Err(format!("that is more than {RANGE_MOST} values; take larger steps"));
    }
    Ok(Numbers(values))
}

/// The same, of what cannot be 0.
fn sizes(given: &str) -> Result<Numbers, String> {
    let Numbers(values) = numbers(given)?;
    match values.contains(&0) {
        true => Err("it must be at least 1".to_owned()),
        false => Ok(Numbers(values)),
    }
}

/// The same, where less than 0 is 0.
fn threads(given: &str) -> Result<Numbers, String> {
    match given.parse::<i64>() {
        Ok(..=0) => Ok(Numbers(vec![0])),
        _ => numbers(given),
    }
}

/// The same, or a word or percentage.
fn offloads(given: &str) -> Result<Offloads, String> {
    if let Ok(one) = offload(given) {
        return Ok(Offloads(vec![one]));
    }
    let as_one = |_| "it must be auto, all, a percentage, a number or a range such as 0-32+8";
    let Numbers(counts) = numbers(given).map_err(|reason| match given.contains('-') {
        true => reason,
        false => as_one(()).to_owned(),
    })?;
    Ok(Offloads(counts.into_iter().map(|count| Offload::Count(count as u32)).collect()))
}

/// `512,128`.
fn pair(given: &str) -> Result<(usize, usize), String> {
    let wrong = || "it must be two numbers such as 512,128".to_owned();
    let (prompt, generate) = given.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u32>().map(|n| n as usize).map_err(|_| wrong());
    Ok((number(prompt)?, number(generate)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_llama_benchs() {
        let cases = [
            ("7", vec![7]),
            ("0", vec![0]),
            ("3-6", vec![3, 4, 5, 6]),
            ("5-5", vec![5]),
            ("0-32+16", vec![0, 16, 32]),
            ("1-10+4", vec![1, 5, 9]),
            ("128-1024*2", vec![128, 256, 512, 1024]),
            ("3-100*5", vec![3, 15, 75]),
        ];
        for (given, expected) in cases {
            assert_eq!(numbers(given), Ok(Numbers(expected)), "{given}");
        }
        let wrong = [
            ("", "must be a number"),
            ("x", "must be a number"),
            ("1-", "must be a number"),
            ("1-2+", "must be a number"),
            ("1-2+3*4", "must be a number"),
            ("-1", "must be a number"),
            ("9-3", "smaller one"),
            ("0-9+0", "does not come to an end"),
            ("1-9*1", "does not come to an end"),
            ("0-9*2", "does not come to an end"),
            ("0-4000000000", "more than 1000"),
            ("99999999999", "must be a number"),
        ];
        for (given, reason) in wrong {
            let error = numbers(given).expect_err(given);
            assert!(error.contains(reason), "{given}: {error}");
        }
    }

    #[test]
    fn threads_placements_and_pairs_have_words_of_their_own() {
        assert_eq!(threads("-1"), Ok(Numbers(vec![0])));
        assert_eq!(threads("1-3"), Ok(Numbers(vec![1, 2, 3])));
        assert!(sizes("0-4").is_err() && sizes("4").is_ok());
        assert_eq!(offloads("-1"), Ok(Offloads(vec![Offload::All])));
        assert_eq!(offloads("50%"), Ok(Offloads(vec![Offload::Percent(50)])));
        let counts = [0, 8, 16].map(Offload::Count).to_vec();
        assert_eq!(offloads("0-16+8"), Ok(Offloads(counts)));
        assert!(offloads("many").is_err_and(|error| error.contains("auto, all")));
        assert!(offloads("8-2").is_err_and(|error| error.contains("smaller one")));
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("1,2,3").is_err());
    }
}
