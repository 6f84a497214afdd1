//! Where draft tokens come from, and how many there are.

use std::path::PathBuf;

use bilayer_engine::Model as Opened;
use bilayer_engine::generate::speculate::{Bounds, DraftSettings, Drafted, Drafts, Source};
use bilayer_scheduler::Offload;

use super::{Builder, GpuLayers};
use crate::Error;

/// Where draft tokens come from.
enum DraftSource {
    /// The text itself.
    Lookup,
    /// The model's block for multi-token prediction.
    Mtp,
    /// A smaller model.
    Model(PathBuf),
}

/// What is asked of drafts.
#[derive(Default)]
pub(super) struct Asked {
    source: Option<DraftSource>,
    bounds: Bounds,
    /// How much of the source is offloaded; as of the model if not given.
    gpu_layers: Option<Offload>,
}

impl Builder<'_> {
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
        self.drafts.source = Some(DraftSource::Model(path.into()));
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
        self.drafts.source = Some(DraftSource::Lookup);
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
        self.drafts.source = Some(DraftSource::Mtp);
        self
    }

    /// Most draft tokens at a time, 1 to 64, by default 7: so many leave greedy answers on the CPU bit for bit as they are.
    /// [`Builder::open`] refuses other numbers.
    pub fn draft_max(mut self, tokens: usize) -> Self {
        self.drafts.bounds.draft_max = tokens;
        self
    }

    /// Fewest draft tokens, 0 to 64, by default 0: prompt lookup drops shorter drafts, a draft model makes at least that many,
    /// however probable they are. [`Builder::open`] refuses other numbers.
    pub fn draft_min(mut self, tokens: usize) -> Self {
        self.drafts.bounds.draft_min = tokens;
        self
    }

    /// A draft ends before a token that is less probable to the draft model than this, 0 to 1, by default 0.75.
    /// [`Builder::open`] refuses other numbers.
    pub fn draft_p_min(mut self, probability: f32) -> Self {
        self.drafts.bounds.draft_p_min = probability;
        self
    }

    /// How many layers of the draft model run on the GPU, or of the block for multi-token prediction; by default as many as
    /// [`Builder::gpu_layers`] says for the model.
    pub fn draft_gpu_layers(mut self, layers: impl Into<GpuLayers>) -> Self {
        self.drafts.gpu_layers = Some(layers.into().offload());
        self
    }

    /// Opens the source of drafts, before the model is loaded.
    pub(super) fn drafts(&mut self, model: &Opened) -> Result<Option<Drafts>, Error> {
        let bounds = self.drafts.bounds;
        bounds.check()?;
        let Some(source) = self.drafts.source.take() else { return Ok(None) };
        let draft;
        let source = match source {
            DraftSource::Lookup => Source::Lookup,
            DraftSource::Mtp => Source::Mtp,
            DraftSource::Model(path) => {
                draft = Opened::open(&path, self.reading())?;
                Source::Model(&draft)
            }
        };
        let gpu_layers = self.drafts.gpu_layers.unwrap_or(self.asked.placing.gpu_layers);
        let asked = DraftSettings { source, bounds, gpu_layers, drafted: Drafted::ONE };
        Ok(Some(Drafts::open(&asked, model, self.settings(model))?))
    }
}
