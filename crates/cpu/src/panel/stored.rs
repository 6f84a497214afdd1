//! Unpacks the dense types, whose bits `types/` states.

use std::marker::PhantomData;

use bilayer_quant::mxfp4::half_scale;

use super::{Form, SPAN, Span, Unpack, f16_values};
use crate::bytes::{NarrowBytes, u16_at, u32_at};
use crate::types::{Quads, ScaleBits, Scales, Sign, SuperBlock};

/// A type with blocks of 256.
pub(crate) struct OfBlocks<T>(PhantomData<T>);

impl<T: SuperBlock> OfBlocks<T> {
    /// A vector of quants as a span stores them.
    #[inline(always)]
    fn quants<V: NarrowBytes>(block: &[u8], signs: &[u32; 8], first: usize) -> V {
        let codes: V = T::codes(block, first);
        match T::SIGN {
            Sign::Lifted => codes,
            // Two's complement becomes a bias of 128.
            Sign::Code => codes.flip(Self::BIAS),
            Sign::Apart => codes.centred(signs, first, Self::BIAS),
        }
    }
}

impl<T: SuperBlock> Unpack for OfBlocks<T> {
    const FORM: Form = match (T::GROUP, T::HAS_MINS) {
        (16, false) => Form::Signed16K,
        (16, true) => Form::Affine16K,
        (_, false) => Form::Signed32K,
        (_, true) => Form::Affine32K,
    };
    const BIAS: u8 = match T::SIGN {
        Sign::Lifted => T::ZERO,
        Sign::Code | Sign::Apart => 0x80,
    };
    const HIGHEST: u8 = match T::SIGN {
        Sign::Lifted => T::HIGHEST,
        _ => Self::BIAS + T::HIGHEST,
    };

    #[inline(always)]
    fn unpack<V: NarrowBytes>(block: &[u8], span: &mut Span) {
        let block = &block[..T::BYTES];
        let signs = T::signs(block);
        for first in (0..SPAN).step_by(V::WIDTH) {
            let quants: V = Self::quants(block, &signs, first);
            quants.store(&mut span.quants[first..][..V::WIDTH]);
        }
        let Scales { scales, mins } =
            T::scales(|at| [0, 4, 8, 12].map(|word| u32_at(block, at + word)));
        let (scales, mins): ([u8; 16], [u8; 16]) = (bytemuck::cast(scales), bytemuck::cast(mins));
        for (out, scale) in span.scales[..SPAN / T::GROUP].iter_mut().zip(scales) {
            *out = f32::from(scale.wrapping_sub(T::SCALE_ZERO).cast_signed());
        }
        let [d] = f16_values([T::d(block)]);
        span.unit = d * T::UNIT;
        if T::HAS_MINS {
            for (out, min) in span.mins[..SPAN / T::GROUP].iter_mut().zip(mins) {
                *out = f32::from(min);
            }
            let [dmin] = f16_values([u16_at(block, T::D + 2)]);
            span.min_unit = -dmin;
        }
    }
}

/// A type with blocks of 32.
pub(crate) struct OfQuads<T>(PhantomData<T>);

impl<T: Quads> Unpack for OfQuads<T> {
    const FORM: Form = if T::MIN.is_some() { Form::Affine32 } else { Form::Signed32 };
    const BIAS: u8 = T::ZERO;
    const HIGHEST: u8 = T::HIGHEST;

    #[inline(always)]
    fn unpack<V: NarrowBytes>(blocks: &[u8], span: &mut Span) {
        // The whole span's eight blocks in straight code.
        match blocks.get(..8 * T::BLOCK) {
            Some(blocks) => unpack::<T, V>(blocks, 8, span),
            None => unpack::<T, V>(blocks, blocks.len() / T::BLOCK, span),
        }
    }
}

/// Unpacks `count` blocks of 32, at most eight.
#[inline(always)]
fn unpack<T: Quads, V: NarrowBytes>(blocks: &[u8], count: usize, span: &mut Span) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    let parts = span.quants.as_chunks_mut::<32>().0;
    for index in 0..count {
        let block = &blocks[index * T::BLOCK..][..T::BLOCK];
        for first in (0..32).step_by(V::WIDTH) {
            let values: V = T::unsigned(T::codes(block, first));
            values.store(&mut parts[index][first..][..V::WIDTH]);
        }
        match T::SCALES {
            ScaleBits::F16(at) => scales[index] = u16_at(block, at),
            ScaleBits::Exponent(at) => span.scales[index] = half_scale(block[at]),
            ScaleBits::Computed => unreachable!("panels have no such scales"),
        }
        if let Some(at) = T::MIN {
            mins[index] = u16_at(block, at);
        }
    }
    if let ScaleBits::F16(_) = T::SCALES {
        span.scales[..8].copy_from_slice(&f16_values(scales));
    }
    span.mins[..8].copy_from_slice(&f16_values(mins));
    (span.unit, span.min_unit) = (1.0, 1.0);
}
