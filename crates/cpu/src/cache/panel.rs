//! One head's keys or values in one page: where elements, scales and minimums lie, for every type.
//!
//! A panel is rows of 32 elements, called units: of keys `[head_dim]` units of 32 tokens, of values
//! `[32 tokens, stride / 32]` units. Types in blocks keep planes, one after another:
//!
//! ```text
//! codes     8 bits: a byte per element; else 16 bytes per unit, element i in the low and 16 + i in the high nibbles
//! high      5 bits: a u32 per unit, bit i is the fifth bit of element i
//! scales    f16: keys [head_dim / 32, 32 tokens], values [32 tokens, stride / 32]
//! minimums  f16, as scales, if the type has them
//! ```

use bilayer_graph::{Error, OpKind, PAGE_TOKENS};
use bilayer_quant::Type;
use bilayer_quant::cache::{self, BLOCK, Coding, Form};
use half::f16;

/// How elements of keys or values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    F16,
    F32,
    Bf16,
    Blocks(Coding),
}

impl Stored {
    /// # Errors
    /// It is not a type of the KV cache.
    pub(super) fn of(ty: Type) -> Result<Stored, Error> {
        let stored = match cache::form(ty) {
            Some(Form::Blocks(coding)) => Some(Stored::Blocks(coding)),
            Some(Form::Float) => {
                [(Type::F16, Stored::F16), (Type::F32, Stored::F32), (Type::BF16, Stored::Bf16)]
                    .into_iter()
                    .find_map(|(known, stored)| (known == ty).then_some(stored))
            }
            None => None,
        };
        stored.ok_or_else(|| Error::Unsupported {
            device: crate::NAME.to_owned(),
            op: OpKind::Attend,
            what: format!("a cache of type {ty} (it has {})", cache::names()),
        })
    }

    /// Elements between the values of consecutive tokens, for so many in a row.
    pub(super) fn value_stride(self, stride: usize) -> usize {
        match self {
            Stored::Blocks(_) => stride.next_multiple_of(BLOCK),
            _ => stride,
        }
    }

    /// Bytes of a panel of that many elements, with scales and minimums.
    pub(super) fn bytes(self, elements: usize) -> usize {
        match self {
            Stored::F16 | Stored::Bf16 => 2 * elements,
            Stored::F32 => 4 * elements,
            Stored::Blocks(coding) => Planes::of(coding, elements).end,
        }
    }

    /// Bytes from an element to the next, at least 1.
    pub(crate) fn element_bytes(self) -> usize {
        match self {
            Stored::F16 | Stored::Bf16 => 2,
            Stored::F32 => 4,
            Stored::Blocks(_) => 1,
        }
    }
}

/// Offsets of the planes, bytes.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) high: usize,
    pub(super) scales: usize,
    pub(super) minimums: usize,
    end: usize,
    /// Blocks, which have a scale each.
    pub(super) blocks: usize,
}

impl Planes {
    #[inline(always)]
    pub(super) fn of(coding: Coding, elements: usize) -> Planes {
        // The last block of a head's keys may have fewer than 32 units of 32 tokens.
        let blocks = elements.next_multiple_of(BLOCK * PAGE_TOKENS) / BLOCK;
        let high = if coding.bits == 8 { elements } else { elements / 2 };
        let scales = high + if coding.bits == 5 { elements / 8 } else { 0 };
        let minimums = scales + 2 * blocks;
        let end = minimums + if coding.has_minimum() { 2 * blocks } else { 0 };
        Planes { high, scales, minimums, end, blocks }
    }
}

/// One head's keys or values in one page.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) stored: Stored,
    pub(crate) bytes: &'a [u8],
    /// Number of elements.
    pub(crate) elements: usize,
}

/// A panel of a type in blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) coding: Coding,
    codes: &'a [u8],
    high: &'a [u8],
    /// Scales, f16 bits.
    pub(crate) scales: &'a [u16],
    /// Minimums, f16 bits; empty if the type has none.
    pub(crate) minimums: &'a [u16],
}

impl<'a> Panel<'a> {
    /// An element; `scale` is the index of its scale, if there are scales.
    pub(super) fn float(self, at: usize, scale: usize) -> f32 {
        match self.stored {
            Stored::F16 => f16::from_bits(self.halves()[at]).to_f32(),
            Stored::Bf16 => bilayer_quant::bf16::value(self.halves()[at]),
            Stored::F32 => self.f32()[at],
            Stored::Blocks(coding) => {
                let blocks = self.blocks(coding);
                let level = coding.level(blocks.code(at));
                let value = |bits: &u16| f16::from_bits(*bits).to_f32();
                let minimum = blocks.minimums.get(scale).map_or(0.0, value);
                f32::from(level) * value(&blocks.scales[scale]) + minimum
            }
        }
    }

    /// The elements as f16 or BF16 bits.
    pub(crate) fn halves(self) -> &'a [u16] {
        &bytemuck::cast_slice(self.bytes)[..self.elements]
    }

    /// The elements as f32.
    pub(crate) fn f32(self) -> &'a [f32] {
        &bytemuck::cast_slice(self.bytes)[..self.elements]
    }

    /// The planes.
    #[inline(always)]
    pub(crate) fn blocks(self, coding: Coding) -> Blocks<'a> {
        let Planes { high, scales, minimums, end, .. } = Planes::of(coding, self.elements);
        Blocks {
            coding,
            codes: &self.bytes[..high],
            high: &self.bytes[high..scales],
            scales: bytemuck::cast_slice(&self.bytes[scales..minimums]),
            minimums: bytemuck::cast_slice(&self.bytes[minimums..end]),
        }
    }
}

impl<'a> Blocks<'a> {
    /// Elements of 8 bits, and their scales.
    pub(crate) fn bytes(self) -> (&'a [i8], &'a [u16]) {
        debug_assert_eq!(self.coding.bits, 8);
        (bytemuck::cast_slice(self.codes), self.scales)
    }

    /// The codes of a unit, and their fifth bits if there are any.
    #[inline(always)]
    pub(crate) fn unit(self, unit: usize) -> (&'a [u8], &'a [u8]) {
        let bytes = if self.coding.bits == 8 { BLOCK } else { BLOCK / 2 };
        let high = if self.coding.bits == 5 { &self.high[unit * 4..][..4] } else { &[] };
        (&self.codes[unit * bytes..][..bytes], high)
    }

    /// A code.
    pub(super) fn code(self, at: usize) -> u8 {
        let (codes, high) = self.unit(at / BLOCK);
        let at = at % BLOCK;
        let high = high.get(at / 8).map_or(0, |bits| bits >> (at % 8) & 1);
        match self.coding.bits {
            8 => codes[at],
            _ => codes[at % 16] >> (at / 16 * 4) & 15 | high << 4,
        }
    }
}

/// Evaluates an expression with a [`Coding`] that the compiler knows, so that no element asks which it is.
macro_rules! with_known {
    ($coding:expr, |$known:ident| $run:expr) => {{
        use bilayer_quant::cache::{Coding, Rule};
        match $coding {
            Coding { bits: 8, rule: Rule::Symmetric } => {
                let $known = Coding { bits: 8, rule: Rule::Symmetric };
                $run
            }
            Coding { bits: 5, rule: Rule::Range } => {
                let $known = Coding { bits: 5, rule: Rule::Range };
                $run
            }
            Coding { bits: 5, rule: Rule::Signed } => {
                let $known = Coding { bits: 5, rule: Rule::Signed };
                $run
            }
            Coding { bits: 4, rule: Rule::Range } => {
                let $known = Coding { bits: 4, rule: Rule::Range };
                $run
            }
            Coding { bits: 4, rule: Rule::Signed } => {
                let $known = Coding { bits: 4, rule: Rule::Signed };
                $run
            }
            $known => $run,
        }
    }};
}

pub(crate) use with_known;
