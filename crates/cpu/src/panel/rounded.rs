//! Weights of any type rounded to eight bits, with one scale per 256 columns of a row: the tiles then apply no scales of
//! their own, and floats become integers.
//!
//! A weight moves by at most 1/254 of the largest magnitude among its 256.

use std::marker::PhantomData;

use super::{Form, Span};
use crate::activations::{SPAN, quantize_256};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::stream::PanelRows;

/// The bias of rounded quants.
pub(crate) const BIAS: u8 = 0x80;

/// A type of floats.
pub(super) trait Weights {
    /// Reads the next 256 columns of a row.
    fn read<L: Lanes>(l: L, row: &[u8], weights: &mut [f32; SPAN]);
}

/// Unpacks 256 columns of rows of floats to rounded spans.
pub(super) fn round<W: Weights>(level: Level, rows: PanelRows<'_>, spans: &mut [Span]) {
    transform(level, Round::<W>(rows, PhantomData), spans);
}

/// Rounds spans of a type with integer products. It is the same code for all types: made for each, it would be a seventh
/// of this crate's code.
pub(super) fn round_exact(level: Level, form: Form, bias: u8, spans: &mut [Span]) {
    match form.group() {
        16 => transform(level, Exact::<16> { form, bias }, spans),
        32 => transform(level, Exact::<32> { form, bias }, spans),
        _ => transform(level, Exact::<SPAN> { form, bias }, spans),
    }
}

struct Round<'a, W>(PanelRows<'a>, PhantomData<W>);

impl<W: Weights> Transform for Round<'_, W> {
    type Out = [Span];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, spans: &mut [Span]) {
        let mut weights = [0.0; SPAN];
        for (row, span) in spans.iter_mut().enumerate() {
            W::read(l, self.0.row(row), &mut weights);
            put(l, &weights, span);
        }
    }
}

/// Exact spans with a scale per `GROUP` weights.
struct Exact<const GROUP: usize> {
    form: Form,
    bias: u8,
}

impl<const GROUP: usize> Transform for Exact<GROUP> {
    type Out = [Span];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, spans: &mut [Span]) {
        let mut weights = [0.0; SPAN];
        for span in spans {
            let signed = span.quants.map(|quant| (quant ^ BIAS).cast_signed());
            let groups = weights.chunks_exact_mut(GROUP).zip(signed.chunks_exact(GROUP));
            for (index, (weights, quants)) in groups.enumerate() {
                let factor = span.unit * span.scales[index];
                let addend = match self.form.is_signed() {
                    true => factor * (f32::from(BIAS) - f32::from(self.bias)),
                    false => factor * f32::from(BIAS) + span.min_unit * span.mins[index],
                };
                let (factor, addend) = (l.splat(factor), l.splat(addend));
                for (weights, quants) in
                    weights.chunks_exact_mut(L::N).zip(quants.chunks_exact(L::N))
                {
                    l.write(l.fma(l.read_i8(quants), factor, addend), weights);
                }
            }
            put(l, &weights, span);
        }
    }
}

/// Rounds the weights of a span.
#[inline(always)]
fn put<L: Lanes>(l: L, weights: &[f32; SPAN], span: &mut Span) {
    // Weights that are infinite or not a number make the scale NaN.
    span.unit = quantize_256(l, weights, bytemuck::cast_mut(&mut span.quants));
    for quant in &mut span.quants {
        *quant ^= BIAS;
    }
    // Levels that apply integer scales per 32 find ones.
    span.scales[..8].fill(1.0);
}
