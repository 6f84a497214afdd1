//! One result: llama-bench's fields in its order, then ours.
//!
//! Fields with llama-bench's names have llama-bench's meaning. Settings that this program does not have are constant:
//! threads are not pinned to single CPUs (`cpu_mask` 0x0), and they spin before they park (`poll` 50). `n_gpu_layers` is the number placed, also after `auto`.

use std::path::Path;

use bilayer_engine::Model;
use bilayer_engine::placement::{Placing, SplitMode};
use bilayer_engine::session::Session;
use bilayer_measure::bench::{Measured, Summary};
use bilayer_scheduler::{OpOffload, Plan};
use serde_json::{Value, json};

use super::describe;
use super::work::Variant;
use crate::args::{Bench as Args, FlashAttn};
use crate::commands::run;
use crate::demo::{self, Source};
use crate::version;

/// A model as llama-bench describes it.
pub struct Described {
    filename: String,
    model_type: String,
    bytes: u64,
    parameters: u64,
    is_mapped: bool,
    layers: u32,
}

impl Described {
    /// Describes an opened model.
    pub fn new(model: &Model, source: &Source<'_>) -> Described {
        Described {
            filename: source.path.unwrap_or(Path::new(demo::NAME)).display().to_string(),
            model_type: describe::model_type(model),
            bytes: describe::bytes(model),
            parameters: describe::parameters(model),
            is_mapped: model.file().is_mapped(),
            layers: model.graph().layers(),
        }
    }
}

/// A session with its current placement.
pub struct Placed<'v> {
    variant: &'v Variant,
    placing: usize,
    cpu: String,
    threads: usize,
    level: String,
    /// Name and interface of each GPU.
    gpus: Vec<(String, String)>,
    plan: Plan,
    kernels: Vec<String>,
}

impl Placed<'_> {
    /// Describes the session.
    pub fn new<'v>(session: &Session, variant: &'v Variant, placing: usize) -> Placed<'v> {
        let mut facts = session.backends().map(|backend| backend.facts());
        let cpu = facts.next();
        let gpus: Vec<(String, String)> =
            facts.map(|facts| (facts.name.clone(), interface(&facts.level).to_owned())).collect();
        let mut kernels: Vec<String> = Vec::new();
        for kernel in session.kernels() {
            if !kernels.contains(&kernel.name) {
                kernels.push(kernel.name);
            }
        }
        Placed {
            variant,
            placing,
            cpu: match (&variant.setup.placings[placing].simulated, cpu) {
                (Some(_), Some(described)) => described.name.clone(),
                _ => bilayer_cpu::host::name(),
            },
            threads: cpu.map_or(0, |facts| facts.threads),
            level: cpu.map_or(String::new(), |facts| facts.level.clone()),
            gpus,
            plan: session.plan().clone(),
            kernels,
        }
    }

    /// The names of all GPUs.
    fn gpu_names(&self) -> String {
        let names: Vec<&str> = self.gpus.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }

    /// Planned memory on all GPUs; `None` without one.
    fn gpu_bytes(&self) -> Option<u64> {
        let gpus = &self.plan.devices[1..];
        (!gpus.is_empty()).then(|| gpus.iter().map(|gpu| gpu.used_bytes).sum())
    }

    fn placing(&self) -> &Placing {
        &self.variant.setup.placings[self.placing]
    }
}

/// The API of a GPU, with which its level begins, as llama.cpp spells it.
fn interface(level: &str) -> &str {
    match level.split(' ').next().unwrap_or_default() {
        "vulkan" => "Vulkan",
        "metal" => "Metal",
        "dx12" => "DX12",
        other => other,
    }
}

/// One result and its settings.
pub struct Record<'a> {
    /// The command line.
    pub args: &'a Args,
    /// The model.
    pub described: &'a Described,
    /// The session.
    pub placed: &'a Placed<'a>,
    /// The logical batch.
    pub batch_size: usize,
    /// Start of the test, seconds since 1970.
    pub began: u64,
    /// The measurements.
    pub measured: Measured,
    /// Predicted milliseconds of a token at the depth of the test; `None` without a prediction, and of other tests than
    /// those of one sequence that only generates.
    pub predicted_token_ms: Option<f64>,
}

/// A name and a value.
pub type Field = (&'static str, Value);

impl Record<'_> {
    /// llama-bench's fields, except the samples, which only JSON has.
    pub fn fields(&self) -> Vec<Field> {
        let Record { described, placed, measured, .. } = self;
        let setup = &placed.variant.setup;
        let (ns, ts) = (self.ns(), Summary::of(&measured.samples_ts()));
        let interface = placed.gpus.first().map_or("CPU", |(_, interface)| interface);
        let mut fields: Vec<Field> = vec![
            ("build_commit", json!(version::COMMIT)),
            ("build_number", json!(version::build_number())),
            ("cpu_info", json!(placed.cpu)),
            ("gpu_info", json!(placed.gpu_names())),
            ("backends", json!(interface)),
            ("model_filename", json!(described.filename)),
            ("model_type", json!(described.model_type)),
            ("model_size", json!(described.bytes)),
            ("model_n_params", json!(described.parameters)),
            ("n_batch", json!(self.batch_size)),
            ("n_ubatch", json!(setup.ubatch_size)),
            ("n_threads", json!(placed.threads)),
            ("cpu_mask", json!("0x0")),
            ("cpu_strict", json!(false)),
            ("poll", json!(50)),
            ("type_k", json!(setup.cache_type_k.name.to_lowercase())),
            ("type_v", json!(setup.cache_type_v.name.to_lowercase())),
        ];
        fields.extend(self.placement_fields());
        fields.extend([
            ("use_mmap", json!(described.is_mapped)),
            ("use_direct_io", json!(false)),
            ("embeddings", json!(false)),
            ("no_op_offload", json!(u8::from(placed.placing().op_offload == OpOffload::Never))),
            ("no_host", json!(false)),
            ("fit_target", json!(placed.placing().margin_bytes.first().unwrap_or(&0) >> 20)),
            ("fit_min_ctx", json!(0)),
            ("n_prompt", json!(measured.test.prompt)),
            ("n_gen", json!(measured.test.generate)),
            ("n_depth", json!(measured.test.depth)),
            ("test_time", json!(describe::timestamp(self.began))),
            ("avg_ns", json!(ns.mean as u64)),
            ("stddev_ns", json!(ns.deviation as u64)),
            ("avg_ts", json!(ts.mean)),
            ("stddev_ts", json!(ts.deviation)),
        ]);
        fields
    }

    fn placement_fields(&self) -> [Field; 9] {
        let (placed, placing) = (self.placed, self.placed.placing());
        let experts = match placing.cpu_moe_layers {
            u32::MAX => self.described.layers,
            _ => placed.variant.n_cpu_moe[placed.placing],
        };
        let flash_attn = match placed.variant.flash_attn {
            FlashAttn::Auto => -1,
            FlashAttn::Off => 0,
            FlashAttn::On => 1,
        };
        let devices = match placing.devices.as_slice() {
            [] => "auto".to_owned(),
            names => names.join("/"),
        };
        let split_mode = match placing.split_mode {
            SplitMode::Layer => "layer",
            SplitMode::None => "none",
        };
        let shares: Vec<String> =
            placing.tensor_split.iter().map(|share| format!("{share:.2}")).collect();
        let shares = if shares.is_empty() { "0.00".to_owned() } else { shares.join("/") };
        [
            ("n_gpu_layers", json!(placed.plan.gpu_layers)),
            ("n_cpu_moe", json!(experts)),
            ("split_mode", json!(split_mode)),
            ("main_gpu", json!(placing.main_gpu.unwrap_or(0))),
            ("no_kv_offload", json!(placing.cache_on_cpu)),
            ("flash_attn", json!(flash_attn)),
            ("devices", json!(devices)),
            ("tensor_split", json!(shares)),
            ("tensor_buft_overrides", json!(self.overrides())),
        ]
    }

    /// Fields that llama-bench does not have.
    pub fn own_fields(&self) -> Vec<Field> {
        let Record { args, placed, measured: m, .. } = self;
        let total = m.spent.total.as_secs_f64();
        let share = |part: std::time::Duration| {
            if total > 0.0 { part.as_secs_f64() / total } else { 0.0 }
        };
        vec![
            ("n_parallel", json!(m.test.parallel)),
            ("placement", json!(placed.plan.map)),
            ("adapter", json!(placed.gpus.first().map(|(name, _)| name))),
            ("cpu_level", json!(placed.level)),
            ("numa", json!(placed.variant.setup.numa.to_string())),
            ("k_cache_hadamard", json!(placed.variant.setup.hadamard_keys)),
            ("fast_prefill", json!(placed.variant.setup.fast_prefill)),
            ("step_bytes", json!(m.step_bytes.iter().sum::<u64>())),
            ("cpu_step_bytes", json!(m.cpu_step_bytes())),
            ("weight_gbps", json!(m.weight_gbps())),
            ("cpu_weight_gbps", json!(m.cpu_weight_gbps())),
            ("probe_gbps", json!(m.probe_mean_gbps())),
            ("probe_share", json!(m.probe_share())),
            ("cpu_busy", json!(share(m.spent.host()))),
            ("gpu_busy", json!(share(m.spent.offload()))),
            ("crossing_busy", json!(share(m.spent.crossing))),
            ("peak_resident_bytes", json!(m.peak_resident_bytes)),
            ("adapter_bytes", json!(placed.gpu_bytes())),
            ("predicted_token_ms", json!(self.predicted_token_ms)),
            ("warm_up", json!(!args.no_warmup)),
            ("kernels", json!(placed.kernels)),
        ]
    }

    /// The individual repetitions.
    pub fn samples(&self) -> [Field; 2] {
        let m = &self.measured;
        [("samples_ns", json!(m.samples_ns)), ("samples_ts", json!(m.samples_ts()))]
    }

    /// The busy time of each device, which only JSON has.
    pub fn device_busy(&self) -> Field {
        ("device_busy", run::devices(&self.placed.plan, &self.measured.spent))
    }

    fn ns(&self) -> Summary {
        let samples: Vec<f64> = self.measured.samples_ns.iter().map(|&ns| ns as f64).collect();
        Summary::of(&samples)
    }

    /// Pinned tensors as llama-bench writes them: `pattern=buffer;...`, or none.
    fn overrides(&self) -> String {
        let buffer = |device: usize| match device.checked_sub(1) {
            None => "CPU".to_owned(),
            Some(gpu) => match (self.placed.gpus.get(gpu), self.placed.gpus.len()) {
                (Some((_, interface)), 1) => interface.clone(),
                (Some((_, interface)), _) => format!("{interface}{gpu}"),
                (None, _) => "GPU".to_owned(),
            },
        };
        let pins = self.placed.placing().overrides.iter();
        let pins = pins.map(|(pattern, device)| format!("{pattern}={}", buffer(*device)));
        let pins: Vec<String> = pins.collect();
        if pins.is_empty() { "none".to_owned() } else { pins.join(";") }
    }
}

/// A value as llama-bench writes it outside of JSON: 0 and 1 for false and true, six decimals, lists separated by
/// semicolons.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(is_set) => u8::from(*is_set).to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => format!("{number:.6}"),
            None => number.to_string(),
        },
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join("; "),
        Value::Object(_) => value.to_string(),
    }
}
