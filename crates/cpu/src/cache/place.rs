//! Where keys and values of tokens are stored in a panel ([`panel`](super::panel)).
//!
//! Elements of types in blocks are quantized with the instructions of a level, and brought into units, which are written
//! whole: the elements of other tokens in a unit are kept by a mask.

use bilayer_graph::PAGE_TOKENS;
use bilayer_quant::cache::{BLOCK, Coded, Coding};
use bilayer_quant::q8_0;
use half::f16;

use super::panel::{Planes, Stored, with_known};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::math::to_f16;

/// The codes of a unit, or which bits of them are kept.
type Unit = [u8; BLOCK];

/// A panel of keys or of values.
pub(super) struct Place {
    pub(super) stored: Stored,
    /// Number of elements of the panel.
    pub(super) elements: usize,
}

impl Place {
    /// Stores `rows [tokens, dim]` as the columns from `first` on of `[dim, 32]`.
    pub(super) fn store_keys(
        &self,
        level: Level,
        bytes: &mut [u8],
        first: usize,
        (rows, dim): (&[f32], usize),
    ) {
        if let Stored::Blocks(coding) = self.stored {
            let planes = Planes::of(coding, self.elements);
            return transform(level, StoreKeys { coding, planes, first, rows, dim }, bytes);
        }
        for (column, row) in (first..).zip(rows.chunks_exact(dim)) {
            if self.stored == Stored::F32 {
                let to = bytemuck::cast_slice_mut::<u8, f32>(bytes)[column..].iter_mut();
                to.step_by(PAGE_TOKENS).zip(row).for_each(|(to, &x)| *to = x);
                continue;
            }
            let to = bytemuck::cast_slice_mut::<u8, u16>(bytes);
            for (row, to) in row.chunks(64).zip(to.chunks_mut(64 * PAGE_TOKENS)) {
                let mut bits = [0; 64];
                self.halves(level, row, &mut bits[..row.len()]);
                for (to, &bits) in to.chunks_exact_mut(PAGE_TOKENS).zip(&bits[..row.len()]) {
                    to[column] = bits;
                }
            }
        }
    }

    /// Stores `rows [tokens, dim]` as the rows from `first` on of `[32, stride]`.
    pub(super) fn store_values(
        &self,
        level: Level,
        bytes: &mut [u8],
        first: usize,
        (rows, dim): (&[f32], usize),
    ) {
        let stride = self.elements / PAGE_TOKENS;
        if let Stored::Blocks(coding) = self.stored {
            let (planes, first) = (Planes::of(coding, self.elements), first * stride / BLOCK);
            return transform(level, StoreValues { coding, planes, first, rows, dim }, bytes);
        }
        for (token, row) in (first..).zip(rows.chunks_exact(dim)) {
            let at = token * stride;
            match self.stored {
                Stored::F32 => {
                    let to = &mut bytemuck::cast_slice_mut::<u8, f32>(bytes)[at..];
                    to[..dim].copy_from_slice(row);
                }
                _ => {
                    let to = &mut bytemuck::cast_slice_mut::<u8, u16>(bytes)[at..];
                    self.halves(level, row, &mut to[..dim]);
                }
            }
        }
    }

    fn halves(&self, level: Level, row: &[f32], out: &mut [u16]) {
        if self.stored == Stored::F16 {
            return to_f16(level, row, out);
        }
        for (out, &x) in out.iter_mut().zip(row) {
            *out = bilayer_quant::bf16::bits(x);
        }
    }
}

/// Stores keys in blocks.
struct StoreKeys<'a> {
    coding: Coding,
    planes: Planes,
    /// The first token's column.
    first: usize,
    rows: &'a [f32],
    dim: usize,
}

impl Transform for StoreKeys<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, bytes: &mut [u8]) {
        let StoreKeys { coding, planes, first, rows, dim } = self;
        let tokens = first..first + rows.len() / dim;
        assert!(tokens.end <= PAGE_TOKENS);
        let kept = std::array::from_fn(|token| if tokens.contains(&token) { 0 } else { 0xff });
        with_known!(coding, |coding| for at in (0..dim).step_by(BLOCK) {
            let len = BLOCK.min(dim - at);
            let mut units: [Unit; BLOCK] = [[0; PAGE_TOKENS]; BLOCK];
            for (token, row) in tokens.clone().zip(rows.chunks_exact(dim)) {
                let coded = encode(l, coding, &row[at..at + len]);
                put_scale(coding, bytes, &planes, at / BLOCK * PAGE_TOKENS + token, &coded);
                for (unit, code) in units.iter_mut().zip(coded.codes) {
                    unit[token] = code;
                }
            }
            for (unit, codes) in (at..at + len).zip(&units) {
                put(coding, bytes, &planes, unit, (codes, &kept));
            }
        })
    }
}

/// Stores values in blocks.
struct StoreValues<'a> {
    coding: Coding,
    planes: Planes,
    /// The first token's first unit.
    first: usize,
    rows: &'a [f32],
    dim: usize,
}

impl Transform for StoreValues<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, bytes: &mut [u8]) {
        let StoreValues { coding, planes, first, rows, dim } = self;
        // Each row begins with a unit.
        let blocks = rows.chunks_exact(dim).flat_map(|row| row.chunks(BLOCK));
        with_known!(coding, |coding| for (unit, block) in (first..).zip(blocks) {
            let mut coded = encode(l, coding, block);
            put_scale(coding, bytes, &planes, unit, &coded);
            coded.codes[block.len()..].fill(0);
            put(coding, bytes, &planes, unit, (&coded.codes, &[0; BLOCK]));
        })
    }
}

/// [`Coding::encode`], of whole blocks of eight bits with the quantizer of activations.
#[inline(always)]
fn encode<L: Lanes>(l: L, coding: Coding, values: &[f32]) -> Coded {
    let (8, Some(block)) = (coding.bits, values.as_array()) else { return coding.encode(values) };
    let q8_0::Block { d, quants } = l.quantize_stored(block);
    // Without an early exit, so that it is vectorized.
    let is_finite = values.iter().fold(true, |all, x| all & x.is_finite());
    let d = if is_finite { d } else { f16::NAN.to_bits() };
    Coded { d, m: 0, codes: bytemuck::cast(quants) }
}

/// Stores scale and minimum of block `at`.
#[inline(always)]
fn put_scale(coding: Coding, bytes: &mut [u8], planes: &Planes, at: usize, coded: &Coded) {
    debug_assert!(at < planes.blocks);
    bytes[planes.scales + 2 * at..][..2].copy_from_slice(&coded.d.to_le_bytes());
    if coding.has_minimum() {
        bytes[planes.minimums + 2 * at..][..2].copy_from_slice(&coded.m.to_le_bytes());
    }
}

/// Stores codes of a unit, zeros where others are kept.
#[inline(always)]
fn put(
    coding: Coding,
    bytes: &mut [u8],
    planes: &Planes,
    unit: usize,
    (codes, kept): (&Unit, &Unit),
) {
    if coding.bits == 8 {
        return merge(&mut bytes[unit * BLOCK..], codes, kept);
    }
    let nibbles = |unit: &Unit| -> [u8; BLOCK / 2] {
        std::array::from_fn(|i| unit[i] & 15 | unit[BLOCK / 2 + i] << 4)
    };
    merge(&mut bytes[unit * BLOCK / 2..], &nibbles(codes), &nibbles(kept));
    if coding.bits == 5 {
        // The product has bit 4 of byte i in bit 56 + i.
        let fifth = |unit: &Unit| -> [u8; BLOCK / 8] {
            let eights = unit.as_chunks::<8>().0;
            std::array::from_fn(|at| {
                let bits = u64::from_le_bytes(eights[at]) >> 4 & 0x0101_0101_0101_0101;
                (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
            })
        };
        merge(&mut bytes[planes.high + unit * 4..], &fifth(codes), &fifth(kept));
    }
}

/// Replaces bits that are not kept.
#[inline(always)]
fn merge<const N: usize>(bytes: &mut [u8], new: &[u8; N], kept: &[u8; N]) {
    for (byte, (new, kept)) in bytes[..N].iter_mut().zip(new.iter().zip(kept)) {
        *byte = *byte & kept | new;
    }
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;
    use bilayer_quant::cache::{self, Form};

    use super::*;
    use crate::cache::panel::Panel;

    /// Blocks of a row, by turns: any, with halves between two codes of eight bits, of four, zeros, tiny, large.
    fn row(dim: usize, seed: usize) -> Vec<f32> {
        let noise = |at: usize| ((at * 7919 + seed * 104_729) % 1013) as f32 - 506.0;
        let element = |at: usize| match (at / BLOCK + seed) % 6 {
            0 => noise(at) * 1.37e-2,
            1 if at.is_multiple_of(BLOCK) => -127.0,
            1 => (noise(at) / 4.1).trunc() + [0.5, 0.5f32.next_down()][at % 2],
            2 if at.is_multiple_of(BLOCK) => 8.0,
            2 => (noise(at) / 70.0).trunc() + 0.5,
            3 => 0.0,
            4 => noise(at) * 1e-39,
            _ => noise(at) * 1e35,
        };
        (0..dim).map(element).collect()
    }

    #[test]
    fn every_level_stores_what_the_rule_of_a_type_gives() {
        let blocks = cache::TYPES.iter().filter_map(|(ty, form)| match form {
            Form::Blocks(coding) => Some((ty, *coding)),
            Form::Float => None,
        });
        for (ty, coding) in blocks {
            for (level, dim) in
                Level::available().flat_map(|level| [(level, 80usize), (level, 192)])
            {
                let stride = dim.next_multiple_of(BLOCK);
                let (stored, elements) = (Stored::Blocks(coding), stride * PAGE_TOKENS);
                let mut keys = vec![0; stored.bytes(dim * PAGE_TOKENS)];
                let mut values = vec![0; stored.bytes(elements)];
                let key_place = Place { stored, elements: dim * PAGE_TOKENS };
                let value_place = Place { stored, elements };
                // Neighbours, halves of bytes, and one between others.
                let runs = || [0..1, 15..32, 7..8, 1..3, 3..7];
                for run in runs() {
                    let rows: Vec<f32> = run.clone().flat_map(|token| row(dim, token)).collect();
                    key_place.store_keys(level, &mut keys, run.start, (&rows, dim));
                    value_place.store_values(level, &mut values, run.start, (&rows, dim));
                }
                let of = |bytes, elements| Panel { stored, bytes, elements }.blocks(coding);
                let (keys, values) = (of(&keys, dim * PAGE_TOKENS), of(&values, elements));
                for token in runs().into_iter().flatten() {
                    for (at, x) in row(dim, token).chunks(BLOCK).enumerate() {
                        let coded = coding.encode(x);
                        let (of_key, of_value) =
                            (at * PAGE_TOKENS + token, token * stride / BLOCK + at);
                        for (blocks, scale) in [(keys, of_key), (values, of_value)] {
                            assert_eq!(blocks.scales[scale], coded.d, "{ty} {level}: {x:?}");
                            assert!(blocks.minimums.get(scale).is_none_or(|m| *m == coded.m));
                        }
                        for (i, code) in coded.codes[..x.len()].iter().enumerate() {
                            let key = keys.code((at * BLOCK + i) * PAGE_TOKENS + token);
                            let value = values.code(token * stride + at * BLOCK + i);
                            assert_eq!([key, value], [*code; 2], "{ty} {level}: {x:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_marked_at_every_level() {
        let stored = Stored::of(Type::Q8_0).unwrap();
        for level in Level::available() {
            for wild in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut row = [1.0; BLOCK];
                row[17] = wild;
                let mut bytes = vec![0; stored.bytes(BLOCK * PAGE_TOKENS)];
                let place = Place { stored, elements: BLOCK * PAGE_TOKENS };
                place.store_values(level, &mut bytes, 0, (&row, BLOCK));
                let panel = Panel { stored, bytes: &bytes, elements: BLOCK * PAGE_TOKENS };
                assert!(panel.float(0, 0).is_nan(), "{level} {wild}");
            }
        }
    }
}
