//! What some types have besides their blocks: a form in a type of GGUF, and a grid.

use crate::private::Dense;
use crate::{Grid, Type, q4_0, q8_0, sparse, w8a8};

/// The types with a grid but the balanced sparse ones.
const DENSE: [(Type, Grid); 3] =
    [(Type::Q4_0, q4_0::GRID), (Type::Q8_0, q8_0::GRID), (Type::W8A8, w8a8::GRID)];

impl Type {
    /// The form of a type outside of GGUF that has kernels everywhere; `None` for types of GGUF.
    #[must_use]
    pub fn dense(self) -> Option<Dense> {
        sparse::dense(self).or_else(|| w8a8::dense(self))
    }

    /// The type's grid; `None` for types whose weights have several numbers per block, or that have no such rounding here.
    #[must_use]
    pub fn grid(self) -> Option<Grid> {
        let dense = DENSE.iter().find(|(ty, _)| *ty == self).map(|(_, grid)| *grid);
        dense.or_else(|| sparse::grid(self))
    }
}

#[cfg(test)]
mod tests {
    use crate::Type;

    #[test]
    fn what_is_on_a_grid_is_written_without_loss() {
        let mut found = 0;
        for ty in crate::all() {
            let Some(grid) = ty.grid() else { continue };
            found += 1;
            let cols = 512;
            // Few enough in a group of 64 for the sparse types; the last block is all zeros.
            let kept = |i: usize| i % 16 == 3 && i < 256;
            let value =
                |i: usize| if kept(i) { ((i * 37 % 101) as f32 - 50.0) * 0.013 } else { 0.0 };
            let values: Vec<f32> = (0..cols).map(value).collect();
            let mut plain = vec![0; ty.row_bytes(cols).expect("whole blocks")];
            ty.quantize(&values, None, &mut plain).expect("finite");
            let mut written = vec![0xaa; plain.len()];
            let (block, mut rounded) = (grid.block(cols), Vec::new());
            let bytes = written.len() / (cols / block);
            for (values, bytes) in values.chunks(block).zip(written.chunks_mut(bytes)) {
                let scale = grid.scale(values);
                let nearest: Vec<f32> = values.iter().map(|v| grid.nearest(*v, scale)).collect();
                grid.write(&nearest, scale, bytes);
                rounded.extend(nearest);
            }
            let back = |bytes: &[u8]| {
                let mut back = vec![f32::NAN; cols];
                ty.dequantize(bytes, &mut back).expect("whole blocks");
                back
            };
            assert_eq!(back(&written), rounded, "{ty}");
            let error = |of: &[f32]| {
                of.iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
            };
            let (ours, theirs) = (error(&rounded), error(&back(&plain)));
            assert!(ours <= 1.001 * theirs, "{ty}: {ours} and {theirs}");
        }
        assert!(found >= 15 && Type::Q6_K.grid().is_none());
    }

    #[test]
    fn a_weight_becomes_the_nearest_multiple_within_the_codes() {
        let cases: [(Type, &[(f32, f32)]); 4] = [
            (Type::Q4_0, &[(1.3, 1.5), (-1.2, -1.0), (1.25, 1.5), (100.0, 3.5), (-100.0, -4.0)]),
            (Type::Q8_0, &[(1.3, 1.5), (-1.2, -1.0), (100.0, 63.5), (-100.0, -63.5)]),
            (Type::W8A8, &[(1.3, 1.5), (-1.2, -1.0), (100.0, 63.5), (-100.0, -63.5)]),
            (Type::S4_8_64, &[(1.3, 1.5), (100.0, 3.5), (-100.0, -4.0)]),
        ];
        for (ty, values) in cases {
            let grid = ty.grid().expect("a grid");
            for (value, expected) in values {
                assert_eq!(grid.nearest(*value, 0.5), *expected, "{ty}: {value}");
                // A negative scale has the codes of the other sign.
                let found = grid.nearest(-value, -0.5);
                assert_eq!(found, -expected, "{ty}: {value}");
                assert_eq!(grid.nearest(*value, 0.0), 0.0);
            }
        }
        let blocks = [(Type::Q4_0, 32), (Type::Q8_0, 32), (Type::W8A8, 512), (Type::S4_8_64, 256)];
        for (ty, block) in blocks {
            assert_eq!(ty.grid().expect("a grid").block(512), block, "{ty}");
        }
        // The scale of a block of ±4 as the type's rule has it.
        let scale = |ty: Type| {
            let mut values = [0.0; 32];
            (values[3], values[4]) = (4.0, -3.0);
            ty.grid().expect("a grid").scale(&values)
        };
        assert_eq!(scale(Type::Q4_0), -0.5);
        for ty in [Type::Q8_0, Type::W8A8] {
            assert!((scale(ty) / (4.0 / 127.0) - 1.0).abs() < 0.0005, "{ty}");
        }
    }
}
