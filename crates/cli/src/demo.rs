//! The embedded demo model, which is used if no file is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bilayer_engine::encode::Pooling;
use bilayer_engine::{Adapters, LoraFile, Model, SharedBytes, Strength};
use bilayer_gguf::{File, MetadataOverride};
use bilayer_text::Tokenizer;

use crate::args::{LoraArgs, MetadataArgs};
use crate::failure::Failure;
use crate::{output, progress};

/// Its name in messages.
pub const NAME: &str = "demo";

/// Its default prompt.
pub const PROMPT: &str = "ROMEO:\n";

/// Its default answer length in tokens.
pub const PREDICT: usize = 200;

/// Bytes aligned for tensors.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static DEMO: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/demo.gguf"));

/// Size of the demo model's file, bytes.
pub fn len_bytes() -> u64 {
    DEMO.0.len() as u64
}

/// The source of a model.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its file, or the first of its shards; `None` for the demo model.
    pub path: Option<&'a Path>,
    /// Whether the file is mapped instead of read into memory.
    pub map: bool,
    /// Whether all of it is used until the process ends.
    pub runs: bool,
    /// Whether it is read and locked in memory.
    pub lock: bool,
    /// Metadata that replaces the file's.
    pub metadata: Option<&'a MetadataArgs>,
    /// Adapters.
    pub lora: Option<&'a LoraArgs>,
    /// How they are applied.
    pub applied: Applied,
    /// How the rows of a text are pooled, by which a decoder embeds, too.
    pub pooling: Option<Pooling>,
}

impl<'a> Source<'a> {
    /// A file as it is, mapped.
    pub fn plain(path: Option<&'a Path>) -> Source<'a> {
        let (metadata, lora, applied, pooling) = (None, None, Applied::Fixed, None);
        Source { path, map: true, runs: false, lock: false, metadata, lora, applied, pooling }
    }
}

/// How adapters are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// As the flags say.
    Fixed,
    /// To each sequence as its request says, otherwise as the flags say.
    BySequence,
    /// To each sequence as its request says, otherwise not.
    WhenAsked,
}

/// Opens the file, or the demo model.
pub fn open(source: &Source<'_>) -> Result<Model, Failure> {
    Ok(model(source)?)
}

/// As [`open`], with the engine's error.
pub fn model(source: &Source<'_>) -> Result<Model, bilayer_engine::Error> {
    let mut overrides = source.metadata.map_or(Vec::new(), MetadataArgs::overrides);
    overrides.extend(source.pooling.map(Pooling::of_decoder));
    let is_off = source.applied == Applied::WhenAsked;
    let open = |(path, scale): (&PathBuf, f32)| {
        let options = bilayer_engine::OpenOptions { map: source.map, ..Default::default() };
        LoraFile::open_with(path, if is_off { 0.0 } else { scale }, options)
    };
    if source.lora.is_some_and(LoraArgs::has_idle_range) {
        output::note("note: --control-vector-layer-range has no effect without a control vector");
    }
    let adapters = match source.lora {
        Some(lora) => Adapters {
            loras: lora.all().map(open).collect::<Result<_, _>>()?,
            strength: match source.applied {
                Applied::Fixed => Strength::Fixed,
                Applied::BySequence | Applied::WhenAsked => Strength::OfSequence,
            },
            control: lora.control_vector()?,
        },
        None => Adapters::default(),
    };
    let Some(path) = source.path else { return embedded(&overrides, adapters) };
    let bar = progress::bytes("reading");
    let mut tell = |p: bilayer_gguf::Progress<'_>| progress::set(&bar, p.done_bytes, p.total_bytes);
    let options = bilayer_engine::OpenOptions {
        map: source.map,
        ahead: source.runs,
        progress: Some(&mut tell),
    };
    let file = bilayer_engine::open_with(path, options);
    bar.finish_and_clear();
    let model = Model::adapted(file?, &overrides, adapters)?;
    if source.lock {
        model.lock()?;
    }
    if source.runs {
        // The last handle is leaked: freeing tables and unmapping the file would only delay the end of the process,
        // which does both.
        std::mem::forget(model.clone());
    }
    Ok(model)
}

/// The tokenizer of the file at `path` (a file without tensors suffices), or the demo model's.
pub fn tokenizer(path: Option<&Path>) -> Result<Arc<Tokenizer>, Failure> {
    match path {
        Some(path) => Ok(bilayer_engine::tokenizer(path)?),
        None => Ok(embedded(&[], Adapters::default())?.tokenizer().clone()),
    }
}

fn embedded(
    overrides: &[MetadataOverride],
    adapters: Adapters,
) -> Result<Model, bilayer_engine::Error> {
    let file = File::from_bytes(NAME, SharedBytes::from_static(&DEMO.0));
    Model::adapted(file.map_err(bilayer_engine::Error::File)?, overrides, adapters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_bytes_are_aligned_and_a_model() {
        assert!(DEMO.0.as_ptr().addr().is_multiple_of(64));
        assert!(embedded(&[], Adapters::default()).is_ok());
    }
}
