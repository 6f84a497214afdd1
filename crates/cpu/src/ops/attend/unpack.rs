//! A page of keys or values as f32, from any type of the cache.

use bilayer_graph::PAGE_TOKENS;
use bilayer_quant::cache::{BLOCK, Coding};

use crate::bytes::{Bytes, Field, Flags, NarrowBytes};
use crate::cache::{Blocks, Panel, Stored, with_known};
use crate::lanes::{Lanes, Transform};

/// Keys of a page as f32: `[head_dim, 32]`.
pub(super) struct UnpackKeys<'a>(pub Panel<'a>);

impl Transform for UnpackKeys<'_> {
    type Out = [f32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [f32]) {
        let UnpackKeys(panel) = self;
        let Stored::Blocks(coding) = panel.stored else { return unpack_floats(l, panel, out) };
        with_known!(coding, |coding| unpack_coded_keys(l, panel.blocks(coding), out));
    }
}

// Loops over indices here and below: not every adapter of an iterator is inlined in a large function, and each call then
// spills all vectors.
#[inline(always)]
fn unpack_coded_keys<L: Lanes>(l: L, blocks: Blocks<'_>, out: &mut [f32]) {
    let (mut scales, mut minimums) = ([0.0; PAGE_TOKENS], [0.0; PAGE_TOKENS]);
    for row in 0..out.len() / PAGE_TOKENS {
        if row.is_multiple_of(BLOCK) {
            unpack_scales(l, blocks, row, &mut scales, &mut minimums);
        }
        let codes = codes(l, blocks, row);
        let out = &mut out[row * PAGE_TOKENS..][..PAGE_TOKENS];
        let mut at = 0;
        while at < PAGE_TOKENS {
            let (scale, minimum) = (l.read(&scales[at..]), l.read(&minimums[at..]));
            l.write(
                element(l, blocks.coding, scale, l.read_i8(&codes[at..]), minimum),
                &mut out[at..],
            );
            at += L::N;
        }
    }
}

/// Values of a page as f32: `[32, stride]`, of a panel and a stride.
pub(super) struct UnpackValues<'a>(pub Panel<'a>, pub usize);

impl Transform for UnpackValues<'_> {
    type Out = [f32];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [f32]) {
        let UnpackValues(panel, stride) = self;
        let Stored::Blocks(coding) = panel.stored else { return unpack_floats(l, panel, out) };
        with_known!(coding, |coding| unpack_coded_values(l, panel.blocks(coding), stride, out));
    }
}

#[inline(always)]
fn unpack_coded_values<L: Lanes>(l: L, blocks: Blocks<'_>, stride: usize, out: &mut [f32]) {
    // Scales of units one after another: those of each token, of which the last may be half a unit.
    let per_token = stride.div_ceil(BLOCK);
    let (mut scales, mut minimums) = ([0.0; BLOCK], [0.0; BLOCK]);
    for unit in 0..PAGE_TOKENS * per_token {
        if unit.is_multiple_of(BLOCK) {
            unpack_scales(l, blocks, unit, &mut scales, &mut minimums);
        }
        let codes = codes(l, blocks, unit);
        let (scale, minimum) = (l.splat(scales[unit % BLOCK]), l.splat(minimums[unit % BLOCK]));
        let first = unit % per_token * BLOCK;
        let out = &mut out[unit / per_token * stride + first..][..BLOCK.min(stride - first)];
        // 16 or 32 elements, multiples of N.
        let mut at = 0;
        while at < out.len() {
            l.write(
                element(l, blocks.coding, scale, l.read_i8(&codes[at..]), minimum),
                &mut out[at..],
            );
            at += L::N;
        }
    }
}

/// 32 scales from `first` on, and what is to be added to elements: minimums, or what codes above their zero are too large
/// by. Both are exact, since scales have 11 bits and codes at most 5.
#[inline(always)]
fn unpack_scales<L: Lanes>(
    l: L,
    blocks: Blocks<'_>,
    first: usize,
    scales: &mut [f32; BLOCK],
    minimums: &mut [f32; BLOCK],
) {
    unpack_f16(l, &blocks.scales[first..][..BLOCK], scales);
    if blocks.coding.has_minimum() {
        unpack_f16(l, &blocks.minimums[first..][..BLOCK], minimums);
    } else if blocks.coding.zero() != 0 {
        let above = l.splat(-f32::from(blocks.coding.zero()));
        let mut at = 0;
        while at < BLOCK {
            l.write(l.mul(above, l.read(&scales[at..])), &mut minimums[at..]);
            at += L::N;
        }
    }
}

/// Elements from their codes.
#[inline(always)]
fn element<L: Lanes>(l: L, coding: Coding, scale: L::F, code: L::F, minimum: L::F) -> L::F {
    let is_shifted = coding.has_minimum() || coding.zero() != 0;
    if is_shifted { l.fma(scale, code, minimum) } else { l.mul(scale, code) }
}

/// The codes of a unit, or their levels from the table.
#[inline(always)]
fn codes<L: Lanes>(_l: L, blocks: Blocks<'_>, unit: usize) -> [i8; BLOCK] {
    let (coding, (low, high)) = (blocks.coding, blocks.unit(unit));
    let mut codes = [0; BLOCK];
    if coding.bits == 8 {
        codes.copy_from_slice(low);
        return bytemuck::cast(codes);
    }
    let nibbles = Field { at: 0, bits: 4, run: BLOCK / 2 };
    let mut first = 0;
    while first < BLOCK {
        let mut values = L::Bytes::codes(low, nibbles, first);
        if coding.bits == 5 {
            values = values.flag(high, Flags { at: 0, value: 16 }, first);
        }
        if let Some(table) = coding.codebook() {
            values = values.look_up(bytemuck::cast_ref(table));
        }
        values.store(&mut codes[first..][..L::Bytes::WIDTH]);
        first += L::Bytes::WIDTH;
    }
    bytemuck::cast(codes)
}

/// A panel of floats as f32.
#[inline(always)]
fn unpack_floats<L: Lanes>(l: L, panel: Panel<'_>, out: &mut [f32]) {
    match panel.stored {
        Stored::F16 => unpack_f16(l, panel.halves(), out),
        Stored::Bf16 => {
            for (out, &bits) in out.iter_mut().zip(panel.halves()) {
                *out = bilayer_quant::bf16::value(bits);
            }
        }
        _ => out.copy_from_slice(panel.f32()),
    }
}

/// The first `dim` rows of keys `[.., 32]` as values `[32, stride]`, padded with zeros. A line of each token at a time:
/// whole columns would be a power of two apart, where few of them fit the first-level cache.
#[inline(always)]
pub(super) fn transpose(keys: &[f32], dim: usize, stride: usize, out: &mut [f32]) {
    for first in (0..stride).step_by(16) {
        for token in 0..PAGE_TOKENS {
            for (i, out) in out[token * stride + first..][..16].iter_mut().enumerate() {
                *out = if first + i < dim { keys[(first + i) * PAGE_TOKENS + token] } else { 0.0 };
            }
        }
    }
}

#[inline(always)]
pub(super) fn unpack_f16<L: Lanes>(l: L, from: &[u16], out: &mut [f32]) {
    let mut at = 0;
    while at + L::N <= from.len() {
        l.write(l.read_f16(&from[at..]), &mut out[at..]);
        at += L::N;
    }
}
