//! A matrix's bytes: the same for good, or exchanged between runs.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use bilayer_graph::SharedBytes;

/// The bytes of a matrix that takes turns with others. They are exchanged while nothing runs, so the lock is free.
#[derive(Clone)]
pub(crate) struct Exchanged(Arc<RwLock<SharedBytes>>);

impl Exchanged {
    /// A place with a first matrix.
    pub(crate) fn new(bytes: SharedBytes) -> Exchanged {
        Exchanged(Arc::new(RwLock::new(bytes)))
    }

    /// Puts another matrix in its place.
    pub(crate) fn set(&self, bytes: SharedBytes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bytes;
    }

    fn with<T>(&self, of: impl FnOnce(&SharedBytes) -> T) -> T {
        of(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The bytes of a matrix.
pub(crate) enum Matrix {
    Fixed(SharedBytes),
    Exchanged(Exchanged),
}

impl Matrix {
    /// Their number.
    pub(crate) fn len(&self) -> usize {
        match self {
            Matrix::Fixed(bytes) => bytes.len(),
            Matrix::Exchanged(place) => place.with(SharedBytes::len),
        }
    }

    /// Hands a range of them to `read`.
    pub(crate) fn with<T>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Matrix::Fixed(bytes) => read(&bytes[range]),
            Matrix::Exchanged(place) => place.with(|bytes| read(&bytes[range])),
        }
    }
}

impl From<SharedBytes> for Matrix {
    fn from(bytes: SharedBytes) -> Matrix {
        Matrix::Fixed(bytes)
    }
}
