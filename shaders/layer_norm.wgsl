// Layer norm of one row per workgroup, with the options of rms_norm. The variance is computed from the differences
// from the mean, in a separate pass: the difference of two large sums would lose precision.

struct Params {
    a: vec2<u32>,
    b: vec2<u32>,
    sum: vec2<u32>,
    out: vec2<u32>,
    width: u32,
    gain: u32, // offsets in `vectors`, in quads
    bias: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<vec4<f32>>;
{% include "parts/view" %}
{% include "parts/reduce" %}
{% include "parts/root" %}
{% include "parts/emit" %}
{% include "parts/sum" %}

fn normed(row: u32, quad: u32, mean: f32, factor: f32) -> vec4<f32> {
    let near = min(quad, row_quads() - 1u);
    let y = vectors[params.gain + near] * ((load(row, quad) - mean) * factor);
    return kept(y{% if bias %} + vectors[params.bias + near]{% endif %}, quad);
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let pieces = row_pieces();
    var sums = vec4<f32>();
    for (var piece = lane; piece < pieces; piece += {{ threads }}u) {
{% for i in range(4) %}
        let x{{ i }} = load(row, 4u * piece + {{ i }}u);
        sums += x{{ i }};
{% if at.b %}
        keep(row, 4u * piece + {{ i }}u, x{{ i }});
{% endif %}
{% endfor %}
    }
    let mean = reduce_add(dot(sums, vec4<f32>(1.0)), lane) / f32(params.width);
    var squares = vec4<f32>();
    for (var piece = lane; piece < pieces; piece += {{ threads }}u) {
{% for i in range(4) %}
        let x{{ i }} = kept(load(row, 4u * piece + {{ i }}u) - mean, 4u * piece + {{ i }}u);
        squares += x{{ i }} * x{{ i }};
{% endfor %}
    }
    let total = reduce_add(dot(squares, vec4<f32>(1.0)), lane);
    let factor = inverse_root(total / f32(params.width) + params.eps);
    for (var piece = lane; piece < pieces; piece += {{ threads }}u) {
{% for i in range(4) %}
        let y{{ i }} = normed(row, 4u * piece + {{ i }}u, mean, factor);
{% endfor %}
        emit(row, piece, mat4x4<f32>(y0, y1, y2, y3));
    }
}
