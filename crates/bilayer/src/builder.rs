//! How a model is opened: which devices, how much memory, how many answers at once.

use std::ops::{ControlFlow, RangeInclusive};
use std::path::PathBuf;

use bilayer_engine::encode::{Norm, Pooling, texts_max};
use bilayer_engine::generate::speculate::Drafts;
use bilayer_engine::placement::target::{self, Candidate, Target, Variant};
use bilayer_engine::placement::{self, CpuLevel, Numa};
use bilayer_engine::session::{Progress, Purpose, Session, Settings};
use bilayer_engine::{
    Adapters, Cancel, ControlVector, Error as Engine, LoraFile, MetadataOverride, Model as Opened,
    OpenOptions, Strength, expert_counts, open_with,
};
use bilayer_measure::timing;
use bilayer_scheduler::Plan;

use crate::{Error, Model, Sampling};

mod cache;
mod drafts;
mod named;
mod placing;

pub use cache::CacheType;
pub use named::{Value, names};
pub use placing::GpuLayers;

/// Rows of logits that a step gives at least: [`Model::logits`] takes so many tokens at a time.
const LOGITS_ROWS: usize = 16;

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
    /// The settings of a session, but for those that depend on the model ([`Builder::settings`]); `sequences` are the
    /// answers of a decoder.
    asked: Settings<'static>,
    expert_counts: Option<PathBuf>,
    /// Whether files are mapped instead of read into memory.
    map: bool,
    mlock: bool,
    loras: Vec<(PathBuf, f32)>,
    strength: Strength,
    control_vectors: Vec<(PathBuf, f32)>,
    control_layers: Option<RangeInclusive<u32>>,
    metadata: Vec<MetadataOverride>,
    embeddings: bool,
    pooling: Option<Pooling>,
    norm: Option<Norm>,
    drafts: drafts::Asked,
    chat_template: Option<String>,
    cancel: Cancel,
    progress: Option<Box<dyn FnMut(Progress) -> ControlFlow<()> + 'p>>,
}

impl Model {
    /// Opens a GGUF file (the first of its shards is enough) with all defaults: the model is placed automatically, and its
    /// context is its own but at most 8192 tokens.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Model, Error> {
        Model::builder(path).open()
    }

    /// Settings other than the defaults.
    pub fn builder<'p>(path: impl Into<PathBuf>) -> Builder<'p> {
        Builder::new(path.into())
    }
}

impl<'p> Builder<'p> {
    fn new(path: PathBuf) -> Builder<'p> {
        Builder {
            path,
            asked: Settings::default(),
            expert_counts: None,
            map: true,
            mlock: false,
            loras: Vec::new(),
            strength: Strength::Fixed,
            control_vectors: Vec::new(),
            control_layers: None,
            metadata: Vec::new(),
            embeddings: false,
            pooling: None,
            norm: None,
            drafts: drafts::Asked::default(),
            chat_template: None,
            cancel: Cancel::new(),
            progress: None,
        }
    }

    /// CPU threads, 1 to 512; [`Builder::open`] refuses others. By default one for each physical core that the process may
    /// use, on Windows one for each of its logical CPUs.
    pub fn threads(mut self, threads: usize) -> Self {
        self.asked.threads = Some(threads);
        self
    }

    /// How CPU threads and a copy of the CPU's weights are divided among NUMA nodes, for machines with several sockets. The
    /// tokens are the same.
    pub fn numa(mut self, numa: Numa) -> Self {
        self.asked.numa = numa;
        self
    }

    /// The instruction level of the CPU's kernels, by default the highest that it has. [`Builder::open`] refuses a level that it
    /// lacks.
    pub fn cpu_level(mut self, level: CpuLevel) -> Self {
        self.asked.cpu_level = Some(level);
        self
    }

    /// Most tokens of a prompt in one step, 1 to 65536, by default 512: more may be faster and take more memory.
    /// [`Builder::open`] refuses other numbers.
    pub fn ubatch_size(mut self, tokens: usize) -> Self {
        self.asked.ubatch_size = tokens;
        self
    }

    /// Runs every op by itself instead of in fused kernels, for comparison.
    pub fn unfused(mut self) -> Self {
        self.asked.fuse = false;
        self
    }

    /// Lets the CPU round weights to eight bits, with one scale per 256 columns of a row, in prompts of many tokens where that
    /// is faster: most for models of floats. Answers are then close to, not equal to, those of the model's own weights.
    pub fn fast_prefill(mut self) -> Self {
        self.asked.fast_prefill = true;
        self
    }

    /// Reads the weights and locks them in memory, so that the operating system does not page them out while nobody asks.
    /// [`Builder::open`] refuses it where the limit on locked memory (`ulimit -l`) is too low.
    pub fn mlock(mut self) -> Self {
        self.mlock = true;
        self
    }

    /// Reads files into memory instead of mapping them.
    pub fn no_mmap(mut self) -> Self {
        self.map = false;
        self
    }

    /// How many answers [`Model::batch`] may have in the making; 1 by default. Each has a context of its own, so the KV cache
    /// is as many times as large.
    pub fn parallel(mut self, answers: usize) -> Self {
        self.asked.sequences = answers;
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
    /// ([`Model::cancel_handle`]). It ends [`Builder::open`], too, between its steps and between weights.
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

    /// How files are opened.
    fn reading(&self) -> OpenOptions<'static> {
        OpenOptions { map: self.map, ..OpenOptions::default() }
    }

    /// Opens the model's file with its adapters.
    fn opened(&mut self) -> Result<Opened, Error> {
        if let Some(path) = &self.expert_counts {
            self.asked.placing.expert_uses = Some(expert_counts(path)?);
        }
        let file = open_with(&self.path, self.reading())?;
        let open =
            |(path, scale): &(PathBuf, f32)| LoraFile::open_with(path, *scale, self.reading());
        let loras = self.loras.iter().map(open);
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
    pub fn progress(mut self, mut progress: impl FnMut(Progress) + 'p) -> Self {
        self.progress = Some(Box::new(move |done| {
            progress(done);
            ControlFlow::Continue(())
        }));
        self
    }

    /// Opens the file, places the model on its devices and loads it.
    ///
    /// # Errors
    /// The file is missing, damaged or not supported; a setting is out of range; a device that was named is not there; the
    /// model does not fit; [`Cancel`] ended it before the weights were loaded.
    pub fn open(mut self) -> Result<Model, Error> {
        self.watch();
        let model = self.loaded()?;
        self.go_on()?;
        let drafts = self.drafts(&model)?;
        self.go_on()?;
        let settings = self.settings(&model);
        let settings = match &drafts {
            Some(drafts) => drafts.beside(settings),
            None => settings,
        };
        let session = Session::new(&model, settings)?;
        let drafter = drafts.map(Drafts::into_drafter);
        let mut opened = Model::new(model, session, drafter, (self.chat_template, self.cancel))?;
        if let Some(norm) = self.norm {
            opened.set_norm(norm);
        }
        Ok(opened)
    }

    /// Ends the loading of weights where it was cancelled.
    fn watch(&mut self) {
        let (cancel, mut told) = (self.cancel.clone(), self.progress.take());
        self.progress = Some(Box::new(move |progress| {
            if let Some(told) = &mut told {
                told(progress)?;
            }
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
    }

    /// Ends the opening, between its steps, if it was cancelled.
    fn go_on(&self) -> Result<(), Error> {
        if self.cancel.is_cancelled() { Err(Engine::Interrupted.into()) } else { Ok(()) }
    }

    /// What would run where, and the memory that it would take, without a draft model; nothing is loaded. A file that has only
    /// its header will do.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn plan(mut self) -> Result<Plan, Error> {
        self.map = true;
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
        self.asked.ctx_size = target.context.or(self.asked.ctx_size);
        self.map = true;
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
        self.asked.ctx_size
    }

    /// The settings of a session.
    pub(crate) fn settings(&mut self, model: &Opened) -> Settings<'_> {
        let is_encoder = model.config().encoder.is_some();
        let progress = self.progress.as_deref_mut();
        let parallel = self.asked.sequences.max(1);
        Settings {
            purpose: match self.embeddings || self.pooling.is_some() {
                true if is_encoder => Purpose::Embed(self.pooling),
                _ => Purpose::Own,
            },
            sequences: if is_encoder { texts_max(model) } else { parallel },
            outputs: (!is_encoder).then_some(parallel.max(LOGITS_ROWS)),
            placing: self.asked.placing.clone(),
            top_k: Sampling::default().needs().filter(|_| !is_encoder),
            watched: Vec::new(),
            time_device: Some(timing::device),
            progress: progress.map(|told| told as &mut dyn FnMut(Progress) -> ControlFlow<()>),
            ..self.asked
        }
    }
}
