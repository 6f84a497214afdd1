//! From a name to a file: the cache first, then the hub.

use std::path::{Path, PathBuf};

use crate::cache::{Cached, HubCache};
use crate::name::Wanted;
use crate::transfer::Tell;
use crate::{Access, Error, Places};

/// The hub and its cache on this machine.
///
/// A model in the cache is used as it is: the hub is asked only for what is missing, or by [`Hub::update`].
#[derive(Clone, Debug)]
pub struct Hub {
    places: Places,
}

impl Hub {
    /// The hub that the places describe.
    pub fn new(places: Places) -> Hub {
        Hub { places }
    }

    /// The file of a model, the first of its shards, if all of it is in the cache.
    ///
    /// # Errors
    /// A link in the cache leads out of it; there is no cache folder.
    pub fn cached(&self, wanted: &Wanted) -> Result<Option<PathBuf>, Error> {
        Ok(self.cache()?.find(wanted)?.map(|cached| cached.path))
    }

    /// The file of a model, the first of its shards: from the cache, or downloaded into it.
    ///
    /// # Errors
    /// The model is neither in the cache nor on the hub; access is refused; the download fails, in which case what has
    /// arrived is kept and the next call goes on from there.
    pub fn fetch(&self, wanted: &Wanted, tell: &mut Tell<'_>) -> Result<PathBuf, Error> {
        let cached = self.cache()?.find(wanted)?;
        match cached {
            Some(Cached { path, is_best: true }) => Ok(path),
            Some(Cached { path, .. }) if self.places.access == Access::Offline => Ok(path),
            // A cached file of another quantization is used if the hub's files give that one, or if the hub cannot be asked.
            Some(Cached { path, .. }) => match self.download(wanted, Some(&path), tell) {
                Err(
                    Error::Unreachable { .. }
                    | Error::NoDownload { .. }
                    | Error::Denied { .. }
                    | Error::NotFound { .. }
                    | Error::Answer { .. }
                    | Error::Setting { .. }
                    | Error::NoGguf { .. },
                ) => Ok(path),
                done => done,
            },
            None => self.download(wanted, None, tell),
        }
    }

    /// As [`Hub::fetch`], but the newest files of the repository even where older ones are in the cache.
    ///
    /// # Errors
    /// As [`Hub::fetch`].
    pub fn update(&self, wanted: &Wanted, tell: &mut Tell<'_>) -> Result<PathBuf, Error> {
        self.download(wanted, None, tell)
    }

    fn cache(&self) -> Result<HubCache, Error> {
        self.places.cache.clone().map(HubCache::new).ok_or(Error::NoCache)
    }

    /// Downloads a model, unless its file is `cached` and the hub has no better one.
    fn download(
        &self,
        wanted: &Wanted,
        cached: Option<&Path>,
        tell: &mut Tell<'_>,
    ) -> Result<PathBuf, Error> {
        let cache = self.cache()?;
        let missing = || (wanted.to_string(), cache.root().to_owned());
        if self.places.access == Access::Offline {
            let (wanted, cache) = missing();
            return Err(Error::Offline { wanted, cache });
        }
        #[cfg(feature = "download")]
        return crate::download::fetch(&self.places, &cache, wanted, cached, tell);
        #[cfg(not(feature = "download"))]
        {
            let _ = (cached, tell);
            let (wanted, cache) = missing();
            Err(Error::NoDownload { wanted, cache })
        }
    }
}
