//! Vectors of bytes: what it takes to unpack codes, written once for all widths.
//!
//! **The idea.** A type's file in `types/` says where the bits of its codes lie as [`Field`]s of a block; a vector of
//! any width takes the codes of consecutive weights from there. Scales lie in few bytes and are unpacked in [`Words`]:
//! those of one row, or the same bytes of several rows.
//!
//! **Price.** All methods are `#[inline(always)]` and must be called inside a function compiled with the features of
//! the vector's level, as the kernels of `dot/` and `panel/` are. Offsets and shifts are functions of constants, which
//! the optimizer computes once loops are unrolled.

/// Implements methods that are one expression of intrinsics each.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($($method:ident($($args:tt)*) = $call:expr;)*) => {$(
        #[inline(always)]
        fn $method($($args)*) -> Self {
            // SAFETY: vectors of a level are made where the level is available.
            unsafe { $call }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod portable;

/// Where some bits of each weight of a block lie. The first `run` weights have theirs in the lowest bits of the bytes
/// from `at` on, the next `run` weights above those in the same bytes, and so on; when a byte is full, the next `run`
/// bytes follow.
///
/// ```text
/// bits 4, run 32      byte at + l = w[32 + l] << 4 | w[l]        l < 32, then the same for w[64..128]
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub at: usize,
    pub bits: u32,
    pub run: usize,
}

impl Field {
    /// Byte and shift of weight `index`.
    #[inline(always)]
    pub const fn place(self, index: usize) -> (usize, u32) {
        let weights = self.run * (8 / self.bits as usize);
        let byte = self.at + index / weights * self.run + index % self.run;
        (byte, (index % weights / self.run) as u32 * self.bits)
    }

    /// The bits of a code.
    #[inline(always)]
    pub const fn mask(self) -> u8 {
        (0xff_u16 >> (8 - self.bits)) as u8
    }
}

/// A bit of each of 32 weights, weight i at bit i of the four bytes at `at`, and its value in the code.
#[derive(Clone, Copy)]
pub(crate) struct Flags {
    pub at: usize,
    pub value: u8,
}

/// A vector of bytes, one per weight.
pub(crate) trait Bytes: Copy {
    /// Bytes of a vector.
    const WIDTH: usize;

    /// Stores the vector.
    fn store(self, to: &mut [u8]);

    /// The codes of consecutive weights of a block, from weight `first` on, a multiple of the vector's length.
    fn codes(block: &[u8], field: Field, first: usize) -> Self;

    /// Adds bits from another field above the `low` bits that the codes have.
    fn join(self, block: &[u8], field: Field, first: usize, low: u32) -> Self;

    /// Replaces codes below 16 by their values.
    fn look_up(self, values: &[u8; 16]) -> Self;

    /// Inverts the bits of `mask` in every byte.
    fn flip(self, mask: u8) -> Self;

    /// Codes that are found eight at a time.
    fn eights<P: Points>(block: &[u8], first: usize) -> Self;

    /// Sixteen codes at a time.
    fn sixteens<'a>(sixteen: impl Fn(usize) -> &'a [u8; 16]) -> Self;

    /// A base-3 digit of each byte, which is a fraction of 256: the product with a power of three modulo 256, times
    /// three, divided by 256. Powers are equal in pairs of bytes.
    fn digits(self, powers: Self) -> Self;
}

/// A vector of at most the 32 bytes of a block, whose signs and flags fit a word.
pub(crate) trait NarrowBytes: Bytes {
    /// Magnitudes with their signs, a set bit for a negative one, `zero` added.
    fn centred(self, signs: &[u32; 8], first: usize, zero: u8) -> Self;

    /// Adds the flags of a block of 32 weights.
    fn flag(self, block: &[u8], flags: Flags, first: usize) -> Self;
}

/// Codes that are points of a codebook.
pub(crate) trait Points {
    /// Eight codes from code `8 · index` of a block on, the first in the lowest byte. Not a closure, which would not
    /// always be inlined.
    fn eight(block: &[u8], index: usize) -> u64;
}

/// Four bytes of a row, little-endian, or of several rows side by side.
pub(crate) trait Words: Copy {
    fn all(word: u32) -> Self;
    fn and(self, mask: u32) -> Self;
    fn or(self, other: Self) -> Self;
    fn shl(self, bits: u32) -> Self;
    fn shr(self, bits: u32) -> Self;
}

impl Words for u32 {
    #[inline(always)]
    fn all(word: u32) -> u32 {
        word
    }
    #[inline(always)]
    fn and(self, mask: u32) -> u32 {
        self & mask
    }
    #[inline(always)]
    fn or(self, other: u32) -> u32 {
        self | other
    }
    #[inline(always)]
    fn shl(self, bits: u32) -> u32 {
        self << bits
    }
    #[inline(always)]
    fn shr(self, bits: u32) -> u32 {
        self >> bits
    }
}

/// `N` bytes of a block at a constant offset.
#[inline(always)]
pub(crate) fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("blocks have constant layouts")
}

/// The 16 bits at `at`.
#[inline(always)]
pub(crate) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*part(block, at))
}

/// The 32 bits at `at`.
#[inline(always)]
pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*part(block, at))
}

/// The f16 at `at`.
#[inline(always)]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_bits(u16_at(block, at)).to_f32()
}
