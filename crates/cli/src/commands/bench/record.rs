//! One result: llama-bench's fields in its order, then ours.
//!
//! A field that has llama-bench's name means what it means there. Where this program has only one way, that way is
//! told: ops run where their weights are (`no_op_offload` 1), one adapter holds whole layers (`split_mode` layer,
//! `main_gpu` 0, no `tensor_split`), threads are not pinned (`cpu_mask` 0x0), and they spin before they park (`poll`
//! 50, its default). `n_gpu_layers` is the number that was placed, also where it was to be chosen.

use std::path::Path;

use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::Session;
use bilayer_graph::Kind;
use bilayer_measure::bench::{Measured, Summary};
use bilayer_scheduler::Side;
use serde_json::{Value, json};

use super::describe;
use super::work::Variant;
use crate::args::{Bench as Args, FlashAttn};
use crate::demo::{self, Source};

/// A model in llama-bench's words.
pub struct Described {
    filename: String,
    model_type: String,
    bytes: u64,
    parameters: u64,
    is_mapped: bool,
    layers: u32,
}

impl Described {
    /// What is known of an opened model.
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

/// A session as it is placed now.
pub struct Placed<'v> {
    variant: &'v Variant,
    placing: usize,
    cpu: String,
    threads: usize,
    level: String,
    /// Name and interface of the adapter.
    adapter: Option<(String, String)>,
    map: String,
    gpu_layers: u32,
    adapter_bytes: Option<u64>,
    predicted_ms: Option<f64>,
    kernels: Vec<String>,
}

impl Placed<'_> {
    /// Asks the session.
    pub fn new<'v>(session: &Session, variant: &'v Variant, placing: usize) -> Placed<'v> {
        let facts = |kind: Kind| session.backends().map(|b| b.facts()).find(|f| f.kind == kind);
        let (cpu, gpu) = (facts(Kind::Cpu), facts(Kind::Gpu));
        let plan = session.plan();
        let on_gpu = plan.devices.iter().zip(session.backends());
        let on_gpu = on_gpu.filter(|(_, b)| b.facts().kind == Kind::Gpu);
        let mut kernels: Vec<String> = Vec::new();
        for kernel in session.kernels() {
            if !kernels.contains(&kernel.name) {
                kernels.push(kernel.name);
            }
        }
        Placed {
            variant,
            placing,
            cpu: bilayer_cpu::host::name(),
            threads: cpu.map_or(0, |facts| facts.threads),
            level: cpu.map_or(String::new(), |facts| facts.level.clone()),
            adapter: gpu.map(|facts| (facts.name.clone(), interface(&facts.level).to_owned())),
            map: plan.map.clone(),
            gpu_layers: plan.gpu_layers,
            adapter_bytes: on_gpu.map(|(device, _)| device.used_bytes).next(),
            predicted_ms: plan.predicted.as_ref().map(|predicted| predicted.decode_ms),
            kernels,
        }
    }

    fn placing(&self) -> &Placing {
        &self.variant.setup.placings[self.placing]
    }
}

/// The interface to an adapter, which its level begins with, as llama.cpp spells it.
fn interface(level: &str) -> &str {
    match level.split(' ').next().unwrap_or_default() {
        "vulkan" => "Vulkan",
        "metal" => "Metal",
        "dx12" => "DX12",
        other => other,
    }
}

/// One result with all that led to it.
pub struct Record<'a> {
    /// The command line.
    pub args: &'a Args,
    /// The model.
    pub described: &'a Described,
    /// The session.
    pub placed: &'a Placed<'a>,
    /// The logical batch.
    pub batch_size: usize,
    /// When the test began, seconds since 1970.
    pub began: u64,
    /// What came out.
    pub measured: Measured,
}

/// A name and a value.
pub type Field = (&'static str, Value);

impl Record<'_> {
    /// llama-bench's fields, but for the samples, which only JSON has.
    pub fn fields(&self) -> Vec<Field> {
        let Record { args, described, placed, measured, .. } = self;
        let setup = &placed.variant.setup;
        let (ns, ts) = (self.ns(), Summary::of(&measured.samples_ts()));
        let adapter = placed.adapter.as_ref();
        let mut fields: Vec<Field> = vec![
            ("build_commit", json!(describe::BUILD_COMMIT)),
            ("build_number", json!(describe::build_number())),
            ("cpu_info", json!(placed.cpu)),
            ("gpu_info", json!(adapter.map_or("", |(name, _)| name))),
            ("backends", json!(adapter.map_or("CPU", |(_, interface)| interface))),
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
            ("no_op_offload", json!(1)),
            ("no_host", json!(false)),
            ("fit_target", json!(args.placing.adapter.fit_target.unwrap_or(0) >> 20)),
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
        let device = self.args.placing.adapter.device.as_deref();
        [
            ("n_gpu_layers", json!(placed.gpu_layers)),
            ("n_cpu_moe", json!(experts)),
            ("split_mode", json!("layer")),
            ("main_gpu", json!(0)),
            ("no_kv_offload", json!(placing.cache_on_cpu)),
            ("flash_attn", json!(flash_attn)),
            ("devices", json!(device.unwrap_or("auto"))),
            ("tensor_split", json!("0.00")),
            ("tensor_buft_overrides", json!(self.overrides())),
        ]
    }

    /// Fields that llama-bench has not.
    pub fn own_fields(&self) -> Vec<Field> {
        let Record { args, placed, measured: m, .. } = self;
        let total = m.spent.total.as_secs_f64();
        let share = |part: std::time::Duration| {
            if total > 0.0 { part.as_secs_f64() / total } else { 0.0 }
        };
        let decodes = m.test.prompt == 0;
        vec![
            ("n_parallel", json!(m.test.parallel)),
            ("placement", json!(placed.map)),
            ("adapter", json!(placed.adapter.as_ref().map(|(name, _)| name))),
            ("cpu_level", json!(placed.level)),
            ("step_bytes", json!(m.cpu_step_bytes + m.gpu_step_bytes)),
            ("cpu_step_bytes", json!(m.cpu_step_bytes)),
            ("weight_gbps", json!(m.weight_gbps())),
            ("cpu_weight_gbps", json!(m.cpu_weight_gbps())),
            ("probe_gbps", json!(m.probe_mean_gbps())),
            ("probe_share", json!(m.probe_share())),
            ("cpu_busy", json!(share(m.spent.cpu))),
            ("gpu_busy", json!(share(m.spent.gpu))),
            ("crossing_busy", json!(share(m.spent.crossing))),
            ("peak_resident_bytes", json!(m.peak_resident_bytes)),
            ("adapter_bytes", json!(placed.adapter_bytes)),
            ("predicted_token_ms", json!(placed.predicted_ms.filter(|_| decodes))),
            ("warm_up", json!(!args.no_warmup)),
            ("kernels", json!(placed.kernels)),
        ]
    }

    /// The repetitions one by one.
    pub fn samples(&self) -> [Field; 2] {
        let m = &self.measured;
        [("samples_ns", json!(m.samples_ns)), ("samples_ts", json!(m.samples_ts()))]
    }

    fn ns(&self) -> Summary {
        let samples: Vec<f64> = self.measured.samples_ns.iter().map(|&ns| ns as f64).collect();
        Summary::of(&samples)
    }

    /// Pinned tensors as llama-bench writes them: `pattern=buffer;...`, or none.
    fn overrides(&self) -> String {
        let device = self.placed.adapter.as_ref().map_or("GPU", |(_, interface)| interface);
        let pins = self.placed.placing().overrides.iter().map(|(pattern, side)| {
            format!("{pattern}={}", if *side == Side::Host { "CPU" } else { device })
        });
        let pins: Vec<String> = pins.collect();
        if pins.is_empty() { "none".to_owned() } else { pins.join(";") }
    }
}
