//! A weight: a matrix, or some rows of one, named as in the GGUF file.

use bilayer_quant::Type;

/// A weight of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// `[rows, cols]` of one type; vectors are one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its place in [`crate::Graph::weights`].
    pub id: WeightId,
    /// The GGUF tensor it lies in.
    pub name: String,
    /// How its blocks are stored.
    pub ty: Type,
    /// Rows (output features).
    pub rows: usize,
    /// Columns (input features); a multiple of the type's block.
    pub cols: usize,
    /// The tensor's row that is this weight's row 0, in rows of `cols`: not 0 when several matrices, or their biases,
    /// are stored as one.
    pub first_row: usize,
    /// Matrices that lie in it one after another, `rows / stacked` rows each: 1, or the experts of a layer.
    pub stacked: usize,
    /// The layer whose ops read it first; `None` for embedding and head.
    pub layer: Option<u32>,
}

impl Weight {
    /// Bytes of one row. The recorder has checked that `cols` fits the type's block.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_weights * self.ty.block_bytes
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Where the weight's bytes lie within its tensor's bytes.
    pub fn range_in_tensor(&self) -> std::ops::Range<usize> {
        let start = self.first_row * self.row_bytes();
        start..start + self.bytes()
    }
}
