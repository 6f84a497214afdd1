// Elements of the KV cache from their bits: the levels of codes in the bytes of a word.
{% for type in [key, value] %}
{% if loop.first or type.name != key.name %}
{% if type.name == "bf16" %}

fn from_bf16(words: vec2<u32>) -> vec4<f32> {
    let low = words << vec2<u32>(16u);
    let high = words & vec2<u32>(0xffff0000u);
    return bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y));
}
{% elif type.words > 0 and type.bits < 8 %}

fn {{ type.rule }}_{{ type.bits }}(codes: u32) -> vec4<f32> {
{% if type.rule == "range" %}
    return vec4<f32>(unpack4xU8(codes));
{% elif type.rule == "signed" %}
    return vec4<f32>(unpack4xU8(codes)) - {{ 2 ** (type.bits - 1) }}.0;
{% else %}
    let levels = one_found((vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u));
    return vec4<f32>(bitcast<vec4<i32>>(levels << vec4<u32>(24u)) >> vec4<u32>(24u));
{% endif %}
}
{% endif %}
{% endif %}
{% endfor %}
{% if key.bits == 5 or value.bits == 5 %}

// Bits 0 to 3 as the fifth bits of four bytes.
fn fifths(bits: u32) -> u32 {
    return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4u;
}
{% endif %}
{% if key.rule == "codebook" or value.rule == "codebook" %}
{% set table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113] %}
{% include "parts/table" %}
{% endif %}
