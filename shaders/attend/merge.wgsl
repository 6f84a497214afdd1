// Merges the partial results that attend/split left: a thread handles a piece of sixteen elements of a row,
// optionally quantized for the next product. Maximum and sum are combined over the parts as they were over the keys.

struct Params {
    out: vec2<u32>,
    width: u32, // of all heads
    sinks: u32, // offset in `vectors`, in floats
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.parts }}) var<storage, read> parts: array<vec4<f32>>;
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
{% include "parts/view" %}
{% include "parts/emit" %}

fn joined(row: u32, quad: u32) -> vec4<f32> {
    if quad >= row_quads() {
        return vec4<f32>();
    }
    let head = quad / {{ quads }}u;
    let splits = step[4];
    var place = (row * (row_quads() / {{ quads }}u) + head) * splits * {{ quads + 1 }}u;
{% if at.vectors %}
    var top = vectors[params.sinks + head];
    var total = 1.0;
{% else %}
    var top = -1e30;
    var total = 0.0;
{% endif %}
    var sum = vec4<f32>();
    for (var i = 0u; i < splits; i++) {
        let part = parts[place + {{ quads }}u]; // maximum, sum of weights
        let next = max(top, part.x);
        let shrink = exp(top - next);
        let weight = exp(part.x - next);
        total = total * shrink + part.y * weight;
        sum = sum * shrink + parts[place + quad % {{ quads }}u] * weight;
        top = next;
        place += {{ quads + 1 }}u;
    }
    return sum / total;
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let piece = id.x;
    if piece >= row_pieces() {
        return;
    }
{% for i in range(4) %}
    let x{{ i }} = joined(id.y, 4u * piece + {{ i }}u);
{% endfor %}
    emit(id.y, piece, mat4x4<f32>(x0, x1, x2, x3));
}
