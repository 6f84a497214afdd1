//! Portable f32 vectors: one kernel body, compiled for each instruction level.
//!
//! **The idea.** A kernel is a struct of slices with a `run` that is generic over [`Lanes`]; [`Lanes::enter`]
//! calls it inside a function compiled with the vectors' features. Everything between that function and the
//! intrinsics is `#[inline(always)]`, so the whole kernel becomes one region of that level; a large one is divided by
//! [`Lanes::call`]. Plain Rust that the compiler is to vectorize for a level is such a kernel too, which ignores its
//! lanes.
//!
//! **Price.** A `Lanes` value proves that its features were detected: only `enter` creates it. Products of quantized
//! weights do not use this; they are hand-written for each level.

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sse42;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use bilayer_quant::q8_0;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::quantizer::{self, BLOCK, BLOCKS, Blocks, Scale};

/// The operations of one level on vectors of [`Lanes::N`] f32. Loads and stores take pointers where kernels check
/// their slices once before the loop, slices elsewhere.
pub(crate) trait Lanes: Copy {
    /// A vector.
    type F: Copy;
    /// A vector of bytes of the same instructions.
    type Bytes: crate::bytes::NarrowBytes;
    /// Lanes per vector; divides 32.
    const N: usize;
    /// Rows of a `[rows, 2 N]` f32 accumulator that fit the registers together with their operands.
    const TILE_ROWS: usize;
    /// Number of rows up to which converting f16 for every tile beats converting it once to memory.
    const DIRECT_ROWS: usize;

    /// N elements at any address, as in all loads.
    ///
    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `to` is valid for writing N elements.
    unsafe fn store(self, v: Self::F, to: *mut f32);
    /// The first N elements of a slice.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    fn read(self, from: &[f32]) -> Self::F {
        // SAFETY: the slice has N elements.
        unsafe { self.load(from[..Self::N].as_ptr()) }
    }
    /// Overwrites the first N elements of a slice.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    fn write(self, v: Self::F, to: &mut [f32]) {
        // SAFETY: the slice has N elements.
        unsafe { self.store(v, to[..Self::N].as_mut_ptr()) }
    }
    /// [`Lanes::read`] of f16 values as f32.
    ///
    /// # Panics
    /// If there are fewer than N.
    #[inline(always)]
    fn read_f16(self, from: &[u16]) -> Self::F {
        // SAFETY: the slice has N elements.
        unsafe { self.load_f16(from[..Self::N].as_ptr()) }
    }
    /// [`Lanes::read`] of signed bytes as f32.
    ///
    /// # Panics
    /// If there are fewer than N.
    #[inline(always)]
    fn read_i8(self, from: &[i8]) -> Self::F {
        // SAFETY: the slice has N elements.
        unsafe { self.load_i8(from[..Self::N].as_ptr()) }
    }
    /// N f16 values as f32.
    ///
    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// N bf16 values as f32, from their bytes.
    ///
    /// # Panics
    /// If there are fewer.
    fn read_bf16(self, from: &[u8]) -> Self::F;
    /// Rounds to f16, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writing N elements.
    unsafe fn store_f16(self, v: Self::F, to: *mut u16);
    /// N signed bytes as f32.
    ///
    /// # Safety
    /// `from` is valid for reading N elements.
    unsafe fn load_i8(self, from: *const i8) -> Self::F;
    fn splat(self, x: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once if the level supports it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Magnitudes; that of NaN is arbitrary.
    #[inline(always)]
    fn abs(self, v: Self::F) -> Self::F {
        self.max(v, self.sub(self.splat(0.0), v))
    }
    /// Rounds to the nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// 2 to an integer power in -127..=128; -127 gives 0, 128 gives infinity.
    fn exp2_whole(self, v: Self::F) -> Self::F;
    fn sum(self, v: Self::F) -> f32;
    fn largest(self, v: Self::F) -> f32;
    /// Whether any lane is above `bound`; NaN is not.
    #[inline(always)]
    fn any_above(self, v: Self::F, bound: f32) -> bool {
        self.largest(v) > bound
    }
    /// Quantizes a multiple of 32 activations: `x / scale`, rounded to the nearest integer, ties to even, less the zero point.
    /// Those beyond ±127 become arbitrary bytes.
    #[inline(always)]
    fn quantize(self, x: &[f32], scale: Scale, out: &mut [i8]) {
        quantizer::quantize(x, scale, out);
    }
    /// Quantizes four blocks of 32 activations with a scale each. None if the level is no faster at it than one by one.
    #[inline(always)]
    fn quantize_blocks(self, _x: &[f32; BLOCKS], _out: &mut [i8; BLOCKS]) -> Option<Blocks> {
        None
    }
    /// The block of Q8_0 that a cache keeps of finite values: halves are rounded away from zero, and the scale is an f16.
    #[inline(always)]
    fn quantize_stored(self, x: &[f32; BLOCK]) -> q8_0::Block {
        q8_0::quantize(x)
    }
    /// The bits of the largest magnitude of a multiple of 32 activations; NaN is above infinity.
    #[inline(always)]
    fn peak(self, x: &[f32]) -> u32 {
        quantizer::peak(x)
    }
    /// The sum of a multiple of 32 quants.
    #[inline(always)]
    fn sum_quants(self, quants: &[i8]) -> i32 {
        quantizer::sum(quants)
    }
    /// Prefetches the cache line of an address; any address is allowed.
    fn prefetch(self, address: *const u8);
    /// Runs a kernel compiled for the instructions of these vectors. It is never inlined, so that the parts of a kernel stay
    /// apart ([`Lanes::call`]).
    ///
    /// # Safety
    /// The CPU has the instructions.
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out);
    /// Runs a part of a kernel in a function of its own, which has the registers for itself. It is meant for parts that
    /// are large and have several variants: the time to compile a function grows faster than its size, and attention in one
    /// function would take a third of the time of this crate.
    #[inline(always)]
    fn call<K: Kernel>(self, part: K) -> K::Output {
        let mut output = None;
        self.call_transform(Returning(part), &mut output);
        output.expect("the part ran")
    }
    /// [`Lanes::call`] of a part with one output.
    #[inline(always)]
    fn call_transform<T: Transform>(self, part: T, out: &mut T::Out) {
        // SAFETY: the value proves that the CPU has the instructions.
        unsafe { Self::enter(part, out) }
    }
}

/// A kernel with one output, which is a parameter of the compiled function rather than a field: only so does the
/// compiler know that it overlaps no operand, without which it does not vectorize some loops of plain Rust.
pub(crate) trait Transform {
    type Out: ?Sized;
    /// The body; must be `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L, out: &mut Self::Out);
}

/// A kernel: a struct of its operands.
pub(crate) trait Kernel {
    type Output;
    /// The body; must be `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// A kernel as a transform.
pub(crate) struct Returning<K>(pub(crate) K);

impl<K: Kernel> Transform for Returning<K> {
    /// None before the kernel has run.
    type Out = Option<K::Output>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut Self::Out) {
        *out = Some(self.0.run(l));
    }
}

/// Eight lanes in plain Rust, which the compiler maps to the target's baseline instructions.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Portable {
    #[inline(always)]
    fn map(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
        std::array::from_fn(|i| f(a[i], b[i]))
    }
}

impl Lanes for Portable {
    type F = [f32; 8];
    type Bytes = [u8; 32];
    const N: usize = 8;
    const TILE_ROWS: usize = 1;
    const DIRECT_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, v: Self::F, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: guaranteed by the caller.
        let bits = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        let mut values = [0.0; 8];
        bits.reinterpret_cast::<half::f16>().convert_to_f32_slice(&mut values);
        values
    }
    #[inline(always)]
    fn read_bf16(self, from: &[u8]) -> Self::F {
        let from = from.as_chunks().0;
        std::array::from_fn(|i| f32::from_bits(u32::from(u16::from_le_bytes(from[i])) << 16))
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: Self::F, to: *mut u16) {
        let bits = v.map(|x| half::f16::from_f32_const(x).to_bits());
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[i8; 8]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 8]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        Self::map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::F {
        // Adding and subtracting 1.5 * 2^23 removes the fraction, for |v| < 2^22.
        const SHIFT: f32 = 12_582_912.0;
        v.map(|x| (x + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn exp2_whole(self, v: Self::F) -> Self::F {
        v.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        v.iter().sum()
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        v.iter().fold(f32::MIN, |a, &b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
    #[inline(never)]
    unsafe fn enter<T: Transform>(kernel: T, out: &mut T::Out) {
        kernel.run(Portable, out);
    }
}
