//! Importance matrices: how much each column of each matrix matters, in the GGUF form that llama.cpp's tools share.
//!
//! A file holds for each matrix `NAME` two F32 tensors: `NAME.in_sum2`, `[experts, cols]`, the squared activations that
//! met each column, summed over tokens, and `NAME.counts`, `[experts, 1]`, how many tokens that were. A matrix that is
//! not a stack of experts counts as one. Source of the names and keys: `tools/imatrix` of llama.cpp.

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, Strings, Tensor};
use bilayer_quant::Type;

use crate::Error;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Sums of squared activations by matrix, and where they come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// The texts, by name.
    pub datasets: Vec<String>,
    /// Chunks of text that were run.
    pub chunk_count: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
    entries: BTreeMap<String, Entry>,
}

/// The sums of one matrix or of one stack of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// `[experts, cols]`: Σ over tokens of the squared activation.
    sums: Vec<f32>,
    /// `[experts]`: how many tokens these are.
    counts: Vec<f32>,
}

impl Entry {
    /// `sums` are `[experts, cols]`, `counts` `[experts]`.
    ///
    /// # Panics
    /// `sums` are no whole rows.
    #[must_use]
    pub fn new(sums: Vec<f32>, counts: Vec<f32>) -> Entry {
        assert!(!counts.is_empty() && !sums.is_empty(), "an entry has experts and columns");
        assert!(sums.len().is_multiple_of(counts.len()), "each expert has as many columns");
        Entry { sums, counts }
    }

    /// `[experts, cols]`: Σ over tokens of the squared activation.
    #[must_use]
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// `[experts]`: how many tokens these are.
    #[must_use]
    pub fn counts(&self) -> &[f32] {
        &self.counts
    }

    /// Experts of the stack, 1 for a matrix.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.counts.len()
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.sums.len() / self.counts.len()
    }

    /// `[experts, cols]`: the mean squared activation, 1 throughout an expert that met no token.
    #[must_use]
    pub fn means(&self) -> Vec<f32> {
        let experts = self.sums.chunks_exact(self.cols()).zip(&self.counts);
        let means = experts.flat_map(|(sums, count)| {
            sums.iter().map(move |sum| if *count > 0.0 { sum / count } else { 1.0 })
        });
        means.collect()
    }
}

impl Imatrix {
    /// Nothing known yet, from `chunk_count` chunks of `chunk_size` tokens of these texts.
    #[must_use]
    pub fn new(datasets: Vec<String>, chunk_count: u32, chunk_size: u32) -> Imatrix {
        Imatrix { datasets, chunk_count, chunk_size, entries: BTreeMap::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Imatrix`] where it is a GGUF file of something else, [`Error::ImatrixTensor`] where one of
    /// its tensors lacks its partner, is no F32, or holds what is no sum of squares.
    pub fn read(path: &Path) -> Result<Imatrix, Error> {
        Imatrix::of(&path.display().to_string(), &File::open(path)?)
    }

    /// What an open file holds; `name` is the file's, for errors.
    ///
    /// # Errors
    /// As [`Imatrix::read`].
    pub fn of(name: &str, file: &File) -> Result<Imatrix, Error> {
        let metadata = file.metadata();
        let kind = metadata.opt_str("general.type")?.unwrap_or("a model");
        if kind != "imatrix" {
            return Err(Error::Imatrix { file: name.into(), found: kind.into() });
        }
        let datasets = metadata.opt_strings("imatrix.datasets")?;
        let mut imatrix = Imatrix::new(
            datasets.into_iter().flat_map(Strings::iter).map(str::to_owned).collect(),
            metadata.u32("imatrix.chunk_count")?,
            metadata.u32("imatrix.chunk_size")?,
        );
        for tensor in file.tensors() {
            let Some(of) = tensor.name().strip_suffix(SUMS) else { continue };
            imatrix.entries.insert(of.to_owned(), entry(name, file, of, tensor)?);
        }
        Ok(imatrix)
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", self.datasets.iter().cloned().collect::<Strings>());
        metadata.set("imatrix.chunk_count", self.chunk_count);
        metadata.set("imatrix.chunk_size", self.chunk_size);
        let tensors = self.entries.iter().flat_map(|(name, entry)| {
            let (experts, cols) = (entry.experts() as u64, entry.cols() as u64);
            let tensor = |suffix, shape: &[u64], values: &[f32]| {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                NewTensor::bytes(&format!("{name}{suffix}"), Type::F32, shape, bytes)
            };
            [
                tensor(SUMS, &[experts, cols], &entry.sums),
                tensor(COUNTS, &[experts, 1], &entry.counts),
            ]
        });
        Ok(bilayer_gguf::write(path, &metadata, tensors)?)
    }

    /// Sets what is known of the matrix `name`, such as `blk.0.attn_q.weight`.
    pub fn insert(&mut self, name: &str, entry: Entry) {
        self.entries.insert(name.to_owned(), entry);
    }

    /// What is known of the matrix `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Matrices and what is known of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// How many matrices are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The sums in `tensor` with their counts.
fn entry(name: &str, file: &File, of: &str, tensor: &Tensor) -> Result<Entry, Error> {
    let wrong = |tensor: &str, found: String| Error::ImatrixTensor {
        file: name.into(),
        tensor: tensor.into(),
        found,
    };
    let partner = format!("{of}{COUNTS}");
    let counts = file.tensor(&partner).ok_or_else(|| wrong(&partner, "nothing".into()))?;
    let values = |tensor: &Tensor| {
        let layout = tensor.layout();
        if layout.ty() != Type::F32 {
            return Err(wrong(tensor.name(), layout.ty().to_string()));
        }
        let bytes = file.bytes(tensor);
        let values = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
        let values: Vec<f32> = values.collect();
        match values.iter().find(|value| !value.is_finite() || **value < 0.0) {
            Some(bad) => Err(wrong(tensor.name(), bad.to_string())),
            None => Ok(values),
        }
    };
    let (sums, counts) = (values(tensor)?, values(counts)?);
    if tensor.layout().rows() != counts.len() as u64 {
        let found = format!("{} counts for {} rows", counts.len(), tensor.layout().rows());
        return Err(wrong(tensor.name(), found));
    }
    Ok(Entry::new(sums, counts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn file(tensors: &[(&str, Type, &[u64], &[f32])], kind: &str) -> File {
        let mut metadata = Metadata::new();
        metadata.set("general.type", kind);
        metadata.set("imatrix.chunk_count", 1u32);
        metadata.set("imatrix.chunk_size", 8u32);
        let tensors = tensors.iter().map(|(name, ty, shape, values)| {
            let mut bytes = vec![0; values.len() * ty.block_bytes];
            ty.quantize(values, None, &mut bytes).unwrap();
            NewTensor::bytes(name, *ty, shape, bytes)
        });
        File::from_bytes("i.gguf", bilayer_gguf::to_bytes(&metadata, tensors).unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_experts_without_tokens_count_all_columns_alike() {
        let mut imatrix = Imatrix::new(vec!["a.txt".into(), "b.txt".into()], 3, 512);
        imatrix.insert("x.weight", Entry::new(vec![2.0, 4.0, 1.0, 5.0], vec![2.0, 0.0]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("i.gguf");
        imatrix.write(&path).unwrap();
        let read = Imatrix::read(&path).unwrap();
        assert_eq!(read, imatrix);
        assert_eq!(read.get("x.weight").unwrap().means(), [1.0, 2.0, 1.0, 1.0]);
    }

    #[test]
    fn what_is_no_importance_matrix_is_refused_by_name() {
        let sums = ("x.in_sum2", Type::F32, &[1, 2][..], &[1.0, 2.0][..]);
        let counts = ("x.counts", Type::F32, &[1, 1][..], &[1.0][..]);
        let cases: &[(File, &str)] = &[
            (file(&[sums, counts], "model"), "found model"),
            (file(&[sums], "imatrix"), "x.counts"),
            (file(&[("x.in_sum2", Type::F16, &[1, 2], &[1.0, 2.0]), counts], "imatrix"), "F16"),
            (file(&[("x.in_sum2", Type::F32, &[1, 2], &[1.0, -2.0]), counts], "imatrix"), "-2"),
            (file(&[("x.in_sum2", Type::F32, &[2, 1], &[1.0, 2.0]), counts], "imatrix"), "2 rows"),
        ];
        for (file, part) in cases {
            let message = Imatrix::of("i.gguf", file).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("i.gguf"), "{message}");
        }
    }
}
