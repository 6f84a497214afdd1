//! Placement flags: what runs on which device.

use bilayer_engine::placement::{Execution, Placing, Simulation, SplitMode};
use bilayer_engine::session::Overlap;
use bilayer_scheduler::{Bytes, ExpertCache, ExpertUses, Offload, OpOffload, Plan, STREAM_TOKENS};
use clap::Args;

use super::switch;
use crate::folders;

/// Placement on the GPUs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct PlacingArgs {
    /// Layers on the GPUs: the output head first, then the last layers; auto, all, a number or a percentage; short form
    /// -ngl
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", default_value = "auto")]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS", value_parser = offload)]
    pub gpu_layers: Offload,
    /// Keep the expert tensors of the first N layers on the CPU; short form -ncmoe
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_CPU_MOE", default_value_t = 0)]
    #[arg(hide_default_value = true)]
    pub n_cpu_moe: u32,
    /// Keep the KV cache, and attention with it, on the CPU; short form -nkvo
    #[arg(long, env = "LLAMA_ARG_NO_KV_OFFLOAD", value_parser = switch())]
    pub no_kv_offload: bool,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

/// The GPUs and how they are used: settings that apply to all placements a command tries.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct AdapterArgs {
    /// Place tensors whose names match on cpu, gpu, gpu1 and so on, wherever their layer is; repeatable; short form -ot
    #[arg(long, value_name = "REGEX=DEVICE", value_parser = pin)]
    pub override_tensor: Vec<(String, usize)>,
    /// GPU memory for the experts that tokens use most, while the CPU has all others: auto (what is left, if that is faster),
    /// a size such as 4GiB, or 0
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
    #[arg(value_parser = expert_cache)]
    pub expert_cache: ExpertCache,
    /// Choose these experts by the counts in a file that `bilayer imatrix` has written, and keep to them [default: by counts
    /// that are learned while the model runs]
    #[arg(long, value_name = "FILE", value_parser = counts)]
    pub expert_counts: Option<ExpertUses>,
    /// Keep all expert tensors on the CPU; short form -cmoe
    #[arg(long, env = "LLAMA_ARG_CPU_MOE", value_parser = switch())]
    pub cpu_moe: bool,
    /// GPUs to use, separated by commas: numbers from `bilayer devices`, parts of names, `software`, or none; short form
    /// -dev [default: all discrete GPUs, otherwise the best]
    #[arg(long, value_name = "NAMES", env = "LLAMA_ARG_DEVICE", value_parser = names)]
    pub device: Option<List<String>>,
    /// Share of the offloaded layers for each GPU, such as 3,1; short form -ts [default: by measured times and free memory]
    #[arg(long, value_name = "SHARES", env = "LLAMA_ARG_TENSOR_SPLIT", value_parser = shares)]
    pub tensor_split: Option<List<f64>>,
    /// How several GPUs share the model: layer (whole layers on each) or none (all on one); short form -sm
    #[arg(long, value_name = "MODE", default_value = "layer", env = "LLAMA_ARG_SPLIT_MODE")]
    #[arg(value_parser = split_mode)]
    pub split_mode: SplitMode,
    /// The GPU that -sm none uses, counted from 0 among those in use; short form -mg
    #[arg(long, value_name = "N", env = "LLAMA_ARG_MAIN_GPU")]
    pub main_gpu: Option<usize>,
    /// Assume this much free GPU memory, such as 24GiB; a list gives one value per GPU [default: ask the driver]
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    pub vram: Option<List<u64>>,
    /// GPU memory to leave free; a list gives one value per GPU, a bare number is MiB; short form -fitt [default: 1GiB, less
    /// on small GPUs]
    #[arg(long, value_name = "SIZES", env = "LLAMA_ARG_FIT_TARGET", value_parser = margins)]
    pub fit_target: Option<List<u64>>,
    /// Run devices at the same time: on, off, auto (in prefill and with many sequences)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = overlap)]
    pub overlap: Overlap,
    /// Stream weights that are on the CPU to a GPU for prompts of 32 tokens or more [default: from the number of tokens that
    /// is predicted to be faster]
    #[arg(long, conflicts_with = "no_op_offload")]
    pub op_offload: bool,
    /// Never stream weights to a GPU; short form -nopo
    #[arg(long)]
    pub no_op_offload: bool,
    /// Tokens of a prompt from which weights are streamed, instead of the predicted number
    #[arg(long, value_name = "N", env = "GGML_OP_OFFLOAD_MIN_BATCH")]
    pub op_offload_min_batch: Option<usize>,
    /// Time the model's layers on each device again instead of using stored times; without a GPU they are timed only with this
    /// flag
    #[arg(long)]
    pub remeasure: bool,
    /// Run on the machine described in a TOML file: with simulated devices, whose times are those of its hardware
    #[arg(long, value_name = "FILE", value_parser = simulation)]
    pub simulate: Option<Simulation>,
    /// With --simulate, only go through the schedule: nothing is computed, and every logit is 0
    #[arg(long, requires = "simulate")]
    pub no_compute: bool,
    /// List the GPUs and exit
    #[arg(long)]
    pub list_devices: bool,
}

impl PlacingArgs {
    /// The placement as the engine's settings.
    pub fn placing(&self) -> Placing {
        self.adapter.placing(self.gpu_layers, self.n_cpu_moe, self.no_kv_offload.into())
    }
}

/// Where the KV cache is kept and attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// On the device of each layer.
    WithLayers,
    /// On the CPU.
    OnCpu,
}

impl From<bool> for Caches {
    /// Reads the switch --no-kv-offload.
    fn from(is_set: bool) -> Caches {
        if is_set { Caches::OnCpu } else { Caches::WithLayers }
    }
}

impl AdapterArgs {
    /// The placement as the engine's settings, for one value of the flags that `bench` takes as lists.
    pub fn placing(&self, gpu_layers: Offload, n_cpu_moe: u32, caches: Caches) -> Placing {
        let devices = List::values(&self.device);
        let none = devices == ["none"];
        Placing {
            gpu_layers: self.offload(gpu_layers),
            tensor_split: List::values(&self.tensor_split),
            split_mode: self.split_mode,
            main_gpu: self.main_gpu,
            overrides: self.override_tensor.clone(),
            cpu_moe_layers: if self.cpu_moe { u32::MAX } else { n_cpu_moe },
            cache_on_cpu: caches == Caches::OnCpu,
            expert_cache: self.expert_cache,
            expert_uses: self.expert_counts.clone(),
            op_offload: self.op_offload(),
            devices: if none { Vec::new() } else { devices },
            vram_bytes: List::values(&self.vram),
            margin_bytes: List::values(&self.fit_target),
            taken_bytes: Vec::new(),
            kept: folders::kept(),
            remeasure: self.remeasure,
            simulated: self.simulated(),
        }
    }
}

impl AdapterArgs {
    /// What is offloaded if so much is asked for: nothing without a device for it.
    pub fn offload(&self, asked: Offload) -> Offload {
        let none = List::values(&self.device) == ["none"];
        if none { Offload::Count(0) } else { asked }
    }

    /// When weights are streamed.
    fn op_offload(&self) -> OpOffload {
        match (self.no_op_offload, self.op_offload, self.op_offload_min_batch) {
            (true, ..) => OpOffload::Never,
            (false, _, Some(tokens)) => OpOffload::From(tokens),
            (false, true, None) => OpOffload::From(STREAM_TOKENS),
            (false, false, None) => OpOffload::Auto,
        }
    }

    /// The flag for that, with a space before it; nothing for the default.
    fn explicit_op_offload(&self) -> String {
        match self.op_offload() {
            OpOffload::Auto => String::new(),
            OpOffload::Never => " -nopo".to_owned(),
            OpOffload::From(tokens) => format!(" --op-offload-min-batch {tokens}"),
        }
    }

    /// The simulated machine: one for all placements of a command.
    fn simulated(&self) -> Option<Simulation> {
        let execution = if self.no_compute { Execution::ScheduleOnly } else { Execution::Compute };
        self.simulate.clone().map(|simulation| simulation.with(execution))
    }
}

impl PlacingArgs {
    /// The explicit flags that reproduce a plan.
    pub fn explicit(&self, plan: &Plan) -> String {
        let mut flags = format!("-ngl {}", plan.gpu_layers);
        if let [first, more @ ..] = &plan.devices[1..]
            && !more.is_empty()
            && plan.gpu_layers > 0
        {
            let shares = more.iter().map(|device| format!(",{}", device.parts));
            flags += &format!(" -ts {}{}", first.parts, shares.collect::<String>());
        }
        for (pattern, device) in &self.adapter.override_tensor {
            flags += &format!(" -ot '{pattern}={}'", device_name(*device));
        }
        flags += &match (self.adapter.cpu_moe, self.n_cpu_moe) {
            (true, _) => " -cmoe".to_owned(),
            (false, 0) => String::new(),
            (false, layers) => format!(" -ncmoe {layers}"),
        };
        if let Some(experts) = &plan.experts {
            flags += &format!(" --expert-cache {}", experts.bytes);
        }
        flags += if self.no_kv_offload { " -nkvo" } else { "" };
        flags + &self.adapter.explicit_op_offload()
    }
}

fn expert_cache(given: &str) -> Result<ExpertCache, String> {
    match given {
        "auto" => Ok(ExpertCache::Auto),
        _ => match size(given).map_err(|_| "it must be auto, 0 or a size such as 4GiB")? {
            0 => Ok(ExpertCache::Off),
            bytes => Ok(ExpertCache::Bytes(bytes)),
        },
    }
}

fn counts(given: &str) -> Result<ExpertUses, String> {
    bilayer_engine::expert_counts(given.as_ref()).map_err(|error| error.to_string())
}

fn simulation(given: &str) -> Result<Simulation, String> {
    let text = std::fs::read_to_string(given).map_err(|error| error.to_string())?;
    Simulation::described(&text, Execution::Compute).map_err(|error| error.to_string())
}

fn overlap(given: &str) -> Result<Overlap, String> {
    match given {
        "on" => Ok(Overlap::Always),
        "off" => Ok(Overlap::Off),
        "auto" => Ok(Overlap::Auto),
        _ => Err("it must be on, off or auto".to_owned()),
    }
}

pub(super) fn offload(given: &str) -> Result<Offload, String> {
    let wrong = || "it must be auto, all, a number of layers or a percentage".to_owned();
    match given {
        // llama.cpp takes -1 for auto.
        "auto" | "-1" => return Ok(Offload::Auto),
        "all" => return Ok(Offload::All),
        _ => {}
    }
    match given.strip_suffix('%') {
        Some(number) => {
            let percent = number.parse::<u8>().ok().filter(|percent| *percent <= 100);
            percent.map(Offload::Percent).ok_or_else(wrong)
        }
        None => given.parse().map(Offload::Count).map_err(|_| wrong()),
    }
}

/// A list that is the value of one flag; a repeated flag replaces it.
#[derive(Clone, Debug, PartialEq)]
pub struct List<T>(Vec<T>);

impl<T: Clone> List<T> {
    /// The values; none if the flag is not given.
    pub fn values(list: &Option<List<T>>) -> Vec<T> {
        list.as_ref().map_or(Vec::new(), |list| list.0.clone())
    }

    fn parse(
        given: &str,
        separators: &[char],
        one: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Self, String> {
        given.split(separators).map(|text| one(text.trim())).collect::<Result<_, _>>().map(List)
    }
}

fn names(given: &str) -> Result<List<String>, String> {
    let name = |text: &str| match text {
        "" => Err("it must be a list such as 0,1".to_owned()),
        name => Ok(name.to_owned()),
    };
    let list = List::parse(given, &[','], name)?;
    if list.0.len() > 1 && list.0.iter().any(|name| name == "none") {
        return Err("`none` cannot be combined with other devices".to_owned());
    }
    Ok(list)
}

/// Parses shares such as `3,1`, or `3/1` as llama.cpp does.
fn shares(given: &str) -> Result<List<f64>, String> {
    let wrong = || "it must be shares such as 3,1, at least one of them above 0".to_owned();
    let share = |text: &str| {
        let share = text.parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0);
        share.ok_or_else(wrong)
    };
    let list = List::parse(given, &[',', '/'], share)?;
    if list.0.iter().sum::<f64>() > 0.0 { Ok(list) } else { Err(wrong()) }
}

fn split_mode(given: &str) -> Result<SplitMode, String> {
    match given {
        "layer" => Ok(SplitMode::Layer),
        "none" => Ok(SplitMode::None),
        "row" | "tensor" => Err(format!(
            "{given} would split matrices over GPUs, which is not supported; use layer, or none with -mg"
        )),
        _ => Err("it must be layer or none".to_owned()),
    }
}

/// The name of a device for `-ot`: 0 is the CPU, 1 the first GPU.
fn device_name(device: usize) -> String {
    match device {
        0 => "cpu".to_owned(),
        1 => "gpu".to_owned(),
        _ => format!("gpu{}", device - 1),
    }
}

fn pin(given: &str) -> Result<(String, usize), String> {
    let split = given.rsplit_once('=').and_then(|(pattern, device)| {
        let name = device.to_ascii_lowercase();
        if name == "cpu" {
            return Some((pattern.to_owned(), 0));
        }
        // llama.cpp names its buffers: CUDA0, Vulkan0, Metal.
        let families = ["gpu", "cuda", "vulkan", "metal", "rocm"];
        let number = families.iter().find_map(|family| name.strip_prefix(family))?;
        let number: usize = if number.is_empty() { 0 } else { number.parse().ok()? };
        Some((pattern.to_owned(), number.checked_add(1)?))
    });
    split.ok_or_else(|| {
        "it must be PATTERN=DEVICE such as blk.1.*ffn=cpu; devices are cpu, gpu, gpu1".to_owned()
    })
}

/// Parses `24GiB`, `512MiB`, `1.5G` or `800000` to bytes.
pub(crate) fn size(given: &str) -> Result<u64, String> {
    Ok(Bytes::parse(given, 0)?.0)
}

fn sizes(given: &str) -> Result<List<u64>, String> {
    List::parse(given, &[','], size)
}

/// Parses sizes; a bare number is MiB.
fn margins(given: &str) -> Result<List<u64>, String> {
    List::parse(given, &[','], |text| Ok(Bytes::parse(text, 20)?.0))
}

#[cfg(test)]
mod tests {
    use bilayer_engine::placement::SplitMode;
    use bilayer_scheduler::Offload;

    use super::{List, margins, names, offload, pin, shares, size, sizes, split_mode};

    #[test]
    fn parts_are_words_numbers_and_percentages() {
        let cases = [
            ("auto", Offload::Auto),
            ("all", Offload::All),
            ("-1", Offload::Auto),
            ("12", Offload::Count(12)),
            ("50%", Offload::Percent(50)),
        ];
        for (given, expected) in cases {
            assert_eq!(offload(given), Ok(expected), "{given}");
        }
        for given in ["", "many", "101%", "-2", "1.5"] {
            assert!(offload(given).is_err(), "{given}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let cases = [("24GiB", 24 << 30), ("1.5G", 3 << 29), ("512mb", 512 << 20), ("100", 100)];
        for (given, expected) in cases {
            assert_eq!(size(given), Ok(expected), "{given}");
        }
        assert_eq!(sizes("1GiB,2GiB"), Ok(List(vec![1 << 30, 2 << 30])));
        assert_eq!(margins("1024"), Ok(List(vec![1 << 30])));
        assert!(size("lots").is_err() && size("1 parsec").is_err());
    }

    #[test]
    fn pins_name_a_device() {
        assert_eq!(pin("ffn_(up|down)=cpu"), Ok(("ffn_(up|down)".to_owned(), 0)));
        assert_eq!(pin("a=b=Vulkan0"), Ok(("a=b".to_owned(), 1)));
        assert_eq!(pin("a=gpu"), Ok(("a".to_owned(), 1)));
        assert_eq!(pin("a=gpu1"), Ok(("a".to_owned(), 2)));
        assert_eq!(pin("a=CUDA3"), Ok(("a".to_owned(), 4)));
        for given in ["ffn", "ffn=disk", "a=gpux", "a=CUDA_Host", "a=gpu99999999999999999999"] {
            assert!(pin(given).is_err(), "{given}");
        }
    }

    #[test]
    fn gpus_are_listed_and_share() {
        let list = |names: &[&str]| Ok(List(names.iter().map(|n| (*n).to_owned()).collect()));
        assert_eq!(names("0,software"), list(&["0", "software"]));
        assert_eq!(names("none"), list(&["none"]));
        assert!(names("0,,1").is_err() && names("0,none").is_err());
        assert_eq!(shares("3,1"), Ok(List(vec![3.0, 1.0])));
        assert_eq!(shares("0.5/0.5/0"), Ok(List(vec![0.5, 0.5, 0.0])));
        for given in ["", "0,0", "-1,2", "NaN,1", "inf,1", "a"] {
            assert!(shares(given).is_err(), "{given}");
        }
        assert_eq!(
            (split_mode("layer"), split_mode("none")),
            (Ok(SplitMode::Layer), Ok(SplitMode::None))
        );
        assert!(split_mode("row").is_err_and(|e| e.contains("layer, or none")));
    }
}
