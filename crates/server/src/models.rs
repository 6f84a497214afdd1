//! The models of a server: loaded on first use, unloaded when others need the memory.
//!
//! A model that is unloaded gets no more requests, but its memory is free only when the answers that it runs have ended. The
//! next one is loaded after that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use bilayer_engine::encode::{Encoder, Norm};
use bilayer_engine::{Error, Model, chat_templates, return_free_memory};
use bilayer_text::chat::Template;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use crate::adapters::Adapters;
use crate::blocking;
use crate::config::{Config, Offer, Opened};
use crate::encoders::EncoderWorker;
use crate::error::ApiError;
use crate::memory::{Memory, Place};
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
    /// The chat template, if the model has one.
    pub template: Option<Template>,
    /// Why it has no template.
    pub template_problem: Option<String>,
    /// What runs it.
    pub kind: Kind,
    /// Dropped after all of these.
    _place: Place,
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
    /// Names of the scores; empty if rows are embeddings.
    pub labels: Vec<String>,
    /// Whether rows are scores.
    pub scores: bool,
    /// Whether each token has scores of its own.
    pub labels_tokens: bool,
}

impl Loaded {
    /// The decoder's thread.
    ///
    /// # Errors
    /// The model is an encoder.
    pub fn decoder(&self) -> Result<&Worker, ApiError> {
        match &self.kind {
            Kind::Decoder(worker) => Ok(worker),
            Kind::Encoder(_) => Err(ApiError::not_supported(format!(
                "{} is an encoder: it makes embeddings or scores and generates no text",
                self.id()
            ))),
        }
    }

    /// The encoder's thread.
    ///
    /// # Errors
    /// The model is a decoder.
    pub fn encoder(&self) -> Result<&EncoderHandle, ApiError> {
        match &self.kind {
            Kind::Encoder(encoder) => Ok(encoder),
            Kind::Decoder(_) => Err(ApiError::not_supported(format!(
                "{} generates text; this needs an encoder such as a BERT model",
                self.id()
            ))),
        }
    }

    /// The chat template.
    ///
    /// # Errors
    /// There is none.
    pub fn template(&self) -> Result<&Template, ApiError> {
        self.template.as_ref().ok_or_else(|| {
            let problem = self.template_problem.as_deref().unwrap_or("it has none");
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

/// State of an offered model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not loaded.
    Unloaded,
    /// Being loaded.
    Loading,
    /// Ready.
    Loaded,
    /// It could not be loaded.
    Failed(String),
}

struct Entry {
    offer: Offer,
    loaded: Option<Arc<Loaded>>,
    status: Status,
    used: u64,
}

/// What was taken out for a model that is to be loaded. Put back unless it is taken.
struct Room {
    models: Arc<Models>,
    /// The model to be loaded.
    number: usize,
    /// By number, as long as they live.
    unloaded: Vec<(usize, Weak<Loaded>)>,
    /// [`Models::loading`].
    one: Option<OwnedMutexGuard<()>>,
}

impl Room {
    /// The right to load the model.
    fn take(mut self) -> Option<OwnedMutexGuard<()>> {
        self.one.take()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(_one) = self.one.take() {
            self.models.entries()[self.number].status = Status::Unloaded;
            self.models.put_back(&self.unloaded);
        }
    }
}

/// The registry.
pub struct Models {
    entries: Mutex<Vec<Entry>>,
    by_name: HashMap<String, usize>,
    /// Held while a model is loaded: one at a time.
    loading: Arc<AsyncMutex<()>>,
    memory: Arc<Memory>,
    clock: AtomicU64,
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    /// When the server started, seconds since 1970.
    pub created: u64,
}

impl Models {
    /// All models of a configuration, none loaded.
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>) -> Models {
        let mut by_name = HashMap::new();
        for (number, offer) in config.models.iter().enumerate() {
            by_name.extend(offer.names.iter().map(|name| (name.clone(), number)));
        }
        let entry = |offer: &Offer| Entry {
            offer: offer.clone(),
            loaded: None,
            status: Status::Unloaded,
            used: 0,
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Models {
            entries: Mutex::new(config.models.iter().map(entry).collect()),
            by_name,
            loading: Arc::default(),
            memory: Arc::new(Memory::new(config.models_max, config.models_bytes)),
            clock: AtomicU64::new(1),
            config,
            metrics,
            created: now.as_secs(),
        }
    }

    /// All offers with their state.
    pub fn list(&self) -> Vec<(Offer, Status, Option<Arc<Loaded>>)> {
        let entries = self.entries();
        let list = entries.iter();
        list.map(|e| (e.offer.clone(), e.status.clone(), e.loaded.clone())).collect()
    }

    /// The models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Loaded>> {
        self.entries().iter().filter_map(|entry| entry.loaded.clone()).collect()
    }

    /// The model of a name, loaded if it was not. Where one model is served, any name is that.
    ///
    /// # Errors
    /// There is no such model, or it cannot be loaded; answers of other models do not end in time.
    pub async fn get(self: &Arc<Models>, name: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        let number = self.number(name)?;
        if let Some(loaded) = self.touch(number) {
            return Ok(loaded);
        }
        let deadline = self.config.limits.deadline();
        let one = timeout_at(deadline, self.loading.clone().lock_owned()).await;
        let one = one.map_err(|_| ApiError::late())?;
        if let Some(loaded) = self.touch(number) {
            return Ok(loaded);
        }
        let (models, bytes) = (self.clone(), self.config.models[number].bytes);
        let room = blocking::run("making room", move || models.make_room(number, one)).await?;
        // If the client leaves meanwhile, the models are offered again.
        let place = self.memory.place(bytes, deadline).await.ok_or_else(ApiError::late)?;
        let (models, one) = (self.clone(), room.take());
        let load = move || {
            // Until the model is there, also if the client leaves meanwhile.
            let _one = one;
            models.load(number, place)
        };
        blocking::run("loading the model", load).await?
    }

    /// Unloads a model; requests that use it end first.
    ///
    /// # Errors
    /// There is no such model.
    pub fn unload(&self, name: &str) -> Result<(), ApiError> {
        let number = self.number(Some(name))?;
        let mut entries = self.entries();
        (entries[number].loaded, entries[number].status) = (None, Status::Unloaded);
        Ok(())
    }

    /// Unloads all models.
    pub fn unload_all(&self) {
        for entry in self.entries().iter_mut() {
            (entry.loaded, entry.status) = (None, Status::Unloaded);
        }
    }

    fn number(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let named = name.and_then(|name| self.by_name.get(name)).copied();
        match (named, name) {
            (Some(number), _) => Ok(number),
            (None, None) => Ok(0),
            (None, Some(_)) if self.config.models.len() == 1 => Ok(0),
            (None, Some(name)) => {
                let known = self.config.models.iter().filter_map(|offer| offer.names.first());
                let known = known.map(String::as_str).collect::<Vec<_>>().join(", ");
                let problem = format!("names no model: '{name}'; there are {known}");
                let mut error = ApiError::field("model", problem);
                error.status = hyper::StatusCode::NOT_FOUND;
                error.kind = "not_found_error";
                Err(error)
            }
        }
    }

    fn touch(&self, number: usize) -> Option<Arc<Loaded>> {
        let mut entries = self.entries();
        entries[number].used = self.clock.fetch_add(1, Ordering::Relaxed);
        entries[number].loaded.clone()
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a model for which there is room.
    fn load(&self, number: usize, place: Place) -> Result<Arc<Loaded>, ApiError> {
        let offer = self.config.models[number].clone();
        let made = self.make(offer, place).map(Arc::new);
        // What was only needed for loading.
        return_free_memory();
        let mut entries = self.entries();
        match made {
            Ok(loaded) => {
                entries[number].status = Status::Loaded;
                entries[number].loaded = Some(loaded.clone());
                Ok(loaded)
            }
            Err(error) => {
                entries[number].status = Status::Failed(error.message.clone());
                Err(error)
            }
        }
    }

    /// Takes models out until one fits beside the others: those without requests first, of these the least recently used.
    fn make_room(self: &Arc<Models>, number: usize, one: OwnedMutexGuard<()>) -> Room {
        let offer = &self.config.models[number];
        let (mut unloaded, mut weak) = (Vec::new(), Vec::new());
        let mut entries = self.entries();
        entries[number].status = Status::Loading;
        loop {
            let loaded = entries.iter().filter(|entry| entry.loaded.is_some());
            let (count, bytes) =
                loaded.fold((0, 0u64), |(count, bytes), e| (count + 1, bytes + e.offer.bytes));
            if self.memory.fits((count, bytes), offer.bytes) {
                break;
            }
            let loaded = entries.iter_mut().enumerate().filter_map(|(number, entry)| {
                let is_used = Arc::strong_count(entry.loaded.as_ref()?) > 1;
                Some((is_used, entry.used, number, entry))
            });
            let Some((.., number, entry)) =
                loaded.min_by_key(|&(is_used, used, ..)| (is_used, used))
            else {
                break;
            };
            entry.status = Status::Unloaded;
            if let Some(loaded) = entry.loaded.take() {
                weak.push((number, Arc::downgrade(&loaded)));
                unloaded.push(loaded);
            }
        }
        // What nothing uses ends here, which takes time.
        drop(entries);
        drop(unloaded);
        Room { models: self.clone(), number, unloaded: weak, one: Some(one) }
    }

    /// Offers models again that were taken out for nothing.
    fn put_back(&self, unloaded: &[(usize, Weak<Loaded>)]) {
        let mut entries = self.entries();
        for &(number, ref weak) in unloaded {
            let entry = &mut entries[number];
            if let Some(loaded) = weak.upgrade().filter(|_| entry.loaded.is_none()) {
                (entry.loaded, entry.status) = (Some(loaded), Status::Loaded);
            }
        }
    }

    fn make(&self, offer: Offer, place: Place) -> Result<Loaded, ApiError> {
        let failed = |error| cannot_load(&offer, error);
        let Opened { session, drafters, at_end } = (offer.open)().map_err(failed)?;
        let model = session.model().clone();
        if self.config.switches.context_shift && !model.graph().states.is_empty() {
            return Err(failed(Error::Setting {
                name: "context-shift",
                found: "on".to_owned(),
                expected:
                    "off for a model with recurrent layers, whose states hold all earlier tokens"
                        .to_owned(),
            }));
        }
        let (template, template_problem) = self.template(&offer, &model)?;
        let (mut context, map) = (session.context(), session.plan().map.clone());
        let is_speculative = drafters.is_some();
        let no_thread = |error| ApiError::server(format!("no thread can be started: {error}"));
        let kind = if model.config().encoder.is_some() {
            let scores = !matches!(session.purpose(), bilayer_engine::session::Purpose::Embed(_))
                && model.config().encoder.as_ref().is_some_and(|encoder| encoder.scores);
            let width = session.width();
            let encoder = Encoder::over(session).map_err(failed)?;
            let (is_pooled, labels) = (encoder.is_pooled(), encoder.labels().to_vec());
            let (norm, labels_tokens) = (encoder.norm(), encoder.labels_tokens());
            context = encoder.longest();
            let requests = self.config.executor.waiting;
            let worker = EncoderWorker::start(encoder, requests, self.metrics.clone());
            let worker = worker.map_err(no_thread)?;
            Kind::Encoder(Box::new(EncoderHandle {
                worker,
                is_pooled,
                width,
                norm,
                labels,
                scores,
                labels_tokens,
            }))
        } else {
            let opened = Opened { session, drafters, at_end };
            let (opener, settings) = (offer.open.clone(), self.config.executor);
            let worker = Worker::start(opened, opener, settings, self.metrics.clone());
            Kind::Decoder(worker.map_err(no_thread)?)
        };
        Ok(Loaded {
            offer,
            adapters: Adapters::of(&model),
            model,
            context,
            map,
            is_speculative,
            template,
            template_problem,
            kind,
            _place: place,
        })
    }

    /// The chat template of a model, or why it has none.
    fn template(
        &self,
        offer: &Offer,
        model: &Model,
    ) -> Result<(Option<Template>, Option<String>), ApiError> {
        let templates = chat_templates(model.file().metadata()).map_err(Error::File);
        let templates = templates.map_err(|error| cannot_load(offer, error))?;
        match templates.find(offer.chat_template.as_deref()) {
            Ok(template) => Ok((Some(template), None)),
            Err(error) if offer.chat_template.is_some() => Err(error.into()),
            Err(error) if model.config().encoder.is_some() => Ok((None, Some(error.to_string()))),
            Err(_) => {
                let name = &offer.names[0];
                self.metrics.warn(&format!(
                    "{name} has no chat template, so chats use ChatML, which it may not have learned; choose one with \
                     --chat-template"
                ));
                Ok((templates.find(Some("chatml")).ok(), None))
            }
        }
    }
}

fn cannot_load(offer: &Offer, error: Error) -> ApiError {
    let failed = ApiError::server(format!("{} cannot be loaded: {error}", offer.names[0]));
    ApiError { source: Some(Arc::new(error)), ..failed }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use bilayer_engine::OpenOptions;
    use bilayer_engine::placement::Placing;
    use bilayer_engine::requests::ExecutorSettings;
    use bilayer_engine::sampling::Options;
    use bilayer_engine::session::{Session, Settings};

    use super::*;
    use crate::config::{Limits, Origins, Switches};
    use crate::params::Defaults;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");

    /// A model, opened in some time, that counts how often it is opened.
    fn offer(name: &str, opened: &Arc<AtomicUsize>) -> Offer {
        let opened = opened.clone();
        let open = move || {
            opened.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            let model = Model::open(DEMO.as_ref(), OpenOptions::default())?;
            let placing = Placing::cpu();
            let settings =
                Settings { threads: Some(1), ctx_size: Some(64), placing, ..Settings::default() };
            let session = Session::new(&model, settings)?;
            Ok(Opened { session, drafters: None, at_end: None })
        };
        Offer {
            names: vec![name.to_owned()],
            tags: Vec::new(),
            path: DEMO.to_owned(),
            bytes: 0,
            chat_template: None,
            open: Arc::new(open),
        }
    }

    /// A server of models, of which one may be loaded.
    fn serving(models: Vec<Offer>, request: Duration) -> Arc<Models> {
        let config = Config {
            addresses: Vec::new(),
            models,
            models_max: 1,
            models_bytes: u64::MAX,
            defaults: Defaults {
                seed: None,
                predict: None,
                reuse: true,
                sampling: Options::default(),
            },
            slots: 1,
            slot_folder: None,
            executor: ExecutorSettings::default(),
            limits: Limits { request, ..Limits::default() },
            keys: Vec::new(),
            key_file: None,
            tls: None,
            origins: Origins::Closed,
            switches: Switches::default(),
            template_variables: serde_json::Map::new(),
            splits_reasoning: true,
            build: String::new(),
        };
        Arc::new(Models::new(Arc::new(config), Arc::new(Metrics::new())))
    }

    /// Its client leaves while a model is loaded; the next one gets the model without another load.
    #[tokio::test]
    async fn a_load_goes_on_when_its_client_leaves() {
        let begun = Arc::new(AtomicUsize::new(0));
        let models = serving(vec![offer("demo", &begun)], Duration::MAX);
        let client = models.clone();
        let client = tokio::spawn(async move { client.get(None).await.map(drop) });
        while begun.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        models.get(None).await.map(drop).unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }

    /// While a model answers, the one that needs its memory is not loaded, and later requests for it load no second copy.
    #[tokio::test]
    async fn a_model_is_loaded_when_the_answers_of_the_unloaded_one_have_ended() {
        let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let count = || [0, 1].map(|at: usize| opened[at].load(Ordering::SeqCst));
        let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
        let models = serving(offers, Duration::MAX);
        let answer = models.get(Some("a")).await.ok().unwrap();
        let ask = |name| {
            let models = models.clone();
            tokio::spawn(async move { models.get(Some(name)).await.map(drop) })
        };
        let other = ask("b");
        while models.list()[0].1 != Status::Unloaded {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let again = ask("a");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(count(), [1, 0], "both wait");
        drop(answer);
        other.await.unwrap().unwrap();
        again.await.unwrap().unwrap();
        assert_eq!(count(), [2, 1]);
    }

    #[tokio::test]
    async fn a_model_that_nobody_waits_to_replace_answers_again() {
        let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
        let models = serving(offers, Duration::MAX);
        let answer = models.get(Some("a")).await.ok().unwrap();
        let client = models.clone();
        let client = tokio::spawn(async move { client.get(Some("b")).await.map(drop) });
        while models.list()[0].1 != Status::Unloaded {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.abort();
        assert!(Arc::ptr_eq(&answer, &models.get(Some("a")).await.ok().unwrap()));
        assert_eq!(opened[1].load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_model_whose_memory_was_wanted_in_vain_answers_again() {
        let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
        let models = serving(offers, Duration::from_millis(20));
        let answer = models.get(Some("a")).await.ok().unwrap();
        let error = models.get(Some("b")).await.err().unwrap();
        assert!(error.message.contains("--timeout"), "{error:?}");
        let again = models.get(Some("a")).await.ok().unwrap();
        assert!(Arc::ptr_eq(&answer, &again));
        assert_eq!(models.list()[1].1, Status::Unloaded);
        assert_eq!(opened[1].load(Ordering::SeqCst), 0);
    }
}
