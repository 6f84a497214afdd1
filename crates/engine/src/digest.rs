//! The identity of what a sequence was computed with.

use std::fmt::{self, Write as _};

use bilayer_files::hash::{FNV_START, fnv_from};
use bilayer_gguf::File;
use bilayer_models::Config;

/// The FNV-1a hash of text as it is written.
pub(crate) struct Digest(pub u64);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = fnv_from(self.0, text.as_bytes());
        Ok(())
    }
}

/// Identifies a model by its configuration, and its tensors' names, types, shapes and samples. The paths of adapters, which
/// precede the names of their tensors, do not count.
pub(crate) fn of_model(config: &Config, file: &File) -> u64 {
    let mut digest = Digest(FNV_START);
    // Nothing that is hashed refuses.
    let _ = write!(digest, "{config:?}");
    for (tensor, parts) in file.samples() {
        let name = tensor.name().rsplit_once(": ").map_or(tensor.name(), |(_, name)| name);
        let _ = write!(digest, "{name} {:?}", tensor.layout());
        parts.for_each(|part| digest.0 = fnv_from(digest.0, part));
    }
    digest.0
}
