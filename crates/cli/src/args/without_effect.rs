//! Flags of llama.cpp that change nothing here: they are accepted, and a note says why.

/// Whether a flag is followed by a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// It stands alone.
    Nothing,
    /// The next argument is its value.
    Value,
}

use Follows::{Nothing, Value};

const POOL: &str = "prefill uses the threads of -t";
const FITS: &str = "-ngl auto, the default, fits the model to memory";
const IN_PLACE: &str = "ops run on the device of their layer";
const BATCHED: &str = "requests always run together in one batch";
const TEMPLATES: &str = "the model's chat template is always used";
const PREFIXES: &str = "prefixes stay in the KV cache until their memory is needed";
const CHECKED: &str = "files are always checked when they are opened";
const FORMAT: &str = "--log-format chooses what is logged";
const PACKED: &str = "weights are repacked where the CPU's kernels gain from it";

/// Names, what follows, and why there is no effect.
const FLAGS: &[(&[&str], Follows, &str)] = &[
    (&["-fit", "--fit"], Value, FITS),
    (&["-nopo", "--no-op-offload", "--op-offload", "--no-host"], Nothing, IN_PLACE),
    (&["-tb", "--threads-batch", "--threads-http", "--prio", "--prio-batch"], Value, POOL),
    (&["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--poll", "--numa"], Value, POOL),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching"], Nothing, BATCHED),
    (&["--no-jinja"], Nothing, TEMPLATES),
    (
        &["-cram", "--cache-ram", "--cache-reuse", "--ctx-checkpoints", "--swa-checkpoints"],
        Value,
        PREFIXES,
    ),
    (&["-sps", "--slot-prompt-similarity", "-dt", "--defrag-thold"], Value, PREFIXES),
    (&["--cache-idle-slots", "--no-cache-idle-slots", "--swa-full"], Nothing, PREFIXES),
    (&["--check-tensors"], Nothing, CHECKED),
    (&["-lv", "--verbosity", "--log-verbosity", "--log-colors"], Value, FORMAT),
    (&["--log-disable", "--log-prefix", "--log-timestamps"], Nothing, FORMAT),
    (&["--no-log-prefix", "--no-log-timestamps"], Nothing, FORMAT),
    (&["--repack", "-nr", "--no-repack"], Nothing, PACKED),
    (
        &["-dio", "--direct-io", "-ndio", "--no-direct-io"],
        Nothing,
        "--no-mmap reads the file into memory",
    ),
    (&["--perf", "--no-perf"], Nothing, "times are always measured"),
    (&["--no-mmproj", "--no-mmproj-offload"], Nothing, "models read text alone"),
];

/// Flags of llama-server that ask for what `serve` does by default.
const DEFAULTS: &[&str] = &["--slots", "--props", "--webui", "--ui", "--cache-prompt", "--warmup"];

/// What follows a flag without effect, and a note about it, if there is anything to say.
pub fn find(name: &str) -> Option<(Follows, Option<String>)> {
    if DEFAULTS.contains(&name) {
        return Some((Nothing, None));
    }
    let (_, follows, why) = FLAGS.iter().find(|(names, ..)| names.contains(&name))?;
    Some((*follows, Some(format!("note: {name} has no effect: {why}"))))
}

/// All names.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().flat_map(|(names, ..)| *names).chain(DEFAULTS).copied()
}
