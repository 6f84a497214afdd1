//! A weight: a matrix, or a range of its rows, named as in the GGUF file.

use bilayer_quant::Type;

/// A weight of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// `[rows, cols]` of one type; vectors have one row, those of experts one row each.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its index in [`crate::Graph::weights`].
    pub id: WeightId,
    /// The GGUF tensor that contains it.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Rows (output features).
    pub rows: usize,
    /// Activations (input features); a multiple of the type's block.
    pub cols: usize,
    /// The tensor's row that is this weight's row 0, in rows of `cols`: not 0 if several matrices, or their biases,
    /// are fused in one tensor.
    pub first_row: usize,
    /// Number of contiguous matrices or vectors, `rows / stacked` rows each: 1, or the experts of a layer.
    pub stacked: usize,
    /// Whether its matrices or vectors are some of the tensor's, which may be exchanged ([`crate::Backend::exchange`]).
    pub is_resident: bool,
    /// The layer whose ops read it first; `None` for embedding and head.
    pub layer: Option<u32>,
}

impl Weight {
    /// Whether it is a vector, or a stack of vectors.
    pub fn is_vector(&self) -> bool {
        self.rows == self.stacked
    }

    /// Bytes of one row. The recorder has checked that `cols` fits the type's block.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols).expect("the recorder has checked it")
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// The weight's byte range within its tensor.
    pub fn range_in_tensor(&self) -> std::ops::Range<usize> {
        let start = self.first_row * self.row_bytes();
        start..start + self.bytes()
    }
}
