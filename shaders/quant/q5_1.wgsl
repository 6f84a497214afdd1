{% set facts = {"numbers": "ints", "ints_max": 31, "strided": false, "group": 32, "zero": none} %}
// Q5_1: a scale, a minimum and 32 integers of five bits: nibbles as in Q4_1; bit i of `high` is the fifth bit of weight i.
fn load(at: Place, unit: u32) -> Unit {
    let d = unpack2x16float(d_pair(at, 2u * unit)).xxyy;
    let m = unpack2x16float(m_pair(at, 2u * unit)).xxyy;
    let a = quants_16(at, 2u * unit, 0u);
    let b = quants_16(at, 2u * unit + 1u, 0u);
    let i = high_4(at, 2u * unit, 0u);
    let j = high_4(at, 2u * unit + 1u, 0u);
    return Unit(
        low(a) | fifth(i),
        high(a) | fifth(i >> 16u),
        low(b) | fifth(j),
        high(b) | fifth(j >> 16u),
        d,
        m,
    );
}
