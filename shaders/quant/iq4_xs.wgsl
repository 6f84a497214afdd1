{% set facts = {"numbers": "ints", "ints_max": none, "strided": false, "group": 32, "zero": 0} %}
// IQ4_XS: 256 nibbles that index the table of IQ4_NL, in eight groups of 32. Each group has a scale of six bits minus 32:
// four bits in a nibble of `scales_low`, two in `scales_high`. All are multiplied by one F16 d.
{% set table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113] %}
{% include "parts/table" %}
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let j = unit % 4u;
    let a = quants_16(at, block, 2u * j);
    let b = quants_16(at, block, 2u * j + 1u);
    let nibbles = (vec2<u32>(scales_low_4(at, block, 0u)) >> (vec2<u32>(0u, 4u) + 8u * j)) & vec2<u32>(15u);
    let tops = (vec2<u32>(scales_high_2(at, block, 0u)) >> (vec2<u32>(0u, 2u) + 4u * j)) & vec2<u32>(3u);
    let scales = vec2<f32>(nibbles | (tops << vec2<u32>(4u))) - 32.0;
    let s = (unpack2x16float(d_2(at, block, 0u)).x * scales).xxyy;
    return Unit(found(low(a)), found(high(a)), found(low(b)), found(high(b)), s, vec4<f32>());
}
