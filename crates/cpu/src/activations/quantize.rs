//! The activation quantizer: eight bits, or twelve, and one scale.

/// Activations in eight bits.
pub(crate) struct Quantized<const N: usize> {
    pub scale: f32,
    /// -127 to 127.
    pub quants: [i8; N],
    /// The sum of the quants.
    pub sum: i32,
}

/// The largest activation in eight bits.
pub(super) const PEAK_8: f32 = 127.0;

/// The largest activation in twelve bits.
#[cfg(target_arch = "x86_64")]
pub(crate) const PEAK_12: f32 = 2047.0;

/// A scale and its reciprocal.
#[derive(Clone, Copy, Default)]
pub(super) struct Scale {
    pub value: f32,
    inverse: f32,
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
        Scale { value: if is_finite { peak / most } else { f32::NAN }, inverse }
    }

    /// The nearest multiple of the scale, ties to even: at most that of the peak, arbitrary if the scale is NaN.
    #[inline(always)]
    pub fn quant(self, x: f32) -> i32 {
        // Adding 1.5 · 2^23 rounds to an integer in the low bits: no rounding instruction is needed, so every level
        // vectorizes this.
        const ROUND: f32 = 12_582_912.0;
        (x * self.inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
    }
}

/// The scale of some activations in eight bits, max|x| / 127; see [`scale_for`].
#[inline(always)]
pub(super) fn scale_of(x: &[f32]) -> Scale {
    scale_for(x, PEAK_8)
}

/// The scale that makes the largest of some activations `most`; see [`Scale::of`].
#[inline(always)]
pub(super) fn scale_for(x: &[f32], most: f32) -> Scale {
    Scale::of(peak(x), most)
}

/// The bits of the largest magnitude: those of non-negative floats compare as their values do, and NaN is above infinity.
#[inline(always)]
pub(super) fn peak(x: &[f32]) -> u32 {
    x.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max)
}

/// Quantizes some activations with one scale: x becomes round(x / scale).
#[inline(always)]
pub(crate) fn quantize<const N: usize>(x: &[f32; N]) -> Quantized<N> {
    let scale = scale_of(x);
    let whole = x.map(|x| scale.quant(x));
    let sum = whole.iter().fold(0, |sum: i32, q| sum.wrapping_add(*q));
    Quantized { scale: scale.value, quants: whole.map(|q| q as i8), sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizing_rounds_to_even_and_marks_what_is_not_finite() {
        let mut x = [0.0; 32];
        let Quantized { scale, quants, sum } = quantize(&x);
        assert_eq!((scale, quants, sum), (0.0, [0; 32], 0));
        (x[3], x[4], x[5], x[6]) = (-127.0, 2.5, 3.5, -0.5);
        let Quantized { scale, quants: q, sum } = quantize(&x);
        assert_eq!((scale, q[3], q[4], q[5], q[6], sum), (1.0, -127, 2, 4, 0, -121));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[7] = odd;
            assert!(quantize(&x).scale.is_nan());
        }
    }
}
