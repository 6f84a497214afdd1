//! Counts waiting requests where handlers see them, so that a request too many is refused at once and not when the running
//! step ends.
//!
//! A request of many answers is admitted or refused as one: where fewer than the limit wait, all of its answers may, even
//! if then more than the limit do. Otherwise a request of more answers than the limit could never be admitted.

use std::collections::HashMap;

use bilayer_engine::requests::{KeyId, Refused};

use super::sync::{Mutex, PoisonError};

/// The number of requests that wait for a worker, by API key.
#[derive(Debug)]
pub struct Admission {
    waiting: usize,
    waiting_per_key: usize,
    keys: Mutex<HashMap<KeyId, usize>>,
}

impl Admission {
    /// None waits. Where so many do, in all or of one key, no more are admitted.
    pub fn new(waiting: usize, waiting_per_key: usize) -> Admission {
        Admission { waiting, waiting_per_key, keys: Mutex::default() }
    }

    /// Counts so many more: the answers of one request.
    ///
    /// # Errors
    /// As many wait as may.
    pub fn enter(&self, key: KeyId, answers: usize) -> Result<(), Refused> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = keys.values().sum();
        if waiting >= self.waiting {
            return Err(Refused::Full { waiting });
        }
        let of_key = keys.entry(key).or_default();
        if *of_key >= self.waiting_per_key {
            return Err(Refused::Key { waiting: *of_key });
        }
        *of_key += answers;
        Ok(())
    }

    /// Counts one less: it runs, or has ended.
    pub fn leave(&self, key: KeyId) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_key) = keys.get_mut(&key) {
            *of_key = of_key.saturating_sub(1);
            if *of_key == 0 {
                keys.remove(&key);
            }
        }
    }
}
