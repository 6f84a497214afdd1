//! Flags of `serve`, named as llama-server's.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use super::{
    DraftArgs, ModelArgs, NamedModel, OutPath, PoolingArg, ReasoningArgs, SamplingArgs,
    TemplateArgs, switch,
};
use crate::failure::Failure;

/// `bilayer serve`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub steps: StepArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub serving: Serving,
}

/// Checks that a flag for keys, unlike an empty variable, gives one: a script whose variable is empty would open the server
/// to everybody.
///
/// # Errors
/// It gives none.
pub fn check_keys(given: &ArgMatches) -> Result<(), Failure> {
    let is_typed = given.value_source("api_key") == Some(ValueSource::CommandLine);
    let mut keys = given.get_many::<String>("api_key").into_iter().flatten();
    if is_typed && keys.all(|key| key.trim().is_empty()) {
        let line = "--api-key is empty; give a key, or leave the flag out to serve without keys";
        return Err(Failure::usage(line));
    }
    Ok(())
}

/// What answers requests, be they of clients or of a file.
#[derive(Args, Clone, Debug)]
pub struct Serving {
    #[command(flatten)]
    pub requests: RequestArgs,
    #[command(flatten)]
    pub offer: OfferArgs,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub reasoning: ReasoningArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Where the server listens and who may use it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ListenArgs {
    /// Addresses to listen on, separated by commas; one that ends in .sock is a Unix socket
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "LLAMA_ARG_HOST")]
    pub host: String,
    /// Port; 0 lets the system choose
    #[arg(long, value_name = "N", default_value_t = 8080, env = "LLAMA_ARG_PORT")]
    pub port: u16,
    /// API key; repeatable, commas separate several. Without keys everybody may do everything
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "LLAMA_API_KEY", hide_env_values = true)]
    pub api_key: Vec<String>,
    /// File with an API key on each line, optionally followed by a role (metrics, inference, admin); SIGHUP reads it
    /// again
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Certificate chain, PEM: serve HTTPS
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", env = "LLAMA_ARG_SSL_CERT_FILE")]
    pub ssl_cert_file: Option<PathBuf>,
    /// Private key, PEM
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", env = "LLAMA_ARG_SSL_KEY_FILE")]
    pub ssl_key_file: Option<PathBuf>,
    /// Origins whose pages may use the server from a browser: none, localhost, * or a list
    #[arg(long, value_name = "ORIGINS", default_value = "none", env = "LLAMA_ARG_CORS_ORIGINS")]
    pub cors_origins: String,
    /// Offer Prometheus metrics at /metrics
    #[arg(long, env = "LLAMA_ARG_ENDPOINT_METRICS", value_parser = switch())]
    pub metrics: bool,
    /// Offer no list of running requests at /slots
    #[arg(long, env = "LLAMA_ARG_NO_ENDPOINT_SLOTS", value_parser = switch())]
    pub no_slots: bool,
    /// Offer no web page at /
    #[arg(long, alias = "no-webui", env = "LLAMA_ARG_NO_UI", value_parser = switch())]
    pub no_ui: bool,
    /// Log a line for each request on stderr: off, text or json; prompts are never logged
    #[arg(long, value_name = "FORMAT", default_value = "off", value_enum)]
    pub log_format: LogFormat,
    /// At the end, write a timeline of the last steps, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<OutPath>,
    /// Append the log to a file instead of stderr
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_LOG_FILE")]
    pub log_file: Option<OutPath>,
    /// Short for --log-format json
    #[arg(long, conflicts_with = "log_format")]
    pub log_jsonl: bool,
    /// Add the prompt and the settings to every answer, for debugging
    #[arg(short, long, alias = "log-verbose")]
    pub verbose: bool,
}

/// What is logged.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Off,
    Text,
    Json,
}

/// What clients wait for, and what they share.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct StepArgs {
    /// Longest step while answers are running, in milliseconds: prompts are computed in parts that keep it
    #[arg(long, value_name = "MS", default_value_t = 250)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_step_ms: u32,
    /// Share cached prefixes only among requests of one API key
    #[arg(long)]
    pub cache_per_key: bool,
    /// Folder in which POST /slots/N?action=save keeps the KV cache of a slot
    #[arg(long, value_name = "DIR", env = "LLAMA_ARG_SLOT_SAVE_PATH")]
    pub slot_save_path: Option<PathBuf>,
}

/// How requests are scheduled.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Requests that run at once; each then has an equal part of --ctx-size, unless with --kv-unified; -1 is the default;
    /// short form -np [default: 8, with --kv-unified]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_PARALLEL", value_parser = parallel)]
    pub parallel: Option<i16>,
    /// Let every request use all of --ctx-size, which all share; short form -kvu
    #[arg(long, env = "LLAMA_ARG_KV_UNIFIED", value_parser = switch())]
    #[arg(conflicts_with = "no_kv_unified")]
    pub kv_unified: bool,
    /// Give each request an equal part of --ctx-size, without --parallel too; short form -no-kvu
    #[arg(long, env = "LLAMA_ARG_NO_KV_UNIFIED", value_parser = switch())]
    pub no_kv_unified: bool,
    /// Maximum tokens of an answer; -1 until it ends or the context is full
    #[arg(short = 'n', long, alias = "predict", value_name = "N", default_value_t = -1)]
    #[arg(allow_negative_numbers = true, env = "LLAMA_ARG_N_PREDICT")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub n_predict: i64,
    /// Give a request the same result whatever else runs: prompts and answers are computed in separate steps
    #[arg(long)]
    pub deterministic: bool,
    /// Compute every prompt anew, unless its request sets cache_prompt
    #[arg(long, env = "LLAMA_ARG_NO_CACHE_PROMPT", value_parser = switch())]
    pub no_cache_prompt: bool,
    /// Continue answers whose context is full without the earlier part of their text
    #[arg(long, env = "LLAMA_ARG_CONTEXT_SHIFT", value_parser = switch())]
    pub context_shift: bool,
}

impl RequestArgs {
    /// Requests that run at once, if the flags say it.
    pub fn parallel(&self) -> Option<usize> {
        self.parallel.and_then(|requests| usize::try_from(requests).ok())
    }

    /// Whether every request may use the whole KV cache.
    pub fn is_unified(&self) -> bool {
        self.kv_unified || self.parallel().is_none() && !self.no_kv_unified
    }
}

fn parallel(given: &str) -> Result<i16, String> {
    match given.parse() {
        Ok(requests @ (-1 | 1..=256)) => Ok(requests),
        _ => Err("it must be a number from 1 to 256, or -1 for the default".to_owned()),
    }
}

/// What one client may take.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Waiting requests; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_queue: usize,
    /// Waiting requests of one API key; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queue_per_key: usize,
    /// Size of a request's body, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub max_body: u16,
    /// Open connections
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_connections: usize,
    /// Open connections of one IP address; by default 7/8 of all for private ones, 64 for others
    #[arg(long, value_name = "N")]
    pub max_connections_per_ip: Option<usize>,
    /// Seconds that a request may take; short form -to
    #[arg(long, value_name = "S", default_value_t = 3600, env = "LLAMA_ARG_TIMEOUT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Seconds that running answers get when the server is told to stop
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub drain_timeout: u64,
    /// Seconds of silence after which a stream sends a comment
    #[arg(long, value_name = "S", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub sse_ping_interval: u64,
}

/// Which models are offered, under which names.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Models")]
pub struct OfferArgs {
    /// Names of the model, separated by commas [default: the file's name]
    #[arg(short, long, value_name = "NAMES", env = "LLAMA_ARG_ALIAS")]
    pub alias: Option<String>,
    /// Tags of the model, separated by commas
    #[arg(long, value_name = "TAGS", env = "LLAMA_ARG_TAGS")]
    pub tags: Option<String>,
    /// Offer every GGUF file of a folder and of the folders in it; each is loaded when it is first asked for
    #[arg(long, value_name = "DIR", env = "LLAMA_ARG_MODELS_DIR")]
    pub models_dir: Option<PathBuf>,
    /// Offer another model, loaded when it is first asked for; repeatable
    #[arg(long, value_name = "NAME=PATH")]
    pub add_model: Vec<NamedModel>,
    /// Models that are loaded at once; the least recently used one is unloaded
    #[arg(long, value_name = "N", default_value_t = 4, env = "LLAMA_ARG_MODELS_MAX")]
    pub models_max: usize,
    /// Memory that the weights of loaded models may take together [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub models_memory: Option<u64>,
    /// Serve embeddings of an encoder, even if it has a head for scores
    #[arg(long, alias = "embeddings", env = "LLAMA_ARG_EMBEDDINGS", value_parser = switch())]
    pub embedding: bool,
    /// Serve scores of an encoder
    #[arg(long, alias = "rerank", env = "LLAMA_ARG_RERANKING", value_parser = switch())]
    pub reranking: bool,
    /// How an encoder's rows become one vector, or those of a decoder, which then embeds [default: the model's own]
    #[arg(long, value_name = "HOW", env = "LLAMA_ARG_POOLING", value_enum)]
    pub pooling: Option<PoolingArg>,
    /// Apply the adapters of --lora and --lora-scaled only to requests that ask for them
    #[arg(long)]
    pub lora_init_without_apply: bool,
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::{ArgMatches, Serve, check_keys};

    fn matches(flags: &[&str]) -> ArgMatches {
        let line = ["bilayer", "serve"].iter().chain(flags);
        let matches = crate::args::command().try_get_matches_from(line).expect("good flags");
        matches.subcommand().expect("a command").1.clone()
    }

    fn parsed(flags: &[&str]) -> Serve {
        Serve::from_arg_matches(&matches(flags)).expect("good flags")
    }

    #[test]
    fn a_flag_for_keys_has_one() {
        let cases: [(&[&str], bool); 6] = [
            (&[], true),
            (&["--api-key", "a"], true),
            (&["--api-key", ",a"], true),
            (&["--api-key", ""], false),
            (&["--api-key", " , "], false),
            (&["--api-key="], false),
        ];
        for (flags, is_good) in cases {
            assert_eq!(check_keys(&matches(flags)).is_ok(), is_good, "{flags:?}");
        }
    }

    #[test]
    fn keys_of_all_flags_count() {
        let keys = parsed(&["--api-key", "a", "--api-key", "b,c"]).listen.api_key;
        assert_eq!(keys, ["a", "b", "c"]);
    }

    #[test]
    fn the_number_of_requests_may_be_left_to_the_program() {
        let cases: [(&[&str], Option<usize>, bool); 6] = [
            (&[], None, true),
            (&["--parallel", "-1"], None, true),
            (&["--parallel", "2"], Some(2), false),
            (&["--parallel", "2", "--kv-unified"], Some(2), true),
            (&["--no-kv-unified"], None, false),
            (&["--no-kv-unified", "--parallel", "3"], Some(3), false),
        ];
        for (flags, parallel, is_unified) in cases {
            let requests = parsed(flags).serving.requests;
            assert_eq!(requests.parallel(), parallel, "{flags:?}");
            assert_eq!(requests.is_unified(), is_unified, "{flags:?}");
        }
    }
}
