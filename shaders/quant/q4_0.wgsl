{% set facts = {"numbers": "ints", "ints_max": 15, "strided": false, "group": 32, "zero": 8} %}
// Q4_0: a scale and 32 nibbles minus 8; byte i holds weight i in its low nibble and weight 16 + i in its high nibble.
fn load(at: Place, unit: u32) -> Unit {
    let d = unpack2x16float(d_pair(at, 2u * unit)).xxyy;
    let a = quants_16(at, 2u * unit, 0u);
    let b = quants_16(at, 2u * unit + 1u, 0u);
    return Unit(low(a), high(a), low(b), high(b), d, -8.0 * d);
}
