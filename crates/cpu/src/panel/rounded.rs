//! Weights of any type rounded to eight bits, with one scale per 256 columns of a row: the tiles then apply no scales of
//! their own, and floats become integers.
//!
//! A weight moves by at most 1/254 of the largest magnitude among its 256.

use std::marker::PhantomData;

use super::{Span, Unpack};
use crate::activations::{SPAN, quantize};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::stream::PanelRows;

/// The bias of rounded quants.
pub(crate) const BIAS: u8 = 0x80;

/// How the weights of a type are read as floats.
pub(super) trait Weights {
    /// Reads the next 256 columns of a row; `span` is free for use.
    fn read<L: Lanes>(l: L, row: &[u8], span: &mut Span, weights: &mut [f32; SPAN]);
}

/// Unpacks 256 columns of rows to rounded spans.
pub(super) fn round<W: Weights>(level: Level, rows: PanelRows<'_>, spans: &mut [Span]) {
    transform(level, Round::<W>(rows, PhantomData), spans);
}

struct Round<'a, W>(PanelRows<'a>, PhantomData<W>);

impl<W: Weights> Transform for Round<'_, W> {
    type Out = [Span];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, spans: &mut [Span]) {
        let mut weights = [0.0; SPAN];
        for (row, span) in spans.iter_mut().enumerate() {
            W::read(l, self.0.row(row), span, &mut weights);
            // Weights that are infinite or not a number make the scale NaN.
            let rounded = quantize(&weights);
            span.quants = rounded.quants.map(|quant| quant.cast_unsigned() ^ BIAS);
            // Levels that apply integer scales per 32 find ones.
            span.scales[..8].fill(1.0);
            span.unit = rounded.scale;
        }
    }
}

/// A type with integer products, by way of its exact spans.
pub(super) struct Unpacked<U>(PhantomData<U>);

impl<U: Unpack> Weights for Unpacked<U> {
    #[inline(always)]
    fn read<L: Lanes>(l: L, row: &[u8], span: &mut Span, weights: &mut [f32; SPAN]) {
        U::unpack::<L::Bytes>(row, span);
        let group = U::FORM.group();
        let signed = span.quants.map(|quant| (quant ^ BIAS).cast_signed());
        let groups = weights.chunks_exact_mut(group).zip(signed.chunks_exact(group));
        for (index, (weights, quants)) in groups.enumerate() {
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
}
