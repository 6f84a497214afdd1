//! What all requests share, and who sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::State;
use bilayer_engine::requests::KeyId;

use crate::body::Bodies;
use crate::config::Config;
use crate::error::ApiError;
use crate::fields::{self, Field};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::slot_files::SlotFiles;

/// What all requests share.
pub struct App {
    /// The configuration.
    pub config: Arc<Config>,
    /// The models.
    pub models: Arc<Models>,
    /// The keys.
    pub keys: Keys,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether the first model is loaded.
    pub is_ready: AtomicBool,
    /// Whether the server is stopping.
    pub is_draining: AtomicBool,
    /// Requests being answered.
    pub active: AtomicUsize,
    /// Saves and restores of slots.
    pub slot_files: SlotFiles,
    /// The bodies of requests.
    pub bodies: Arc<Bodies>,
    /// Whether some endpoint reads a field of this name.
    is_field: fn(&str) -> bool,
    next_id: AtomicU64,
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The key's number; 0 without keys.
    pub key: KeyId,
}

impl Caller {
    /// Whose cached prefixes it shares.
    pub fn namespace(&self, config: &Config) -> u64 {
        if config.switches.cache_per_key { self.key } else { 0 }
    }
}

/// The handlers' view of [`App`].
pub type Shared = State<Arc<App>>;

impl App {
    /// A server's state, with no model loaded. Of bodies the fields of which `is_field` is true are kept.
    ///
    /// # Errors
    /// The key file is wrong.
    pub fn new(config: Config, is_field: fn(&str) -> bool) -> Result<App, String> {
        let config = Arc::new(config);
        let metrics = Arc::new(Metrics::new());
        Ok(App {
            keys: Keys::load(&config.keys, config.key_file.as_deref())?,
            models: Arc::new(Models::new(config.clone(), metrics.clone())),
            bodies: Arc::new(Bodies::new(&config.limits)),
            is_field,
            config,
            metrics,
            is_ready: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            slot_files: SlotFiles::default(),
            next_id: AtomicU64::new(1),
        })
    }

    /// Reads a body and checks its fields.
    ///
    /// # Errors
    /// It is too large, pauses too long or is too slow, or is no JSON object; a field is wrong.
    pub async fn fields(
        &self,
        body: Body,
        tables: &'static [&'static [Field]],
    ) -> Result<fields::Body, ApiError> {
        self.translated(body, tables, Ok).await
    }

    /// Reads a body, checks its fields and translates it; a large one on a thread of its own.
    ///
    /// # Errors
    /// Those of [`App::fields`] and of `translate`.
    pub async fn translated<T: Send + 'static>(
        &self,
        body: Body,
        tables: &'static [&'static [Field]],
        translate: impl FnOnce(fields::Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let is_field = self.is_field;
        self.parsed(body, move |bytes| translate(fields::Body::parse(bytes, tables, is_field)?))
            .await
    }

    /// Reads a body and parses it; a large one on a thread of its own.
    ///
    /// # Errors
    /// It is too large, pauses too long or is too slow; those of `parse`.
    pub async fn parsed<T: Send + 'static>(
        &self,
        body: Body,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.bodies.parsed(body, &self.config.limits, parse).await
    }

    /// A new id such as `chatcmpl-...`.
    pub fn id(&self, prefix: &str) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now = jiff::Timestamp::now().as_nanosecond() as u64;
        format!("{prefix}-{now:016x}{number:06x}")
    }
}
