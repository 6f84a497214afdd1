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

/// Bytes of a tensor that are read, at its beginning and in its middle.
const READ_BYTES: usize = 64;

/// Identifies a model by its configuration, and its tensors' names, types, shapes and some bytes of each. The paths of adapters,
/// which precede the names of their tensors, do not count.
pub(crate) fn of_model(config: &Config, file: &File) -> u64 {
    let mut digest = Digest(FNV_START);
    // Nothing that is hashed refuses.
    let _ = write!(digest, "{config:?}");
    for tensor in file.tensors() {
        let name = tensor.name().rsplit_once(": ").map_or(tensor.name(), |(_, name)| name);
        let _ = write!(digest, "{name} {:?}", tensor.layout());
        let data = file.bytes(tensor);
        for from in [0, data.len() / 2] {
            digest.0 = fnv_from(digest.0, &data[from..data.len().min(from + READ_BYTES)]);
        }
    }
    digest.0
}
