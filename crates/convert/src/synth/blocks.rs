//! One entry per quantization type: which bytes of a block are scales; all others may be random.
//!
//! A block is random bits under a scale. Random weights of a given standard deviation therefore need no
//! quantizer: fill the block with noise, then write the scale. The magnitude of noise under a scale of 1 is
//! measured once with the type's own dequantizer.

use bilayer_quant::{Type, mxfp4, nvfp4};
use half::f16;

/// Replacement of random bytes that valid blocks never contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recode {
    /// Quantizers never write -128, and some kernels take the magnitude of a byte, so it becomes 0.
    NoMinimum,
    /// Four two-bit codes, where the invalid code 3 becomes 1, the weight 0.
    Ternary,
    /// Places of `kept` weights in groups of 64: one in each of as many equal ranges, so that none occurs twice.
    Places { kept: usize },
}

impl Recode {
    /// One loop per variant, so that each compiles to vector code.
    pub fn apply(self, bytes: &mut [u8]) {
        match self {
            Recode::NoMinimum => {
                bytes.iter_mut().for_each(|byte| *byte = if *byte == 0x80 { 0 } else { *byte });
            }
            Recode::Ternary => bytes.iter_mut().for_each(|byte| {
                let threes = *byte & *byte >> 1 & 0b0101_0101;
                *byte ^= threes << 1;
            }),
            Recode::Places { kept } => {
                let range = 64 / kept;
                for group in bytes.chunks_exact_mut(kept) {
                    for (slot, byte) in group.iter_mut().enumerate() {
                        *byte = (slot * range + usize::from(*byte) % range) as u8;
                    }
                }
            }
        }
    }
}

/// How a type encodes its scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub ty: Type,
    pub numbers: Numbers,
    pub puts: &'static [Put],
    /// The plane whose random bytes must be recoded.
    pub codes: Option<(&'static str, Recode)>,
}

/// The encoding of scales; larger codes are larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// f16.
    Half,
    /// Powers of two (MXFP4).
    Power,
    /// Unsigned 8-bit floats (NVFP4).
    Small,
}

impl Numbers {
    /// The largest finite code, and the code of 1.
    pub fn codes(self) -> (u16, u16) {
        match self {
            Numbers::Half => (f16::MAX.to_bits(), f16::ONE.to_bits()),
            Numbers::Power => (254, 128),
            Numbers::Small => (0x7E, 0x40),
        }
    }

    pub fn value(self, code: u16) -> f32 {
        match self {
            Numbers::Half => f16::from_bits(code).to_f32(),
            Numbers::Power => mxfp4::half_scale(code as u8),
            Numbers::Small => nvfp4::half_scale(code as u8),
        }
    }
}

/// Where a value derived from the scale is stored in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Put {
    /// An f16 plane: the scale times a factor that centres the weights at 0.
    Half { plane: &'static str, factor: f32 },
    /// An f16 plane whose sign stays random, for types whose codes have a mean other than 0.
    AnySign { plane: &'static str },
    /// Every byte of a plane: the scale's code.
    Bytes { plane: &'static str },
    /// The high nibbles of four words, lowest first (IQ1_M).
    Quarters { plane: &'static str },
}

const D: Put = Put::Half { plane: "d", factor: 1.0 };
const SIGNED: Put = Put::AnySign { plane: "d" };

const fn half(ty: Type, puts: &'static [Put]) -> Line {
    Line { ty, numbers: Numbers::Half, puts, codes: None }
}

/// A balanced sparse type that keeps `kept` of 64 weights.
const fn sparse(ty: Type, kept: usize) -> Line {
    Line { codes: Some(("places", Recode::Places { kept })), ..half(ty, &[SIGNED]) }
}

/// The factors are half the largest code, the mean of scale · code above 0.
pub(super) static LINES: [Line; 35] = [
    half(Type::Q4_0, &[SIGNED]),
    half(Type::Q4_1, &[D, Put::Half { plane: "m", factor: -7.5 }]),
    half(Type::Q5_0, &[SIGNED]),
    half(Type::Q5_1, &[D, Put::Half { plane: "m", factor: -15.5 }]),
    Line { codes: Some(("quants", Recode::NoMinimum)), ..half(Type::Q8_0, &[D]) },
    half(Type::Q2_K, &[D, Put::Half { plane: "dmin", factor: 1.5 }]),
    half(Type::Q3_K, &[D]),
    half(Type::Q4_K, &[D, Put::Half { plane: "dmin", factor: 7.5 }]),
    half(Type::Q5_K, &[D, Put::Half { plane: "dmin", factor: 15.5 }]),
    half(Type::Q6_K, &[D]),
    half(Type::IQ1_S, &[D]),
    half(Type::IQ1_M, &[Put::Quarters { plane: "scales" }]),
    half(Type::IQ2_XXS, &[D]),
    half(Type::IQ2_XS, &[D]),
    half(Type::IQ2_S, &[D]),
    half(Type::IQ3_XXS, &[D]),
    half(Type::IQ3_S, &[D]),
    half(Type::IQ4_NL, &[SIGNED]),
    half(Type::IQ4_XS, &[D]),
    half(Type::TQ1_0, &[D]),
    Line { codes: Some(("quants", Recode::Ternary)), ..half(Type::TQ2_0, &[D]) },
    Line {
        ty: Type::MXFP4,
        numbers: Numbers::Power,
        puts: &[Put::Bytes { plane: "e" }],
        codes: None,
    },
    Line {
        ty: Type::NVFP4,
        numbers: Numbers::Small,
        puts: &[Put::Bytes { plane: "scales" }],
        codes: None,
    },
    sparse(Type::S4_4_64, 4),
    sparse(Type::S4_8_64, 8),
    sparse(Type::S4_12_64, 12),
    sparse(Type::S4_16_64, 16),
    sparse(Type::S4_24_64, 24),
    sparse(Type::S4_32_64, 32),
    sparse(Type::S8_4_64, 4),
    sparse(Type::S8_8_64, 8),
    sparse(Type::S8_12_64, 12),
    sparse(Type::S8_16_64, 16),
    sparse(Type::S8_24_64, 24),
    sparse(Type::S8_32_64, 32),
];

/// A byte of a block after the scale is written: `byte & keep | set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub at: usize,
    pub keep: u8,
    pub set: u8,
}

impl Line {
    /// The byte changes that give a block the scale of `code`.
    pub fn stamps(&self, code: u16) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for put in self.puts {
            match *put {
                Put::Half { plane, factor } => {
                    let scaled = f16::from_f32(self.numbers.value(code) * factor).to_le_bytes();
                    let at = self.plane(plane).start;
                    stamps.extend((0..2).map(|i| Stamp { at: at + i, keep: 0, set: scaled[i] }));
                }
                Put::AnySign { plane } => {
                    let [low, high] = code.to_le_bytes();
                    let at = self.plane(plane).start;
                    stamps.push(Stamp { at, keep: 0, set: low });
                    stamps.push(Stamp { at: at + 1, keep: 0x80, set: high });
                }
                Put::Bytes { plane } => {
                    let set = code as u8;
                    stamps.extend(self.plane(plane).map(|at| Stamp { at, keep: 0, set }));
                }
                Put::Quarters { plane } => {
                    let quarter = |i: usize| (code >> (4 * i) & 15) as u8;
                    let places = self.plane(plane).skip(1).step_by(2).enumerate();
                    stamps.extend(places.map(|(i, at)| Stamp {
                        at,
                        keep: 0x0F,
                        set: quarter(i) << 4,
                    }));
                }
            }
        }
        stamps
    }

    /// The byte range of a plane within a block. The names are those of the type's table; a test walks all.
    pub fn plane(&self, name: &str) -> std::ops::Range<usize> {
        let plane = self.ty.planes.iter().find(|plane| plane.name == name);
        plane.map_or(0..0, |plane| plane.offset..plane.offset + plane.len)
    }
}
