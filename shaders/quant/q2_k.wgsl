{% set facts = {"numbers": "ints", "ints_max": 3, "strided": true, "group": 16, "zero": none} %}
// Q2_K: 256 integers of two bits in sixteen groups of 16, each with a scale and a minimum of four bits, multiplied by the
// F16s d and dmin. Byte i of 32 bytes holds weights i, 32 + i, 64 + i and 96 + i of a half block of 128 weights.
fn load(at: Place, unit: u32) -> Unit {
    let block = unit / 4u;
    let half = unit / 2u % 2u;
    let side = unit % 2u;
    let a = quants_16(at, block, 2u * half + side);
    let words = vec2<u32>(scales_4(at, block, 2u * half), scales_4(at, block, 2u * half + 1u));
    let bytes = words.xxyy >> (vec4<u32>(0u, 16u, 0u, 16u) + 8u * side);
    let d = unpack2x16float(d_2(at, block, 0u)).x;
    let dmin = unpack2x16float(dmin_2(at, block, 0u)).x;
    let two = vec4<u32>(0x03030303u);
    return Unit(
        a & two,
        (a >> vec4<u32>(2u)) & two,
        (a >> vec4<u32>(4u)) & two,
        (a >> vec4<u32>(6u)) & two,
        d * vec4<f32>(bytes & vec4<u32>(15u)),
        -dmin * vec4<f32>((bytes >> vec4<u32>(4u)) & vec4<u32>(15u)),
    );
}
