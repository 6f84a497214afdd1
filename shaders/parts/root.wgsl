// 1 / sqrt(x) for a mean of squares. Squares that overflow give NaN: a factor of zero would make zeros of the row.
fn inverse_root(x: f32) -> f32 {
    let is_finite = (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(inverseSqrt(x)), is_finite));
}
