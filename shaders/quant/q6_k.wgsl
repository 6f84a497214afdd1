{% set facts = {"numbers": "ints", "ints_max": 63, "strided": true, "group": 16, "zero": 32} %}
// Q6_K: 256 integers of six bits minus 32 in sixteen groups of 16, each with a signed byte as scale, multiplied by one F16
// d. In a half block of 128 weights, byte i of 64 bytes of `low` holds the low bits of weights i and 64 + i, and byte i of
// 32 bytes of `high` the upper bits of weights i, 32 + i, 64 + i and 96 + i. A unit has sixteen values of i, so its
// pieces are 32 weights apart.
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let half = unit / 2u % 2u;
    let side = unit % 2u;
    let a = low_16(at, block, 4u * half + side);
    let b = low_16(at, block, 4u * half + 2u + side);
    let c = high_16(at, block, 2u * half + side);
    let words = vec2<u32>(scales_4(at, block, 2u * half), scales_4(at, block, 2u * half + 1u));
    let bytes = words.xxyy >> (vec4<u32>(0u, 16u, 0u, 16u) + 8u * side);
    let scales = bitcast<vec4<i32>>(bytes << vec4<u32>(24u)) >> vec4<u32>(24u);
    let s = unpack2x16float(d_2(at, block, 0u)).x * vec4<f32>(scales);
    let two = vec4<u32>(0x30303030u);
    return Unit(
        low(a) | ((c << vec4<u32>(4u)) & two),
        low(b) | ((c << vec4<u32>(2u)) & two),
        high(a) | (c & two),
        high(b) | ((c >> vec4<u32>(2u)) & two),
        s,
        -32.0 * s,
    );
}
