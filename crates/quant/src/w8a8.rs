//! W8A8: weights of 8 bits with one scale per row (output channel); 8 bits per weight and 4 bytes per row.
//!
//! ```text
//! byte  0        4                          4 + cols
//!       [ d: f32 ][ quants: cols × i8        ]     weight = d · q,   |q| <= 127
//! ```
//!
//! The row is the unit: `d` is the row's header, and a block is 32 quants without a scale. Activations get one scale per
//! token, so that a product is one exact integer sum over the whole row, scaled once: that is what the name says, and what
//! the kernels of `bilayer-cpu` do. The largest magnitude of a row becomes ±127. A row with one large weight loses the
//! small ones, and an activation much larger than the others of its token loses those; smoothing moves such outliers from
//! activations to weights before quantizing.
//!
//! [`Type::quantize`] rounds `d` to f16 where f16 is normal, so that Q8_0 represents such a row exactly: the form that
//! devices without W8A8 kernels use. The type is not part of GGUF; see [`private`](crate::private).

use half::f16;

use crate::blocks::f16_bits;
use crate::lanes::{byte, round_away};
use crate::private::{Dense, ID};
use crate::{Descriptor, Grid, Plane, Type, q8_0};

/// Bytes of the header: the scale.
pub const HEADER: usize = 4;

/// Weights of a block.
pub const BLOCK: usize = 32;

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "W8A8",
    gguf_id: ID | 0x08A8,
    block_weights: BLOCK,
    block_bytes: BLOCK,
    row_header_bytes: HEADER,
    planes: &Plane::split([("quants", BLOCK)]),
    quantize: Some(|values, _, bytes| quantize(values, bytes)),
    dequantize,
    error_max: 0.0087,
    holds_zero: true,
};

/// The scale of a row.
#[inline]
#[must_use]
pub fn scale(row: &[u8]) -> f32 {
    f32::from_le_bytes([row[0], row[1], row[2], row[3]])
}

/// The form in Q8_0, exact for scales that are an f16.
pub(crate) fn dense(ty: Type) -> Option<Dense> {
    (ty == Type::W8A8).then_some(Dense { ty: Type::Q8_0, widen })
}

/// The number of rows with this many weights in this many bytes.
fn rows(weights: usize, bytes: usize) -> usize {
    (bytes - weights) / HEADER
}

fn dequantize(bytes: &[u8], values: &mut [f32]) {
    let cols = values.len() / rows(values.len(), bytes.len()).max(1);
    if cols == 0 {
        return;
    }
    for (row, values) in bytes.chunks_exact(HEADER + cols).zip(values.chunks_exact_mut(cols)) {
        let d = scale(row);
        for (value, q) in values.iter_mut().zip(&row[HEADER..]) {
            *value = d * f32::from(q.cast_signed());
        }
    }
}

fn quantize(values: &[f32], bytes: &mut [u8]) {
    let cols = values.len() / rows(values.len(), bytes.len()).max(1);
    if cols == 0 {
        return;
    }
    for (values, row) in values.chunks_exact(cols).zip(bytes.chunks_exact_mut(HEADER + cols)) {
        encode(values, fitting(values), row);
    }
}

/// The scale under which the largest magnitude of a row becomes 127.
fn fitting(row: &[f32]) -> f32 {
    let peak = row.iter().fold(0.0f32, |peak, value| peak.max(value.abs()));
    stored(peak / 127.0)
}

/// Writes a row with scale `d`.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
fn encode(values: &[f32], d: f32, row: &mut [u8]) {
    row[..HEADER].copy_from_slice(&d.to_le_bytes());
    for (q, value) in row[HEADER..].iter_mut().zip(values) {
        let exact = value / d;
        // Zero over zero is NaN.
        let exact = if exact.is_nan() { 0.0 } else { exact };
        *q = byte(round_away(exact.clamp(-127.0, 127.0)));
    }
}

/// The grid of a row.
pub(crate) const GRID: Grid =
    Grid { block: None, codes: [-127.0, 127.0], scale: fitting, write: encode };

/// A scale as it is stored: rounded to f16 where that is normal, and never so large that 127 times it is infinite.
fn stored(d: f32) -> f32 {
    let half = f16::from_f32(d);
    if half.is_normal() { half.to_f32() } else { d.min(f32::MAX / 127.1) }
}

/// One row as Q8_0.
fn widen(row: &[u8], dense: &mut [u8]) {
    let d = f16_bits(scale(row));
    let blocks = dense.chunks_exact_mut(size_of::<q8_0::Block>());
    for (quants, to) in row[HEADER..].as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let block = q8_0::Block { d, quants: quants.map(u8::cast_signed) };
        to.copy_from_slice(bytemuck::bytes_of(&block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows of 64 weights, of different size.
    fn weights() -> Vec<f32> {
        (0..192).map(|i| ((i * 37 % 101) as f32 - 50.0) * [0.01, 3.0, 0.2][i / 64]).collect()
    }

    #[test]
    fn each_row_has_the_scale_of_its_largest_weight() {
        let values = weights();
        let mut bytes = vec![0xaa; 3 * 68];
        Type::W8A8.quantize(&values, None, &mut bytes).expect("three rows");
        for (row, values) in bytes.chunks(68).zip(values.chunks(64)) {
            let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            let d = scale(row);
            assert!((d - peak / 127.0).abs() <= 0.0005 * d, "{d} for {peak}");
            // Plain arithmetic: the nearest multiple of d.
            for (q, x) in row[HEADER..].iter().zip(values) {
                assert_eq!(f32::from(q.cast_signed()), (x / d).round().clamp(-127.0, 127.0));
            }
        }
        let mut back = vec![0.0; 192];
        Type::W8A8.dequantize(&bytes, &mut back).expect("three rows");
        for (x, back) in values.iter().zip(&back) {
            assert!((x - back).abs() <= 1.4 / 254.0 * 150.0, "{x} {back}");
        }
        // One row of as many weights has one scale.
        let mut one = vec![0; 4 + 192];
        Type::W8A8.quantize(&values, None, &mut one).expect("one row");
        let large = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        assert!((scale(&one) - large / 127.0).abs() <= 0.001 * scale(&one));
        // 28 bytes too few for a second header.
        let mut odd = vec![0; 4 + 192 + 2];
        assert!(Type::W8A8.quantize(&values, None, &mut odd).is_err());
    }

    #[test]
    fn a_part_of_a_row_reads_as_the_row_does() {
        let values = weights();
        let mut row = vec![0; 4 + 192];
        Type::W8A8.quantize(&values, None, &mut row).expect("one row");
        let mut whole = vec![0.0; 192];
        Type::W8A8.dequantize(&row, &mut whole).expect("one row");
        let mut part = vec![0.0; 64];
        Type::W8A8.dequantize_cols(&row, 96, &mut part);
        assert_eq!(part, whole[96..160]);
        // Longer than one piece.
        let long: Vec<f32> = values.iter().cycle().take(192 * 12).copied().collect();
        let mut row = vec![0; 4 + long.len()];
        Type::W8A8.quantize(&long, None, &mut row).expect("one row");
        let (mut whole, mut part) = (vec![0.0; long.len()], vec![0.0; long.len() - 32]);
        Type::W8A8.dequantize(&row, &mut whole).expect("one row");
        Type::W8A8.dequantize_cols(&row, 32, &mut part);
        assert_eq!(part, whole[32..]);
    }

    #[test]
    fn q8_0_represents_a_row_exactly() {
        let values = weights();
        let mut row = vec![0; 4 + 192];
        Type::W8A8.quantize(&values, None, &mut row).expect("one row");
        let dense = Type::W8A8.dense().expect("a form of GGUF");
        let mut wide = vec![0; dense.ty.row_bytes(192).expect("whole blocks")];
        (dense.widen)(&row, &mut wide);
        let (mut own, mut found) = (vec![0.0; 192], vec![0.0; 192]);
        Type::W8A8.dequantize(&row, &mut own).expect("one row");
        dense.ty.dequantize(&wide, &mut found).expect("whole blocks");
        assert_eq!(own, found);
    }

    #[test]
    fn zeros_and_the_smallest_and_largest_floats_have_finite_weights() {
        for value in [0.0, f32::MIN_POSITIVE, 1e-40, 1e38, f32::MAX] {
            let values = [value; 32];
            let mut row = vec![0; 36];
            Type::W8A8.quantize(&values, None, &mut row).expect("one row");
            let mut back = [0.0; 32];
            Type::W8A8.dequantize(&row, &mut back).expect("one row");
            assert!(back.iter().all(|x| x.is_finite()), "{value}: {back:?}");
            assert!((back[0] - value).abs() <= 0.001 * value + 1e-42, "{value}: {}", back[0]);
        }
    }
}
