//! What the quantizer of activations is made of: in plain Rust, and where a level has instructions for it, in those, with the
//! same bits ([`Lanes`](crate::lanes::Lanes)).

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// Activations of a scale that is found alone.
pub(crate) const BLOCK: usize = 32;

/// Activations whose scales are found together.
pub(crate) const BLOCKS: usize = 4 * BLOCK;

/// The largest activation in eight bits.
pub(crate) const PEAK_8: f32 = 127.0;

/// The largest distance in eight bits from a zero point, which is rounded as well.
const PEAK_AROUND: f32 = 126.0;

/// The largest activation in twelve bits.
#[cfg(target_arch = "x86_64")]
pub(crate) const PEAK_12: f32 = 2047.0;

/// The bits of a float's magnitude, which compare as magnitudes do.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;

/// A scale and its reciprocal, and an integer zero point: x ≈ value · (quant + zero).
#[derive(Clone, Copy, Default)]
pub(crate) struct Scale {
    pub value: f32,
    pub inverse: f32,
    pub zero: i32,
}

impl Scale {
    /// The scale that makes a magnitude, given by its bits, `most`. It is zero for values below 2^-100, so that the
    /// reciprocal is finite; a NaN or infinity makes it NaN.
    #[inline(always)]
    pub fn of(peak: u32, most: f32) -> Scale {
        const LEAST: u32 = 27 << 23;
        const INFINITY: u32 = 0x7f80_0000;
        let is_finite = peak < INFINITY;
        let peak = if peak < LEAST { 0.0 } else { f32::from_bits(peak) };
        let inverse = if peak > 0.0 { most / peak } else { 0.0 };
        Scale { value: if is_finite { peak / most } else { f32::NAN }, inverse, zero: 0 }
    }

    /// The scale of finite activations of which none is farther than `half` from `middle`, nor `middle` from 0, with a zero
    /// point.
    #[inline(always)]
    pub fn around(middle: f32, half: f32) -> Scale {
        let scale = Scale::of(half.to_bits(), PEAK_AROUND);
        Scale { zero: scale.quant(middle), ..scale }
    }

    /// The nearest multiple of the scale, ties to even, less the zero point: at most that of the peak, arbitrary if the scale
    /// is NaN.
    #[inline(always)]
    pub fn quant(self, x: f32) -> i32 {
        // Adding 1.5 · 2^23 rounds to an integer in the low bits: no rounding instruction is needed, so every level
        // vectorizes this.
        const ROUND: f32 = 12_582_912.0;
        (x * self.inverse + ROUND)
            .to_bits()
            .wrapping_sub(ROUND.to_bits())
            .cast_signed()
            .wrapping_sub(self.zero)
    }
}

/// [`Lanes::peak`](crate::lanes::Lanes::peak) in plain Rust. Bits of floats that are not negative compare as their values do,
/// and those of NaN are above infinity's.
#[inline(always)]
pub(crate) fn peak(x: &[f32]) -> u32 {
    x.iter().map(|x| x.to_bits() & MAGNITUDE).fold(0, u32::max)
}

/// [`Lanes::quantize`](crate::lanes::Lanes::quantize) in plain Rust.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], scale: Scale, out: &mut [i8]) {
    // One plain loop: a call of `map` that is not inlined is compiled without the level's instructions, and of a loop over
    // groups the compiler vectorizes the outer one, with gathers.
    for (out, x) in out.iter_mut().zip(x) {
        *out = scale.quant(*x) as i8;
    }
}

/// [`Lanes::sum_quants`](crate::lanes::Lanes::sum_quants) in plain Rust.
#[inline(always)]
pub(crate) fn sum(quants: &[i8]) -> i32 {
    let mut sum = 0i32;
    for quant in quants {
        sum = sum.wrapping_add(i32::from(*quant));
    }
    sum
}

/// The scales and sums of four blocks of 32.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "no other level quantizes four blocks at once")
)]
#[derive(Default)]
pub(crate) struct Blocks {
    pub scales: [f32; 4],
    /// The sums of the quants.
    pub sums: [i32; 4],
}

/// The scale of a block, its quants and their sum.
#[inline(always)]
pub(crate) fn quantize_block(x: &[f32; BLOCK]) -> (f32, [i8; BLOCK], i32) {
    let scale = Scale::of(peak(x), PEAK_8);
    let whole = x.map(|x| scale.quant(x));
    let sum = whole.iter().fold(0, |sum: i32, q| sum.wrapping_add(*q));
    (scale.value, whole.map(|q| q as i8), sum)
}
