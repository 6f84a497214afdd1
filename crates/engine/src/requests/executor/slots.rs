//! Slots as clients see them: which requests run, and what is saved, restored and erased.

use bilayer_graph::PAGE_TOKENS;
use bilayer_settings::Setting;

use super::Executor;
use crate::Error;
use crate::requests::request::RequestId;
use crate::session::{CacheError, SavedSequence};

/// A running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The request.
    pub request: RequestId,
    /// Its slot.
    pub slot: u32,
    /// Tokens that it holds in the cache.
    pub cached: usize,
}

impl Executor {
    /// The running requests.
    pub fn slots(&self) -> Vec<Slot> {
        let slot = |(id, sequence)| {
            let slot = self.scheduler.progress(id).map_or(0, |progress| progress.slot);
            Slot { request: id, slot, cached: self.session.len(sequence) }
        };
        self.scheduler.running().map(slot).collect()
    }

    /// Copies the sequence of a slot; `None` if it is empty.
    ///
    /// # Errors
    /// A device failed.
    pub fn save_slot(&mut self, slot: u32) -> Result<Option<SavedSequence>, Error> {
        self.finish_begun();
        let sequence = self.scheduler.slot(slot).filter(|&of| self.session.len(of) > 0);
        if let Some(sequence) = sequence
            && self.session.adapted(sequence) != self.session.usual_strengths()
        {
            let found = format!("{:?} in slot {slot}", self.session.adapted(sequence));
            let expected = "the strengths that the adapters were opened with";
            return Err(Error::setting(Setting::Lora, found, expected));
        }
        sequence.map(|sequence| self.session.save(sequence)).transpose()
    }

    /// Gives a slot saved contents, for the next request of the namespace that names it or begins like them.
    ///
    /// # Errors
    /// They belong to another model, or there is no room beside running requests, and the slot stays as it is; a device failed.
    pub fn restore_slot(
        &mut self,
        slot: u32,
        saved: &SavedSequence,
        namespace: u64,
    ) -> Result<(), Error> {
        self.session.check_saved(saved)?;
        self.finish_begun();
        let pages = saved.tokens().len().div_ceil(PAGE_TOKENS);
        if !self.scheduler.make_room(slot, pages, &mut self.session) {
            return Err(CacheError::Full { pages: self.session.cache().pages() }.into());
        }
        let sequence = self.session.restore(saved)?;
        self.scheduler.erase(slot, &mut self.session);
        self.scheduler.adopt(sequence, slot, namespace);
        Ok(())
    }

    /// Empties a slot in which nothing runs. Returns the number of its tokens.
    pub fn erase_slot(&mut self, slot: u32) -> usize {
        self.scheduler.erase(slot, &mut self.session)
    }
}
