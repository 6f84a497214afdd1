{# The scales and minimums of Q4_K and Q5_K: eight of each, six bits, in twelve bytes after d and dmin. #}
struct KScales {
    s: vec4<f32>,
    m: vec4<f32>,
}

// The scales and minimums of groups 2 j and 2 j + 1, for the four pieces of a unit.
fn k_scales(head: vec4<u32>, j: u32) -> KScales {
    let words = head.yzw >> vec3<u32>(16u * (j % 2u));
    let first = words.xy & vec2<u32>(0x3f3fu);
    let last = (vec2<u32>(words.z, words.z >> 4u) & vec2<u32>(0x0f0fu))
        | ((words.xy >> vec2<u32>(2u)) & vec2<u32>(0x3030u));
    let bytes = select(last, first, j < 2u);
    let d = unpack2x16float(head.x);
    let scales = d.x * vec2<f32>(vec2<u32>(bytes.x & 0xffu, (bytes.x >> 8u) & 0xffu));
    let minima = -d.y * vec2<f32>(vec2<u32>(bytes.y & 0xffu, (bytes.y >> 8u) & 0xffu));
    return KScales(scales.xxyy, minima.xxyy);
}
