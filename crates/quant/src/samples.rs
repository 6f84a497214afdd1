//! Numbers for tests, equal in every run: values as of weights, and costs as of their columns.

/// Values that are nearly Gaussian, of mean 0 and variance 1: sums of twelve uniform numbers, less six.
pub(crate) fn values<const N: usize>(seed: u64) -> [f32; N] {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    std::array::from_fn(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
}

/// Positive costs, some ten times the others.
pub(crate) fn costs<const N: usize>(seed: u64) -> [f32; N] {
    values(seed ^ 0xc057).map(f32::exp)
}
