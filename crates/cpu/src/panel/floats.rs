//! Dequantizes weights to f32: 16-bit floats with the level's vectors, all others by their scalar dequantizer.

use std::marker::PhantomData;

use bilayer_quant::Type;

use super::rounded::{self, Weights};
use super::{SPAN, UnpackRows};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::types::floats::{Bf16, F16, F32, Floats};

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

fn widen<T: Floats>(level: Level, bytes: &[u8], values: &mut [f32]) {
    transform(level, Widen::<T>(bytes, PhantomData), values);
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

impl<T: Floats> Weights for T {
    #[inline(always)]
    fn read<L: Lanes>(l: L, row: &[u8], weights: &mut [f32; SPAN]) {
        Widen::<T>(row, PhantomData).run(l, weights);
    }
}

struct Widen<'a, T>(&'a [u8], PhantomData<T>);

/// Values widened at a time.
const STEP: usize = 16;

impl<T: Floats> Transform for Widen<'_, T> {
    type Out = [f32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, values: &mut [f32]) {
        assert!(self.0.len() == T::BYTES * values.len());
        let (values, last) = values.as_chunks_mut::<STEP>();
        let (steps, rest) = self.0.split_at(values.len() * STEP * T::BYTES);
        for (values, bytes) in values.iter_mut().zip(steps.chunks_exact(STEP * T::BYTES)) {
            widen_step::<L, T>(l, bytes, values);
        }
        let (mut bytes, mut widened) = ([0; 4 * STEP], [0.0; STEP]);
        bytes[..rest.len()].copy_from_slice(rest);
        widen_step::<L, T>(l, &bytes[..STEP * T::BYTES], &mut widened);
        last.copy_from_slice(&widened[..last.len()]);
    }
}

#[inline(always)]
fn widen_step<L: Lanes, T: Floats>(l: L, bytes: &[u8], values: &mut [f32; STEP]) {
    const { assert!(STEP.is_multiple_of(L::N)) };
    assert!(bytes.len() == STEP * T::BYTES);
    for at in (0..STEP).step_by(L::N) {
        l.write(T::read(l, &bytes[at * T::BYTES..]), &mut values[at..]);
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
