//! Flags of llama.cpp that a command does not have: accepted where they ask for what is done anyway or change nothing, else
//! refused with advice.

use Means::{Accept, Instead, Note, OnlyFor, Refuse};
use Takes::{Maybe, Nothing, Value};

#[cfg(test)]
mod known;
mod server;

/// What follows a flag.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// Nothing.
    Nothing,
    /// A value.
    Value,
    /// One of these values, or nothing.
    Maybe(&'static [&'static str]),
}

/// What a flag comes to.
#[derive(Clone, Copy, Debug)]
enum Means {
    /// It asks for what is done anyway.
    Accept,
    /// It changes nothing, for this reason.
    Note(&'static str),
    /// It is an error; what to do instead.
    Refuse(&'static str),
    /// Accepted for these values, otherwise as given.
    OnlyFor(&'static [&'static str], &'static Means),
    /// Each value is written as a flag of ours, or asks for what is done anyway.
    Instead(&'static [(&'static str, Option<&'static str>)]),
}

/// Flags of one meaning.
type Flags = (&'static [&'static str], Takes, Means);

const ONE_ANSWER: &str =
    "one prompt is answered at a time; `serve -np N` answers several, `bench -np N` measures it";
const POLLING: &str = "idle threads spin briefly, then sleep";
const PRIORITY: &str = "start the program with `nice` to change its priority";
const PINNING: &str = "start the program with `taskset` to choose its CPUs";
const BATCH_THREADS: &str = "prefill uses the threads of -t";
const FITS: &str = "-ngl auto, the default, fits the model to memory; -c sets the context";
const BATCHED: &str = "requests always run together in one batch";
const PREFIXES: &str = "prefixes stay in the KV cache until their memory is needed";
const TEXT_ONLY: &str = "images and audio need the model's encoder for them (mmproj), and only text models run; remove the flag";
const CHATS: &str = "use -cnv to chat; a line that ends in \\ is continued";
const AS_MODEL: &str =
    "the draft model has the same settings as the model, except -ngld; remove the flag";
const MERGE: &str = "`run` and `serve` apply adapters";
const DOWNLOAD: &str =
    "give -hf ORG/REPO and --hf-file FILE, or download the file and give its path with -m";
const METADATA: &str =
    "this command reads metadata from the model file; `run` and `serve` can replace it";
const TASKS: &str = "tasks are not scored; give -f FILE to measure the perplexity of a text";
const SPECULATION: &str = "--draft-max, --draft-min and --draft-p-min bound the draft tokens";
const AS_IS: &str = "the answer is printed as the model writes it; `serve` separates reasoning";
const THINKING: &str =
    "where a template knows it, --chat-template-kwargs '{\"enable_thinking\": false}' turns it off";

const NO_TOOLS: &str = "functions run in the client; a request has them as `tools`";
const CANDIDATES: &str = "a GPU already picks the candidates";
const DRAFTS: &str = "draft tokens are those that the draft model finds most probable";
const TEMPLATE: &str = "--chat-template-kwargs '{...}' sets the variables of the template";
const NO_IMAGES: &str = "only text models run";

/// llama.cpp's ways to load a file.
const LOAD_MODES: &[(&str, Option<&str>)] = &[
    ("auto", None),
    ("mmap", None),
    ("none", Some("--no-mmap")),
    ("dio", Some("--no-mmap")),
    ("mlock", Some("--mlock")),
    ("mmap+mlock", Some("--mlock")),
];

/// What llama.cpp's flags of prompt lookup begin with, by the kind of lookup.
const NGRAM: &str = "--spec-ngram-";

/// The commands that also get llama-server's flags.
const SERVERS: [&str; 2] = ["serve", "batch"];

const ON: &[&str] = &["on", "1", "true", "enabled", "auto", "-1"];
const SWITCH: &[&str] = &["on", "off", "auto", "always", "never"];

/// Names and meanings; a command's own flags win over these.
const FLAGS: &[Flags] = &[
    // What is done anyway.
    (
        &["--no-display-prompt", "--no-warmup", "--no-context-shift", "--no-ppl", "-e", "--escape"],
        Nothing,
        Accept,
    ),
    (&["--deterministic", "--jinja", "--progress", "--show-timings", "--perf"], Nothing, Accept),
    (&["--mmap", "-kvo", "--kv-offload", "--warmup", "--slots"], Nothing, Accept),
    (&["--webui", "--ui", "--cache-prompt", "--repack", "--simple-io"], Nothing, Accept),
    (&["--no-mmproj", "--no-mmproj-auto", "--no-mmproj-offload", "--no-host"], Nothing, Accept),
    (&["--no-skip-chat-parsing", "--no-log-jsonl"], Nothing, Accept),
    (&["--parse-special", "--no-direct-io", "-ndio"], Nothing, Accept),
    (&["--offline"], Nothing, Accept),
    (
        &["-co", "--color"],
        Maybe(SWITCH),
        OnlyFor(&["auto", "off", "never"], &Note("answers are printed without colours")),
    ),
    (&["-fit", "--fit"], Value, OnlyFor(ON, &Note(FITS))),
    (&["-fitc", "--fit-ctx"], Value, Note(FITS)),
    (&["-fitp", "--fit-print"], Maybe(SWITCH), Refuse("`bilayer plan` shows what fits")),
    (&["-np", "--parallel"], Value, OnlyFor(&["1", "-1"], &Refuse(ONE_ANSWER))),
    (&["-ns", "--sequences"], Value, OnlyFor(&["1"], &Refuse(ONE_ANSWER))),
    (&["--log-colors"], Maybe(SWITCH), Accept),
    (&["--reasoning-format"], Value, OnlyFor(&["none", "auto"], &Refuse(AS_IS))),
    (&["-rea", "--reasoning"], Value, OnlyFor(&["auto"], &Refuse(THINKING))),
    (&["--reasoning-budget"], Value, OnlyFor(&["-1"], &Refuse(THINKING))),
    (&["--reasoning-budget-message"], Value, Refuse(THINKING)),
    (
        &["--reasoning-effort"],
        Value,
        OnlyFor(
            &["default"],
            &Refuse("give --chat-template-kwargs '{\"reasoning_effort\": \"low\"}'"),
        ),
    ),
    (&["--reasoning-preserve", "--no-reasoning-preserve"], Nothing, Refuse(TEMPLATE)),
    (&["-lm", "--load-mode"], Value, Instead(LOAD_MODES)),
    (
        &["-lzm", "--lazy-mode"],
        Value,
        OnlyFor(&["on", "auto"], &Note("--mlock keeps all weights in memory")),
    ),
    // Without effect.
    (&["-tb", "--threads-batch", "-tbd", "--threads-batch-draft"], Value, Note(BATCH_THREADS)),
    (&["--threads-http"], Value, Note("requests are read by as many threads as they need")),
    (&["--poll", "--poll-batch", "--poll-draft", "--poll-batch-draft"], Value, Note(POLLING)),
    (&["--spec-draft-poll", "--spec-draft-poll-batch"], Value, Note(POLLING)),
    (&["--spec-draft-threads-batch"], Value, Note(BATCH_THREADS)),
    (
        &["--prio", "--prio-batch", "--prio-draft", "--prio-batch-draft"],
        Value,
        OnlyFor(&["0"], &Note(PRIORITY)),
    ),
    (&["--spec-draft-prio", "--spec-draft-prio-batch"], Value, OnlyFor(&["0"], &Note(PRIORITY))),
    (&["-C", "--cpu-mask", "-Cb", "--cpu-mask-batch", "-Cr", "--cpu-range"], Value, Note(PINNING)),
    (&["-Crb", "--cpu-range-batch", "--cpu-strict", "--cpu-strict-batch"], Value, Note(PINNING)),
    (&["-Cd", "--cpu-mask-draft", "-Crd", "--cpu-range-draft"], Value, Note(PINNING)),
    (&["-Cbd", "--cpu-mask-batch-draft", "-Crbd", "--cpu-range-batch-draft"], Value, Note(PINNING)),
    (&["--cpu-strict-draft", "--cpu-strict-batch-draft"], Value, Note(PINNING)),
    (&["--spec-draft-cpu-mask", "--spec-draft-cpu-range"], Value, Note(PINNING)),
    (&["--spec-draft-cpu-strict", "--spec-draft-cpu-mask-batch"], Value, Note(PINNING)),
    (&["--spec-draft-cpu-strict-batch"], Value, Note(PINNING)),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching"], Nothing, Note(BATCHED)),
    (&["--no-jinja"], Nothing, Note("the model's chat template is always used")),
    (&["-cram", "--cache-ram", "--cache-reuse", "-ctxcp"], Value, Note(PREFIXES)),
    (&["--swa-checkpoints"], Value, Note(PREFIXES)),
    (
        &["-cms", "--checkpoint-min-step"],
        Value,
        Note("--ctx-checkpoints sets how many states are kept"),
    ),
    (&["--mmproj-auto", "--mmproj-offload"], Nothing, Note(NO_IMAGES)),
    (&["-mmdev", "--mmproj-device"], Value, Note(NO_IMAGES)),
    (&["-sps", "--slot-prompt-similarity", "-dt", "--defrag-thold"], Value, Note(PREFIXES)),
    (&["--cache-idle-slots", "--no-cache-idle-slots", "--swa-full"], Nothing, Note(PREFIXES)),
    (&["--check-tensors"], Nothing, Note("files are always checked when they are opened")),
    (
        &["-lv", "--verbosity", "--log-verbosity"],
        Value,
        Note("-v shows more messages, -q only errors"),
    ),
    (&["--verbose"], Nothing, Note("this command has no more messages than it prints")),
    (&["--log-prefix", "--log-timestamps"], Nothing, Note("messages have no prefix and no time")),
    (&["--no-log-prefix", "--no-log-timestamps"], Nothing, Accept),
    (
        &["-nr", "--no-repack"],
        Nothing,
        Note("weights are repacked where the CPU's kernels gain from it"),
    ),
    (&["-dio", "--direct-io"], Nothing, Note("--no-mmap reads the file into memory")),
    (&["-ptc", "--print-token-count"], Value, Note("the last line counts the tokens")),
    (&["-dkvc", "--dump-kv-cache"], Nothing, Note("the KV cache is not printed")),
    (
        &["--save-frequency"],
        Value,
        Note("--output-frequency writes the sums so far, and no copies are kept"),
    ),
    (&["--ppl-output-type"], Value, OnlyFor(&["0"], &Note("--json prints one document"))),
    (&["--use-temp-file", "--no-lazy"], Nothing, Note("tensors are converted one at a time")),
    (
        &["--metadata"],
        Value,
        Refuse(
            "--model-name sets the name; `bilayer quantize IN OUT COPY --override-kv KEY=TYPE:VALUE` sets others",
        ),
    ),
    // Refused.
    (&["-cl", "--cache-list"], Nothing, Refuse("`bilayer models` lists the models")),
    (&["--usage"], Nothing, Refuse("--help lists the flags")),
    (&["--version"], Nothing, Refuse("`bilayer version` prints it")),
    (&["--completion-bash"], Nothing, Refuse("`bilayer completions bash` prints it")),
    (
        &["--server-base"],
        Value,
        Refuse("this command loads the model itself; ask a server over HTTP"),
    ),
    (&["--log-prompts-dir"], Value, Refuse("prompts are never logged; remove the flag")),
    (
        &["--skip-chat-parsing"],
        Nothing,
        Refuse("--reasoning-format none prints reasoning as it is"),
    ),
    (
        &["--moe-cache-mib"],
        Value,
        OnlyFor(&["0"], &Refuse("-ncmoe and -ot say where experts are; none are moved later")),
    ),
    (&["-i", "--interactive", "-if", "--interactive-first"], Nothing, Refuse(CHATS)),
    (&["-mli", "--multiline-input", "--in-prefix-bos"], Nothing, Refuse(CHATS)),
    (&["--in-prefix", "--in-suffix"], Value, Refuse(CHATS)),
    (&["-mu", "--model-url", "-dr", "--docker-repo"], Value, Refuse(DOWNLOAD)),
    (
        &["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"],
        Value,
        Refuse("give -md hf:ORG/REPO:QUANT"),
    ),
    (
        &["-hfv", "-hfrv", "--hf-repo-v", "-hffv", "-mv", "--model-vocoder"],
        Value,
        Refuse(TEXT_ONLY),
    ),
    (&["-bs", "--backend-sampling"], Nothing, Note(CANDIDATES)),
    (
        &["--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"],
        Nothing,
        Note(CANDIDATES),
    ),
    (
        &["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"],
        Value,
        Refuse(METADATA),
    ),
    (&["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"], Value, Refuse(METADATA)),
    (&["--yarn-beta-slow", "--yarn-beta-fast"], Value, Refuse(METADATA)),
    (
        &["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"],
        Value,
        Refuse("self-extend is not available; use a model trained for the context"),
    ),
    (&["--lora", "--lora-scaled"], Value, Refuse(MERGE)),
    (
        &["--lora-base"],
        Value,
        Refuse("adapters are applied to the weights as the file has them; remove the flag"),
    ),
    (
        &["--control-vector", "--control-vector-scaled", "--control-vector-layer-range"],
        Value,
        Refuse("`run` and `serve` apply control vectors"),
    ),
    (&["--override-kv"], Value, Refuse(METADATA)),
    (&["-mm", "--mmproj", "-mmu", "--mmproj-url", "--image", "--audio"], Value, Refuse(TEXT_ONLY)),
    (&["--image-min-tokens", "--image-max-tokens", "--video"], Value, Refuse(TEXT_ONLY)),
    (
        &["--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir"],
        Value,
        Refuse(TEXT_ONLY),
    ),
    (&["--mtmd-batch-max-tokens", "--media-path"], Value, Refuse(TEXT_ONLY)),
    (
        &["--rpc"],
        Value,
        Refuse("only devices of this machine are used; `bilayer devices` lists them"),
    ),
    (
        &["--prompt-cache"],
        Value,
        Refuse("it belongs to `run`; `serve --slot-save-path` keeps the KV cache of a request"),
    ),
    (&["--prompt-cache-all", "--prompt-cache-ro"], Nothing, Refuse("it belongs to --prompt-cache")),
    (&["--context-shift"], Nothing, Refuse("the context does not fill here; remove the flag")),
    (&["--keep"], Value, OnlyFor(&["0"], &Refuse("the context does not fill here"))),
    (
        &["-ncffn", "--n-cpu-ffn"],
        Value,
        Refuse("place tensors by name, such as -ot 'blk\\.[0-3]\\.ffn_=cpu'"),
    ),
    (&["-devd", "--device-draft", "-td", "--threads-draft", "-cd"], Value, Refuse(AS_MODEL)),
    (&["--ctx-size-draft", "-ctkd", "--cache-type-k-draft"], Value, Refuse(AS_MODEL)),
    (&["-ctvd", "--cache-type-v-draft", "-otd", "-ncmoed"], Value, Refuse(AS_MODEL)),
    (&["--n-cpu-moe-draft", "--override-tensor-draft"], Value, Refuse(AS_MODEL)),
    (&["--spec-draft-device", "--spec-draft-threads"], Value, Refuse(AS_MODEL)),
    (&["--spec-draft-type-k", "--spec-draft-type-v"], Value, Refuse(AS_MODEL)),
    (&["--spec-draft-override-tensor", "--spec-draft-n-cpu-moe"], Value, Refuse(AS_MODEL)),
    (&["--spec-draft-ncmoe"], Value, Refuse(AS_MODEL)),
    (&["-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"], Nothing, Refuse(AS_MODEL)),
    (&["--draft-p-split", "--spec-draft-p-split"], Value, Note(SPECULATION)),
    (&["--spec-draft-sampling"], Value, OnlyFor(&["greedy"], &Refuse(DRAFTS))),
    (
        &["--spec-synth-len", "--spec-synth-rates"],
        Value,
        Refuse("drafts are accepted as the model decides; remove the flag"),
    ),
    (
        &["--spec-default"],
        Nothing,
        Refuse("--lookup, --draft mtp or -md MODEL say what drafts tokens"),
    ),
    (
        &["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"],
        Value,
        Refuse("--lookup searches only the prompt and the answer; remove the flag"),
    ),
    (&["--ppl-stride"], Value, OnlyFor(&["0"], &Refuse("windows do not overlap; remove the flag"))),
    (&["--hellaswag", "--winogrande", "--multiple-choice"], Nothing, Refuse(TASKS)),
    (&["--hellaswag-tasks", "--winogrande-tasks", "--multiple-choice-tasks"], Value, Refuse(TASKS)),
    (
        &["--show-statistics"],
        Nothing,
        Refuse("`bilayer inspect FILE` lists the tensors of an importance matrix"),
    ),
    (
        &["--output-format"],
        Value,
        OnlyFor(&["gguf"], &Refuse("importance matrices are written as GGUF")),
    ),
    (
        &["--prune-layers"],
        Value,
        Refuse("`bilayer prune IN OUT --drop-layers LIST` removes layers"),
    ),
    (
        &["--include-weights", "--exclude-weights"],
        Value,
        Refuse("the importance matrix is used whole; remove the flag"),
    ),
    (&["--keep-split"], Nothing, Refuse("the output is one file; remove the flag")),
    (
        &["--vocab-only"],
        Nothing,
        Refuse("a tokenizer is not written alone; `tokenize` also reads it from the whole file"),
    ),
    (&["--bigendian"], Nothing, Refuse("only little-endian files are written; remove the flag")),
    (&["--split-max-tensors", "--split-max-size"], Value, Refuse("the output is one file")),
    (&["--print-supported-models"], Nothing, Refuse("docs/running.md lists the architectures")),
    (&["--remote"], Nothing, Refuse("download the checkpoint and give its folder")),
    (&["--binary-file", "-bf"], Value, Refuse("prompts are UTF-8 text; give -f FILE")),
    (&["--attention"], Value, Refuse("attention is as the model was trained; remove the flag")),
    (&["--cls-separator"], Value, Refuse("give pairs of texts by --jsonl, as text and text_pair")),
];

/// What is to be done about a flag that the command does not have.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is left out.
    Accepted,
    /// It is left out, with a note.
    Noted(String),
    /// This flag stands for it.
    Replaced(&'static str),
    /// It is an error.
    Refused(String),
}

/// A flag found, and whether the next argument is its value.
pub struct Found {
    /// What is to be done.
    pub outcome: Outcome,
    /// Whether the next argument belongs to it.
    pub takes_next: bool,
}

/// A flag of llama.cpp.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// Its name, with dashes.
    pub name: &'a str,
    /// Its own value (`--flag=value`).
    pub own: Option<&'a str>,
    /// The argument after it.
    pub next: Option<&'a str>,
}

/// The meaning of a flag that `command` does not have.
pub fn find(command: &str, given: Given<'_>) -> Option<Found> {
    let Given { name, own, next } = given;
    let of_server = if SERVERS.contains(&command) { server::FLAGS } else { &[] };
    let is = |flags: &&Flags| flags.0.contains(&name);
    let listed = of_server.iter().chain(FLAGS).find(is).map(|(_, takes, means)| (takes, means));
    let family = || name.starts_with(NGRAM).then_some((&Value, &Note(SPECULATION)));
    let Some((takes, means)) = listed.or_else(family) else {
        return is_preset(name).then(|| Found {
            outcome: Outcome::Refused(refused(name, "name the model with -hf ORG/REPO")),
            takes_next: false,
        });
    };
    let next = own.is_none().then_some(next).flatten();
    let next = match takes {
        Nothing => None,
        Value => next,
        Maybe(values) => next.filter(|next| values.contains(next)),
    };
    let outcome = outcome(name, own.or(next), means);
    Some(Found { outcome, takes_next: next.is_some() })
}

fn outcome(name: &str, value: Option<&str>, means: &Means) -> Outcome {
    match means {
        Accept => Outcome::Accepted,
        Note(why) => Outcome::Noted(format!("note: {name} has no effect: {why}")),
        Refuse(advice) => Outcome::Refused(refused(name, advice)),
        OnlyFor(values, _) if value.is_some_and(|value| values.contains(&value)) => {
            Outcome::Accepted
        }
        OnlyFor(_, otherwise) => outcome(name, value, otherwise),
        Instead(flags) => match flags.iter().find(|(of, _)| Some(*of) == value) {
            Some((_, Some(flag))) => Outcome::Replaced(flag),
            Some((_, None)) => Outcome::Accepted,
            None => {
                let values: Vec<&str> = flags.iter().map(|(value, _)| *value).collect();
                let values = values.join(", ");
                Outcome::Refused(format!("{name} has an unknown value; it must be one of {values}"))
            }
        },
    }
}

fn refused(name: &str, advice: &str) -> String {
    format!("{name} is not supported; {advice}")
}

/// Whether it names a model and its settings, as `--gpt-oss-20b-default` does.
fn is_preset(name: &str) -> bool {
    name.starts_with("--") && (name.ends_with("-default") || name.ends_with("-spec"))
}

/// All names.
#[cfg(test)]
fn names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().flat_map(|(names, ..)| *names).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_their_values_and_nothing_else() {
        let cases = [
            ("--color", None, Some("on"), "Noted", true),
            ("--color", None, Some("-n"), "Noted", false),
            ("--color", Some("auto"), Some("x"), "Accepted", false),
            ("-fit", None, Some("on"), "Accepted", true),
            ("-fit", None, Some("off"), "Noted", true),
            ("-np", None, Some("1"), "Accepted", true),
            ("-np", None, Some("2"), "Refused", true),
            ("--mmap", None, Some("x"), "Accepted", false),
            ("--gpt-oss-20b-default", None, None, "Refused", false),
            ("-np", None, Some("-1"), "Accepted", true),
            ("-lm", None, Some("mmap"), "Accepted", true),
            ("-lm", None, Some("dio"), "Replaced(\"--no-mmap\")", true),
            ("--load-mode", Some("mmap+mlock"), None, "Replaced(\"--mlock\")", false),
            ("--load-mode", Some("slow"), None, "Refused", false),
            ("--spec-ngram-mod-n-max", None, Some("9"), "Noted", true),
        ];
        for (name, own, next, outcome, takes_next) in cases {
            let found = find("run", Given { name, own, next }).expect(name);
            assert!(format!("{:?}", found.outcome).starts_with(outcome), "{name} {next:?}");
            assert_eq!(found.takes_next, takes_next, "{name} {next:?}");
        }
        assert!(find("run", Given { name: "--temp", own: None, next: None }).is_none());
    }

    #[test]
    fn flags_that_a_request_sets_are_those_of_servers() {
        let given = Given { name: "--grammar", own: None, next: Some("x") };
        let found = find("serve", given).expect("listed");
        let line = "--grammar is not supported; a request sets `grammar`".to_owned();
        assert_eq!(found.outcome, Outcome::Refused(line));
        assert!(find("bench", given).is_none());
    }

    #[test]
    fn no_flag_has_two_meanings() {
        let of_server = server::FLAGS.iter().flat_map(|(names, ..)| *names).copied();
        for mut all in [names().collect::<Vec<&str>>(), of_server.collect()] {
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
        }
    }
}
