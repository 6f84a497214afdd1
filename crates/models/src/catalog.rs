//! Tensor directories: of an existing file, of a file still to be written, and of a model that is only
//! described.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use bilayer_gguf::File;
use bilayer_graph::{Catalog, Entry, Lora};
use bilayer_quant::Type;

use crate::latent;

/// The tensor directory of a GGUF file.
pub struct Directory<'f>(pub &'f File);

impl Catalog for Directory<'_> {
    fn find(&self, name: &str) -> Option<Entry> {
        let layout = self.0.tensor(name)?.layout();
        Some(Entry { ty: layout.ty(), shape: layout.shape().to_vec() })
    }
}

/// The tensor directory of a GGUF file with adapters, whose tensors the file has besides its own.
pub struct Adapted<'f> {
    /// The file.
    pub file: &'f File,
    /// The adapters.
    pub loras: &'f [Lora],
}

impl Catalog for Adapted<'_> {
    fn find(&self, name: &str) -> Option<Entry> {
        Directory(self.file).find(name)
    }

    fn find_as(&self, name: &str, expected: &[u64]) -> Option<Entry> {
        self.find(name).or_else(|| latent::part(self.file, name, expected))
    }

    fn loras(&self) -> &[Lora] {
        self.loras
    }
}

/// The tensor directory of a file that is not written yet: names, types and shapes (rightmost contiguous).
pub struct Listing(HashMap<String, Entry>);

impl Listing {
    /// Lists the given tensors.
    pub fn new(tensors: impl Iterator<Item = (String, Type, Vec<u64>)>) -> Self {
        Listing(tensors.map(|(name, ty, shape)| (name, Entry { ty, shape })).collect())
    }
}

impl Catalog for Listing {
    fn find(&self, name: &str) -> Option<Entry> {
        self.0.get(name).cloned()
    }
}

/// The tensor directory of a model that does not exist yet: it reports every tensor the recording requests, in
/// the requested shape, and remembers it. Random models are made this way, and models are sized before they are
/// downloaded.
pub struct Outline<'a> {
    matrices: Type,
    optional: &'a [&'a str],
    needed: RefCell<Needed>,
}

/// Tensors in the order of their first request.
#[derive(Default)]
struct Needed {
    tensors: Vec<(String, Entry)>,
    names: HashSet<String>,
}

impl<'a> Outline<'a> {
    /// Matrices have type `matrices`, or F16 where a row is not a whole number of blocks; vectors are F32, and
    /// so are biases, of which there may be one per expert. Optional tensors exist only if their names are in `optional`.
    pub fn new(matrices: Type, optional: &'a [&'a str]) -> Self {
        Outline { matrices, optional, needed: RefCell::default() }
    }

    /// The tensors that the recording requested, in order: names, types and shapes (rightmost contiguous).
    pub fn tensors(&self) -> Vec<(String, Entry)> {
        self.needed.borrow().tensors.clone()
    }
}

impl Catalog for Outline<'_> {
    /// Only tells whether the tensor exists; its shape is not known yet.
    fn find(&self, name: &str) -> Option<Entry> {
        self.optional.contains(&name).then_some(Entry { ty: self.matrices, shape: Vec::new() })
    }

    fn find_as(&self, name: &str, expected: &[u64]) -> Option<Entry> {
        let cols = *expected.last()?;
        let ty = match expected {
            [_] => Type::F32,
            _ if name.ends_with(".bias") => Type::F32,
            _ if cols.is_multiple_of(self.matrices.block_weights as u64) => self.matrices,
            _ => Type::F16,
        };
        let entry = Entry { ty, shape: expected.to_vec() };
        let mut needed = self.needed.borrow_mut();
        if needed.names.insert(name.to_owned()) {
            needed.tensors.push((name.to_owned(), entry.clone()));
        }
        Some(entry)
    }
}
