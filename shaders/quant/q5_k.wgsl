{% set facts = {"numbers": "ints", "ints_max": 31, "strided": false, "group": 32, "zero": none} %}
// Q5_K: Q4_K with a fifth bit: bit g of byte i of `high` belongs to weight i of group g.
{% include "parts/k_scales" %}
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let j = unit % 4u;
    let k = k_scales(block_16(at, block, 0u), j);
    let a = quants_16(at, block, 2u * j);
    let b = quants_16(at, block, 2u * j + 1u);
    let c = high_16(at, block, 0u) >> vec4<u32>(2u * j);
    let d = high_16(at, block, 1u) >> vec4<u32>(2u * j);
    let one = vec4<u32>(0x10101010u);
    return Unit(
        low(a) | ((c << vec4<u32>(4u)) & one),
        low(b) | ((d << vec4<u32>(4u)) & one),
        high(a) | ((c << vec4<u32>(3u)) & one),
        high(b) | ((d << vec4<u32>(3u)) & one),
        k.s,
        k.m,
    );
}
