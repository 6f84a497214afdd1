{% set facts = {"numbers": "ints", "ints_max": none, "strided": false, "group": 32, "zero": 0} %}
// MXFP4 (OCP Microscaling 1.0): an exponent and 32 floats of four bits (E2M1), doubled here to make them integers; byte i
// holds weight i in its low nibble and weight 16 + i in its high nibble.
{% set table = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12] %}
{% include "parts/table" %}
// 2^(e - 128); for the two smallest exponents that is subnormal, and zero is returned.
fn power(e: u32) -> f32 {
    return select(0.0, bitcast<f32>((e - 1u) << 23u), e > 1u);
}

fn load(at: Place, unit: u32) -> Unit {
    let d = vec2<f32>(power(e_1(at, 2u * unit, 0u)), power(e_1(at, 2u * unit + 1u, 0u))).xxyy;
    let a = quants_16(at, 2u * unit, 0u);
    let b = quants_16(at, 2u * unit + 1u, 0u);
    return Unit(found(low(a)), found(high(a)), found(low(b)), found(high(b)), d, vec4<f32>());
}
