{% set facts = {"numbers": "ints", "ints_max": none, "strided": false, "group": 32, "zero": 0} %}
// Q8_0: a scale and 32 signed bytes.
fn load(at: Place, unit: u32) -> Unit {
    let d = unpack2x16float(d_pair(at, 2u * unit)).xxyy;
    return Unit(
        quants_16(at, 2u * unit, 0u),
        quants_16(at, 2u * unit, 1u),
        quants_16(at, 2u * unit + 1u, 0u),
        quants_16(at, 2u * unit + 1u, 1u),
        d,
        vec4<f32>(),
    );
}
