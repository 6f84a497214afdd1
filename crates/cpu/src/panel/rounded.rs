//! Weights of any type rounded to eight bits, with one scale per 256 columns of a row: the tiles then apply no scales of
//! their own, and floats become integers.
//!
//! A weight moves by at most 1/254 of the largest magnitude among its 256.

use std::marker::PhantomData;

use super::{Span, Unpack};
use crate::activations::{SPAN, quantize};
use crate::lanes::{Lanes, Transform};
use crate::stream::PanelRows;

/// The bias of rounded quants.
pub(crate) const BIAS: u8 = 0x80;

/// Rounds 256 weights. Not a number or infinite ones make the scale NaN.
#[inline(always)]
pub(super) fn round(weights: &[f32; SPAN], span: &mut Span) {
    let rounded = quantize(weights);
    span.quants = rounded.quants.map(|quant| quant.cast_unsigned() ^ BIAS);
    put_scale(rounded.scale, span);
}

/// Unpacks rows of a type with integer products to rounded spans.
pub(super) struct Round<'a, U>(pub PanelRows<'a>, pub PhantomData<U>);

impl<U: Unpack> Transform for Round<'_, U> {
    type Out = [Span];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, spans: &mut [Span]) {
        let mut weights = [0.0; SPAN];
        for (row, span) in spans.iter_mut().enumerate() {
            U::unpack::<L::Bytes>(self.0.row(row), span);
            widen::<U, L>(l, span, &mut weights);
            round(&weights, span);
        }
    }
}

/// The weights of a span.
#[inline(always)]
fn widen<U: Unpack, L: Lanes>(l: L, span: &Span, weights: &mut [f32; SPAN]) {
    let group = U::FORM.group();
    let signed = span.quants.map(|quant| (quant ^ BIAS).cast_signed());
    for (index, (weights, quants)) in
        weights.chunks_exact_mut(group).zip(signed.chunks_exact(group)).enumerate()
    {
        let factor = span.unit * span.scales[index];
        let addend = match U::FORM.is_signed() {
            true => factor * (f32::from(BIAS) - f32::from(U::BIAS)),
            false => factor * f32::from(BIAS) + span.min_unit * span.mins[index],
        };
        let (factor, addend) = (l.splat(factor), l.splat(addend));
        for (weights, quants) in weights.chunks_exact_mut(L::N).zip(quants.chunks_exact(L::N)) {
            l.write(l.fma(l.read_i8(quants), factor, addend), weights);
        }
    }
}

/// The scale of rounded quants. Levels that apply integer scales per 32 find ones.
#[inline(always)]
fn put_scale(scale: f32, span: &mut Span) {
    span.scales[..8].fill(1.0);
    span.unit = scale;
}
