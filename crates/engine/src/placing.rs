//! The user's placement options: which devices, which memory, what is offloaded.

use std::path::PathBuf;

use bilayer_scheduler::{ExpertCache, ExpertUses, Offload, OpOffload, Plan};
use bilayer_simulate::Simulation;

/// How a model is split over several GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitMode {
    /// Each GPU has whole layers.
    #[default]
    Layer,
    /// Only [`Placing::main_gpu`] is used.
    None,
}

/// Placement options; names are the command line's. Lists by GPU are in the order of the GPUs in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placing {
    /// How many layers are offloaded.
    pub gpu_layers: Offload,
    /// Each GPU's share of the offloaded layers, in any unit. By default the split follows measured times and free
    /// memory.
    pub tensor_split: Vec<f64>,
    /// How a model is split over several GPUs.
    pub split_mode: SplitMode,
    /// The GPU that [`SplitMode::None`] uses: its index among those in use, by default the first.
    pub main_gpu: Option<usize>,
    /// Tensors whose names match a regular expression run on a given device: 0 is the CPU, 1 the first GPU.
    pub overrides: Vec<(String, usize)>,
    /// Number of first layers whose expert tensors stay on the CPU.
    pub cpu_moe_layers: u32,
    /// The KV cache and attention stay on the CPU.
    pub cache_on_cpu: bool,
    /// GPU memory for the experts that tokens use most; the CPU has the others.
    pub expert_cache: ExpertCache,
    /// How often experts are used. By default that is learned while models run.
    pub expert_uses: Option<ExpertUses>,
    /// When weights of layers on the CPU are streamed to a GPU for prefill.
    pub op_offload: OpOffload,
    /// The GPUs to use: numbers of adapters, `software`, or parts of names; one named twice is opened twice. By default
    /// all discrete GPUs; if there are none, the best adapter that is not a software adapter.
    pub devices: Vec<String>,
    /// Memory to assume for each GPU, bytes; a single value applies to all.
    pub vram_bytes: Vec<u64>,
    /// Memory to leave free on each GPU, bytes; a single value applies to all.
    pub margin_bytes: Vec<u64>,
    /// Memory of the CPU and of each GPU that is used by other models, bytes.
    pub taken_bytes: Vec<u64>,
    /// Folder for compiled pipelines and measured times. If `None`, nothing is stored.
    pub kept: Option<PathBuf>,
    /// Whether times are measured again if they are stored, and measured if there is no GPU.
    pub remeasure: bool,
    /// The machine on which the model runs instead of this one.
    pub simulated: Option<Simulation>,
}

/// The entry for a GPU in a list by GPU; a single value applies to all.
pub(crate) fn of_gpu(list: &[u64], gpu: usize) -> Option<u64> {
    match list {
        [all] => Some(*all),
        each => each.get(gpu).copied(),
    }
}

impl Placing {
    /// Memory to leave free on a GPU, if it is given.
    pub(crate) fn margin_of(&self, gpu: usize) -> Option<u64> {
        of_gpu(&self.margin_bytes, gpu)
    }

    /// Everything on the CPU.
    pub fn cpu() -> Placing {
        Placing { gpu_layers: Offload::Count(0), ..Placing::default() }
    }

    /// The options for a model placed beside another one with the plan `other`. `memory_bytes` is the GPUs' memory before
    /// that: not every driver reports what is free now.
    #[must_use]
    pub fn beside(self, other: &Plan, memory_bytes: Vec<u64>) -> Placing {
        let mut taken_bytes = self.taken_bytes;
        taken_bytes.resize(taken_bytes.len().max(other.devices.len()), 0);
        for (taken, device) in taken_bytes.iter_mut().zip(&other.devices) {
            *taken += device.used_bytes;
        }
        let vram_bytes = if self.vram_bytes.is_empty() { memory_bytes } else { self.vram_bytes };
        Placing { vram_bytes, taken_bytes, ..self }
    }

    /// Whether anything may be offloaded.
    pub fn offloads(&self) -> bool {
        let none = matches!(self.gpu_layers, Offload::Count(0) | Offload::Percent(0));
        let caches = self.expert_cache != ExpertCache::Off;
        !none || caches || self.overrides.iter().any(|(_, device)| *device > 0)
    }
}
