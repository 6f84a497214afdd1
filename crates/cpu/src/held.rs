//! The bytes of weights: in the file's map, or in a copy divided among NUMA nodes.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use bilayer_graph::{Error, SharedBytes, Weight};

use crate::matrix::Matrix;
use crate::memory::Memory;
use crate::numa::Nodes;

/// Bytes that a thread copies at a time.
const PIECE_BYTES: usize = 4 << 20;

/// The bytes of a weight.
pub(crate) struct Held {
    /// Of each NUMA node its rows of all matrices, matrix by matrix; or one for all, in the file's map.
    portions: Box<[SharedBytes]>,
    /// The bytes that were copied, which keeps their address from being used for others.
    copied: Option<SharedBytes>,
}

impl Held {
    /// A weight that stays where it is.
    pub(crate) fn mapped(bytes: SharedBytes) -> Held {
        Held { portions: [bytes].into(), copied: None }
    }

    /// A copy of a weight, divided among nodes: each portion is written first by threads of its node.
    ///
    /// # Errors
    /// Out of memory; a thread cannot be started.
    pub(crate) fn divided(
        weight: &Weight,
        bytes: &SharedBytes,
        nodes: &Nodes,
    ) -> Result<Held, Error> {
        let (rows, row_bytes) = (weight.rows / weight.stacked, weight.row_bytes());
        let share = |node| {
            let rows = nodes.rows(rows, node);
            rows.start * row_bytes..rows.end * row_bytes
        };
        let portion_bytes = |node| share(node).len() * weight.stacked;
        let portions =
            (0..nodes.count()).map(|node| Memory::new(portion_bytes(node), &weight.name));
        let mut portions = portions.collect::<Result<Vec<Memory>, Error>>()?;
        let pieces = portions.iter_mut().enumerate().map(|(node, portion)| {
            let share = share(node);
            let to = portion.fill().chunks_exact_mut(share.len().max(1));
            let pairs = to.zip(bytes.chunks_exact(rows * row_bytes)).flat_map(|(to, matrix)| {
                to.chunks_mut(PIECE_BYTES).zip(matrix[share.clone()].chunks(PIECE_BYTES))
            });
            Pieces { node, pairs: Mutex::new(pairs.collect::<Vec<_>>().into_iter()) }
        });
        copy(&pieces.collect::<Vec<_>>(), nodes).map_err(|source| Error::DeviceLost {
            device: crate::NAME.to_owned(),
            reason: format!("no thread to copy {} with: {source}", weight.name),
        })?;
        let portions = portions.into_iter().map(Memory::freeze).collect();
        Ok(Held { portions, copied: Some(bytes.clone()) })
    }

    /// Whether it is a copy of these very bytes.
    pub(crate) fn is_copy_of(&self, bytes: &SharedBytes) -> bool {
        let is_same = |known: &SharedBytes| known.as_ptr_range() == bytes.as_ptr_range();
        self.copied.as_ref().is_some_and(is_same)
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.portions.iter().map(SharedBytes::len).sum()
    }

    /// The `number`-th of a weight's `stacked` matrices.
    pub(crate) fn matrix(&self, number: usize, stacked: usize) -> Matrix {
        Matrix::Fixed(self.portions_of(number, stacked).collect())
    }

    /// The nodes' rows of the `number`-th of a weight's `stacked` matrices.
    fn portions_of(&self, number: usize, stacked: usize) -> impl Iterator<Item = SharedBytes> {
        self.portions.iter().map(move |portion| {
            let bytes = portion.len() / stacked;
            portion.slice(number * bytes..(number + 1) * bytes)
        })
    }

    /// All bytes of a weight of `stacked` matrices.
    pub(crate) fn bytes(&self, stacked: usize) -> Cow<'_, [u8]> {
        match &*self.portions {
            [one] => Cow::Borrowed(one),
            _ => {
                let mut bytes = Vec::with_capacity(self.len());
                for portion in (0..stacked).flat_map(|number| self.portions_of(number, stacked)) {
                    bytes.extend_from_slice(&portion);
                }
                Cow::Owned(bytes)
            }
        }
    }
}

/// What is copied to a node.
struct Pieces<'a> {
    node: usize,
    /// Pieces of its portion and of the source, in order, so that a file is read from its beginning.
    pairs: Mutex<std::vec::IntoIter<(&'a mut [u8], &'a [u8])>>,
}

/// Copies with threads of the nodes.
fn copy(pieces: &[Pieces<'_>], nodes: &Nodes) -> std::io::Result<()> {
    std::thread::scope(|scope| {
        for Pieces { node, pairs } in pieces {
            let next = move || pairs.lock().unwrap_or_else(PoisonError::into_inner).next();
            let count = pairs.lock().unwrap_or_else(PoisonError::into_inner).len();
            for _ in 0..nodes.threads_of(*node).min(count) {
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    // The backend has tried every node.
                    let _bound = nodes.bind(*node);
                    while let Some((to, from)) = next() {
                        to.copy_from_slice(from);
                    }
                })?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::WeightId;
    use bilayer_quant::Type;

    use super::*;
    use crate::host::Topology;
    use crate::numa::Numa;

    #[test]
    fn a_divided_weight_has_the_bytes_of_the_whole() {
        for (nodes, threads) in [(2, 2), (2, 3), (3, 7)] {
            let nodes = Nodes::new(Numa::Simulate(nodes), &Topology::default(), threads);
            for (rows, stacked) in [(1, 1), (40, 1), (100, 3), (5000, 1)] {
                let (cols, ty) = (320, Type::F32);
                let weight = Weight {
                    id: WeightId(0),
                    name: "w".to_owned(),
                    ty,
                    rows: rows * stacked,
                    cols,
                    first_row: 0,
                    stacked,
                    is_resident: false,
                    layer: None,
                };
                let byte = |at: usize| (at.wrapping_mul(7919) >> 8) as u8;
                let bytes: Vec<u8> = (0..weight.bytes()).map(byte).collect();
                let bytes = SharedBytes::from(bytes);
                let held = Held::divided(&weight, &bytes, &nodes).expect("enough memory");
                assert_eq!(held.bytes(stacked), &*bytes, "{rows} rows, {stacked} matrices");
                assert_eq!(held.len(), bytes.len());
                assert!(held.is_copy_of(&bytes) && !held.is_copy_of(&bytes.slice(4..)));
                let each = bytes.len() / stacked;
                for number in 0..stacked {
                    let matrix = held.matrix(number, stacked);
                    assert_eq!(matrix.len(), each);
                    for row in 0..rows {
                        let range = row * 4 * cols..(row + 1) * 4 * cols;
                        let of = &bytes[number * each..][range.clone()];
                        assert!(matrix.with(range, |row| row == of), "row {row} of {rows}");
                    }
                }
            }
        }
    }
}
