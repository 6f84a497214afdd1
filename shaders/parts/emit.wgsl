{# Epilogue of kernels that compute whole pieces of sixteen values: stores them as floats in `out`, or as quantized
   activations in `xq` and `xs`. The kernel's Params have `out` (view) and `width`. #}
{% if at.out %}
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% endif %}
{% if at.xq %}
@group(0) @binding({{ at.xq }}) var<storage, read_write> xq: array<vec4<u32>>;
@group(0) @binding({{ at.xs }}) var<storage, read_write> xs: array<vec2<f32>>;
{% include "parts/quantize" %}
{% endif %}
// Quads per row, the last one possibly extending beyond the width.
fn row_quads() -> u32 {
    return (params.width + 3u) / 4u;
}

// Pieces per row: whole units of 64, as products read them.
fn row_pieces() -> u32 {
    return (params.width + 63u) / 64u * 4u;
}

// The quad with elements beyond the width set to zero.
fn kept(v: vec4<f32>, quad: u32) -> vec4<f32> {
    return select(vec4<f32>(), v, vec4<u32>(0u, 1u, 2u, 3u) + 4u * quad < vec4<u32>(params.width));
}

// Stores the sixteen values of a piece; those beyond the width are zero.
fn emit(row: u32, piece: u32, v: mat4x4<f32>) {
{% if at.out %}
    let place = row_at(params.out, row) + 4u * piece;
    let quads = row_quads();
{% for i in range(4) %}
    if 4u * piece + {{ i }}u < quads {
        out[place + {{ i }}u] = v[{{ i }}];
    }
{% endfor %}
{% endif %}
{% if at.xq %}
    let one = quantized(v);
    xq[row * row_pieces() + piece] = one.q;
    xs[row * row_pieces() + piece] = one.s;
{% endif %}
}
