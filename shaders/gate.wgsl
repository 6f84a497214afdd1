// activation(gate) * up, or activation(gate) alone, optionally quantized for the next product: a thread handles a
// piece of sixteen values.

struct Params {
    gate: vec2<u32>,
    up: vec2<u32>,
    out: vec2<u32>,
    width: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.gate }}) var<storage, read> gate: array<vec4<f32>>;
{% if up %}
@group(0) @binding({{ at.up }}) var<storage, read> up: array<vec4<f32>>;
{% endif %}
{% include "parts/view" %}
{% include "parts/emit" %}
{% include "parts/activate" %}

fn quad_of(row: u32, quad: u32) -> vec4<f32> {
    let near = min(quad, row_quads() - 1u);
    let x = gate[row_at(params.gate, row) + near];
{% if up %}
    return kept(gated(x, up[row_at(params.up, row) + near]), quad);
{% else %}
    return kept(activate(x), quad);
{% endif %}
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let piece = id.x;
    if piece >= row_pieces() {
        return;
    }
{% for i in range(4) %}
    let y{{ i }} = quad_of(id.y, 4u * piece + {{ i }}u);
{% endfor %}
    emit(id.y, piece, mat4x4<f32>(y0, y1, y2, y3));
}
