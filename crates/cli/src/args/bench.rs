//! Flags of `bench`, named as llama-bench's; most take lists.

use std::path::PathBuf;

use bilayer_cpu::numa::Numa;
use bilayer_quant::Type;
use bilayer_scheduler::Offload;
use clap::{Args, ValueEnum};

use super::lists::Lists;
use super::model::{kv_type, numa};
use super::placing::offload;
use super::{AdapterArgs, FlashAttn, HubArgs, ModelArgs, OutPath, PlacingArgs, switch};

/// Most values in one range.
const RANGE_MOST: usize = 1000;

/// `bilayer bench`, which measures every combination of its lists.
#[derive(Args, Debug)]
#[command(
    after_help = "LIST is one or more values, separated by commas or given by repeating the flag; each is a \
number or a range: 8-64, 0-32+8 or 128-2048*2. Every combination of the lists is measured. The fields of csv, json and \
jsonl are llama-bench's, followed by our own."
)]
pub struct Bench {
    /// Prompt lengths in tokens, one test each; 0 is none
    #[arg(short = 'p', long, value_name = "LIST", default_value = "512")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_prompt: Vec<Numbers>,
    /// Numbers of tokens to generate, one test each; 0 is none
    #[arg(short = 'n', long, value_name = "LIST", default_value = "128")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_gen: Vec<Numbers>,
    /// Prompt processing followed by generation, as one test; repeatable; short form -pg
    #[arg(long, value_name = "PROMPT,GEN", value_parser = pair)]
    pub prompt_gen: Vec<(usize, usize)>,
    /// Tokens in the KV cache before each test
    #[arg(short = 'd', long, value_name = "LIST", default_value = "0")]
    #[arg(value_delimiter = ',', value_parser = numbers)]
    pub n_depth: Vec<Numbers>,
    /// Sequences decoded together, one token of each per step; speeds are totals; short form -np
    #[arg(long, value_name = "LIST", default_value = "1")]
    #[arg(value_delimiter = ',', value_parser = sizes)]
    pub parallel: Vec<Numbers>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Skip the untimed run before each test
    #[arg(long)]
    pub no_warmup: bool,
    /// Skip measuring the file's read bandwidth before and after each test that only generates
    #[arg(long)]
    pub no_probe: bool,
    /// Seconds to wait before each test, so that the machine can cool down
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=3600))]
    pub delay: u32,
    /// Output format
    #[arg(short, long, value_name = "FORM", default_value = "md", value_enum)]
    #[arg(conflicts_with = "json")]
    pub output: Form,
    /// Print the results on stderr as well, in this format; short form -oe
    #[arg(long, value_name = "FORM", value_enum)]
    pub output_err: Option<Form>,
    /// Short for -o json
    #[arg(long)]
    pub json: bool,
    /// Write a page that compares the results, in HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<OutPath>,
    /// Results of earlier runs to compare with in the page, as -o json or -o jsonl wrote them; commas separate several
    #[arg(long, value_name = "FILE", value_delimiter = ',', requires = "html")]
    pub compare: Vec<PathBuf>,
    /// Write a timeline of the last tests, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<OutPath>,
    #[command(flatten)]
    pub model: Lists<BenchModelArgs, ModelArgs>,
    #[command(flatten)]
    pub placing: Lists<BenchPlacingArgs, PlacingArgs>,
}

/// Model, threads and KV cache: the flags of [`ModelArgs`] that `bench` has, most of them as lists.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct BenchModelArgs {
    #[arg(long, value_delimiter = ',')]
    pub model: Vec<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    #[arg(long, value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<Numbers>,
    #[arg(long, value_delimiter = ',', value_parser = sizes)]
    pub batch_size: Vec<Numbers>,
    #[arg(long, value_delimiter = ',', value_parser = sizes)]
    pub ubatch_size: Vec<Numbers>,
    #[arg(long, value_delimiter = ',', value_parser = kv_type)]
    pub cache_type_k: Vec<Type>,
    #[arg(long, value_delimiter = ',', value_parser = kv_type)]
    pub cache_type_v: Vec<Type>,
    #[arg(long, value_name = "0|1", default_value = "0")]
    #[arg(hide_default_value = true, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_delimiter = ',', value_parser = switch(), hide_possible_values = true)]
    pub k_cache_hadamard: Vec<bool>,
    #[arg(long, value_name = "0|1", default_value = "0")]
    #[arg(hide_default_value = true, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_delimiter = ',', value_parser = switch(), hide_possible_values = true)]
    pub fast_prefill: Vec<bool>,
    #[arg(long, value_delimiter = ',', value_enum)]
    pub flash_attn: Vec<FlashAttn>,
    /// Map the file (1) or read it into memory (0); short form -mmp
    #[arg(long, value_name = "0|1", default_value = "1", value_delimiter = ',')]
    #[arg(value_parser = switch(), hide_possible_values = true)]
    pub mmap: Vec<bool>,
    #[arg(long)]
    pub no_mmap: bool,
    #[arg(long)]
    pub mlock: bool,
    #[arg(long, value_delimiter = ',')]
    pub cpu_level: Vec<String>,
    #[arg(long, value_delimiter = ',', value_parser = numa)]
    pub numa: Vec<Numa>,
}

/// Placement on the GPUs: the flags of [`PlacingArgs`], three of them as lists.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct BenchPlacingArgs {
    #[arg(long, value_delimiter = ',', value_parser = offloads)]
    pub gpu_layers: Vec<Offloads>,
    #[arg(long, value_delimiter = ',', value_parser = numbers)]
    pub n_cpu_moe: Vec<Numbers>,
    #[arg(long, value_name = "0|1", env = "LLAMA_ARG_NO_KV_OFFLOAD", default_value = "0")]
    #[arg(hide_default_value = true, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_delimiter = ',', value_parser = switch(), hide_possible_values = true)]
    pub no_kv_offload: Vec<bool>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

impl Bench {
    /// The output format asked for.
    pub fn form(&self) -> Form {
        if self.json { Form::Json } else { self.output }
    }
}

/// Output formats.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Md,
    Csv,
    Json,
    Jsonl,
    Sql,
}

/// The numbers of one list item, which may be a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

/// The placements of one list item, which may be a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloads(pub Vec<Offload>);

/// Parses `512`, `8-64`, `0-32+8` or `128-2048*2`; a range includes its last number if a step lands on it.
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
        return Err(format!("{first} is more than {last}; a range begins with the smaller number"));
    }
    if step == 0 || multiplies && (step == 1 || first == 0) {
        return Err(
            "the range never ends; the step must be at least 1, a factor at least 2, and a \
                    multiplied range must not begin with 0"
                .to_owned(),
        );
    }
    let next = |&n: &usize| Some(if multiplies { n * step } else { n + step });
    let values = std::iter::successors(Some(first), next).take_while(|&n| n <= last);
    let values: Vec<usize> = values.take(RANGE_MOST + 1).collect();
    if values.len() > RANGE_MOST {
        return Err(format!("the range has more than {RANGE_MOST} values; use a larger step"));
    }
    Ok(Numbers(values))
}

/// Parses numbers that must not be 0.
fn sizes(given: &str) -> Result<Numbers, String> {
    let Numbers(values) = numbers(given)?;
    match values.contains(&0) {
        true => Err("it must be at least 1".to_owned()),
        false => Ok(Numbers(values)),
    }
}

/// Parses thread counts; negative ones mean the default, as 0 does.
fn threads(given: &str) -> Result<Numbers, String> {
    match given.parse::<i64>() {
        Ok(..=0) => Ok(Numbers(vec![0])),
        _ => numbers(given),
    }
}

/// Parses placements: `auto`, `all`, a percentage or numbers. As in llama-bench, which places nothing by itself, -1 is `all`.
fn offloads(given: &str) -> Result<Offloads, String> {
    if given == "-1" {
        return Ok(Offloads(vec![Offload::All]));
    }
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

/// Parses `512,128`.
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
            ("9-3", "smaller number"),
            ("0-9+0", "never ends"),
            ("1-9*1", "never ends"),
            ("0-9*2", "never ends"),
            ("0-4000000000", "more than 1000"),
            ("99999999999", "must be a number"),
        ];
        for (given, reason) in wrong {
            let error = numbers(given).expect_err(given);
            assert!(error.contains(reason), "{given}: {error}");
        }
    }

    #[test]
    fn threads_placements_and_pairs_have_their_own_syntax() {
        assert_eq!(threads("-1"), Ok(Numbers(vec![0])));
        assert_eq!(threads("1-3"), Ok(Numbers(vec![1, 2, 3])));
        assert!(sizes("0-4").is_err() && sizes("4").is_ok());
        assert_eq!(offloads("-1"), Ok(Offloads(vec![Offload::All])));
        assert_eq!(offloads("50%"), Ok(Offloads(vec![Offload::Percent(50)])));
        let counts = [0, 8, 16].map(Offload::Count).to_vec();
        assert_eq!(offloads("0-16+8"), Ok(Offloads(counts)));
        assert!(offloads("many").is_err_and(|error| error.contains("auto, all")));
        assert!(offloads("8-2").is_err_and(|error| error.contains("smaller number")));
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("1,2,3").is_err());
    }
}
