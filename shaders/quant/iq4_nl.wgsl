{% set facts = {"numbers": "ints", "ints_max": none, "strided": false, "group": 32, "zero": 0} %}
// IQ4_NL: a scale and 32 nibbles that index a table; byte i holds weight i in its low nibble and weight 16 + i in its
// high nibble.
{% set table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113] %}
{% include "parts/table" %}
fn load(at: Place, unit: u32) -> Unit {
    let d = unpack2x16float(d_pair(at, 2u * unit)).xxyy;
    let a = quants_16(at, 2u * unit, 0u);
    let b = quants_16(at, 2u * unit + 1u, 0u);
    return Unit(found(low(a)), found(high(a)), found(low(b)), found(high(b)), d, vec4<f32>());
}
