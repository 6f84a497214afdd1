//! Importance matrices in the GGUF form of llama.cpp's imatrix tool: written, read back whole, added up.
//!
//! For each tensor of a model there are `NAME.in_sum2`, F32 `[matrices, cols]`, sums of squared activations, and
//! `NAME.counts`, F32 `[matrices, 1]`, how many rows of activations went into each; a plain matrix is a stack of one. The
//! metadata: `general.type` = `imatrix`, `imatrix.datasets` (strings), `imatrix.chunk_count` and `imatrix.chunk_size` (u32,
//! windows and tokens of a window). Source: llama.cpp, `tools/imatrix` (facts only).

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_gguf::{Array, File, Metadata, NewTensor, Strings, Tensor, Value};
use bilayer_quant::Type;

use crate::Error;

const SQUARES: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The sums of one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// `[matrices, cols]`.
    squares: Vec<f64>,
    /// Rows of activations of each matrix.
    counts: Vec<u64>,
}

impl Entry {
    /// Sums `[counts, cols]` with the rows that went into them.
    pub fn new(squares: Vec<f64>, counts: Vec<u64>) -> Entry {
        assert!(!counts.is_empty() && squares.len().is_multiple_of(counts.len()), "whole matrices");
        Entry { squares, counts }
    }

    /// `[matrices, cols]`.
    pub fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// Rows of activations of each matrix.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Matrices that no row went to.
    pub fn unused(&self) -> usize {
        self.counts.iter().filter(|&&count| count == 0).count()
    }
}

/// The sums of a model's tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// The texts they come from.
    pub datasets: Vec<String>,
    /// Tokens of a window.
    pub chunk_tokens: u32,
    entries: BTreeMap<String, Entry>,
}

impl Matrix {
    /// No sums yet, from windows of so many tokens.
    pub fn new(dataset: Option<String>, chunk_tokens: u32) -> Matrix {
        Matrix { datasets: dataset.into_iter().collect(), chunk_tokens, entries: BTreeMap::new() }
    }

    /// The sums by tensor, in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Windows that went into the sums.
    pub fn chunk_count(&self) -> u32 {
        let counts = self.entries.values().flat_map(|entry| &entry.counts);
        let most = counts.max().copied().unwrap_or_default();
        u32::try_from(most / u64::from(self.chunk_tokens.max(1))).unwrap_or(u32::MAX)
    }

    /// Adds the sums of a tensor.
    ///
    /// # Errors
    /// The tensor has sums of another shape.
    pub fn insert(&mut self, name: &str, entry: Entry) -> Result<(), Error> {
        let Some(known) = self.entries.get_mut(name) else {
            self.entries.insert(name.to_owned(), entry);
            return Ok(());
        };
        let shape = |entry: &Entry| (entry.counts.len(), entry.squares.len() / entry.counts.len());
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
        known.squares.iter_mut().zip(&entry.squares).for_each(|(sum, more)| *sum += more);
        known.counts.iter_mut().zip(&entry.counts).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    /// Adds all of another's sums. What windows are is said by the last that has any.
    ///
    /// # Errors
    /// As [`Matrix::insert`].
    pub fn add(&mut self, other: Matrix) -> Result<(), Error> {
        for (name, entry) in other.entries {
            self.insert(&name, entry)?;
        }
        self.datasets.extend(other.datasets);
        if other.chunk_tokens > 0 {
            self.chunk_tokens = other.chunk_tokens;
        }
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// No importance matrix, sums without counts or the other way round, other types, values that are not finite.
    pub fn read(file: &File) -> Result<Matrix, Error> {
        let metadata = file.metadata();
        if metadata.opt_str("general.type")? != Some("imatrix") {
            return Err(Error::NoImatrix { file: file.name().to_owned() });
        }
        let datasets = match metadata.get("imatrix.datasets") {
            Some(Value::Array(Array::String(names))) => names.iter().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let chunk_tokens = metadata.opt_u32("imatrix.chunk_size")?.unwrap_or_default();
        let mut matrix = Matrix { datasets, chunk_tokens, entries: BTreeMap::new() };
        for tensor in file.tensors() {
            let Some(name) = tensor.name().strip_suffix(SQUARES) else { continue };
            matrix.insert(name, entry(file, name, tensor)?)?;
        }
        Ok(matrix)
    }

    /// Writes a file, all or nothing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        Ok(bilayer_gguf::write(path, &self.metadata(), self.tensors())?)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", self.datasets.iter().collect::<Strings>());
        metadata.set("imatrix.chunk_count", self.chunk_count());
        metadata.set("imatrix.chunk_size", self.chunk_tokens);
        metadata
    }

    fn tensors(&self) -> impl Iterator<Item = NewTensor<'static>> {
        self.entries.iter().flat_map(|(name, Entry { squares, counts })| {
            let matrices = counts.len() as u64;
            let cols = squares.len() as u64 / matrices;
            // A matrix of one row is a vector, as ggml has it.
            let shape = |width: u64| match matrices {
                1 => vec![width],
                _ => vec![matrices, width],
            };
            let squares = squares.iter().map(|&sum| sum as f32);
            let counts = counts.iter().map(|&count| count as f32);
            [
                floats(&format!("{name}{SQUARES}"), &shape(cols), squares),
                floats(&format!("{name}{COUNTS}"), &shape(1), counts),
            ]
        })
    }
}

fn floats(name: &str, shape: &[u64], values: impl Iterator<Item = f32>) -> NewTensor<'static> {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    NewTensor::bytes(name, Type::F32, shape, bytes)
}

/// The sums of a tensor with its counts.
fn entry(file: &File, name: &str, sums: &Tensor) -> Result<Entry, Error> {
    let wrong = |reason: &str| Error::Sums {
        tensor: name.to_owned(),
        reason: format!("{reason}; make {} again", file.name()),
    };
    let numbers = |tensor: &Tensor| -> Result<Vec<f32>, Error> {
        if tensor.layout().ty() != Type::F32 {
            return Err(wrong("sums and counts must be F32"));
        }
        let bytes = file.bytes(tensor);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        match values.iter().all(|value| value.is_finite() && *value >= 0.0) {
            true => Ok(values),
            false => Err(wrong("sums and counts must be finite and not below 0")),
        }
    };
    let counts =
        file.tensor(&format!("{name}{COUNTS}")).ok_or_else(|| wrong("there are no counts"))?;
    let squares: Vec<f64> = numbers(sums)?.into_iter().map(f64::from).collect();
    let counts: Vec<u64> = numbers(counts)?.into_iter().map(|count| count.round() as u64).collect();
    if counts.is_empty() || squares.is_empty() || !squares.len().is_multiple_of(counts.len()) {
        return Err(wrong("counts and sums do not go together"));
    }
    Ok(Entry { squares, counts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        let mut matrix = Matrix::new(Some("a.txt".to_owned()), 8);
        let dense = Entry::new(vec![1.0, 2.5, 0.0], vec![16]);
        let experts = Entry::new(vec![1.0, 2.0, 3.0, 4.0], vec![0, 5]);
        matrix.insert("blk.0.attn_q.weight", dense).expect("new");
        matrix.insert("blk.0.ffn_up_exps.weight", experts).expect("new");
        matrix
    }

    fn written(matrix: &Matrix) -> File {
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
        let mut twice = Matrix::read(&file).expect("ours");
        assert_eq!(twice, matrix());
        twice.add(matrix()).expect("of one shape");
        assert_eq!(twice.datasets, ["a.txt", "a.txt"]);
        let (_, experts) = twice.entries().nth(1).expect("there");
        assert_eq!(
            (experts.squares(), experts.counts()),
            (&[2.0, 4.0, 6.0, 8.0][..], &[0, 10][..])
        );
        assert_eq!((experts.unused(), twice.chunk_count()), (1, 4));
    }

    #[test]
    fn files_of_other_kinds_and_shapes_are_refused() {
        let mut other = Matrix::new(None, 8);
        other.insert("blk.0.attn_q.weight", Entry::new(vec![1.0, 2.0], vec![1])).expect("new");
        assert!(matches!(other.add(matrix()), Err(Error::Sums { .. })));
        let with = |change: &dyn Fn(&mut Metadata, &mut Vec<NewTensor<'static>>)| {
            let (mut metadata, mut tensors) = (matrix().metadata(), matrix().tensors().collect());
            change(&mut metadata, &mut tensors);
            let bytes = bilayer_gguf::to_bytes(&metadata, tensors).expect("valid");
            Matrix::read(&File::from_bytes("m", bytes).expect("valid"))
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
