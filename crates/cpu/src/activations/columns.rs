//! Prepared activations in aligned memory of their own.

use bytemuck::{Pod, Zeroable};

use super::{Activations, COLUMN_ALIGN, Format};
use crate::level::Level;

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Line([u8; COLUMN_ALIGN]);

/// Whole cache lines.
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// Zeros; `bytes` is a multiple of [`COLUMN_ALIGN`].
    pub fn new(bytes: usize) -> Lines {
        assert!(bytes.is_multiple_of(COLUMN_ALIGN), "{bytes} bytes are not whole lines");
        Lines(vec![Line::zeroed(); bytes / COLUMN_ALIGN])
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Prepared columns of one format, which own their bytes; a program's are in its buffers.
pub struct PreparedColumns {
    lines: Lines,
    cols: usize,
    count: usize,
}

impl PreparedColumns {
    /// Converts the activations `x` `[tokens, cols]`.
    ///
    /// # Panics
    /// Those of [`Format::prepare`]; if `x` is not whole rows.
    #[must_use]
    pub fn new(format: Format, level: Level, x: &[f32], cols: usize) -> PreparedColumns {
        let count = x.len() / cols;
        assert_eq!(x.len(), count * cols, "activations are [tokens, cols]");
        let column_bytes = format.column_bytes(cols);
        let mut lines = Lines::new(count * column_bytes);
        let columns = lines.bytes_mut().chunks_exact_mut(column_bytes);
        for (x, column) in x.chunks_exact(cols).zip(columns) {
            format.prepare(level, x, column);
        }
        PreparedColumns { lines, cols, count }
    }

    /// The columns, for a kernel.
    #[must_use]
    pub fn get(&self) -> Activations<'_> {
        Activations { data: self.lines.bytes(), cols: self.cols, count: self.count }
    }
}
