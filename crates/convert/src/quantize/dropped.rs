//! The weights that sparse types drop: a share of the squared norm of a dense matrix, and none of one that is sparse already.

use bilayer_gguf::{File, Tensor};
use rayon::prelude::*;

use super::{Plan, Planned};
use crate::{Error, stream};

/// Columns of a group, of which a sparse type keeps some.
const GROUP: usize = 64;

/// One of so many weights is zero in a matrix that is sparse already. Rounding to four bits makes fewer zeros.
const ZEROS: u64 = 4;

/// Weights that are counted at once.
const PIECE_WEIGHTS: usize = 1 << 15;

/// What a dense matrix loses in its sparse type.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// Its name.
    pub tensor: String,
    /// The sum of the squares of the smallest weights of each group, which is the least that dropping them can lose.
    pub dropped: f64,
    /// The sum of all squares.
    pub squares: f64,
}

/// What is counted of a matrix.
#[derive(Default)]
struct Counts {
    weights: u64,
    zeros: u64,
    /// Most nonzero weights of a group.
    nonzeros: usize,
    dropped: f64,
    squares: f64,
}

impl Plan<'_> {
    /// What the dense matrices that get a sparse type lose, in the order of the file. All their weights are read.
    ///
    /// # Errors
    /// [`Error::Nonzeros`] if a matrix is sparse already, a quarter of its weights being zero, and has more nonzero weights in a group
    /// than its type keeps; [`Error::Weight`], [`Error::File`], [`Error::Threads`].
    pub fn dropped(&self) -> Result<Vec<Dropped>, Error> {
        let pool = stream::pool(self.threads)?;
        let mut all = Vec::new();
        for (planned, tensor) in self.tensors.iter().zip(self.file.tensors()) {
            let Some(kept) = planned.to.kept_of_64().filter(|_| planned.from != planned.to) else {
                continue;
            };
            let counts = pool.install(|| counts(self.file, tensor, kept));
            // A lost page comes first: it may be the reason of an error.
            self.file.check_unchanged()?;
            let counts = counts?;
            self.file.release(tensor);
            let Planned { name, to, .. } = planned;
            if ZEROS * counts.zeros >= counts.weights {
                if counts.nonzeros > kept {
                    let (tensor, nonzeros) = (name.clone(), counts.nonzeros);
                    return Err(Error::Nonzeros { tensor, nonzeros, ty: *to });
                }
                continue;
            }
            let Counts { dropped, squares, .. } = counts;
            all.push(Dropped { tensor: name.clone(), dropped, squares });
        }
        Ok(all)
    }
}

/// Counts on the threads of the current pool; sums are in a fixed order.
fn counts(file: &File, tensor: &Tensor, kept: usize) -> Result<Counts, Error> {
    let layout = tensor.layout();
    file.prefetch(tensor);
    let bytes = file.bytes(tensor);
    let (cols, row_bytes) = (layout.cols() as usize, layout.row_bytes() as usize);
    let rows = (PIECE_WEIGHTS / cols).max(1);
    let pieces = bytes.par_chunks(rows * row_bytes).map(|bytes| {
        let mut values = vec![0.0; bytes.len() / row_bytes * cols];
        layout.ty().dequantize(bytes, &mut values).map_err(|error| Error::Weight {
            tensor: tensor.name().to_owned(),
            reason: error.to_string(),
        })?;
        let mut counts = Counts::default();
        values.as_chunks::<GROUP>().0.iter().for_each(|group| counts.add(group, kept));
        Ok(counts)
    });
    let pieces = pieces.collect::<Result<Vec<_>, Error>>()?;
    Ok(pieces.into_iter().fold(Counts::default(), |sum, piece| Counts {
        weights: sum.weights + piece.weights,
        zeros: sum.zeros + piece.zeros,
        nonzeros: sum.nonzeros.max(piece.nonzeros),
        dropped: sum.dropped + piece.dropped,
        squares: sum.squares + piece.squares,
    }))
}

impl Counts {
    fn add(&mut self, group: &[f32; GROUP], kept: usize) {
        let mut squares = group.map(|weight| f64::from(weight).powi(2));
        squares.select_nth_unstable_by(GROUP - kept, f64::total_cmp);
        let zeros = group.iter().filter(|weight| **weight == 0.0).count();
        self.weights += GROUP as u64;
        self.zeros += zeros as u64;
        self.nonzeros = self.nonzeros.max(GROUP - zeros);
        self.dropped += squares[..GROUP - kept].iter().sum::<f64>();
        self.squares += squares.iter().sum::<f64>();
    }
}
