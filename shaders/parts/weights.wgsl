{# Access to a matrix: the bindings, `Place`, an accessor for each plane of the type's blocks in the layout, shared
   functions of loaders, and the type's loader itself (`loader`). #}
@group(0) @binding({{ at.weights }}) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding({{ at.words }}) var<storage, read> words: array<u32>;

// A row of a matrix: the matrix's byte offset, its number of blocks, and the row's first block.
struct Place {
    base: u32,
    blocks: u32,
    first: u32,
}

{% if ints %}
// 64 weights in four pieces of sixteen signed bytes: s * q + m each.
struct Unit {
    q0: vec4<u32>,
    q1: vec4<u32>,
    q2: vec4<u32>,
    q3: vec4<u32>,
    s: vec4<f32>,
    m: vec4<f32>,
}

fn low(v: vec4<u32>) -> vec4<u32> {
    return v & vec4<u32>(0x0f0f0f0fu);
}

fn high(v: vec4<u32>) -> vec4<u32> {
    return (v >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

// Moves bit i of sixteen to bit 4 of byte i.
fn fifth(bits: u32) -> vec4<u32> {
    let nibbles = (vec4<u32>(bits) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    // The product moves bit i to 8 i; terms do not overlap.
    return ((nibbles * 0x00204081u) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
}
{% endif %}

{% if layout == "raw" %}
fn word_at(byte: u32) -> u32 {
    return words[byte / 4u];
}

// Sixteen bytes of a block whose size is a multiple of that.
fn block_16(at: Place, block: u32, i: u32) -> vec4<u32> {
    return weights[(at.base + (at.first + block) * {{ block_bytes }}u) / 16u + i];
}
{% for plane in planes %}

fn {{ plane.name }}_at(at: Place, block: u32) -> u32 {
    return at.base + (at.first + block) * {{ block_bytes }}u + {{ plane.offset }}u;
}
{% if plane.offset % 16 == 0 and plane.len % 16 == 0 %}

fn {{ plane.name }}_16(at: Place, block: u32, i: u32) -> vec4<u32> {
    return weights[{{ plane.name }}_at(at, block) / 16u + i];
}
{% endif %}
{% endfor %}
{% else %}
{% for plane in planes %}

fn {{ plane.name }}_at(at: Place, block: u32) -> u32 {
    return at.base + at.blocks * {{ plane.offset }}u + (at.first + block) * {{ plane.len }}u;
}
{% if plane.len % 16 == 0 or not ints %}

fn {{ plane.name }}_16(at: Place, block: u32, i: u32) -> vec4<u32> {
    return weights[{{ plane.name }}_at(at, block) / 16u + i];
}
{% endif %}
{% if plane.len % 4 == 0 %}

fn {{ plane.name }}_4(at: Place, block: u32, i: u32) -> u32 {
    return words[{{ plane.name }}_at(at, block) / 4u + i];
}
{% endif %}
{% if plane.len == 2 %}

// For two adjacent blocks, the first with an even index.
fn {{ plane.name }}_pair(at: Place, block: u32) -> u32 {
    return words[{{ plane.name }}_at(at, block) / 4u];
}
{% endif %}
{% if plane.len % 2 == 0 %}

fn {{ plane.name }}_2(at: Place, block: u32, i: u32) -> u32 {
    let byte = {{ plane.name }}_at(at, block) + 2u * i;
    return (words[byte / 4u] >> (8u * (byte & 2u))) & 0xffffu;
}
{% endif %}

fn {{ plane.name }}_1(at: Place, block: u32, i: u32) -> u32 {
    let byte = {{ plane.name }}_at(at, block) + i;
    return (words[byte / 4u] >> (8u * (byte & 3u))) & 0xffu;
}
{% endfor %}
{% endif %}

{% include loader %}
