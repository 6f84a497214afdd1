//! How a model is opened: which devices, how much memory, how many answers at once.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use bilayer_engine::encode::{Norm, Pooling, texts_max};
use bilayer_engine::generate::speculate::{Bounds, DraftModel, Drafter, Lookup, MtpDrafter, weigh};
use bilayer_engine::placement::target::{self, Candidate, Target, Variant};
use bilayer_engine::placement::{self, Numa, Placing, Simulation};
use bilayer_engine::session::{Progress, Purpose, Session, Settings, kv_types};
use bilayer_engine::{
    Adapters, Cancel, ControlVector, Error as Engine, LoraFile, MetadataOverride, Model as Opened,
    OpenOptions, Strength, expert_counts, open_with,
};
use bilayer_measure::timing;
use bilayer_quant::Type;
use bilayer_quant::cache::names;
use bilayer_scheduler::{ExpertCache, Offload, Plan};

use crate::{Error, Model, Sampling};

/// Rows of logits that a step gives at least: [`Model::logits`] takes so many tokens at a time.
const LOGITS_ROWS: usize = 16;

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

/// How the KV cache stores keys or values: 16-bit floats unless something else is asked for. `docs/quantizing.md` has
/// measured sizes, errors and speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType(Type);

impl Default for CacheType {
    fn default() -> CacheType {
        CacheType::F16
    }
}

impl CacheType {
    /// 16-bit floats.
    pub const F16: CacheType = CacheType(Type::F16);
    /// 32-bit floats: twice the memory.
    pub const F32: CacheType = CacheType(Type::F32);
    /// 16-bit floats with the range of f32.
    pub const BF16: CacheType = CacheType(Type::BF16);
    /// 8-bit integers with a scale for each 32: about half the memory.
    pub const Q8_0: CacheType = CacheType(Type::Q8_0);
    /// 5-bit integers with a scale and a minimum for each 32.
    pub const Q5_1: CacheType = CacheType(Type::Q5_1);
    /// 5-bit integers with a scale for each 32.
    pub const Q5_0: CacheType = CacheType(Type::Q5_0);
    /// 4-bit integers with a scale and a minimum for each 32.
    pub const Q4_1: CacheType = CacheType(Type::Q4_1);
    /// 4-bit integers with a scale for each 32: about a quarter of the memory.
    pub const Q4_0: CacheType = CacheType(Type::Q4_0);
    /// Uneven levels in 4 bits with a scale for each 32.
    pub const IQ4_NL: CacheType = CacheType(Type::IQ4_NL);

    /// The type of that name, such as `q8_0`, in upper or lower case.
    ///
    /// # Errors
    /// No type has that name; the text lists those that there are.
    pub fn by_name(name: &str) -> Result<CacheType, String> {
        kv_types()
            .find(|ty| ty.name.eq_ignore_ascii_case(name))
            .map(CacheType)
            .ok_or_else(|| format!("cache_type is {name}; it must be {}", names()))
    }
}

/// Where draft tokens come from.
enum DraftSource {
    /// The text itself.
    Lookup,
    /// The model's block for multi-token prediction.
    Mtp,
    /// A smaller model.
    Model(PathBuf),
}

/// Opens a model with settings other than the defaults.
///
/// ```
/// use bilayer::{GpuLayers, Model};
///
/// # let path = "crates/cli/assets/demo.gguf";
/// let model = Model::builder(path).gpu_layers(GpuLayers::Auto).context(1024).open()?;
/// assert_eq!(model.context(), 1024);
/// # Ok::<(), bilayer::Error>(())
/// ```
#[must_use]
pub struct Builder<'p> {
    path: PathBuf,
    placing: Placing,
    expert_counts: Option<PathBuf>,
    context: Option<usize>,
    checkpoints: Option<usize>,
    threads: Option<usize>,
    numa: Numa,
    cache_types: [CacheType; 2],
    hadamard_keys: bool,
    fast_prefill: bool,
    mlock: bool,
    parallel: usize,
    loras: Vec<(PathBuf, f32)>,
    strength: Strength,
    control_vectors: Vec<(PathBuf, f32)>,
    control_layers: Option<RangeInclusive<u32>>,
    metadata: Vec<MetadataOverride>,
    embeddings: bool,
    pooling: Option<Pooling>,
    norm: Option<Norm>,
    drafts: Option<DraftSource>,
    chat_template: Option<String>,
    cancel: Cancel,
    progress: Option<Box<dyn FnMut(Progress) + 'p>>,
}

impl<'p> Builder<'p> {
    pub(crate) fn new(path: PathBuf) -> Builder<'p> {
        Builder {
            path,
            placing: Placing::default(),
            expert_counts: None,
            context: None,
            checkpoints: None,
            threads: None,
            numa: Numa::Off,
            cache_types: [CacheType::F16; 2],
            hadamard_keys: false,
            fast_prefill: false,
            mlock: false,
            parallel: 1,
            loras: Vec::new(),
            strength: Strength::Fixed,
            control_vectors: Vec::new(),
            control_layers: None,
            metadata: Vec::new(),
            embeddings: false,
            pooling: None,
            norm: None,
            drafts: None,
            chat_template: None,
            cancel: Cancel::new(),
            progress: None,
        }
    }

    /// How many layers run on the GPU, [`GpuLayers::Auto`] by default. A number is a [`GpuLayers::Count`].
    pub fn gpu_layers(mut self, layers: impl Into<GpuLayers>) -> Self {
        self.placing.gpu_layers = match layers.into() {
            GpuLayers::Auto => Offload::Auto,
            GpuLayers::All => Offload::All,
            GpuLayers::Count(count) => Offload::Count(count),
            GpuLayers::Percent(percent) => Offload::Percent(percent),
        };
        self
    }

    /// Which GPU: a number as in `bilayer devices`, a part of its name, or `software` for a software GPU (llvmpipe, WARP),
    /// which is never taken unasked. Called again it adds another GPU.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.placing.devices.push(name.into());
        self
    }

    /// Each GPU's share in the offloaded layers, 0 or more, in any unit: `[3.0, 1.0]` gives the first three quarters. Without shares
    /// the split follows measured times and free memory.
    pub fn tensor_split(mut self, shares: impl Into<Vec<f64>>) -> Self {
        self.placing.tensor_split = shares.into();
        self
    }

    /// Runs on a simulated machine in place of this one: answers are right unless it only goes through the schedule, and
    /// times are those of the described hardware.
    pub fn simulate(mut self, simulation: Simulation) -> Self {
        self.placing.simulated = Some(simulation);
        self
    }

    /// Counts the free memory of every GPU as `bytes` bytes, in place of what its driver says.
    pub fn gpu_bytes(mut self, bytes: u64) -> Self {
        self.placing.vram_bytes = vec![bytes];
        self
    }

    /// Keeps the experts of the first `layers` layers of a mixture-of-experts model on the CPU.
    pub fn cpu_moe_layers(mut self, layers: u32) -> Self {
        self.placing.cpu_moe_layers = layers;
        self
    }

    /// GPU memory for the experts that tokens use most in a mixture-of-experts model, while the CPU has all others.
    pub fn expert_cache(mut self, cache: ExpertCache) -> Self {
        self.placing.expert_cache = cache;
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
        self.placing.kept = Some(folder.into());
        self
    }

    /// Tokens that a prompt and its answer may have together, at most 2^24; 0 is the model's own context, the default too, but
    /// at most 8192.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Checkpoints of the states of recurrent layers, 16 by default: lengths to which a text can be cut back without
    /// computing all of it again. Each takes the memory of one state.
    pub fn checkpoints(mut self, checkpoints: usize) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// CPU threads, 1 to 512; [`Builder::open`] refuses others. By default one for each physical core that the process may
    /// use, on Windows one for each of its logical CPUs.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// How CPU threads and a copy of the CPU's weights are divided among NUMA nodes, for machines with several sockets. The
    /// tokens are the same.
    pub fn numa(mut self, numa: Numa) -> Self {
        self.numa = numa;
        self
    }

    /// How the KV cache stores keys and values.
    pub fn cache_type(self, cache_type: CacheType) -> Self {
        self.cache_types(cache_type, cache_type)
    }

    /// How the KV cache stores keys, and how it stores values.
    pub fn cache_types(mut self, keys: CacheType, values: CacheType) -> Self {
        self.cache_types = [keys, values];
        self
    }

    /// Stores keys in blocks, such as those of [`CacheType::Q4_0`], after the Hadamard transform of every 32 elements of a
    /// head: models whose keys have a few large elements are then closer to what they compute with exact keys.
    /// [`Builder::open`] refuses it with keys of floats, with heads whose length is no multiple of 32, and where values are
    /// part of the keys.
    pub fn hadamard_keys(mut self) -> Self {
        self.hadamard_keys = true;
        self
    }

    /// Lets the CPU round weights to eight bits, with one scale per 256 columns of a row, in prompts of many tokens where that
    /// is faster: most for models of floats. Answers are then close to, not equal to, those of the model's own weights.
    pub fn fast_prefill(mut self) -> Self {
        self.fast_prefill = true;
        self
    }

    /// Reads the weights and locks them in memory, so that the operating system does not page them out while nobody asks.
    /// [`Builder::open`] refuses it where the limit on locked memory (`ulimit -l`) is too low.
    pub fn mlock(mut self) -> Self {
        self.mlock = true;
        self
    }

    /// How many answers [`Model::batch`] may have in the making; 1 by default. Each has a context of its own, so the KV cache
    /// is as many times as large.
    pub fn parallel(mut self, answers: usize) -> Self {
        self.parallel = answers;
        self
    }

    /// Speculative decoding with a draft model: a smaller one with the same vocabulary proposes tokens, and the model verifies
    /// several of them in one step. That changes how fast an answer comes, not the distribution of its tokens. The draft model
    /// is placed by the same settings, before the model.
    ///
    /// ```
    /// # let (path, small) = ("crates/cli/assets/demo.gguf", "crates/cli/assets/demo.gguf");
    /// use bilayer::{Model, Request};
    ///
    /// let mut model = Model::builder(path).draft_model(small).gpu_layers(0).context(256).open()?;
    /// let mut answer = model.generate(Request::new("ROMEO:\n").greedy().max_tokens(24))?;
    /// let text: String = answer.by_ref().map(|token| Ok(token?.text)).collect::<Result<_, bilayer::Error>>()?;
    /// let statistics = answer.statistics();
    /// println!("{text}: {} of {} drafts accepted", statistics.accepted, statistics.drafted);
    /// # assert!(statistics.accepted > 0);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn draft_model(mut self, path: impl Into<PathBuf>) -> Self {
        self.drafts = Some(DraftSource::Model(path.into()));
        self
    }

    /// Speculative decoding by prompt lookup: proposes the tokens that followed an earlier occurrence of the latest ones. It
    /// needs no second model and pays for texts that repeat themselves, such as code and summaries.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// use bilayer::{Model, Request};
    ///
    /// let mut model = Model::builder(path).lookup().context(256).open()?;
    /// let request = Request::new("ROMEO:\nO me! O me! O me!").greedy().max_tokens(24);
    /// println!("{}", model.generate(request)?.text()?);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn lookup(mut self) -> Self {
        self.drafts = Some(DraftSource::Lookup);
        self
    }

    /// Speculative decoding with the model's own block for multi-token prediction, which files of GLM 4.5, DeepSeek V3 and
    /// Qwen 3.5 may have (key `nextn_predict_layers`). It is placed by the same settings, before the model.
    ///
    /// ```no_run
    /// use bilayer::{Model, Request};
    ///
    /// let mut model = Model::builder("Qwen3.5-4B-Q4_K_M.gguf").mtp().open()?;
    /// println!("{}", model.generate(Request::new("Once upon a time").max_tokens(64))?.text()?);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn mtp(mut self) -> Self {
        self.drafts = Some(DraftSource::Mtp);
        self
    }

    /// Opens an encoder with a classification head for [`Model::embed`] instead of [`Model::rerank`] and
    /// [`Model::classify`]; other models are not affected.
    pub fn embeddings(mut self) -> Self {
        self.embeddings = true;
        self
    }

    /// Opens a model for [`Model::embed`], with a text's vector made of its tokens' as `pooling` says, in place of what the
    /// file says. It makes an encoder of a decoder, too: of its rows below the head.
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = Some(pooling);
        self
    }

    /// How [`Model::embed`] scales vectors; by default to length 1, unless the checkpoint has no `Normalize` module.
    /// [`Model::set_norm`] changes it. Models without embeddings are not affected.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.norm = Some(norm);
        self
    }

    /// The chat template, in place of the model's own: the text of one, or the name of a known one such as `chatml`.
    pub fn chat_template(mut self, template: impl Into<String>) -> Self {
        self.chat_template = Some(template.into());
        self
    }

    /// The handle that ends this model's answers and other calls, or a measurement once the model is loaded; by default one of its own
    /// ([`Model::cancel_handle`]). It ends [`Builder::open`], too, until the weights are being loaded.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// let cancel = bilayer::Cancel::new();
    /// cancel.cancel();
    /// let opened = bilayer::Model::builder(path).cancel(&cancel).open();
    /// assert!(opened.is_err_and(|error| error.exit_code() as u8 == 130));
    /// ```
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Applies a LoRA adapter in GGUF format while the model runs, with the strength `scale`; 1 is as it was trained. Called
    /// again it adds another one. [`Builder::open`] refuses a file that is no adapter of this model.
    pub fn lora(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.loras.push((path.into(), scale));
        self
    }

    /// Lets every request set the strength of the adapters ([`Request::lora`](crate::Request::lora)). An adapter of strength 0
    /// then takes as long as another.
    pub fn adapters_by_request(mut self) -> Self {
        self.strength = Strength::OfSequence;
        self
    }

    /// Adds the directions of a control vector in GGUF format, times a strength, to the hidden states after layers. Called
    /// again it adds another one.
    pub fn control_vector(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.control_vectors.push((path.into(), scale));
        self
    }

    /// Applies control vectors only after these layers, counted from 0.
    pub fn control_vector_layers(mut self, layers: RangeInclusive<u32>) -> Self {
        self.control_layers = Some(layers);
        self
    }

    /// Replaces a value of the file's metadata. A key may begin with `{arch}`, the file's architecture.
    pub fn metadata(mut self, replaced: MetadataOverride) -> Self {
        self.metadata.push(replaced);
        self
    }

    /// Opens the model's file with its adapters.
    fn opened(&mut self) -> Result<Opened, Error> {
        if let Some(path) = &self.expert_counts {
            self.placing.expert_uses = Some(expert_counts(path)?);
        }
        let file = open_with(&self.path, OpenOptions::default())?;
        let loras = self.loras.iter().map(|(path, scale)| LoraFile::open(path, *scale));
        let loras = loras.collect::<Result<_, _>>()?;
        let vectors = self.control_vectors.iter().map(|(path, scale)| (&**path, *scale));
        let control = ControlVector::sum(vectors, self.control_layers.as_ref())?;
        let pooling = self.pooling.map(Pooling::of_decoder);
        let metadata: Vec<_> = self.metadata.iter().cloned().chain(pooling).collect();
        Ok(Opened::adapted(file, &metadata, Adapters { loras, control, strength: self.strength })?)
    }

    /// Opens the model's file with its adapters, and locks it in memory if that is asked for.
    pub(crate) fn loaded(&mut self) -> Result<Opened, Error> {
        let model = self.opened()?;
        if self.mlock {
            model.lock()?;
        }
        Ok(model)
    }

    /// Is told how loading proceeds.
    pub fn progress(mut self, progress: impl FnMut(Progress) + 'p) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Opens the file, places the model on its devices and loads it.
    ///
    /// # Errors
    /// The file is missing, damaged or not supported; a setting is out of range; a device that was named is not there; the
    /// model does not fit; [`Cancel`] ended it before the weights were loaded.
    pub fn open(mut self) -> Result<Model, Error> {
        let model = self.loaded()?;
        let is_mtp = matches!(self.drafts, Some(DraftSource::Mtp));
        self.go_on()?;
        let drafter = self.drafter(&model)?;
        self.go_on()?;
        let mut settings = self.settings(&model);
        if is_mtp {
            settings.purpose = Purpose::WithHidden;
        }
        let session = Session::new(&model, settings)?;
        let mut opened = Model::new(model, session, drafter, (self.chat_template, self.cancel))?;
        if let Some(norm) = self.norm {
            opened.set_norm(norm);
        }
        Ok(opened)
    }

    /// Ends the opening, between its steps, if it was cancelled.
    fn go_on(&self) -> Result<(), Error> {
        if self.cancel.is_cancelled() { Err(Engine::Interrupted.into()) } else { Ok(()) }
    }

    /// Opens the source of drafts. A draft model is placed first: a small one usually gains more on a GPU than the few layers that it
    /// displaces. If earlier answers have shown that it does not, it runs on the CPU.
    fn drafter(&mut self, model: &Opened) -> Result<Option<Box<dyn Drafter>>, Error> {
        let Some(source) = self.drafts.take() else { return Ok(None) };
        if model.config().encoder.is_some() {
            return Err(Engine::NoDecoder { name: model.name() }.into());
        }
        let path = match source {
            DraftSource::Lookup => return Ok(Some(Box::new(Lookup::new(Bounds::default())))),
            DraftSource::Mtp => return self.mtp_drafter(model).map(Some),
            DraftSource::Model(path) => path,
        };
        let draft = Opened::open(&path, OpenOptions::default())?;
        let memory_bytes = placement::gpu_bytes(&self.placing);
        let (own, parallel) = (self.placing.clone(), self.parallel.max(1));
        let settings = self.settings(&draft);
        let placing = Placing {
            cpu_moe_layers: 0,
            expert_cache: ExpertCache::Off,
            ..settings.placing.clone()
        };
        let mut settings = Settings { placing, sequences: 1, outputs: None, ..settings };
        if own.gpu_layers == Offload::Auto {
            let (sequences, watched) = (parallel, Vec::new());
            let own = Settings { placing: own, sequences, watched, progress: None, ..settings };
            if let Some(weighed) = weigh((&draft, &settings), (model, &own))? {
                settings.placing.gpu_layers = weighed.gpu_layers;
            }
        }
        let drafter = DraftModel::new(&draft, model, settings, Bounds::default())?;
        let placing = std::mem::take(&mut self.placing);
        self.placing = placing.beside(drafter.session().plan(), memory_bytes);
        Ok(Some(Box::new(drafter)))
    }

    /// The model's block for multi-token prediction as the source of drafts.
    fn mtp_drafter(&mut self, model: &Opened) -> Result<Box<dyn Drafter>, Error> {
        let memory_bytes = placement::gpu_bytes(&self.placing);
        let settings = self.settings(model);
        let placing = Placing { cpu_moe_layers: 0, ..settings.placing.clone() };
        let settings = Settings { placing, sequences: 1, outputs: None, ..settings };
        let drafter = MtpDrafter::new(model, settings, Bounds::default())?;
        let placing = std::mem::take(&mut self.placing);
        self.placing = placing.beside(drafter.session().plan(), memory_bytes);
        Ok(Box::new(drafter))
    }

    /// What would run where, and the memory that it would take, without a draft model; nothing is loaded. A file that has only
    /// its header will do.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn plan(mut self) -> Result<Plan, Error> {
        let model = self.opened()?;
        Ok(placement::plan(&model, &self.settings(&model), None)?)
    }

    /// Which types and placements meet a target, by predictions as in [`Builder::plan`]: the file's own types, whose name is
    /// `own`, and each of `others`. The target's context is used, if it has one.
    ///
    /// # Errors
    /// As [`Builder::plan`], unless a placement does not fit.
    pub fn plan_for(
        mut self,
        target: &Target,
        others: &[Variant],
    ) -> Result<Vec<Candidate>, Error> {
        self.context = target.context.or(self.context);
        let model = self.opened()?;
        let own = std::iter::once(Variant::own("own"));
        let variants: Vec<Variant> = own.chain(others.iter().cloned()).collect();
        Ok(target::candidates(&model, &self.settings(&model), None, target, &variants)?)
    }

    /// The handle that ends a measurement.
    pub(crate) fn handle(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Tokens of context, if a number was asked for.
    pub(crate) fn asked_context(&self) -> Option<usize> {
        self.context
    }

    /// The settings of a session.
    pub(crate) fn settings(&mut self, model: &Opened) -> Settings<'_> {
        let is_encoder = model.config().encoder.is_some();
        let progress = self.progress.as_deref_mut();
        let parallel = self.parallel.max(1);
        let usual = Settings::default();
        Settings {
            threads: self.threads,
            numa: self.numa,
            ctx_size: self.context,
            checkpoints: self.checkpoints.unwrap_or(usual.checkpoints),
            purpose: match self.embeddings || self.pooling.is_some() {
                true if is_encoder => Purpose::Embed(self.pooling),
                _ => Purpose::Own,
            },
            sequences: if is_encoder { texts_max(model) } else { parallel },
            outputs: (!is_encoder).then_some(parallel.max(LOGITS_ROWS)),
            cache_type_k: self.cache_types[0].0,
            cache_type_v: self.cache_types[1].0,
            hadamard_keys: self.hadamard_keys,
            fast_prefill: self.fast_prefill,
            placing: self.placing.clone(),
            top_k: Sampling::default().needs().filter(|_| !is_encoder),
            time_device: Some(timing::device),
            progress: progress.map(|told| told as &mut dyn FnMut(Progress)),
            ..Settings::default()
        }
    }
}
