//! The model inside the binary: what runs when no file is named.

use std::path::Path;
use std::sync::Arc;

use bilayer_engine::{Model, SharedBytes};

use crate::failure::Failure;
use crate::progress;

/// The name it goes by in messages.
pub const NAME: &str = "demo";

/// What it is asked when the user asks nothing.
pub const PROMPT: &str = "ROMEO:\n";

/// How much it answers then, tokens.
pub const PREDICT: usize = 200;

/// Bytes at an address that tensors may be read from.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static DEMO: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/demo.gguf"));

/// The embedded file.
pub fn bytes() -> SharedBytes {
    SharedBytes::from_static(&DEMO.0)
}

/// Opens the file at `path`, or the demo model.
pub fn open(path: Option<&Path>, no_mmap: bool) -> Result<Model, Failure> {
    let Some(path) = path else { return Ok(Model::from_bytes(NAME, bytes())?) };
    let bar = progress::bytes("reading");
    let mut tell = |p: bilayer_gguf::Progress<'_>| progress::set(&bar, p.done_bytes, p.total_bytes);
    let options = bilayer_gguf::OpenOptions { map: !no_mmap, progress: Some(&mut tell) };
    let model = Model::open(path, options);
    bar.finish_and_clear();
    Ok(model?)
}

/// The tokenizer alone of the file at `path` (a vocabulary without tensors serves), or the demo model's.
pub fn tokenizer(path: Option<&Path>) -> Result<Arc<bilayer_text::Tokenizer>, Failure> {
    match path {
        Some(path) => Ok(bilayer_engine::tokenizer(path)?),
        None => Ok(Model::from_bytes(NAME, bytes())?.tokenizer().clone()),
    }
}
