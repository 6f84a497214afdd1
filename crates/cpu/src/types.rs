//! Quantized types: where codes and scales lie, stated once for all levels and kernels.
//!
//! A type is a struct without fields and one of two traits, which follow the scales of its activations:
//! [`SuperBlock`], blocks of 256 weights with integer scales, and [`Quads`], scales that are floats for each 16 or 32
//! weights. Kernels are generic over them: the dot products of `dot/`, the panels of `panel/`. Types with one scale per
//! row need neither: their bytes are the weights.

use bilayer_quant::Type;

use crate::bytes::{Bytes, Field, Flags, NarrowBytes, Words, u16_at};
#[cfg(target_arch = "x86_64")]
use crate::level::Level;

pub(crate) mod floats;
pub(crate) mod grids;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// Hands all types to a macro that makes a table of them: the type, the struct that states its bits, and its trait.
/// `both` types are multiplied as [`Quads`], or as [`SuperBlock`] at AVX2, and have the panels of the latter.
macro_rules! for_each_type {
    ($table:ident) => {
        $table! {
            Q4_0 q4_0::Q4_0 quads;
            Q4_1 q4_1::Q4_1 quads;
            Q5_0 q5_0::Q5_0 quads;
            Q5_1 q5_1::Q5_1 quads;
            Q8_0 q8_0::Q8_0 quads;
            Q2_K q2_k::Q2K super_block;
            Q3_K q3_k::Q3K super_block;
            Q4_K q4_k::Q4K super_block;
            Q5_K q5_k::Q5K super_block;
            Q6_K q6_k::Q6K super_block;
            IQ1_S iq1_s::Iq1S super_block;
            IQ1_M iq1_m::Iq1M super_block;
            IQ2_XXS iq2_xxs::Iq2Xxs super_block;
            IQ2_XS iq2_xs::Iq2Xs super_block;
            IQ2_S iq2_s::Iq2S super_block;
            IQ3_XXS iq3_xxs::Iq3Xxs super_block;
            IQ3_S iq3_s::Iq3S super_block;
            IQ4_NL iq4_nl::Iq4Nl quads;
            IQ4_XS iq4_xs::Iq4Xs both;
            TQ1_0 tq1_0::Tq1_0 super_block;
            TQ2_0 tq2_0::Tq2_0 super_block;
            MXFP4 mxfp4::Mxfp4 quads;
            NVFP4 nvfp4::Nvfp4 quads;
        }
    };
}
pub(crate) use for_each_type;

/// The types whose rows are a scale and signed bytes: whole rows are summed as integers (`dot/whole_row.rs`,
/// `gemm/whole_row.rs`).
const WHOLE_ROWS: &[Type] = &[Type::W8A8];

/// The most columns of a whole row: sums of products of -128 and 127 fit 32 bits, and those of outliers beside them.
const WHOLE_ROW_MAX: usize = 1 << 16;

/// Whether rows of a type and length are summed whole.
pub(crate) fn is_whole_row(ty: Type, cols: usize) -> bool {
    WHOLE_ROWS.contains(&ty) && cols <= WHOLE_ROW_MAX
}

/// How codes are signed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Not: they are at most 64, and [`SuperBlock::ZERO`] stands for zero.
    Lifted,
    /// They are two's complement.
    Code,
    /// They are magnitudes, at most 64; [`SuperBlock::signs`] has the signs.
    Apart,
}

/// The scales of a block, a byte for each group of weights, and the minimums, if the type has them: of 16 groups in
/// four words, of 8 groups in the first two.
#[derive(Clone, Copy)]
pub(crate) struct Scales<W> {
    pub scales: [W; 4],
    pub mins: [W; 4],
}

impl<W: Words> Scales<W> {
    /// Scales without minimums.
    #[inline(always)]
    pub fn only(scales: [W; 4]) -> Scales<W> {
        Scales { scales, mins: [W::all(0); 4] }
    }
}

/// A type with blocks of 256 weights: weight = d · [`UNIT`](Self::UNIT) · scale · (code - [`ZERO`](Self::ZERO)) -
/// dmin · min.
pub(crate) trait SuperBlock {
    /// Bytes of a block.
    const BYTES: usize;
    /// The codes' bits, lowest first.
    const CODES: &'static [Field] = &[];
    /// The code that stands for zero.
    const ZERO: u8 = 0;
    /// The codebook, if codes stand for its values.
    const BOOK: Option<[u8; 16]> = None;
    /// How codes, or these values, are signed.
    const SIGN: Sign = Sign::Lifted;
    /// The largest code, or magnitude.
    const HIGHEST: u8;
    /// Weights per scale: 16 or 32.
    const GROUP: usize;
    /// Subtracted from the scales; what remains is -128 to 127.
    const SCALE_ZERO: u8 = 0;
    /// Offset of d.
    const D: usize;
    /// A power of two: the scale of the scales.
    const UNIT: f32 = 1.0;
    /// Whether there are minimums; dmin follows d.
    const HAS_MINS: bool = false;

    /// The codes of a vector of weights from weight `first` on.
    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        let low = V::codes(block, Self::CODES[0], first);
        Self::values(match Self::CODES {
            [_] => low,
            [field, high] => low.join(block, *high, first, field.bits),
            _ => unreachable!("codes have at most two fields"),
        })
    }

    /// The codebook's values of codes.
    #[inline(always)]
    fn values<V: Bytes>(codes: V) -> V {
        match &Self::BOOK {
            Some(book) => codes.look_up(book),
            None => codes,
        }
    }

    /// The scales; `words` returns the 16 bytes from an offset on.
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W>;

    /// The levels at which [`numbers`](Self::numbers) is faster than [`scales`](Self::scales).
    #[cfg(target_arch = "x86_64")]
    const NUMBERS_AT: &'static [Level] = &[];

    /// The scales, [`SCALE_ZERO`](Self::SCALE_ZERO) subtracted, and the minimums, in vectors as
    /// [`x86::numbers`] has them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn numbers(_block: &[u8]) -> [std::arch::x86_64::__m128i; 2] {
        unreachable!("no level is listed")
    }

    /// The scales of the even and of the odd groups of sixteen weights as 16-bit integers, in the two halves, where
    /// that is faster.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn scales_256(_block: &[u8]) -> Option<std::arch::x86_64::__m256i> {
        None
    }

    /// The signs of [`Sign::Apart`], a bit per weight: set where negative.
    #[inline(always)]
    fn signs(_block: &[u8]) -> [u32; 8] {
        [0; 8]
    }

    /// The f16 bits of d.
    #[inline(always)]
    fn d(block: &[u8]) -> u16 {
        u16_at(block, Self::D)
    }
}

/// The values of a codebook plus `zero`, modulo 256.
pub(crate) const fn lifted(values: &[i8; 16], zero: u8) -> [u8; 16] {
    let (mut lifted, mut code) = ([0; 16], 0);
    while code < 16 {
        lifted[code] = values[code].cast_unsigned().wrapping_add(zero);
        code += 1;
    }
    lifted
}

/// How the codes of [`Quads`] stand for weights.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    /// Code minus this.
    Lifted(u8),
    /// Two's complement.
    Signed,
    /// A codebook's values, and what makes them unsigned.
    Book(&'static [i8; 16], u8),
}

/// Where the scales of [`Quads`] are.
#[derive(Clone, Copy)]
pub(crate) enum ScaleBits {
    /// An f16 at this offset of a block.
    F16(usize),
    /// 2^(e - 128) for the byte e at this offset.
    Exponent(usize),
    /// In [`Quads::computed`].
    Computed,
}

/// A type that is unpacked four blocks of 32 weights at a time, a quad: weight = scale · value + min.
pub(crate) trait Quads {
    /// Weights of a stored block.
    const WEIGHTS: usize = 32;
    /// Bytes of a stored block.
    const BLOCK: usize;
    /// Quads of the smallest number of whole blocks.
    const QUADS: usize = 1;
    /// Bytes of as many blocks.
    const BYTES: usize = 128 * Self::QUADS / Self::WEIGHTS * Self::BLOCK;
    /// The codes of a stored block.
    const CODES: Field;
    /// One more bit, in blocks of 32.
    const FLAGS: Option<Flags> = None;
    const VALUES: Values;
    /// The largest value that has been made unsigned.
    const HIGHEST: u8;
    const SCALES: ScaleBits;
    /// Weights per scale: 32, or 16 if the scales are computed.
    const GROUP: usize = 32;
    /// Offset of a minimum, an f16.
    const MIN: Option<usize> = None;

    /// The unsigned value of a weight of zero.
    const ZERO: u8 = match Self::VALUES {
        Values::Lifted(zero) | Values::Book(_, zero) => zero,
        Values::Signed => 0x80,
    };
    /// The codebook, unsigned.
    const LIFTED: [u8; 16] = match Self::VALUES {
        Values::Book(values, zero) => lifted(values, zero),
        _ => [0; 16],
    };
    /// The codebook.
    const BOOK: [u8; 16] = match Self::VALUES {
        Values::Book(values, _) => lifted(values, 0),
        _ => [0; 16],
    };

    /// The codes of a vector of weights of a row, from weight `first` of some blocks on.
    #[inline(always)]
    fn codes<V: NarrowBytes>(blocks: &[u8], first: usize) -> V {
        let block = &blocks[first / Self::WEIGHTS * Self::BLOCK..][..Self::BLOCK];
        let first = first % Self::WEIGHTS;
        let codes = V::codes(block, Self::CODES, first);
        match Self::FLAGS {
            Some(flags) => codes.flag(block, flags, first),
            None => codes,
        }
    }

    /// [`codes`](Self::codes) as unsigned values.
    #[inline(always)]
    fn unsigned<V: Bytes>(codes: V) -> V {
        match Self::VALUES {
            Values::Lifted(_) => codes,
            Values::Signed => codes.flip(0x80),
            Values::Book(..) => codes.look_up(&Self::LIFTED),
        }
    }

    /// [`codes`](Self::codes) as two's complement, but for [`Values::Lifted`].
    #[inline(always)]
    fn signed<V: Bytes>(codes: V) -> V {
        match Self::VALUES {
            Values::Book(..) => codes.look_up(&Self::BOOK),
            _ => codes,
        }
    }

    /// The scales of the smallest number of blocks, if they are not stored as numbers.
    #[inline(always)]
    fn computed(_blocks: &[u8]) -> [f32; 8] {
        unreachable!("the type's scales are stored")
    }

    /// [`computed`](Self::computed) in a vector.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn computed_256(blocks: &[u8]) -> std::arch::x86_64::__m256 {
        // SAFETY: called with AVX2 only; the array has eight numbers.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(Self::computed(blocks).as_ptr()) }
    }
}
