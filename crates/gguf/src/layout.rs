//! Type, shape and byte range of a tensor; the only place where sizes are computed.

use bilayer_quant::Type;

use crate::error::REMAKE;
use crate::{Error, limits};

/// Type, shape and byte range of a tensor, validated on construction: the shape has 1 to 4 nonzero dimensions, rows
/// are whole blocks, and no product or sum of these numbers overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorLayout {
    ty: Type,
    /// Right-aligned, so that the last is always the columns.
    shape: [u64; limits::DIMENSIONS as usize],
    dimensions: usize,
    offset: u64,
    len_bytes: u64,
}

impl TensorLayout {
    /// Validates and computes; `shape` is `[.., rows, cols]`.
    pub(crate) fn new(
        file: &str,
        tensor: &str,
        ty: Type,
        shape: &[u64],
        offset: u64,
    ) -> Result<Self, Error> {
        let max = limits::DIMENSIONS as usize;
        let invalid = |expected, found| Error::Invalid {
            file: file.into(),
            field: format!("shape of tensor {tensor}"),
            expected,
            found,
            advice: REMAKE,
        };
        if shape.is_empty() || shape.len() > max {
            return Err(invalid("1 to 4 dimensions", format!("{}", shape.len())));
        }
        // Kernels assume at least one element; no model has an empty tensor.
        if shape.contains(&0) {
            return Err(invalid("no dimension of 0", format!("{shape:?}")));
        }
        let cols = shape[shape.len() - 1];
        let quant = |source| Error::Quant { file: file.into(), tensor: tensor.into(), source };
        let sizes = usize::try_from(cols).ok().map(|cols| ty.row_bytes(cols)).transpose();
        let row_bytes = sizes.map_err(quant)?.map(|bytes| bytes as u64);
        // The number of weights must fit too, so that no consumer's product can overflow.
        let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let rows = shape[..shape.len() - 1].iter().try_fold(1u64, |rows, &n| rows.checked_mul(n));
        let len_bytes = rows.zip(row_bytes).and_then(|(rows, bytes)| rows.checked_mul(bytes));
        let end = len_bytes.and_then(|len| offset.checked_add(len));
        let fits = [elements, end].iter().all(|n| n.is_some_and(|n| i64::try_from(n).is_ok()));
        let (true, Some(len_bytes)) = (fits, len_bytes) else {
            let found = format!("{shape:?} of {} at byte {offset}", ty.name);
            return Err(invalid("a size below 2^63 weights and bytes", found));
        };
        let mut aligned = [1; limits::DIMENSIONS as usize];
        aligned[max - shape.len()..].copy_from_slice(shape);
        Ok(Self { ty, shape: aligned, dimensions: shape.len(), offset, len_bytes })
    }

    /// The type of the weights.
    pub fn ty(&self) -> Type {
        self.ty
    }

    /// `[.., rows, cols]`, the last contiguous. (The file stores the reverse.)
    pub fn shape(&self) -> &[u64] {
        &self.shape[self.shape.len() - self.dimensions..]
    }

    /// The last dimension: weights in a row.
    pub fn cols(&self) -> u64 {
        self.shape[self.shape.len() - 1]
    }

    /// The product of all dimensions but the last; 1 for a vector.
    pub fn rows(&self) -> u64 {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// The number of weights.
    pub fn elements(&self) -> u64 {
        self.rows() * self.cols()
    }

    /// Where the tensor starts in its file (its shard), in bytes from the file's start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.len_bytes / self.rows()
    }

    /// Bytes of the tensor, without padding.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}
