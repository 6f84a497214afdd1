//! Matrices and vectors of weights: the same for good, or exchanged between runs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use bilayer_graph::{SharedBytes, Weight, WeightId};

/// The place of a matrix or vector that takes turns with others. They are exchanged while nothing runs, so the lock is
/// free.
#[derive(Clone)]
pub(crate) struct Exchanged<T>(Arc<RwLock<T>>);

impl<T> Exchanged<T> {
    /// A place with its first contents.
    fn new(contents: T) -> Exchanged<T> {
        Exchanged(Arc::new(RwLock::new(contents)))
    }

    /// Puts others in their place.
    fn set(&self, contents: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = contents;
    }

    fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The bytes of a matrix.
pub(crate) enum Matrix {
    /// Consecutive portions of its rows, one for each NUMA node, or one for all.
    Fixed(Box<[SharedBytes]>),
    Exchanged(Exchanged<SharedBytes>),
}

impl Matrix {
    /// Their number.
    pub(crate) fn len(&self) -> usize {
        match self {
            Matrix::Fixed(portions) => portions.iter().map(SharedBytes::len).sum(),
            Matrix::Exchanged(place) => place.with(SharedBytes::len),
        }
    }

    /// Hands a range of them to `read`.
    ///
    /// # Panics
    /// If it is not within one portion.
    pub(crate) fn with<R>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Matrix::Fixed(portions) => match &**portions {
                [one] => read(&one[range]),
                several => {
                    let (portion, start) = find(several, &range);
                    read(&several[portion][range.start - start..range.end - start])
                }
            },
            Matrix::Exchanged(place) => place.with(|bytes| read(&bytes[range])),
        }
    }

    /// The portion with a range, if there are several.
    #[cfg(debug_assertions)]
    pub(crate) fn portion(&self, range: &Range<usize>) -> Option<usize> {
        match self {
            Matrix::Fixed(portions) if portions.len() > 1 => Some(find(portions, range).0),
            _ => None,
        }
    }
}

/// The portion with the first byte of a range, and where it starts.
fn find(portions: &[SharedBytes], range: &Range<usize>) -> (usize, usize) {
    let mut start = 0;
    for (at, portion) in portions.iter().enumerate() {
        if range.start < start + portion.len() {
            return (at, start);
        }
        start += portion.len();
    }
    panic!("bytes {range:?} of a matrix of {start}");
}

/// The elements of a vector.
pub(crate) enum Vector {
    Fixed(Arc<[f32]>),
    Exchanged(Exchanged<Arc<[f32]>>),
}

impl Vector {
    /// Hands a range of them to `read`.
    pub(crate) fn with<R>(&self, range: Range<usize>, read: impl FnOnce(&[f32]) -> R) -> R {
        match self {
            Vector::Fixed(all) => read(&all[range]),
            Vector::Exchanged(place) => place.with(|all| read(&all[range])),
        }
    }
}

/// The places of all weights whose matrices or vectors are exchanged.
#[derive(Default)]
pub(crate) struct Residents {
    matrices: HashMap<WeightId, Vec<Exchanged<SharedBytes>>>,
    /// Those of stacks of vectors once more, as floats.
    vectors: HashMap<WeightId, Vec<Exchanged<Arc<[f32]>>>>,
}

impl Residents {
    /// Drops the places of weights that are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&WeightId) -> bool) {
        self.matrices.retain(|id, _| is_wanted(id));
        self.vectors.retain(|id, _| is_wanted(id));
    }

    /// Fills all places of a weight with what it has.
    pub(crate) fn load(&mut self, weight: &Weight, bytes: &SharedBytes) {
        let parts = || parts(weight, bytes);
        self.matrices.insert(weight.id, parts().map(Exchanged::new).collect());
        if weight.is_vector() {
            let vectors = parts().map(|bytes| Exchanged::new(floats(weight, &bytes)));
            self.vectors.insert(weight.id, vectors.collect());
        }
    }

    /// Puts other bytes in the place of one matrix or vector; returns whether there is that place.
    pub(crate) fn exchange(&self, weight: &Weight, number: usize, bytes: &SharedBytes) -> bool {
        let matrix = self.matrices.get(&weight.id).and_then(|places| places.get(number));
        let vector = self.vectors.get(&weight.id).and_then(|places| places.get(number));
        if let Some(place) = vector {
            place.set(floats(weight, bytes));
        }
        if let Some(place) = matrix {
            place.set(bytes.clone());
        }
        matrix.is_some()
    }

    /// A matrix that is exchanged.
    pub(crate) fn matrix(&self, id: WeightId, number: usize) -> Option<Matrix> {
        self.matrices.get(&id).map(|places| Matrix::Exchanged(places[number].clone()))
    }

    /// The vectors of a stack, if they are exchanged.
    pub(crate) fn vectors(&self, id: WeightId) -> Option<Vec<Vector>> {
        let places = self.vectors.get(&id)?;
        Some(places.iter().map(|place| Vector::Exchanged(place.clone())).collect())
    }
}

/// The bytes of each of a weight's matrices or vectors.
fn parts(weight: &Weight, bytes: &SharedBytes) -> impl Iterator<Item = SharedBytes> {
    let each = bytes.len() / weight.stacked;
    (0..weight.stacked).map(move |at| bytes.slice(at * each..(at + 1) * each))
}

/// Whole rows of a weight as floats.
pub(crate) fn floats(weight: &Weight, bytes: &[u8]) -> Arc<[f32]> {
    let mut values = vec![0.0; bytes.len() / weight.row_bytes() * weight.cols];
    weight.ty.dequantize(bytes, &mut values).expect("the caller has checked the length");
    values.into()
}
