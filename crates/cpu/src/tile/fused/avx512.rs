//! [Fused products](super) at 512 bits.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use bilayer_quant::Type;

use super::{Fused, Product, TOKENS};
use crate::activations::{Block, Format, SPAN};
use crate::panel::avx512::{load_floats, store_floats};
use crate::panel::side_by_side::Order;
use crate::panel::stored::{OfBlocks, OfQuads};
use crate::panel::{Form, Panel, Unpack, quads, side_by_side};
use crate::stream::{PanelRows, Split};
use crate::tile::avx512::add_group;
use crate::tile::{Shape, by_tokens};
use crate::types::{self, Quads, SuperBlock, for_each_type};
use crate::x86::Sixteen;

/// The shape of a type's panels.
struct Of<U>(PhantomData<U>);

impl<U: Unpack> Shape for Of<U> {
    const FORM: Form = U::FORM;
}

macro_rules! super_block {
    ($stem:ident::$type:ident) => {
        match side_by_side::order::<types::$stem::$type>() {
            Some(order) => Some(Fused {
                run: of_blocks::<types::$stem::$type, { <types::$stem::$type as SuperBlock>::BYTES }>,
                // Q6_K has many pieces of few groups, whose upper fields take as long as their products.
                tokens_min: match order {
                    Order::Pieces if side_by_side::levels::<types::$stem::$type>() < 4 => 5,
                    _ => 3,
                },
            }),
            None => None,
        }
    };
}
macro_rules! quads {
    ($stem:ident::$type:ident) => {
        match <types::$stem::$type as Quads>::GROUP {
            32 => Some(Fused {
                run: of_quads::<types::$stem::$type, { 8 * <types::$stem::$type as Quads>::BLOCK }>,
                tokens_min: 3,
            }),
            _ => None,
        }
    };
}
use super_block as both;

macro_rules! table {
    ($($ty:ident $stem:ident::$type:ident $family:ident;)*) => {
        &[$((Type::$ty, $family!($stem::$type)),)*]
    };
}
static TABLE: &[(Type, Option<Fused>)] = for_each_type!(table);

/// The kernel of a type, if it has one.
pub(in crate::tile) fn of(ty: Type) -> Option<Fused> {
    TABLE.iter().find(|(known, _)| *known == ty).and_then(|(_, fused)| *fused)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn of_quads<T: Quads, const BYTES: usize>(product: &mut Product<'_>, strip: &mut [f32]) {
    by_tokens!(product.tokens, N up to TOKENS => multiply_quads::<T, BYTES, N>(product, strip));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn multiply_quads<T: Quads, const BYTES: usize, const N: usize>(
    product: &mut Product<'_>,
    strip: &mut [f32],
) {
    let mut sums = [[_mm512_setzero_ps()]; N];
    let mut ahead = product.ahead.split(8 * product.cols / SPAN);
    for (span, rows) in product.spans::<BYTES>().enumerate() {
        let block = product.block::<N>(Format::Q8x32, span);
        // Sums of 256 columns first: these are the bits of a panel's products.
        let mut acc = [[_mm512_setzero_ps()]; N];
        for group in 0..8 {
            ahead.part().fetch();
            let unit = quads::unit::<T, BYTES>(rows, group);
            let weights = |step: usize| [unit.codes[step]];
            let (scales, mins) = (|| [unit.scale], || [unit.min]);
            add::<Of<OfQuads<T>>, N>(weights, scales, mins, &block, group, &mut acc);
        }
        for ([sum], [acc]) in sums.iter_mut().zip(acc) {
            *sum = _mm512_add_ps(*sum, acc);
        }
    }
    store(&sums, strip, product.stride);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn of_blocks<T: SuperBlock, const BYTES: usize>(product: &mut Product<'_>, strip: &mut [f32]) {
    by_tokens!(product.tokens, N up to TOKENS => multiply_blocks::<T, BYTES, N>(product, strip));
}

/// Units or pieces of 256 columns that prefetch; a type may have more of them.
const FETCHES: usize = 4;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn multiply_blocks<T: SuperBlock, const BYTES: usize, const N: usize>(
    product: &mut Product<'_>,
    strip: &mut [f32],
) {
    let mut sums = [[_mm512_setzero_ps()]; N];
    let mut ahead = product.ahead.split(FETCHES * product.cols / SPAN);
    for (span, rows) in product.spans::<BYTES>().enumerate() {
        let block = product.block::<N>(Format::Q8x256, span);
        side_by_side::lines_512::<T, BYTES>(rows, 0, product.panel);
        let mut acc = [[_mm512_setzero_ps()]; N];
        let panel = &*product.panel;
        match const { side_by_side::order::<T>() } {
            Some(Order::Pieces) => pieces::<T, BYTES, N>(rows, panel, &block, &mut ahead, &mut acc),
            _ => units::<T, BYTES, N>(rows, panel, &block, &mut ahead, &mut acc),
        }
        for (([sum], [acc]), scale) in sums.iter_mut().zip(acc).zip(block.scales()) {
            *sum = _mm512_fmadd_ps(acc, _mm512_set1_ps(*scale), *sum);
        }
    }
    store(&sums, strip, product.stride);
}

/// Adds the products of 256 columns, piece by piece.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn pieces<T: SuperBlock, const BYTES: usize, const N: usize>(
    rows: Sixteen<'_, BYTES>,
    panel: &Panel,
    block: &Block<'_>,
    ahead: &mut Split,
    acc: &mut [[__m512; 1]; N],
) {
    let mut highs = [_mm512_setzero_si512(); 4];
    for (index, piece) in side_by_side::pieces::<T>().iter().enumerate() {
        if index < FETCHES {
            ahead.part().fetch();
        }
        let bytes = side_by_side::bytes_of_piece::<T, BYTES>(rows, piece, &mut highs);
        for level in 0..side_by_side::levels::<T>() {
            let (group, codes) = side_by_side::group_of_piece::<T>(bytes, highs, piece, level);
            let weights = |step: usize| [codes[step]];
            add_of_panel::<T, N>(weights, panel, block, group, acc);
        }
    }
}

/// Adds the products of 256 columns, unit by unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn units<T: SuperBlock, const BYTES: usize, const N: usize>(
    rows: Sixteen<'_, BYTES>,
    panel: &Panel,
    block: &Block<'_>,
    ahead: &mut Split,
    acc: &mut [[__m512; 1]; N],
) {
    let groups = const { side_by_side::groups_of_unit::<T>() };
    let highs = side_by_side::bytes_above::<T, BYTES>(rows);
    for unit in 0..8 / groups {
        if unit < FETCHES {
            ahead.part().fetch();
        }
        let bytes = side_by_side::bytes_of_unit::<T, BYTES>(rows, unit);
        macro_rules! groups {
            ($($index:literal)*) => {$(
                if $index < groups {
                    let codes = side_by_side::group_of_unit::<T, $index>(bytes, highs, unit);
                    let group = unit * groups + $index;
                    let weights = |step: usize| [codes[step]];
                    add_of_panel::<T, N>(weights, panel, block, group, acc);
                }
            )*};
        }
        groups!(0 1 2 3);
    }
}

/// Adds the products of a group whose scales and minimums are in a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_of_panel<T: SuperBlock, const N: usize>(
    weights: impl FnMut(usize) -> [__m512i; 1],
    panel: &Panel,
    block: &Block<'_>,
    group: usize,
    acc: &mut [[__m512; 1]; N],
) {
    let (scale, min) = (&panel.scales[group], &panel.mins[group]);
    let (scales, mins) = (|| [load_floats(scale)], || [load_floats(min)]);
    add::<Of<OfBlocks<T>>, N>(weights, scales, mins, block, group, acc);
}

/// Adds the products of a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add<S: Shape, const N: usize>(
    weights: impl FnMut(usize) -> [__m512i; 1],
    scales: impl FnOnce() -> [__m512; 1],
    mins: impl FnOnce() -> [__m512; 1],
    block: &Block<'_>,
    group: usize,
    acc: &mut [[__m512; 1]; N],
) {
    assert!(block.tokens == N && block.cols == SPAN && group * S::STEPS < 64);
    // SAFETY: the block has this group of N tokens.
    unsafe { add_group::<S, N, 1>(weights, scales, mins, &block.parts(), group, acc) };
}

/// Adds sums to `strip`, where a token's results are `stride` after those of the one before.
#[inline]
#[target_feature(enable = "avx512f")]
fn store<const N: usize>(sums: &[[__m512; 1]; N], strip: &mut [f32], stride: usize) {
    for (t, [sum]) in sums.iter().enumerate() {
        let to = &mut strip[t * stride..][..16];
        store_floats(to, _mm512_add_ps(*sum, load_floats(to)));
    }
}

impl<'a> Product<'a> {
    /// 256 columns of the rows after the other.
    #[inline(always)]
    fn spans<const BYTES: usize>(
        &self,
    ) -> impl Iterator<Item = Sixteen<'a, BYTES>> + use<'a, BYTES> {
        let (rows, cold) = (self.rows, self.cold);
        let spans = self.cols / SPAN;
        assert_eq!(spans * BYTES, rows.row_bytes, "whole 256 columns");
        (0..spans).map(move |span| {
            let part = PanelRows { start: span * BYTES, len: BYTES, ..rows };
            if cold {
                PanelRows { start: part.start + BYTES, ..part }.prefetch(16);
            }
            Sixteen::new(part)
        })
    }

    /// The activations of 256 columns.
    #[inline(always)]
    fn block<const N: usize>(&self, format: Format, span: usize) -> Block<'a> {
        Block::of(format, self.packed, N, span * SPAN..(span + 1) * SPAN)
    }
}
