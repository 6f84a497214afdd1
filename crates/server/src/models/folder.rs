//! The folder of models, read again while the server runs.

use std::sync::{Arc, PoisonError};

use super::{Entry, Loaded, Models};
use crate::blocking;
use crate::config::Offer;
use crate::error::ApiError;

impl Models {
    /// Lists the folder of models again, if there is one: offers what is new in it, and no longer what is gone.
    ///
    /// # Errors
    /// The folder cannot be read. The models stay as they are.
    pub async fn rescan(self: &Arc<Models>) -> Result<(), ApiError> {
        let Some(rescan) = self.config.rescan.clone() else { return Ok(()) };
        let models = self.clone();
        let read = move || {
            let _one = models.scanning.lock().unwrap_or_else(PoisonError::into_inner);
            rescan().map(|offers| models.update(offers))
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
