//! A loaded model: what runs it, and what handlers must know of it.

use std::sync::{Arc, Weak};

use bilayer_engine::encode::prompt::Prompts;
use bilayer_engine::encode::{Encoder, Labelling, Norm};
use bilayer_engine::requests::KeyId;
use bilayer_engine::{Error, Model, chat_templates};
use bilayer_text::chat::Template;
use serde_json::Value;
use tokio::time::Instant;

use crate::adapters::Adapters;
use crate::config::{Config, Offer, Opened};
use crate::encoders::{EncoderWorker, Outputs};
use crate::error::ApiError;
use crate::memory::Place;
use crate::metrics::Metrics;
use crate::worker::Worker;

/// A loaded model.
pub struct Loaded {
    /// How it is offered.
    pub offer: Offer,
    /// File, configuration, tokenizer.
    pub model: Model,
    /// Its LoRA adapters.
    pub adapters: Adapters,
    /// Tokens of a sequence.
    pub context: usize,
    /// The placement in one line.
    pub map: String,
    /// Whether answers are drafted.
    pub is_speculative: bool,
    /// The chat templates.
    pub templates: ChatTemplates,
    /// What runs it.
    pub kind: Kind,
    /// That of the thread, which ends with this at the latest.
    place: Weak<Place>,
}

/// The chat templates of a model.
pub struct ChatTemplates {
    /// Of all conversations, if there is one.
    pub default: Option<Template>,
    /// Of conversations with tools, if the file has another for them and the server was started with none.
    pub tool_use: Option<Template>,
    /// Why there is no default.
    problem: Option<String>,
}

/// What runs a model.
pub enum Kind {
    /// A decoder.
    Decoder(Worker),
    /// An encoder: an [`Encoder`] tokenizes as its thread's does.
    Encoder(Box<EncoderHandle>),
}

/// An encoder's thread and what handlers must know of it.
pub struct EncoderHandle {
    /// The thread.
    pub worker: EncoderWorker,
    /// Whether each text gives one row.
    pub is_pooled: bool,
    /// Elements of a row.
    pub width: usize,
    /// How rows are scaled unless a request says otherwise.
    pub norm: Norm,
    /// What may come before the texts that are embedded.
    pub prompts: Prompts,
    /// Names of the scores; empty if rows are embeddings.
    pub labels: Vec<String>,
    /// Which labels of a text may hold together.
    pub labelling: Labelling,
    /// Whether rows are scores.
    pub scores: bool,
    /// Whether each token has scores of its own.
    pub labels_tokens: bool,
}

/// Numbers that a result may have: 64 MiB of f32, and much more as JSON.
const NUMBERS_MAX: usize = 1 << 24;

impl EncoderHandle {
    /// Runs tokenized inputs of a key; the rows come in their order.
    ///
    /// # Errors
    /// The result would have too many numbers; those of [`EncoderWorker::run`].
    pub async fn run(
        &self,
        key: KeyId,
        inputs: Vec<Vec<u32>>,
        deadline: Instant,
    ) -> Result<Outputs, ApiError> {
        // Scores of tokens are merged to entities, and `/v1/extract` limits the tokens.
        if !self.labels_tokens {
            self.check_size(&inputs)?;
        }
        self.worker.run(key, inputs, deadline).await
    }

    /// Whether the result of inputs may be so large.
    fn check_size(&self, inputs: &[Vec<u32>]) -> Result<(), ApiError> {
        let (count, unit) = match self.is_pooled {
            true => (inputs.len(), "inputs"),
            false => (inputs.iter().map(Vec::len).sum(), "tokens"),
        };
        if count.saturating_mul(self.width) <= NUMBERS_MAX {
            return Ok(());
        }
        let most = NUMBERS_MAX / self.width.max(1);
        Err(ApiError::invalid(format!(
            "the request has {count} {unit}, whose rows of {} numbers are returned; send at most {most} {unit} in a request",
            self.width
        )))
    }
}

impl Loaded {
    /// Checks what can be checked of a model without the memory that it needs: its files, and whether it can be served as
    /// the configuration says.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(super) fn check(
        offer: &Offer,
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> Result<(), ApiError> {
        let model = (offer.inspect)().map_err(|error| cannot_load(offer, error))?;
        check_shift(&model, config).map_err(|error| cannot_load(offer, error))?;
        templates(offer, &model, metrics).map(drop)
    }

    /// Opens a model and starts its thread.
    ///
    /// # Errors
    /// It cannot be loaded; the system refuses a thread.
    pub(super) fn open(
        offer: Offer,
        place: Place,
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> Result<Loaded, ApiError> {
        let failed = |error| cannot_load(&offer, error);
        let Opened { session, drafters, at_end } = (offer.open)().map_err(failed)?;
        let model = session.model().clone();
        check_shift(&model, config).map_err(failed)?;
        let templates = templates(&offer, &model, metrics)?;
        let (mut context, map) = (session.context(), session.plan().map.clone());
        let is_speculative = drafters.is_some();
        let place = Arc::new(place);
        let weak_place = Arc::downgrade(&place);
        let no_thread = |error| ApiError::server(format!("no thread can be started: {error}"));
        let kind = if model.config().encoder.is_some() {
            let scores = !matches!(session.purpose(), bilayer_engine::session::Purpose::Embed(_))
                && model.config().encoder.as_ref().is_some_and(|encoder| encoder.scores);
            let width = session.width();
            let encoder = Encoder::over(session).map_err(failed)?;
            let (is_pooled, labels) = (encoder.is_pooled(), encoder.labels().to_vec());
            let (norm, labels_tokens) = (encoder.norm(), encoder.labels_tokens());
            let (labelling, prompts) = (encoder.labelling(), encoder.prompts().clone());
            context = encoder.longest();
            let requests = config.executor.waiting;
            let worker = EncoderWorker::start(encoder, requests, metrics.clone(), place);
            let worker = worker.map_err(no_thread)?;
            Kind::Encoder(Box::new(EncoderHandle {
                worker,
                is_pooled,
                width,
                norm,
                prompts,
                labels,
                labelling,
                scores,
                labels_tokens,
            }))
        } else {
            let opened = Opened { session, drafters, at_end };
            let worker = Worker::start(opened, config.executor(), metrics.clone(), place);
            Kind::Decoder(worker.map_err(no_thread)?)
        };
        Ok(Loaded {
            offer,
            adapters: Adapters::of(&model),
            model,
            context,
            map,
            is_speculative,
            templates,
            kind,
            place: weak_place,
        })
    }

    /// Ends its thread after the step; the requests that are left fail.
    pub(super) fn stop(&self) {
        match &self.kind {
            Kind::Decoder(worker) => worker.stop(),
            Kind::Encoder(encoder) => encoder.worker.stop(),
        }
    }

    /// Whether it can answer no request any more: its thread has ended, as it does when it panics, or its file has changed.
    pub(super) fn is_spent(&self) -> bool {
        match &self.kind {
            Kind::Decoder(worker) => worker.has_ended() || worker.has_changed_file(),
            Kind::Encoder(encoder) => {
                encoder.worker.has_ended() || encoder.worker.has_changed_file()
            }
        }
    }

    /// Its place, which is free once its thread has ended.
    pub(super) fn place(&self) -> Weak<Place> {
        self.place.clone()
    }

    /// The decoder's thread.
    ///
    /// # Errors
    /// The model is an encoder, or is served as one.
    pub fn decoder(&self) -> Result<&Worker, ApiError> {
        match &self.kind {
            Kind::Decoder(worker) => Ok(worker),
            Kind::Encoder(_) if self.is_pooled_decoder() => Err(ApiError::not_supported(format!(
                "{} is served with --pooling, so it makes embeddings; start the server without --pooling to generate \
                 text",
                self.id()
            ))),
            Kind::Encoder(_) => Err(ApiError::not_supported(format!(
                "{} is an encoder: it makes embeddings or scores and generates no text",
                self.id()
            ))),
        }
    }

    /// Whether it is a decoder that --pooling makes an encoder.
    fn is_pooled_decoder(&self) -> bool {
        let encoder = self.model.config().encoder.as_ref();
        self.offer.is_pooled && encoder.is_some_and(|encoder| encoder.is_causal)
    }

    /// The encoder's thread.
    ///
    /// # Errors
    /// The model is a decoder.
    pub fn encoder(&self) -> Result<&EncoderHandle, ApiError> {
        match &self.kind {
            Kind::Encoder(encoder) => Ok(encoder),
            Kind::Decoder(_) => Err(ApiError::not_supported(format!(
                "{} generates text; this needs an encoder, or a decoder served with --pooling",
                self.id()
            ))),
        }
    }

    /// The chat template of a conversation with these tools.
    ///
    /// # Errors
    /// There is none.
    pub fn template(&self, tools: Option<&Value>) -> Result<&Template, ApiError> {
        let ChatTemplates { default, tool_use, problem } = &self.templates;
        let for_tools = tools.and(tool_use.as_ref());
        for_tools.or(default.as_ref()).ok_or_else(|| {
            let problem = problem.as_deref().unwrap_or("it has none");
            ApiError::not_supported(format!(
                "{} has no chat template ({problem}); start the server with --chat-template",
                self.id()
            ))
        })
    }

    /// Tokens as text, control tokens spelled out.
    pub fn spelled(&self, tokens: &[u32]) -> String {
        let pieces = tokens.iter().filter_map(|&id| self.model.tokenizer().piece(id));
        let bytes: Vec<u8> = pieces.flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of its parameters.
    pub fn parameters(&self) -> u64 {
        self.model.file().tensors().iter().map(|tensor| tensor.layout().elements()).sum()
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.offer.names.first().map_or("model", String::as_str)
    }
}

/// Whether answers of a model can go on when their context is full, if they shall.
fn check_shift(model: &Model, config: &Config) -> Result<(), Error> {
    if !config.switches.context_shift || model.graph().states.is_empty() {
        return Ok(());
    }
    let expected = "off for a model with recurrent layers, whose states hold all earlier tokens";
    Err(Error::setting("context-shift", "on", expected))
}

/// The chat templates of a model, or why it has none.
fn templates(offer: &Offer, model: &Model, metrics: &Metrics) -> Result<ChatTemplates, ApiError> {
    let templates = chat_templates(model.file().metadata()).map_err(Error::File);
    let templates = templates.map_err(|error| cannot_load(offer, error))?;
    let name = &offer.names[0];
    let (default, problem) = match templates.find(offer.chat_template.as_deref()) {
        Ok(template) => (Some(template), None),
        Err(error) if offer.chat_template.is_some() => return Err(error.into()),
        Err(error) if model.config().encoder.is_some() => (None, Some(error.to_string())),
        Err(_) => {
            metrics.warn_once(&format!(
                "{name} has no chat template, so chats use ChatML, which it may not have learned; choose one with \
                 --chat-template"
            ));
            (templates.find(Some("chatml")).ok(), None)
        }
    };
    let has_another = offer.chat_template.is_none() && templates.has_tool_use();
    let tool_use = match has_another.then(|| templates.find_with_tools(None)).transpose() {
        Ok(template) => template,
        Err(error) => {
            metrics.warn_once(&format!(
                "chats of {name} with tools use its default template: {error}"
            ));
            None
        }
    };
    Ok(ChatTemplates { default, tool_use, problem })
}

fn cannot_load(offer: &Offer, error: Error) -> ApiError {
    let failed = ApiError::server(format!("{} cannot be loaded: {error}", offer.names[0]));
    ApiError { source: Some(Arc::new(error)), ..failed }
}
