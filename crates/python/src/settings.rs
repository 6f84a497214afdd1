//! Settings of a model as Python gives them; plans and profiles, which need no open model.

use std::path::PathBuf;

use bilayer::{
    Builder, CacheType, Cancel, ExpertCache, GpuLayers, Model, Numa, Parameter, Pooling,
    ProfileOptions,
};
use pyo3::prelude::*;

use crate::error::{self, INTERNAL, INTERRUPTED, raised, usage};
use crate::worker;

/// How many layers run on the GPU.
#[derive(FromPyObject)]
enum Layers {
    #[pyo3(transparent, annotation = "int")]
    Count(u32),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
}

/// GPU memory for experts.
#[derive(FromPyObject)]
enum ExpertMemory {
    #[pyo3(transparent, annotation = "int")]
    Bytes(u64),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
}

/// Settings of a model; `python/bilayer` gives every entry.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    gpu_layers: Layers,
    device: Vec<String>,
    tensor_split: Vec<f64>,
    gpu_bytes: Option<u64>,
    margin_bytes: Option<u64>,
    override_tensor: Vec<(String, usize)>,
    cache_on_cpu: bool,
    cpu_moe_layers: u32,
    expert_cache: ExpertMemory,
    expert_counts: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
    context: Option<usize>,
    ubatch_size: Option<usize>,
    threads: Option<usize>,
    numa: String,
    cache_type: String,
    hadamard_keys: bool,
    fast_prefill: bool,
    checkpoints: Option<usize>,
    embeddings: bool,
    pooling: Option<String>,
    draft_model: Option<PathBuf>,
    lookup: bool,
    mtp: bool,
    draft_max: Option<usize>,
    draft_min: Option<usize>,
    draft_p_min: Option<f32>,
    draft_gpu_layers: Option<Layers>,
    chat_template: Option<String>,
}

impl Settings {
    /// Whether every entry has a meaning.
    ///
    /// # Errors
    /// The first that has none.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = layers("gpu_layers", &self.gpu_layers);
        let checked = checked.and_then(|_| self.draft_layers());
        let checked = checked.and_then(|_| self.cache()).and_then(|_| self.experts());
        let checked = checked.and_then(|_| self.numa()).and_then(|_| self.pooling()).map(drop);
        checked.map_err(|line| usage(py, &line))
    }

    fn draft_layers(&self) -> Result<Option<GpuLayers>, String> {
        self.draft_gpu_layers.as_ref().map(|given| layers("draft_gpu_layers", given)).transpose()
    }

    fn experts(&self) -> Result<ExpertCache, String> {
        match &self.expert_cache {
            ExpertMemory::Bytes(0) => Ok(ExpertCache::Off),
            ExpertMemory::Bytes(bytes) => Ok(ExpertCache::Bytes(*bytes)),
            ExpertMemory::Text(text) if text == "auto" => Ok(ExpertCache::Auto),
            ExpertMemory::Text(text) => {
                Err(format!("expert_cache is {text}; it must be auto or a number of bytes"))
            }
        }
    }

    fn numa(&self) -> Result<Numa, String> {
        self.numa.parse().map_err(|error| format!("{error}"))
    }

    fn pooling(&self) -> Result<Option<Pooling>, String> {
        Ok(match self.pooling.as_deref() {
            None => None,
            Some("mean") => Some(Pooling::Mean),
            Some("cls") => Some(Pooling::Cls),
            Some("last") => Some(Pooling::Last),
            Some(other) => return Err(format!("pooling is {other}; it must be mean, cls or last")),
        })
    }

    fn cache(&self) -> Result<CacheType, String> {
        CacheType::by_name(&self.cache_type)
    }

    /// A builder with the settings of drafts.
    fn with_drafts(&mut self, mut builder: Builder<'static>) -> Builder<'static> {
        if let Some(path) = self.draft_model.take() {
            builder = builder.draft_model(path);
        }
        if let Some(tokens) = self.draft_max {
            builder = builder.draft_max(tokens);
        }
        if let Some(tokens) = self.draft_min {
            builder = builder.draft_min(tokens);
        }
        if let Some(probability) = self.draft_p_min {
            builder = builder.draft_p_min(probability);
        }
        if let Some(layers) = self.draft_layers().unwrap_or_default() {
            builder = builder.draft_gpu_layers(layers);
        }
        let builder = if self.lookup { builder.lookup() } else { builder };
        if self.mtp { builder.mtp() } else { builder }
    }

    /// The builder of the library; what has no meaning was [refused](Settings::check).
    pub fn builder(mut self, path: PathBuf, cancel: &Cancel) -> Builder<'static> {
        let builder = Model::builder(path)
            .cancel(cancel)
            .gpu_layers(layers("gpu_layers", &self.gpu_layers).unwrap_or_default())
            .cache_type(self.cache().unwrap_or_default())
            .expert_cache(self.experts().unwrap_or_default())
            .numa(self.numa().unwrap_or_default())
            .cpu_moe_layers(self.cpu_moe_layers);
        let mut builder = self.with_drafts(builder);
        if let Some(pooling) = self.pooling().unwrap_or_default() {
            builder = builder.pooling(pooling);
        }
        for (pattern, device) in self.override_tensor {
            builder = builder.override_tensor(pattern, device);
        }
        for name in self.device {
            builder = builder.device(name);
        }
        if !self.tensor_split.is_empty() {
            builder = builder.tensor_split(self.tensor_split);
        }
        if let Some(bytes) = self.gpu_bytes {
            builder = builder.gpu_bytes(bytes);
        }
        if let Some(bytes) = self.margin_bytes {
            builder = builder.margin_bytes(bytes);
        }
        if let Some(tokens) = self.ubatch_size {
            builder = builder.ubatch_size(tokens);
        }
        if let Some(path) = self.expert_counts {
            builder = builder.expert_counts(path);
        }
        if let Some(folder) = self.cache_dir {
            builder = builder.cache_dir(folder);
        }
        if let Some(tokens) = self.context {
            builder = builder.context(tokens);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(checkpoints) = self.checkpoints {
            builder = builder.checkpoints(checkpoints);
        }
        if let Some(template) = self.chat_template {
            builder = builder.chat_template(template);
        }
        let builder = if self.cache_on_cpu { builder.cache_on_cpu() } else { builder };
        let builder = if self.hadamard_keys { builder.hadamard_keys() } else { builder };
        let builder = if self.fast_prefill { builder.fast_prefill() } else { builder };
        if self.embeddings { builder.embeddings() } else { builder }
    }
}

/// A number of layers under the name of its argument.
fn layers(name: &str, given: &Layers) -> Result<GpuLayers, String> {
    let text = match given {
        Layers::Count(count) => return Ok(GpuLayers::Count(*count)),
        Layers::Text(text) => text.as_str(),
    };
    let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
    match (text, percent, text.parse()) {
        ("auto", ..) => Ok(GpuLayers::Auto),
        ("all", ..) => Ok(GpuLayers::All),
        (_, Some(percent), _) if percent <= 100 => Ok(GpuLayers::Percent(percent)),
        (_, None, Ok(count)) => Ok(GpuLayers::Count(count)),
        _ => Err(format!(
            "{name} is {text}; it must be auto, all, a number or a percentage such as 50%"
        )),
    }
}

/// The sampling parameter of a name.
///
/// # Errors
/// There is none of that name.
pub fn parameter(py: Python<'_>, name: &str) -> PyResult<&'static Parameter> {
    let mut all = bilayer::parameters();
    let found = all.find(|parameter| parameter.name == name);
    found.ok_or_else(|| usage(py, &format!("{name}: no sampling parameter")))
}

/// Name, help and default of every sampling parameter.
pub fn parameters() -> Vec<(String, String, String)> {
    let usual = bilayer::Sampling::default();
    let row = |p: &'static Parameter| (p.name.to_owned(), p.help.to_owned(), p.text(&usual));
    bilayer::parameters().map(row).collect()
}

/// What would run where: as text, and as JSON.
#[pyfunction]
pub fn plan(py: Python<'_>, path: PathBuf, settings: Settings) -> PyResult<(String, String)> {
    settings.check(py)?;
    let planned = worker::beside(py, move || settings.builder(path, &Cancel::new()).plan())?;
    let plan = planned.map_err(|error| error::of(py, &error))?;
    Ok((plan.to_string(), json(py, &plan)?))
}

/// Measures a model at every number of layers on the GPU: the profile as JSON.
#[pyfunction]
pub fn profile(
    py: Python<'_>,
    path: PathBuf,
    settings: Settings,
    options: (Option<usize>, Option<usize>, usize),
) -> PyResult<String> {
    settings.check(py)?;
    let (prompt, decode, rounds) = options;
    let options = ProfileOptions { prompt, decode, rounds };
    let take = move |cancel: &Cancel| settings.builder(path, cancel).profile(options);
    let profile = worker::cancellable(py, take)?.map_err(|error| error::of(py, &error))?;
    let profile = profile.ok_or_else(|| raised(py, "interrupted", INTERRUPTED))?;
    json(py, &profile)
}

/// A value as JSON.
pub fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| raised(py, &error.to_string(), INTERNAL))
}
