//! What runs on which device.

use std::path::PathBuf;

use bilayer_engine::placement::{Simulation, SplitMode};
use bilayer_engine::session::Overlap;
use bilayer_scheduler::{ExpertCache, Offload, OpOffload};

use super::Builder;

/// How many layers run on the GPU. The output head counts as one and goes first, then the last layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit; with [`Builder::cache_dir`] the number with the shortest predicted answer.
    #[default]
    Auto,
    /// All of them.
    All,
    /// So many; `layers + 1` is all, 0 none.
    Count(u32),
    /// So many percent, 0 to 100, of the layers and the output head.
    Percent(u8),
}

impl From<u32> for GpuLayers {
    fn from(count: u32) -> GpuLayers {
        GpuLayers::Count(count)
    }
}

impl GpuLayers {
    pub(super) fn offload(self) -> Offload {
        match self {
            GpuLayers::Auto => Offload::Auto,
            GpuLayers::All => Offload::All,
            GpuLayers::Count(count) => Offload::Count(count),
            GpuLayers::Percent(percent) => Offload::Percent(percent),
        }
    }
}

impl Builder<'_> {
    /// How many layers run on the GPU, [`GpuLayers::Auto`] by default. A number is a [`GpuLayers::Count`].
    pub fn gpu_layers(mut self, layers: impl Into<GpuLayers>) -> Self {
        self.asked.placing.gpu_layers = layers.into().offload();
        self
    }

    /// Which GPU: a number as in `bilayer devices`, a part of its name, or `software` for a software GPU (llvmpipe, WARP),
    /// which is never taken unasked. Called again it adds another GPU.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.asked.placing.devices.push(name.into());
        self
    }

    /// Each GPU's share in the offloaded layers, 0 or more, in any unit: `[3.0, 1.0]` gives the first three quarters. Without shares
    /// the split follows measured times and free memory.
    pub fn tensor_split(mut self, shares: impl Into<Vec<f64>>) -> Self {
        self.asked.placing.tensor_split = shares.into();
        self
    }

    /// Runs on a simulated machine in place of this one: answers are right unless it only goes through the schedule, and
    /// times are those of the described hardware.
    pub fn simulate(mut self, simulation: Simulation) -> Self {
        self.asked.placing.simulated = Some(simulation);
        self
    }

    /// How a model is split over several GPUs: whole layers on each, or all on the one of [`Builder::main_gpu`].
    pub fn split_mode(mut self, mode: SplitMode) -> Self {
        self.asked.placing.split_mode = mode;
        self
    }

    /// The GPU that [`SplitMode::None`] uses: its number among those in use, from 0; the first by default.
    /// [`Builder::open`] refuses one that is not there.
    pub fn main_gpu(mut self, gpu: usize) -> Self {
        self.asked.placing.main_gpu = Some(gpu);
        self
    }

    /// Places the tensors whose names match the regular expression `pattern` on a device, wherever their layer is: 0 is the
    /// CPU, 1 the first GPU in use. Called again it adds a rule; the first that matches counts. [`Builder::open`] refuses a
    /// pattern that is no regular expression, and a GPU that is not in use.
    pub fn override_tensor(mut self, pattern: impl Into<String>, device: usize) -> Self {
        self.asked.placing.overrides.push((pattern.into(), device));
        self
    }

    /// Keeps the KV cache, and attention with it, on the CPU.
    pub fn cache_on_cpu(mut self) -> Self {
        self.asked.placing.cache_on_cpu = true;
        self
    }

    /// When weights of layers on the CPU are streamed to a GPU for prompts: by default from the number of tokens that is
    /// predicted to be faster.
    pub fn op_offload(mut self, when: OpOffload) -> Self {
        self.asked.placing.op_offload = when;
        self
    }

    /// When devices work at the same time: by default in prefill and with many sequences.
    pub fn overlap(mut self, when: Overlap) -> Self {
        self.asked.overlap = when;
        self
    }

    /// Counts the free memory of every GPU as `bytes` bytes, in place of what its driver says. Called again, each call is
    /// about one GPU in use, in their order; [`Builder::open`] refuses more calls than GPUs.
    pub fn gpu_bytes(mut self, bytes: u64) -> Self {
        self.asked.placing.vram_bytes.push(bytes);
        self
    }

    /// Leaves `bytes` bytes of every GPU's memory free; 1 GiB by default, less on small GPUs. Called again, each call is about
    /// one GPU in use, in their order; [`Builder::open`] refuses more calls than GPUs.
    pub fn margin_bytes(mut self, bytes: u64) -> Self {
        self.asked.placing.margin_bytes.push(bytes);
        self
    }

    /// Keeps the experts of the first `layers` layers of a mixture-of-experts model on the CPU.
    pub fn cpu_moe_layers(mut self, layers: u32) -> Self {
        self.asked.placing.cpu_moe_layers = layers;
        self
    }

    /// GPU memory for the experts that tokens use most in a mixture-of-experts model, while the CPU has all others.
    pub fn expert_cache(mut self, cache: ExpertCache) -> Self {
        self.asked.placing.expert_cache = cache;
        self
    }

    /// Chooses these experts by the counts in an importance matrix, in place of those that are learned while the model
    /// runs, and keeps to them.
    pub fn expert_counts(mut self, path: impl Into<PathBuf>) -> Self {
        self.expert_counts = Some(path.into());
        self
    }

    /// A folder for what drivers compiled and for how long this model's layers take on each device. With it the first run of
    /// a model on a GPU measures that, about two seconds, and [`GpuLayers::Auto`] places by it.
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.asked.placing.kept = Some(folder.into());
        self
    }

    /// Measures how long this model's layers take on each device even if [`Builder::cache_dir`] has times of it, and without a
    /// GPU, too.
    pub fn remeasure(mut self) -> Self {
        self.asked.placing.remeasure = true;
        self
    }
}
