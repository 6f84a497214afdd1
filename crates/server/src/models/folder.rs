//! The folder of models, read again while the server runs.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{Entry, Loaded, Models};
use crate::blocking;
use crate::config::Offer;
use crate::error::ApiError;

/// How often the folder is read for names that are not known, at most: clients can ask for any.
const UNKNOWN_EVERY: Duration = Duration::from_secs(1);

/// Why the folder is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// A client asks for it.
    Asked,
    /// A model is not known.
    Unknown,
}

impl Models {
    /// Lists the folder of models again, if there is one: offers what is new in it, and no longer what is gone.
    ///
    /// # Errors
    /// The folder cannot be read. The models stay as they are.
    pub async fn rescan(self: &Arc<Models>) -> Result<(), ApiError> {
        self.read(Reason::Asked).await
    }

    /// [`rescan`](Self::rescan) for a name that is not known, unless it was read for such a name within the last second.
    ///
    /// # Errors
    /// As those of [`rescan`](Self::rescan).
    pub async fn rescan_for_name(self: &Arc<Models>) -> Result<(), ApiError> {
        // A thread is not needed for what is known.
        let is_recent = self.scanning.try_lock().is_ok_and(|last| is_recent(*last));
        if is_recent { Ok(()) } else { self.read(Reason::Unknown).await }
    }

    async fn read(self: &Arc<Models>, reason: Reason) -> Result<(), ApiError> {
        let Some(rescan) = self.config.rescan.clone() else { return Ok(()) };
        let models = self.clone();
        let read = move || {
            let mut last = models.scanning.lock().unwrap_or_else(PoisonError::into_inner);
            if reason == Reason::Unknown && is_recent(*last) {
                return Ok(Vec::new());
            }
            let begun = Instant::now();
            let gone = models.update(rescan()?);
            if reason == Reason::Unknown {
                *last = Some(begun);
            }
            Ok::<_, io::Error>(gone)
        };
        let read = blocking::run("reading the folder of models", read).await?;
        // Models that are gone end behind the lock.
        read.map(drop).map_err(|error| {
            let problem = format!("the folder of models cannot be read: {error}");
            self.metrics.warn_once(&problem);
            ApiError::unavailable(problem)
        })
    }

    /// Offers these models of the folder. Returns those that were loaded and are gone.
    fn update(&self, offers: Vec<Offer>) -> Vec<Arc<Loaded>> {
        let mut entries = self.entries();
        let mut unloaded = Vec::new();
        for entry in entries.iter_mut().filter(|entry| entry.offer.is_of_folder && !entry.is_gone) {
            let own = &entry.offer;
            let is_same = |other: &Offer| other.path == own.path && other.names == own.names;
            if !offers.iter().any(is_same) {
                entry.is_gone = true;
                unloaded.extend(entry.unload());
            }
        }
        for offer in offers {
            let is_known = |entry: &Entry| {
                let own = &entry.offer;
                let is_named = own.names.iter().any(|name| offer.names.contains(name));
                !entry.is_gone && (is_named || (own.is_of_folder && own.path == offer.path))
            };
            if !entries.iter().any(is_known) {
                entries.push(Entry::new(offer));
            }
        }
        unloaded
    }
}

/// Whether the folder need not be read again, by when that was last begun.
fn is_recent(last: Option<Instant>) -> bool {
    last.is_some_and(|last| last.elapsed() < UNKNOWN_EVERY)
}
