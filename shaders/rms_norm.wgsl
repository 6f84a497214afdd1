// RMS norm of one row per workgroup, optionally of the sum of two rows, optionally quantized for the next product. A
// thread handles whole pieces of sixteen values, so that it can quantize independently; the row is read twice, the
// second time from the cache.

struct Params {
    a: vec2<u32>,
    b: vec2<u32>,
    sum: vec2<u32>,
    out: vec2<u32>,
    width: u32,
    gain: u32, // offset in `vectors`, in quads
    eps: f32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<vec4<f32>>;
{% endif %}
{% include "parts/view" %}
{% include "parts/reduce" %}
{% include "parts/root" %}
{% include "parts/emit" %}
{% include "parts/sum" %}

fn normed(row: u32, quad: u32, factor: f32) -> vec4<f32> {
    let x = load(row, quad) * factor;
{% if at.vectors %}
    return kept(vectors[params.gain + min(quad, row_quads() - 1u)] * x, quad);
{% else %}
    return x;
{% endif %}
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let pieces = row_pieces();
    var squares = vec4<f32>();
    for (var piece = lane; piece < pieces; piece += {{ threads }}u) {
{% for i in range(4) %}
        let x{{ i }} = load(row, 4u * piece + {{ i }}u);
        squares += x{{ i }} * x{{ i }};
{% if at.b %}
        keep(row, 4u * piece + {{ i }}u, x{{ i }});
{% endif %}
{% endfor %}
    }
    let total = reduce_add(dot(squares, vec4<f32>(1.0)), lane);
    let factor = inverse_root(total / f32(params.width) + params.eps);
    for (var piece = lane; piece < pieces; piece += {{ threads }}u) {
{% for i in range(4) %}
        let y{{ i }} = normed(row, 4u * piece + {{ i }}u, factor);
{% endfor %}
        emit(row, piece, mat4x4<f32>(y0, y1, y2, y3));
    }
}
