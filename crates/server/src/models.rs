//! The models of a server: loaded on first use, unloaded when others need the memory.
//!
//! A model that is unloaded gets no more requests, but its memory is free only when the answers that it runs have ended and
//! its thread with them. The next one is loaded after that, also where the limits allow both, since it is placed in the memory
//! that is free. A model whose thread has panicked or whose file has changed is as one that is unloaded. What can be checked of
//! the next one is checked before others are unloaded for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use bilayer_engine::return_free_memory;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use crate::blocking;
use crate::config::{Config, Offer};
use crate::error::ApiError;
use crate::memory::{Memory, Place};
use crate::metrics::Metrics;

mod files;
mod folder;
mod loaded;
#[cfg(test)]
mod tests;

use files::FileStates;
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
    /// Whether it is no longer in the folder, and so is not offered.
    is_gone: bool,
    loaded: Option<Arc<Loaded>>,
    status: Status,
    /// The files of a load that failed because of them.
    at_fault: Option<FileStates>,
    used: u64,
    /// Models that were taken out and whose threads run.
    ending: Vec<Ending>,
}

impl Entry {
    fn new(offer: Offer) -> Entry {
        Entry {
            offer,
            is_gone: false,
            loaded: None,
            status: Status::Unloaded,
            at_fault: None,
            used: 0,
            ending: Vec::new(),
        }
    }

    /// Takes its model out.
    fn unload(&mut self) -> Option<Arc<Loaded>> {
        self.status = Status::Unloaded;
        let loaded = self.loaded.take()?;
        self.ending.retain(|ending| ending.place.strong_count() > 0);
        self.ending.push(Ending { loaded: Arc::downgrade(&loaded), place: loaded.place() });
        Some(loaded)
    }

    /// It could not be loaded from files that were in this state before.
    fn fail(&mut self, error: &ApiError, files: FileStates) {
        self.status = Status::Failed(error.message.clone());
        let are_at_fault = error.source.as_deref().is_some_and(files::are_at_fault);
        self.at_fault = are_at_fault.then_some(files);
    }

    /// Offers a model again that was taken out.
    fn put_back(&mut self, loaded: Arc<Loaded>) {
        self.ending.retain(|ending| !std::ptr::eq(ending.loaded.as_ptr(), &raw const *loaded));
        (self.loaded, self.status) = (Some(loaded), Status::Loaded);
    }
}

/// A model that was taken out. It ends with its requests.
struct Ending {
    /// Gone once no request uses it.
    loaded: Weak<Loaded>,
    /// Gone once its memory is free.
    place: Weak<Place>,
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
    /// Held while a model is loaded: one at a time.
    loading: Arc<AsyncMutex<()>>,
    /// Held while the folder of models is read: when that was last begun for a name that was not known.
    scanning: Mutex<Option<Instant>>,
    memory: Arc<Memory>,
    /// Set when the server ends: no further model is loaded.
    has_ended: AtomicBool,
    clock: AtomicU64,
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    /// When the server started, seconds since 1970.
    pub created: u64,
}

impl Models {
    /// All models of a configuration, none loaded.
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>) -> Models {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Models {
            entries: Mutex::new(config.models.iter().cloned().map(Entry::new).collect()),
            loading: Arc::default(),
            scanning: Mutex::default(),
            memory: Arc::new(Memory::new(config.models_max, config.models_bytes)),
            has_ended: AtomicBool::new(false),
            clock: AtomicU64::new(1),
            config,
            metrics,
            created: now.as_secs(),
        }
    }

    /// All offers with their state.
    pub fn list(&self) -> Vec<(Offer, Status, Option<Arc<Loaded>>)> {
        let entries = self.entries();
        let list = entries.iter().filter(|entry| !entry.is_gone);
        list.map(|e| (e.offer.clone(), e.status.clone(), e.loaded.clone())).collect()
    }

    /// The models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Loaded>> {
        self.entries().iter().filter_map(|entry| entry.loaded.clone()).collect()
    }

    /// The model of a name, loaded if it was not. Any name is that of a server's only model, unless it reads a folder of models.
    ///
    /// # Errors
    /// There is no such model, or it cannot be loaded; answers of other models do not end in time.
    pub async fn get(self: &Arc<Models>, name: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        self.loaded_at(self.number(name).await?).await
    }

    /// The model of this very name, loaded if it was not.
    ///
    /// # Errors
    /// As those of [`get`](Models::get); no other name is that of a single model.
    pub async fn load_named(self: &Arc<Models>, name: &str) -> Result<Arc<Loaded>, ApiError> {
        self.loaded_at(self.sought(name).await?).await
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
    pub async fn shown(self: &Arc<Models>, name: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        let number = match name {
            Some(name) => Some(self.number(Some(name)).await?),
            None => None,
        };
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
            let Some(number) = number.or(self.first().0) else { return no_models() };
            let name = &self.offer(number).names[0];
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
        let models = self.clone();
        let check = move || models.check(number).map(|()| one);
        let one = blocking::run("checking the model", check).await??;
        let (models, bytes) = (self.clone(), self.offer(number).bytes);
        let room = blocking::run("making room", move || models.make_room(number, one)).await?;
        // If the client leaves meanwhile, the models are offered again. The new one is placed in the memory that is free.
        let ending = self.ending();
        let left = timeout_at(deadline, self.memory.left(&ending)).await;
        left.map_err(|_| ApiError::late())?;
        let place = self.memory.place(bytes, deadline).await.ok_or_else(ApiError::late)?;
        self.check_end()?;
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

    /// Unloads all models, whose requests fail, and waits until their memory and that of those unloaded before is free. No
    /// model is loaded any more.
    pub async fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        let mut unloaded = Vec::new();
        for entry in self.entries().iter_mut() {
            unloaded.extend(entry.unload());
            unloaded.extend(entry.ending.iter().filter_map(|ending| ending.loaded.upgrade()));
        }
        unloaded.iter().for_each(|loaded| loaded.stop());
        drop(unloaded);
        self.memory.left(&self.ending()).await;
    }

    /// An error once the server ends.
    fn check_end(&self) -> Result<(), ApiError> {
        match self.has_ended.load(Ordering::SeqCst) {
            true => Err(ApiError::stopping()),
            false => Ok(()),
        }
    }

    /// Places of the models that were taken out.
    fn ending(&self) -> Vec<Weak<Place>> {
        let entries = self.entries();
        let ending = entries.iter().flat_map(|entry| &entry.ending);
        ending.map(|ending| ending.place.clone()).collect()
    }

    async fn number(self: &Arc<Models>, name: Option<&str>) -> Result<usize, ApiError> {
        let is_known = match name {
            Some(name) => self.find(name).is_some(),
            None => self.first().0.is_some(),
        };
        match name {
            _ if is_known => {}
            Some(_) => self.rescan_for_name().await?,
            None => self.rescan().await?,
        }
        let takes_any_name = self.config.rescan.is_none();
        match (name, self.first()) {
            (None, (Some(first), _)) => Ok(first),
            (Some(_), (Some(first), 1)) if takes_any_name => Ok(first),
            (Some(name), _) => self.known(name),
            (None, (None, _)) => Err(no_models()),
        }
    }

    /// The first model that is offered, if any is, and how many there are.
    fn first(&self) -> (Option<usize>, usize) {
        let entries = self.entries();
        let mut offered = entries.iter().enumerate().filter(|(_, entry)| !entry.is_gone);
        let first = offered.next().map(|(number, _)| number);
        (first, first.map_or(0, |_| 1 + offered.count()))
    }

    fn offer(&self, number: usize) -> Offer {
        self.entries()[number].offer.clone()
    }

    fn find(&self, name: &str) -> Option<usize> {
        let is_named =
            |entry: &Entry| !entry.is_gone && entry.offer.names.iter().any(|of| of == name);
        self.entries().iter().position(is_named)
    }

    /// The model of this very name, also one that is new in the folder.
    async fn sought(self: &Arc<Models>, name: &str) -> Result<usize, ApiError> {
        if self.find(name).is_none() {
            self.rescan_for_name().await?;
        }
        self.known(name)
    }

    /// The model of this very name.
    fn known(&self, name: &str) -> Result<usize, ApiError> {
        self.find(name).ok_or_else(|| {
            let list = self.list();
            let known = list.iter().filter_map(|(offer, ..)| offer.names.first());
            let known = known.map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none" } else { &known };
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

    /// Whether it is known that no request can be answered: each model failed to load because of its files, and these have not
    /// changed since.
    pub fn are_unusable(&self) -> bool {
        let failed = |entry: &Entry| match &entry.status {
            Status::Failed(_) => Some((entry.at_fault.clone()?, entry.offer.files.clone())),
            _ => None,
        };
        // Files are examined behind the lock, as a disk may be slow.
        let entries = self.entries();
        let failed: Option<Vec<_>> =
            entries.iter().filter(|entry| !entry.is_gone).map(failed).collect();
        drop(entries);
        failed.is_some_and(|of| of.iter().all(|(found, files)| *found == FileStates::of(files)))
    }

    /// The entries, without models that answer no request any more.
    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        loop {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let is_spent = |e: &&mut Entry| e.loaded.as_ref().is_some_and(|of| of.is_spent());
            let spent = entries.iter_mut().filter(is_spent).filter_map(Entry::unload);
            let spent: Vec<Arc<Loaded>> = spent.collect();
            if spent.is_empty() {
                return entries;
            }
            // Dropped behind the lock.
            drop(entries);
        }
    }

    /// Loads a model for which there is room.
    fn load(&self, number: usize, place: Place) -> Result<Arc<Loaded>, ApiError> {
        let offer = self.offer(number);
        let files = FileStates::of(&offer.files);
        let made = Loaded::open(offer, place, &self.config, &self.metrics).map(Arc::new);
        // What was only needed for loading.
        return_free_memory();
        let mut entries = self.entries();
        match (made, self.check_end()) {
            (Ok(loaded), Ok(())) => {
                let entry = &mut entries[number];
                (entry.status, entry.loaded) = (Status::Loaded, Some(loaded.clone()));
                // Its file went meanwhile: it ends with this request.
                let _gone = entry.is_gone.then(|| entry.unload());
                Ok(loaded)
            }
            (Ok(loaded), Err(error)) => {
                entries[number].status = Status::Unloaded;
                // Dropped behind the lock.
                drop(entries);
                drop(loaded);
                Err(error)
            }
            (Err(error), _) => {
                entries[number].fail(&error, files);
                Err(error)
            }
        }
    }

    /// Checks a model for which others must be unloaded: what is known to be wrong with it is no reason to unload them.
    fn check(&self, number: usize) -> Result<(), ApiError> {
        let offer = self.offer(number);
        if self.fits(&self.entries(), &offer) {
            return Ok(());
        }
        let files = FileStates::of(&offer.files);
        let checked = Loaded::check(&offer, &self.config, &self.metrics);
        checked.inspect_err(|error| self.entries()[number].fail(error, files))
    }

    /// Whether a model fits beside those that are loaded.
    fn fits(&self, entries: &[Entry], offer: &Offer) -> bool {
        let loaded = entries.iter().filter(|entry| entry.loaded.is_some());
        let all = loaded.fold((0, 0u64), |(count, bytes), e| (count + 1, bytes + e.offer.bytes));
        self.memory.fits(all, offer.bytes)
    }

    /// Takes models out until one fits beside the others: those without requests first, of these the least recently used.
    fn make_room(self: &Arc<Models>, number: usize, one: OwnedMutexGuard<()>) -> Room {
        let offer = &self.offer(number);
        let (mut unloaded, mut weak) = (Vec::new(), Vec::new());
        let mut entries = self.entries();
        entries[number].status = Status::Loading;
        while !self.fits(&entries, offer) {
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
                entry.put_back(loaded);
            }
        }
    }
}

/// 404: the folder of models has none any more.
fn no_models() -> ApiError {
    ApiError::not_found("there are no models; the folder of models is empty")
}
