{% set facts = {"numbers": "ints", "ints_max": 15, "strided": false, "group": 32, "zero": none} %}
// Q4_K: 256 nibbles in eight groups of 32, each with a scale and a minimum of six bits, multiplied by the F16s d and
// dmin. A unit is two groups in 32 bytes: one in the low nibbles, one in the high nibbles.
{% include "parts/k_scales" %}
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let j = unit % 4u;
    let k = k_scales(block_16(at, block, 0u), j);
    let a = quants_16(at, block, 2u * j);
    let b = quants_16(at, block, 2u * j + 1u);
    return Unit(low(a), low(b), high(a), high(b), k.s, k.m);
}
