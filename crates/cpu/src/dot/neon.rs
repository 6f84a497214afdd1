//! The kernel families' loops with NEON, shared by all its levels, which differ in how 16 bytes are multiplied with
//! 16.

use std::marker::PhantomData;

use crate::neon::intrinsics::*;

use bilayer_quant::mxfp4::half_scale;

use super::{AHEAD, Groups, Job, prefetch};
use crate::activations::{Block256, Quad32};
use crate::bytes::neon::spread_bits;
use crate::bytes::{f16_at, part, u16_at, u32_at};
use crate::neon;
use crate::types::{Quads, ScaleBits, Scales, Sign, SuperBlock, Values};

/// A level's product of signed bytes.
pub trait Multiply: Copy {
    /// Adds the 16 products to the sums, each to some lane. `w` is at least -128, `x` at least -127.
    fn add(self, sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
}

/// 16-bit products, two of which fit a lane, then pairwise sums: three instructions.
#[derive(Clone, Copy)]
pub struct Plain;

impl Multiply for Plain {
    #[inline(always)]
    fn add(self, sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        vpadalq_s16(sums, vmlal_high_s8(low, w, x))
    }
}

/// One instruction. A value proves that the feature was detected: only [`dotprod`] creates it.
#[derive(Clone, Copy)]
pub struct Dotprod(());

impl Multiply for Dotprod {
    #[inline(always)]
    fn add(self, sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { neon::sdot(sums, w, x) }
    }
}

/// A type's kernel: its family's loop over its own unpacking.
pub trait RowKernel {
    /// Computes the job for `C` columns; must be `#[inline(always)]`.
    fn run<M: Multiply, const C: usize>(m: M, job: &mut Job<'_>);
}

/// A type's kernel with baseline NEON.
pub fn plain<R: RowKernel, const C: usize>(job: &mut Job<'_>) {
    R::run::<_, C>(Plain, job);
}

/// A type's kernel with integer dot products.
#[target_feature(enable = "dotprod")]
pub fn dotprod<R: RowKernel, const C: usize>(job: &mut Job<'_>) {
    R::run::<_, C>(Dotprod(()), job);
}

/// The kernel of a type with blocks of 256.
pub struct OfBlocks<T>(PhantomData<T>);

impl<T: SuperBlock> RowKernel for OfBlocks<T> {
    #[inline(always)]
    fn run<M: Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
        k::<M, T, C>(m, job);
    }
}

/// A block of 256 weights without its codes, in groups of 16 or 32; those of 32 leave half of the vectors unused.
struct K {
    /// The block's scale.
    d: f32,
    /// The groups' scales.
    scales: [int32x4_t; 4],
    /// The minimums of the groups, which are subtracted; not read without minimums.
    mins: [float32x4_t; 4],
    /// The signs of [`Sign::Apart`], a bit per weight.
    signs: [u32; 8],
}

/// Multiplies rows of blocks of 256 with `C` columns.
///
/// Working on half a block keeps codes, scales and the sums of four columns in the 32 registers.
#[inline(always)]
fn k<M: Multiply, T: SuperBlock, const C: usize>(m: M, job: &mut Job<'_>) {
    let columns = job.columns::<Block256, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [vdupq_n_f32(0.0); C];
        for (b, block) in row.chunks_exact(T::BYTES).enumerate() {
            prefetch(block, AHEAD);
            let weights = open::<T>(block);
            let mut dots = [vdupq_n_s32(0); C];
            for h in 0..2 {
                let codes = half::<T>(block, &weights, h);
                let scales = weights.scales.as_chunks::<2>().0;
                for (dots, column) in dots.iter_mut().zip(columns) {
                    let x = &column[b].quants.as_chunks::<128>().0[h];
                    *dots = if T::GROUP == 32 {
                        k_half_32(m, *dots, &codes, x, weights.scales[h])
                    } else {
                        k_half_16(m, *dots, &codes, x, &scales[h])
                    };
                }
            }
            for ((sum, dots), column) in sums.iter_mut().zip(dots).zip(columns) {
                *sum = k_close::<T>(&weights, dots, &column[b], *sum);
            }
        }
        job.store(r, sums.map(vaddvq_f32));
    }
}

/// The scales and minimums of a block.
#[inline(always)]
fn open<T: SuperBlock>(block: &[u8]) -> K {
    let Scales { scales, mins } =
        T::scales(|at| [0, 4, 8, 12].map(|word| u32_at(block, at + word)));
    let together = |[a, b, c, d]: [u32; 4]| {
        let pair = |low, high| vcreate_u8(u64::from(low) | u64::from(high) << 32);
        vcombine_u8(pair(a, b), pair(c, d))
    };
    let [scales] = centred([together(scales)], T::SCALE_ZERO);
    let [mins] = centred([together(mins)], 0);
    let dmin = if T::HAS_MINS { f16_at(block, T::D + 2) } else { 0.0 };
    K {
        d: half::f16::from_bits(T::d(block)).to_f32() * T::UNIT,
        scales: lanes_16(scales),
        mins: times(lanes_16(mins), dmin),
        signs: T::signs(block),
    }
}

/// The codes of half a block, signed.
#[inline(always)]
fn half<T: SuperBlock>(block: &[u8], weights: &K, h: usize) -> [int8x16_t; 8] {
    let mut codes = [vdupq_n_s8(0); 8];
    for (i, out) in codes.iter_mut().enumerate() {
        let codes: uint8x16_t = T::codes(block, 128 * h + 16 * i);
        *out = vreinterpretq_s8_u8(match T::SIGN {
            Sign::Lifted if T::ZERO > 0 => vsubq_u8(codes, vdupq_n_u8(T::ZERO)),
            Sign::Lifted | Sign::Code => codes,
            Sign::Apart => {
                let [a, b, c, d] = weights.signs[4 * h + i / 2].to_le_bytes();
                let negative = spread_bits(if i % 2 == 0 { [a, b] } else { [c, d] });
                // -x = !x + 1
                vsubq_u8(veorq_u8(codes, negative), negative)
            }
        });
    }
    codes
}

/// Adds half a block's scaled dot products, with one scale per 32 weights.
#[inline(always)]
fn k_half_32<M: Multiply>(
    m: M,
    sums: int32x4_t,
    codes: &[int8x16_t; 8],
    x: &[i8; 128],
    scales: int32x4_t,
) -> int32x4_t {
    let [a, b, c, d] = [0, 2, 4, 6];
    let dots = [two(m, codes, x, a), two(m, codes, x, b), two(m, codes, x, c), two(m, codes, x, d)];
    add_scaled(sums, dots, scales)
}

/// Adds half a block's scaled dot products, with one scale per 16 weights.
#[inline(always)]
fn k_half_16<M: Multiply>(
    m: M,
    mut sums: int32x4_t,
    codes: &[int8x16_t; 8],
    x: &[i8; 128],
    scales: &[int32x4_t; 2],
) -> int32x4_t {
    for (part, scales) in scales.iter().enumerate() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| 4 * part + i);
        let dots =
            [one(m, codes, x, a), one(m, codes, x, b), one(m, codes, x, c), one(m, codes, x, d)];
        sums = add_scaled(sums, dots, *scales);
    }
    sums
}

/// The dot product of 16 codes from vector `i` on. Not a closure, here or below: a closure would not enable the
/// feature of its instructions, and if it is not inlined neither are they.
#[inline(always)]
fn one<M: Multiply>(m: M, codes: &[int8x16_t; 8], x: &[i8; 128], i: usize) -> int32x4_t {
    m.add(vdupq_n_s32(0), codes[i], load_signed(x, 16 * i))
}

/// The dot product of 32 codes.
#[inline(always)]
fn two<M: Multiply>(m: M, codes: &[int8x16_t; 8], x: &[i8; 128], i: usize) -> int32x4_t {
    m.add(one(m, codes, x, i), codes[i + 1], load_signed(x, 16 * i + 16))
}

/// Adds each dot product times its lane of the scales.
#[inline(always)]
fn add_scaled(sums: int32x4_t, dots: [int32x4_t; 4], scales: int32x4_t) -> int32x4_t {
    let sums = vmlaq_laneq_s32::<0>(sums, dots[0], scales);
    let sums = vmlaq_laneq_s32::<1>(sums, dots[1], scales);
    let sums = vmlaq_laneq_s32::<2>(sums, dots[2], scales);
    vmlaq_laneq_s32::<3>(sums, dots[3], scales)
}

/// Adds a block's scaled dot products and minimums to the sum.
#[inline(always)]
fn k_close<T: SuperBlock>(
    weights: &K,
    dots: int32x4_t,
    column: &Block256,
    sum: float32x4_t,
) -> float32x4_t {
    let mut sum = vfmaq_n_f32(sum, vcvtq_f32_s32(dots), weights.d * column.scale[0]);
    if T::HAS_MINS {
        let sums = column.sums.as_chunks::<4>().0;
        let sums: [float32x4_t; 4] = std::array::from_fn(|i| neon::load_floats(&sums[i]));
        for (i, mins) in weights.mins.iter().take(64 / T::GROUP).enumerate() {
            // Two sums of 16 if groups have 32 weights.
            let x = if T::GROUP == 32 { vpaddq_f32(sums[2 * i], sums[2 * i + 1]) } else { sums[i] };
            sum = vfmsq_f32(sum, *mins, x);
        }
    }
    sum
}

/// The kernel of a type that is unpacked four blocks of 32 at a time, `BYTES` for the smallest number of blocks.
pub struct OfQuads<T, const BYTES: usize>(PhantomData<T>);

impl<T: Quads, const BYTES: usize> RowKernel for OfQuads<T, BYTES> {
    #[inline(always)]
    fn run<M: Multiply, const C: usize>(m: M, job: &mut Job<'_>) {
        quad::<M, T, BYTES, C>(m, job);
    }
}

/// Four blocks of 32 weights in natural order.
struct Quad {
    /// Values, signed.
    values: [int8x16_t; 8],
    /// The blocks' scales, twice; of groups of 16, those of the even ones and those of the odd ones.
    scales: [float32x4_t; 2],
    /// The offset added to each weight of the blocks; not read without offsets.
    offsets: float32x4_t,
}

/// Multiplies rows of quads with `C` columns.
///
/// The four blocks' dot products are folded into one vector, one lane per block, so that conversion and scaling are
/// done once per 128 weights.
#[inline(always)]
fn quad<M, T, const BYTES: usize, const C: usize>(m: M, job: &mut Job<'_>)
where
    M: Multiply,
    T: Quads,
{
    let columns = job.columns::<Quad32, C>();
    for (r, row) in job.rows().enumerate() {
        let mut sums = [vdupq_n_f32(0.0); C];
        let groups = Groups::<BYTES>::of(row);
        for (g, group) in groups.iter().enumerate() {
            prefetch(group, AHEAD);
            for q in 0..T::QUADS {
                let weights = unpack::<T>(group, q);
                let at = g * T::QUADS + q;
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = quad_add::<M, T>(m, &weights, &column[at], *sum);
                }
            }
        }
        job.store(r, sums.map(vaddvq_f32));
    }
}

/// Unpacks quad `q` of some blocks.
#[inline(always)]
fn unpack<T: Quads>(blocks: &[u8], q: usize) -> Quad {
    let mut values = [vdupq_n_s8(0); 8];
    for (i, out) in values.iter_mut().enumerate() {
        let codes: uint8x16_t = T::codes(blocks, 128 * q + 16 * i);
        *out = vreinterpretq_s8_u8(match T::VALUES {
            Values::Lifted(zero) if zero > 0 => vsubq_u8(codes, vdupq_n_u8(zero)),
            _ => T::signed(codes),
        });
    }
    let scales = match T::SCALES {
        ScaleBits::F16(at) => quad_f16(blocks, T::BLOCK, at),
        ScaleBits::Exponent(at) => {
            neon::load_floats(&[0, 1, 2, 3].map(|b| half_scale(blocks[b * T::BLOCK + at])))
        }
        ScaleBits::Computed => {
            let scales = T::computed(blocks);
            if T::GROUP == 16 {
                let scales = [0, 1].map(|odd| [0, 2, 4, 6].map(|p: usize| scales[p + odd]));
                let scales = [neon::load_floats(&scales[0]), neon::load_floats(&scales[1])];
                return Quad { values, scales, offsets: vdupq_n_f32(0.0) };
            }
            neon::load_floats(&scales.as_chunks::<4>().0[q])
        }
    };
    let offsets = match T::MIN {
        Some(at) => quad_f16(blocks, T::BLOCK, at),
        None => vdupq_n_f32(0.0),
    };
    Quad { values, scales: [scales; 2], offsets }
}

/// Adds a quad's dot product to the sum.
#[inline(always)]
fn quad_add<M: Multiply, T: Quads>(
    m: M,
    weights: &Quad,
    column: &Quad32,
    sum: float32x4_t,
) -> float32x4_t {
    let (values, x, scales) = (&weights.values, &column.quants, by_block(&column.scales));
    if T::GROUP == 16 {
        let (a, b) = (one(m, values, x, 0), one(m, values, x, 2));
        let (c, d) = (one(m, values, x, 4), one(m, values, x, 6));
        let even = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
        let (a, b) = (one(m, values, x, 1), one(m, values, x, 3));
        let (c, d) = (one(m, values, x, 5), one(m, values, x, 7));
        let odd = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
        let dots = vfmaq_f32(vmulq_f32(even, weights.scales[0]), odd, weights.scales[1]);
        return vfmaq_f32(sum, dots, scales);
    }
    let (a, b) = (two(m, values, x, 0), two(m, values, x, 2));
    let (c, d) = (two(m, values, x, 4), two(m, values, x, 6));
    let dots = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
    let term = vmulq_f32(vcvtq_f32_s32(dots), scales);
    let sum = vfmaq_f32(sum, term, weights.scales[0]);
    if T::MIN.is_some() {
        // The column stores a quarter of each block's sum.
        let offsets = vmulq_n_f32(weights.offsets, 4.0);
        return vfmaq_f32(sum, offsets, by_block(&column.sums));
    }
    sum
}

/// One number per block from the lanes of [`crate::activations::QUAD_LANES`]: 0 0 2 2 .. and 1 1 3 3 .. from lane 8 on.
#[inline(always)]
fn by_block(lanes: &[f32; 16]) -> float32x4_t {
    let lanes = lanes.as_chunks::<4>().0;
    vtrn1q_f32(neon::load_floats(&lanes[0]), neon::load_floats(&lanes[2]))
}

/// The f16 numbers `field` bytes into each of four blocks of `block` bytes.
#[inline(always)]
fn quad_f16(quad: &[u8], block: usize, field: usize) -> float32x4_t {
    let bits = [0, 1, 2, 3].map(|b| u16_at(quad, b * block + field));
    // SAFETY: the array has four numbers.
    neon::f16x4(unsafe { vld1_u16(bits.as_ptr()) })
}

/// 16 bytes from `at` on.
#[inline(always)]
pub fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    neon::load(part(bytes, at))
}

/// 16 signed bytes from `at` on.
#[inline(always)]
pub fn load_signed(bytes: &[i8], at: usize) -> int8x16_t {
    vreinterpretq_s8_u8(load(bytemuck::cast_slice(bytes), at))
}

/// Unsigned codes minus the code that stands for zero.
#[inline(always)]
pub fn centred<const N: usize>(codes: [uint8x16_t; N], zero: u8) -> [int8x16_t; N] {
    codes.map(|codes| vreinterpretq_s8_u8(vsubq_u8(codes, vdupq_n_u8(zero))))
}

/// Widens sixteen signed bytes to sixteen lanes.
#[inline(always)]
pub fn lanes_16(bytes: int8x16_t) -> [int32x4_t; 4] {
    let [low, high] = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
    [
        vmovl_s16(vget_low_s16(low)),
        vmovl_high_s16(low),
        vmovl_s16(vget_low_s16(high)),
        vmovl_high_s16(high),
    ]
}

/// Numbers times `unit`.
#[inline(always)]
pub fn times<const S: usize>(numbers: [int32x4_t; S], unit: f32) -> [float32x4_t; S] {
    numbers.map(|numbers| vmulq_n_f32(vcvtq_f32_s32(numbers), unit))
}
