//! Dequantizes weights to f32: 16-bit floats with the level's vectors, all others by their scalar dequantizer.

use std::marker::PhantomData;

use bilayer_quant::Type;

use super::rounded::{self, Weights};
use super::{SPAN, UnpackRows};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};

/// Dequantizes whole blocks to as many values with the instructions of a level that this CPU has.
type Widen16 = fn(level: Level, bytes: &[u8], values: &mut [f32]);

/// The 16-bit float types.
static TABLE: &[(Type, Widen16)] = &[(Type::F16, widen::<F16>), (Type::BF16, widen::<Bf16>)];

/// The dequantizer of a type at a level that this CPU has.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    ty: Type,
    level: Level,
    widen: Option<Widen16>,
}

impl Reader {
    pub fn new(ty: Type, level: Level) -> Reader {
        let row = TABLE.iter().find(|(known, _)| *known == ty);
        Reader { ty, level, widen: row.map(|(_, widen)| *widen) }
    }

    /// Dequantizes the columns of a row from `first` on, whole blocks, to as many `values`.
    pub fn read(&self, row: &[u8], first: usize, values: &mut [f32]) {
        match self.widen {
            Some(widen) => widen(self.level, &row[2 * first..][..2 * values.len()], values),
            None => self.ty.dequantize_cols(row, first, values),
        }
    }
}

fn widen<H: Half>(level: Level, bytes: &[u8], values: &mut [f32]) {
    transform(level, Widen::<H>(bytes, PhantomData), values);
}

/// Elements widened at a time.
const STEP: usize = 16;

/// A 16-bit float.
trait Half {
    fn widen<L: Lanes>(l: L, bits: &[u16; STEP]) -> [f32; STEP];
}

struct F16;

impl Half for F16 {
    #[inline(always)]
    fn widen<L: Lanes>(l: L, bits: &[u16; STEP]) -> [f32; STEP] {
        let mut values = [0.0; STEP];
        for at in (0..STEP).step_by(L::N) {
            // SAFETY: N divides 16, so that N elements follow in both arrays.
            unsafe { l.store(l.load_f16(bits.as_ptr().add(at)), values.as_mut_ptr().add(at)) };
        }
        values
    }
}

struct Bf16;

impl Half for Bf16 {
    #[inline(always)]
    fn widen<L: Lanes>(_: L, bits: &[u16; STEP]) -> [f32; STEP] {
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
}

/// The unpacking of float types to rounded spans.
static ROUNDED: &[(Type, UnpackRows)] = &[
    (Type::F32, rounded::round::<F32>),
    (Type::F16, rounded::round::<F16>),
    (Type::BF16, rounded::round::<Bf16>),
];

/// The unpacking of a float type to rounded spans.
pub(crate) fn round(ty: Type) -> Option<UnpackRows> {
    ROUNDED.iter().find(|(known, _)| *known == ty).map(|(_, round)| *round)
}

impl<H: Half> Weights for H {
    #[inline(always)]
    fn read<L: Lanes>(l: L, row: &[u8], weights: &mut [f32; SPAN]) {
        Widen::<H>(row, PhantomData).run(l, weights);
    }
}

struct F32;

impl Weights for F32 {
    #[inline(always)]
    fn read<L: Lanes>(_: L, row: &[u8], weights: &mut [f32; SPAN]) {
        for (weight, bytes) in weights.iter_mut().zip(row.as_chunks::<4>().0) {
            *weight = f32::from_le_bytes(*bytes);
        }
    }
}

struct Widen<'a, H>(&'a [u8], PhantomData<H>);

impl<H: Half> Transform for Widen<'_, H> {
    type Out = [f32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, values: &mut [f32]) {
        const { assert!(STEP.is_multiple_of(L::N)) };
        let (values, last) = values.as_chunks_mut::<STEP>();
        let (blocks, rest) = self.0.as_chunks::<{ 2 * STEP }>();
        assert!(values.len() == blocks.len() && rest.len() == 2 * last.len());
        for (values, bytes) in values.iter_mut().zip(blocks) {
            *values = H::widen(l, &bytemuck::cast(*bytes));
        }
        let mut bytes = [0; 2 * STEP];
        bytes[..rest.len()].copy_from_slice(rest);
        let widened = H::widen(l, &bytemuck::cast(bytes));
        last.copy_from_slice(&widened[..last.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bits_widen_to_what_the_type_says_at_every_level() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let bytes = &bytes[..bytes.len() - 6];
        for ty in [Type::F16, Type::BF16] {
            let mut expected = vec![0.0; bytes.len() / 2];
            ty.dequantize(bytes, &mut expected).expect("whole blocks");
            for level in Level::available() {
                let mut found = vec![1.0; expected.len()];
                Reader::new(ty, level).read(bytes, 0, &mut found);
                for (bits, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let same = found.to_bits() == expected.to_bits();
                    assert!(same || found.is_nan() && expected.is_nan(), "{ty} {level} {bits:04x}");
                }
            }
        }
    }
}
