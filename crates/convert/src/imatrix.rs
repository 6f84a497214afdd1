//! Importance matrices: how much each column of each matrix matters, in the GGUF format of llama.cpp's tools.
//!
//! For each matrix `NAME` a file contains two F32 tensors: `NAME.in_sum2`, `[experts, cols]`, the squared
//! activations of each column summed over tokens, and `NAME.counts`, `[experts, 1]`, the number of these
//! tokens. A matrix that is not a stack of experts counts as one expert, and its tensors are vectors. Source of
//! names and keys: `tools/imatrix` of llama.cpp.

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, Strings, Tensor};
use bilayer_measure::imatrix::Collector;
use bilayer_quant::Type;

use crate::Error;

mod collection;
mod legacy;

pub use collection::{Collection, SoFar};

/// Size limit for files in the older format, which are read at once; those of llama-imatrix are a tenth of it.
const LEGACY_BYTES: u64 = 4 << 30;

/// Tokens of a window of llama-imatrix by default.
pub const WINDOW_TOKENS: usize = 512;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The sums of one matrix or of one stack of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// `[experts, cols]`.
    sums: Vec<f64>,
    /// `[experts]`.
    counts: Vec<u64>,
}

impl Entry {
    /// `sums` are `[experts, cols]`, `counts` `[experts]`.
    ///
    /// # Panics
    /// If the length of `sums` is not a multiple of the number of experts.
    #[must_use]
    pub fn new(sums: Vec<f64>, counts: Vec<u64>) -> Entry {
        assert!(!counts.is_empty() && !sums.is_empty(), "an entry has experts and columns");
        assert!(sums.len().is_multiple_of(counts.len()), "each expert has as many columns");
        Entry { sums, counts }
    }

    /// `[experts, cols]`: squared activations summed over tokens.
    #[must_use]
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// `[experts]`: number of tokens summed.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of experts in the stack, 1 for a single matrix.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.counts.len()
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.sums.len() / self.counts.len()
    }

    /// Number of experts that no token was routed to.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.counts.iter().filter(|&&count| count == 0).count()
    }

    /// `[experts, cols]`: the mean squared activation; 1 in experts that no token was routed to.
    #[must_use]
    pub fn means(&self) -> Vec<f32> {
        let experts = self.sums.chunks_exact(self.cols()).zip(&self.counts);
        let means = experts.flat_map(|(sums, &count)| {
            let mean = move |sum: &f64| if count > 0 { (sum / count as f64) as f32 } else { 1.0 };
            sums.iter().map(mean)
        });
        means.collect()
    }
}

/// Sums of squared activations by matrix, and their origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// Names of the calibration texts.
    pub datasets: Vec<String>,
    /// Number of windows that were run.
    pub chunk_count: u32,
    /// Tokens per window.
    pub chunk_size: u32,
    entries: BTreeMap<String, Entry>,
}

impl Imatrix {
    /// An empty importance matrix for `chunk_count` windows of `chunk_size` tokens of these texts.
    #[must_use]
    pub fn new(datasets: Vec<String>, chunk_count: u32, chunk_size: u32) -> Imatrix {
        Imatrix { datasets, chunk_count, chunk_size, entries: BTreeMap::new() }
    }

    /// The sums of `chunk_count` windows of `chunk_size` tokens of these texts.
    ///
    /// # Errors
    /// [`Error::Sums`].
    pub fn collected(
        collector: &Collector,
        datasets: Vec<String>,
        [chunk_count, chunk_size]: [usize; 2],
    ) -> Result<Imatrix, Error> {
        let [count, size] =
            [chunk_count, chunk_size].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let mut imatrix = Imatrix::new(datasets, count, size);
        for sums in collector.sums() {
            imatrix.insert(sums.name, Entry::new(sums.squares.to_vec(), sums.counts.to_vec()))?;
        }
        Ok(imatrix)
    }

    /// Names and entries of all matrices.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The entry of the matrix `name`, such as `blk.0.attn_q.weight`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Adds the sums of the matrix `name`.
    ///
    /// # Errors
    /// [`Error::Sums`] if the existing entry has another shape.
    pub fn insert(&mut self, name: &str, entry: Entry) -> Result<(), Error> {
        let Some(known) = self.entries.get_mut(name) else {
            self.entries.insert(name.to_owned(), entry);
            return Ok(());
        };
        let shape = |entry: &Entry| (entry.experts(), entry.cols());
        if shape(known) != shape(&entry) {
            let (found, expected) = (shape(&entry), shape(known));
            return Err(Error::Sums {
                tensor: name.to_owned(),
                reason: format!(
                    "sums of {} matrices of {} columns cannot be added to those of {} of {}; they \
                     are of another model",
                    found.0, found.1, expected.0, expected.1
                ),
            });
        }
        known.sums.iter_mut().zip(&entry.sums).for_each(|(sum, more)| *sum += more);
        known.counts.iter_mut().zip(&entry.counts).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    /// Adds all sums of `other`. The window length is that of the last one that has any.
    ///
    /// # Errors
    /// Those of [`Imatrix::insert`].
    pub fn add(&mut self, other: Imatrix) -> Result<(), Error> {
        for (name, entry) in other.entries {
            self.insert(&name, entry)?;
        }
        self.datasets.extend(other.datasets);
        self.chunk_count = self.chunk_count.saturating_add(other.chunk_count);
        if other.chunk_size > 0 {
            self.chunk_size = other.chunk_size;
        }
        Ok(())
    }

    /// A matrix of the older format, which counts windows, with the sums and counts of so many tokens per window, so that it
    /// weighs as much as others that are added; as in llama-imatrix. Others are as they were.
    #[must_use]
    pub fn with_window(mut self, tokens: usize) -> Imatrix {
        if self.chunk_size == 0 {
            self.chunk_size = u32::try_from(tokens).unwrap_or(u32::MAX);
            for entry in self.entries.values_mut() {
                entry.sums.iter_mut().for_each(|sum| *sum *= tokens as f64);
                entry.counts.iter_mut().for_each(|count| *count *= tokens as u64);
            }
        }
        self
    }

    /// Reads the file at `path`. It may be in the format that llama-imatrix used before GGUF; then counts are
    /// windows, and each stack of experts is a single row of sums.
    ///
    /// # Errors
    /// Those of [`Imatrix::read`]; [`Error::OldImatrix`] if the file is in neither format; [`Error::Calibration`] if it cannot
    /// be read.
    pub fn open(path: &Path) -> Result<Imatrix, Error> {
        Imatrix::opened(path).map_err(|error| match error {
            Error::File(error) => Error::calibration(bilayer_engine::Error::File(error)),
            error => error,
        })
    }

    fn opened(path: &Path) -> Result<Imatrix, Error> {
        match File::open(path) {
            Ok(file) => return Imatrix::read(&file),
            Err(bilayer_gguf::Error::Magic { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let file = path.display().to_string();
        let len = std::fs::metadata(path).map_or(0, |there| there.len());
        if len > LEGACY_BYTES {
            return Err(Error::OldImatrix { file, reason: format!("it has {len} bytes") });
        }
        let bytes = std::fs::read(path).map_err(|source| {
            let file = file.clone();
            bilayer_gguf::Error::Io { file, action: "read it", source }
        })?;
        legacy::read(&file, &bytes)
    }

    /// [`Imatrix::open`] of a file in memory; errors name it `name`.
    ///
    /// # Errors
    /// Those of [`Imatrix::open`].
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Imatrix, Error> {
        match File::from_bytes(name, bytes::Bytes::copy_from_slice(bytes)) {
            Ok(file) => Imatrix::read(&file),
            Err(bilayer_gguf::Error::Magic { .. }) => legacy::read(name, bytes),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a GGUF file.
    ///
    /// # Errors
    /// [`Error::NoImatrix`] if the file contains something else; [`Error::Sums`] if sums lack their counts, are
    /// not F32, or cannot be sums of squares; [`Error::File`] if metadata is missing.
    pub fn read(file: &File) -> Result<Imatrix, Error> {
        let metadata = file.metadata();
        let kind = metadata.opt_str("general.type")?.unwrap_or("a model");
        if kind != "imatrix" {
            return Err(Error::NoImatrix { file: file.name().to_owned(), found: kind.to_owned() });
        }
        let datasets = metadata.opt_strings("imatrix.datasets")?;
        let mut imatrix = Imatrix::new(
            datasets.into_iter().flat_map(Strings::iter).map(str::to_owned).collect(),
            metadata.u32("imatrix.chunk_count")?,
            metadata.u32("imatrix.chunk_size")?,
        );
        for tensor in file.tensors() {
            let Some(name) = tensor.name().strip_suffix(SUMS) else { continue };
            imatrix.insert(name, entry(file, name, tensor)?)?;
        }
        Ok(imatrix)
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        Ok(bilayer_gguf::write(path, &self.metadata(), self.tensors())?)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", self.datasets.iter().collect::<Strings>());
        metadata.set("imatrix.chunk_count", self.chunk_count);
        metadata.set("imatrix.chunk_size", self.chunk_size);
        metadata
    }

    fn tensors(&self) -> impl Iterator<Item = NewTensor<'static>> {
        self.entries.iter().flat_map(|(name, entry)| {
            let experts = entry.experts() as u64;
            // ggml stores a matrix of one row as a vector.
            let shape = |width: u64| match experts {
                1 => vec![width],
                _ => vec![experts, width],
            };
            let sums = entry.sums.iter().map(|&sum| sum as f32);
            let counts = entry.counts.iter().map(|&count| count as f32);
            [
                floats(&format!("{name}{SUMS}"), &shape(entry.cols() as u64), sums),
                floats(&format!("{name}{COUNTS}"), &shape(1), counts),
            ]
        })
    }
}

fn floats(name: &str, shape: &[u64], values: impl Iterator<Item = f32>) -> NewTensor<'static> {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    NewTensor::bytes(name, Type::F32, shape, bytes)
}

/// The entry of the matrix `name`.
fn entry(file: &File, name: &str, sums: &Tensor) -> Result<Entry, Error> {
    let wrong = |reason: String| Error::Sums {
        tensor: name.to_owned(),
        reason: format!("{reason}; make {} again", file.name()),
    };
    let numbers = |tensor: &Tensor| -> Result<Vec<f32>, Error> {
        let (of, ty) = (tensor.name(), tensor.layout().ty());
        if ty != Type::F32 {
            return Err(wrong(format!("sums and counts must be F32, {of} is {ty}")));
        }
        let bytes = file.bytes(tensor);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        match values.iter().find(|value| !value.is_finite() || **value < 0.0) {
            Some(bad) => Err(wrong(format!(
                "sums and counts must be finite and not below 0, {of} has {bad}"
            ))),
            None => Ok(values),
        }
    };
    let partner = format!("{name}{COUNTS}");
    let counts = file
        .tensor(&partner)
        .ok_or_else(|| wrong(format!("there are no counts, expected in {partner}")))?;
    let squares: Vec<f64> = numbers(sums)?.into_iter().map(f64::from).collect();
    let counts: Vec<u64> = numbers(counts)?.into_iter().map(|count| count.round() as u64).collect();
    let rows = sums.layout().rows();
    if rows != counts.len() as u64 {
        return Err(wrong(format!("{} counts for {rows} rows of sums", counts.len())));
    }
    Ok(Entry::new(squares, counts))
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
        imatrix.insert("x.weight", Entry::new(vec![2.0, 4.0, 1.0, 5.0], vec![2, 0])).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("i.gguf");
        imatrix.write(&path).unwrap();
        let read = Imatrix::read(&File::open(&path).unwrap()).unwrap();
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
            let message = Imatrix::read(file).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("i.gguf"), "{message}");
        }
    }

    fn matrix() -> Imatrix {
        let mut matrix = Imatrix::new(vec!["a.txt".to_owned()], 2, 8);
        let dense = Entry::new(vec![1.0, 2.5, 0.0], vec![16]);
        let experts = Entry::new(vec![1.0, 2.0, 3.0, 4.0], vec![0, 5]);
        matrix.insert("blk.0.attn_q.weight", dense).expect("new");
        matrix.insert("blk.0.ffn_up_exps.weight", experts).expect("new");
        matrix
    }

    fn written(matrix: &Imatrix) -> File {
        let bytes = bilayer_gguf::to_bytes(&matrix.metadata(), matrix.tensors()).expect("valid");
        File::from_bytes("m", bytes).expect("valid")
    }

    #[test]
    fn files_hold_what_was_summed_and_add_up() {
        let file = written(&matrix());
        let shape = |name: &str| file.tensor(name).expect("there").layout().shape().to_vec();
        assert_eq!(shape("blk.0.attn_q.weight.in_sum2"), [3]);
        assert_eq!(shape("blk.0.attn_q.weight.counts"), [1]);
        assert_eq!(shape("blk.0.ffn_up_exps.weight.in_sum2"), [2, 2]);
        assert_eq!(shape("blk.0.ffn_up_exps.weight.counts"), [2, 1]);
        assert_eq!(file.metadata().u32("imatrix.chunk_count").ok(), Some(2));
        let mut twice = Imatrix::read(&file).expect("ours");
        assert_eq!(twice, matrix());
        twice.add(matrix()).expect("of one shape");
        assert_eq!(twice.datasets, ["a.txt", "a.txt"]);
        let (_, experts) = twice.entries().nth(1).expect("there");
        assert_eq!((experts.sums(), experts.counts()), (&[2.0, 4.0, 6.0, 8.0][..], &[0, 10][..]));
        assert_eq!((experts.unused(), twice.chunk_count), (1, 4));
    }

    #[test]
    fn files_of_other_kinds_and_shapes_are_refused() {
        let mut other = Imatrix::new(Vec::new(), 0, 8);
        other.insert("blk.0.attn_q.weight", Entry::new(vec![1.0, 2.0], vec![1])).expect("new");
        assert!(matches!(other.add(matrix()), Err(Error::Sums { .. })));
        let with = |change: &dyn Fn(&mut Metadata, &mut Vec<NewTensor<'static>>)| {
            let (mut metadata, mut tensors) = (matrix().metadata(), matrix().tensors().collect());
            change(&mut metadata, &mut tensors);
            let bytes = bilayer_gguf::to_bytes(&metadata, tensors).expect("valid");
            Imatrix::read(&File::from_bytes("m", bytes).expect("valid"))
        };
        let cut = with(&|_, tensors| drop(tensors.remove(1)));
        assert!(
            cut.is_err_and(|e| e.to_string().contains("blk.0.attn_q.weight: there are no counts"))
        );
        let model = with(&|metadata, _| metadata.set("general.type", "model"));
        assert!(matches!(model, Err(Error::NoImatrix { .. })));
        let bad = with(&|_, tensors| {
            tensors[0] = floats("blk.0.attn_q.weight.in_sum2", &[1], [f32::NAN].into_iter());
        });
        assert!(bad.is_err_and(|error| error.to_string().contains("finite")));
    }
}
