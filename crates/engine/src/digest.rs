//! The identity of what a sequence was computed with.

use std::fmt::{self, Write as _};

use bilayer_gguf::File;
use bilayer_models::Config;
use bilayer_text::hash::{FNV_START, fnv_from};

/// The FNV-1a hash of text as it is written.
pub(crate) struct Digest(pub u64);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = fnv_from(self.0, text.as_bytes());
        Ok(())
    }
}

/// Identifies a model by its configuration, its tensors' names, types and shapes, and the first bytes of each.
pub(crate) fn of_model(config: &Config, file: &File) -> u64 {
    let mut digest = Digest(FNV_START);
    // Nothing that is hashed refuses.
    let _ = write!(digest, "{config:?}");
    for tensor in file.tensors() {
        let _ = write!(digest, "{} {:?}", tensor.name(), tensor.layout());
        let data = file.bytes(tensor);
        digest.0 = fnv_from(digest.0, &data[..data.len().min(64)]);
    }
    digest.0
}
