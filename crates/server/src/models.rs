//! The models of a server: loaded on first use, unloaded when others need the memory.
//!
//! A model that is unloaded gets no more requests, but its memory is free only when the answers that it runs have ended and
//! its thread with them. The next one is loaded after that. A model whose thread has panicked is as one that is unloaded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use bilayer_engine::return_free_memory;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use crate::blocking;
use crate::config::{Config, Offer};
use crate::error::ApiError;
use crate::memory::{Memory, Place};
use crate::metrics::Metrics;

mod loaded;

pub use loaded::{EncoderHandle, Kind, Loaded};

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

impl Entry {
    /// Takes its model out.
    fn unload(&mut self) -> Option<Arc<Loaded>> {
        self.status = Status::Unloaded;
        self.loaded.take()
    }
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
        self.loaded_at(self.number(name)?).await
    }

    /// The model of this very name, loaded if it was not.
    ///
    /// # Errors
    /// As those of [`get`](Models::get); no other name is that of a single model.
    pub async fn load_named(self: &Arc<Models>, name: &str) -> Result<Arc<Loaded>, ApiError> {
        self.loaded_at(self.known(name)?).await
    }

    /// Loads the first model. If the server can do without it, an error is a warning, and the next request for the model
    /// tries again.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub async fn load_first(self: &Arc<Models>) -> Result<Option<Arc<Loaded>>, ApiError> {
        match self.get(None).await {
            Ok(loaded) => Ok(Some(loaded)),
            Err(error) if !self.config.models[0].is_required => {
                self.metrics.warn(&error.message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A model that is loaded already, after the load that is going on: that of the name, else the one used last.
    ///
    /// # Errors
    /// There is no such model, or it is not loaded.
    pub async fn shown(&self, name: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        let number = name.map(|name| self.number(Some(name))).transpose()?;
        let find = || match number {
            Some(number) => self.entries()[number].loaded.clone(),
            None => self.used_last(),
        };
        if let Some(loaded) = find() {
            return Ok(loaded);
        }
        let wait = timeout_at(self.config.limits.deadline(), self.loading.lock());
        drop(wait.await.map_err(|_| ApiError::late())?);
        find().ok_or_else(|| {
            let name = &self.config.models[number.unwrap_or(0)].names[0];
            ApiError::not_loaded(format!(
                "{name} is not loaded; a request to it or POST /models/load loads it"
            ))
        })
    }

    /// The loaded model that was used last.
    pub fn used_last(&self) -> Option<Arc<Loaded>> {
        let entries = self.entries();
        let loaded = entries.iter().filter(|entry| entry.loaded.is_some());
        loaded.max_by_key(|entry| entry.used).and_then(|entry| entry.loaded.clone())
    }

    async fn loaded_at(self: &Arc<Models>, number: usize) -> Result<Arc<Loaded>, ApiError> {
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
        let number = self.known(name)?;
        // Dropped behind the lock.
        let _unloaded = self.entries()[number].unload();
        Ok(())
    }

    /// Unloads all models, whose requests fail, and waits until their memory is free.
    pub async fn unload_all(&self) {
        let unloaded: Vec<Arc<Loaded>> =
            self.entries().iter_mut().filter_map(Entry::unload).collect();
        unloaded.iter().for_each(|loaded| loaded.stop());
        let places: Vec<Weak<Place>> = unloaded.iter().map(|loaded| loaded.place()).collect();
        drop(unloaded);
        self.memory.left(&places).await;
    }

    fn number(&self, name: Option<&str>) -> Result<usize, ApiError> {
        match name {
            Some(name) if self.config.models.len() > 1 => self.known(name),
            _ => Ok(0),
        }
    }

    /// The model of this very name.
    fn known(&self, name: &str) -> Result<usize, ApiError> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let known = self.config.models.iter().filter_map(|offer| offer.names.first());
            let known = known.map(String::as_str).collect::<Vec<_>>().join(", ");
            let problem = format!("names no model: '{name}'; there are {known}");
            let mut error = ApiError::field("model", problem);
            error.status = hyper::StatusCode::NOT_FOUND;
            error.kind = "not_found_error";
            error
        })
    }

    fn touch(&self, number: usize) -> Option<Arc<Loaded>> {
        let mut entries = self.entries();
        entries[number].used = self.clock.fetch_add(1, Ordering::Relaxed);
        entries[number].loaded.clone()
    }

    /// The entries, without models whose threads have ended.
    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = entries.iter_mut();
        let ended = loaded.filter(|e| e.loaded.as_ref().is_some_and(|loaded| loaded.has_ended()));
        ended.for_each(|entry| drop(entry.unload()));
        entries
    }

    /// Loads a model for which there is room.
    fn load(&self, number: usize, place: Place) -> Result<Arc<Loaded>, ApiError> {
        let offer = self.config.models[number].clone();
        let made = Loaded::open(offer, place, &self.config, &self.metrics).map(Arc::new);
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
            if let Some(loaded) = entry.unload() {
                weak.push((number, Arc::downgrade(&loaded)));
                unloaded.push(loaded);
            }
        }
        // What nothing uses ends here.
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use bilayer_engine::generate::Request;
    use bilayer_engine::generate::speculate::{Drafter, DrafterSource};
    use bilayer_engine::placement::Placing;
    use bilayer_engine::requests::{ExecutorSettings, Submission};
    use bilayer_engine::sampling::{Options, Sampler};
    use bilayer_engine::session::{Session, Settings};
    use bilayer_engine::{Error, Model, OpenOptions};

    use super::*;
    use crate::config::{AtEnd, Limits, Opened, Origins, Switches};
    use crate::params::Defaults;
    use crate::worker::{Ask, Update};

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");

    /// A model, opened in some time, that counts how often it is opened.
    fn offer(name: &str, opened: &Arc<AtomicUsize>) -> Offer {
        let opened = opened.clone();
        let open = move || {
            opened.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            let model = Model::open(DEMO.as_ref(), OpenOptions::default())?;
            let placing = Placing::cpu();
            let settings = Settings {
                threads: Some(1),
                ctx_size: Some(64),
                // For draft tokens.
                outputs: Some(8),
                placing,
                ..Settings::default()
            };
            let session = Session::new(&model, settings)?;
            Ok(Opened { session, drafters: None, at_end: None })
        };
        Offer {
            names: vec![name.to_owned()],
            tags: Vec::new(),
            path: DEMO.to_owned(),
            bytes: 0,
            chat_template: None,
            is_required: false,
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

    /// Unloading waits for no thread, neither one that the handlers of other requests need nor the lock of the models, and the
    /// next model is loaded when the thread has ended.
    #[tokio::test]
    async fn a_model_whose_thread_ends_late_is_unloaded_at_once() {
        let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (inner, ends) = (offer("a", &opened[0]), Mutex::new(Some(ends)));
        let open = inner.open.clone();
        let late = move || {
            let ends = ends.lock().unwrap().take().unwrap();
            let at_end: AtEnd = Box::new(move |_| {
                // An error: the sender is dropped.
                let _ = ends.recv();
            });
            Ok(Opened { at_end: Some(at_end), ..open()? })
        };
        let late = Offer { open: Arc::new(late), ..inner };
        let models = serving(vec![late, offer("b", &opened[1])], Duration::from_millis(20));
        models.get(Some("a")).await.map(drop).unwrap();
        let (unloading, (unloaded, is_unloaded)) = (models.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || unloaded.send(unloading.unload("a").map(drop).is_ok()));
        assert_eq!(is_unloaded.recv_timeout(Duration::from_secs(10)), Ok(true));
        assert_eq!(models.list()[0].1, Status::Unloaded);
        assert!(models.get(Some("b")).await.is_err(), "the memory of the first is not free");
        drop(end);
        while models.get(Some("b")).await.is_err() {}
        assert_eq!(opened[1].load(Ordering::SeqCst), 1);
        models.unload_all().await;
        assert!(models.loaded().is_empty());
    }

    /// Makes the thread panic.
    struct Panicking;

    impl DrafterSource for Panicking {
        fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
            panic!("a test's panic")
        }
    }

    #[tokio::test]
    async fn a_model_whose_thread_has_panicked_is_loaded_again() {
        let opened = Arc::new(AtomicUsize::new(0));
        let inner = offer("a", &opened);
        let open = inner.open.clone();
        let open = move || Ok(Opened { drafters: Some(Box::new(Panicking)), ..open()? });
        let models = serving(vec![Offer { open: Arc::new(open), ..inner }], Duration::MAX);
        let first = models.get(None).await.ok().unwrap();
        let sampler = Sampler::new(Options::default(), 256, 64, Arc::default()).unwrap();
        let submission = Submission::new(Request::new(vec![1; 4]), sampler);
        let (updates, mut told) = tokio::sync::mpsc::unbounded_channel();
        let ask = Ask { ticket: 1, index: 0, submission, after: None, updates };
        first.decoder().unwrap().ask(0, 1, || Ok(vec![ask])).unwrap();
        let failed = loop {
            if let (_, Update::Failed(error)) = told.recv().await.unwrap() {
                break error;
            }
        };
        assert_eq!(failed.status, 500);
        assert!(models.loaded().is_empty());
        drop(first);
        models.get(None).await.map(drop).unwrap();
        assert_eq!(opened.load(Ordering::SeqCst), 2);
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

    /// Looking at models loads and unloads none; loading and unloading one takes its name.
    #[tokio::test]
    async fn only_what_is_loaded_is_shown() {
        let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
        let models = serving(offers, Duration::MAX);
        assert!(models.shown(None).await.is_err());
        models.load_named("b").await.map(drop).unwrap();
        assert_eq!(models.shown(None).await.ok().unwrap().id(), "b");
        assert_eq!(models.shown(Some("b")).await.ok().unwrap().id(), "b");
        assert_eq!(models.shown(Some("a")).await.err().unwrap().status, 409);
        assert_eq!(models.shown(Some("c")).await.err().unwrap().status, 404);
        assert_eq!([0, 1].map(|at: usize| opened[at].load(Ordering::SeqCst)), [0, 1]);

        let one = serving(vec![offer("a", &opened[0])], Duration::MAX);
        one.get(Some("any")).await.map(drop).unwrap();
        assert_eq!(one.load_named("any").await.err().unwrap().status, 404);
        assert_eq!(one.unload("any").err().unwrap().status, 404);
        assert_eq!(one.list()[0].1, Status::Loaded);
        one.unload("a").unwrap();
        assert_eq!(one.list()[0].1, Status::Unloaded);
    }

    /// A server starts without a model that it need not load; the model is tried again when it is asked for.
    #[tokio::test]
    async fn a_model_that_cannot_be_loaded_is_a_warning_unless_it_is_required() {
        let broken = |is_required| {
            let open =
                || Err(Error::Setting { name: "x", found: "1".into(), expected: "2".into() });
            let offer = offer("a", &Arc::default());
            serving(vec![Offer { open: Arc::new(open), is_required, ..offer }], Duration::MAX)
        };
        assert!(broken(true).load_first().await.is_err());
        let models = broken(false);
        assert!(models.load_first().await.ok().unwrap().is_none());
        assert!(matches!(models.list()[0].1, Status::Failed(_)));
        assert!(models.get(Some("a")).await.is_err());
    }
}
