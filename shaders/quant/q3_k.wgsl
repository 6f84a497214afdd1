{% set facts = {"numbers": "ints", "ints_max": 7, "strided": true, "group": 16, "zero": 4} %}
// Q3_K: 256 integers of three bits minus 4 in sixteen groups of 16, each with a scale of six bits minus 32, multiplied by
// one F16 d. The two lower bits are stored as in Q2_K; bit 4 half + p of byte i of `high` is the upper bit of weight
// 32 p + i of that half.
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let half = unit / 2u % 2u;
    let side = unit % 2u;
    let a = quants_16(at, block, 2u * half + side);
    let c = high_16(at, block, side) >> vec4<u32>(4u * half);
    // The scale of group 8 half + 2 p + side: four bits in a nibble of the first eight bytes, two bits in the last four.
    let words = vec2<u32>(scales_4(at, block, 0u), scales_4(at, block, 1u));
    let shifts = vec4<u32>(0u, 16u, 0u, 16u) + 8u * side;
    let nibbles = (words.xxyy >> (shifts + 4u * half)) & vec4<u32>(15u);
    let tops = vec4<u32>(scales_4(at, block, 2u)) >> (shifts + vec4<u32>(0u, 0u, 2u, 2u) + 4u * half);
    let scales = nibbles | ((tops & vec4<u32>(3u)) << vec4<u32>(4u));
    let s = unpack2x16float(d_2(at, block, 0u)).x * (vec4<f32>(scales) - 32.0);
    let two = vec4<u32>(0x03030303u);
    let four = vec4<u32>(0x04040404u);
    return Unit(
        (a & two) | ((c << vec4<u32>(2u)) & four),
        ((a >> vec4<u32>(2u)) & two) | ((c << vec4<u32>(1u)) & four),
        ((a >> vec4<u32>(4u)) & two) | (c & four),
        ((a >> vec4<u32>(6u)) & two) | ((c >> vec4<u32>(1u)) & four),
        s,
        -4.0 * s,
    );
}
