// Quantizes the rows of a value that its kernel did not quantize: a thread handles a piece of sixteen.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    width: u32,
    zero: u32,
    rest: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
{% include "parts/view" %}
{% include "parts/emit" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let piece = id.x;
    if piece >= row_pieces() {
        return;
    }
    let place = row_at(params.x, id.y);
    let last = row_quads() - 1u;
{% for i in range(4) %}
    let x{{ i }} = kept(x[place + min(4u * piece + {{ i }}u, last)], 4u * piece + {{ i }}u);
{% endfor %}
    emit(id.y, piece, mat4x4<f32>(x0, x1, x2, x3));
}
