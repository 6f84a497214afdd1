//! Writes valid models with random weights in real shapes, at disk speed.

use std::path::Path;

use bilayer_gguf::{Metadata, NewTensor, SourceError};
use bilayer_quant::Type;
use bytes::Bytes;
use rayon::prelude::*;

use crate::Error;
use crate::mix::{Facts, Mix, attention};
use crate::stream::{self, Pieces, Progress, Reporter};

mod blocks;
mod family;
mod random;
mod shapes;
pub(crate) mod tensors;
#[cfg(test)]
mod tests;
mod weights;
mod words;

pub use shapes::{Convolutions, Experts, Latent, Shape, Sizes};

use tensors::Tensor;
use weights::Weights;

/// A synthetic model. The same description gives the same bytes on every machine and with any number of
/// threads.
#[derive(Clone, Debug)]
pub struct Synth {
    /// The sizes.
    pub shape: Shape,
    /// The types.
    pub mix: Mix,
    /// Seed of the random weights.
    pub seed: u64,
    /// Write only the header and the file size: all weights are zero and use no disk space.
    pub hollow: bool,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
}

/// Statistics of a written model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Tensors of the file.
    pub tensors: usize,
    /// Number of weights in all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// A tensor with its type.
struct Typed {
    tensor: Tensor,
    ty: Type,
    bytes: u64,
}

impl Synth {
    /// A full model of `shape` and `mix` with seed 0.
    pub fn new(shape: Shape, mix: Mix) -> Synth {
        Synth { shape, mix, seed: 0, hollow: false, threads: None }
    }

    /// Writes the file under a temporary name beside `path` and renames it when complete.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::File`], [`Error::Size`], [`Error::Threads`]; [`Error::Interrupted`] if
    /// `progress` breaks.
    pub fn write(&self, path: &Path, progress: Progress<'_>) -> Result<Made, Error> {
        let pool = stream::pool(self.threads)?;
        let typed = self.tensors()?;
        let made = made(&typed);
        let reporter = Reporter::new(progress, made.bytes);
        let new: Result<Vec<_>, Error> = typed
            .iter()
            .map(|typed| {
                let Some(source) = self.source(typed)? else { return Ok(typed.zeros()) };
                let Typed { tensor, ty, bytes } = typed;
                let (pool, reporter) = (&pool, &reporter);
                Ok(NewTensor::stream(&tensor.name, *ty, &tensor.shape, move |out| {
                    source.pieces(*bytes).write(pool, out, reporter)
                }))
            })
            .collect();
        bilayer_gguf::write(path, &self.metadata(), new?).map_err(stream::writer_error)?;
        Ok(made)
    }

    /// The file in memory.
    ///
    /// # Errors
    /// Those of [`Synth::write`].
    pub fn to_bytes(&self) -> Result<Bytes, Error> {
        let typed = self.tensors()?;
        let new: Result<Vec<_>, Error> = typed
            .iter()
            .map(|typed| {
                let Some(source) = self.source(typed)? else { return Ok(typed.zeros()) };
                let mut bytes = vec![0; typed.bytes as usize];
                bytes
                    .par_chunks_mut(source.chunk_bytes())
                    .enumerate()
                    .for_each(|(number, chunk)| source.fill(number as u64, chunk));
                Ok(NewTensor::bytes(&typed.tensor.name, typed.ty, &typed.tensor.shape, bytes))
            })
            .collect();
        Ok(bilayer_gguf::to_bytes(&self.metadata(), new?)?)
    }

    /// All tensors with their types, in the order of the file.
    fn tensors(&self) -> Result<Vec<Typed>, Error> {
        let tensors = tensors::needed(&self.shape)?;
        let facts = Facts {
            layers: self.shape.layers as usize,
            heads: self.shape.heads as usize,
            kv_heads: self.shape.kv_heads as usize,
            experts: self.shape.experts.map_or(0, |experts| experts.count as usize),
            attention: attention(tensors.iter().map(|tensor| tensor.name.as_str())),
            is_falcon: false,
            // As in the quantizer, an encoder counts as tied because it has no head.
            tied: tensors.iter().all(|tensor| tensor.name != "output.weight"),
            importance: false,
        };
        let typed = tensors.into_iter().map(|tensor| {
            let ty = self.mix.tensor(&tensor.name, &tensor.shape, &facts).unwrap_or(Type::F32);
            let (cols, rows) = tensor.shape.split_last().expect("every tensor has a dimension");
            let row_bytes = ty.row_bytes(*cols as usize).expect("the mix fits types to rows");
            let bytes = rows.iter().product::<u64>() * row_bytes as u64;
            Typed { tensor, ty, bytes }
        });
        Ok(typed.collect())
    }

    /// The source of a tensor's bytes; `None` for zeros.
    fn source<'t>(&self, typed: &'t Typed) -> Result<Option<Source<'t>>, Error> {
        if self.hollow {
            return Ok(None);
        }
        let name = typed.tensor.name.as_str();
        if name == "rope_freqs.weight"
            && let Some(factors) = self.shape.rope_factors()
        {
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            return Ok(Some(Source::Known(bytes)));
        }
        let spread = tensors::spread(&typed.tensor, &self.shape);
        let cols = typed.tensor.shape.last().map_or(1, |cols| *cols as usize);
        Ok(Some(Source::Random(Weights::new(name, (typed.ty, cols), spread, self.seed)?)))
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = self.shape.metadata();
        if let Some(file_type) = self.mix.file_type {
            metadata.set("general.file_type", file_type);
        }
        metadata.set("general.quantization_version", 2u32);
        words::add(&mut metadata, self.shape.family, self.shape.vocab as usize);
        metadata
    }
}

impl Typed {
    fn zeros(&self) -> NewTensor<'static> {
        NewTensor::zeros(&self.tensor.name, self.ty, &self.tensor.shape)
    }
}

fn made(typed: &[Typed]) -> Made {
    Made {
        tensors: typed.len(),
        parameters: typed.iter().map(|typed| typed.tensor.shape.iter().product::<u64>()).sum(),
        bytes: typed.iter().map(|typed| typed.bytes).sum(),
    }
}

/// A source of bytes.
enum Source<'a> {
    Known(Vec<u8>),
    Random(Weights<'a>),
}

impl Source<'_> {
    fn chunk_bytes(&self) -> usize {
        match self {
            Source::Known(bytes) => bytes.len(),
            Source::Random(weights) => weights.chunk_bytes(),
        }
    }

    /// Its `len` bytes in pieces.
    fn pieces(
        &self,
        len: u64,
    ) -> Pieces<impl Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync + '_> {
        let make = |number, bytes: &mut [u8]| {
            self.fill(number, bytes);
            Ok(())
        };
        Pieces { len, piece_bytes: self.chunk_bytes(), make }
    }

    /// Produces a chunk by number.
    fn fill(&self, number: u64, bytes: &mut [u8]) {
        match self {
            Source::Known(known) => bytes.copy_from_slice(known),
            Source::Random(weights) => weights.fill(number, bytes),
        }
    }
}
