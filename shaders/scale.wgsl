// A value times a constant, and a factor that grows with the position if there is one; one quad per thread.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    factor: f32,
    rows_at: u32, // offset of the array in `step`
    length: u32,
    offset: u32,
    scale: f32,
    zero: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
{% if temperature %}
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
{% endif %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.quads {
{% if temperature %}
        let times = (step[params.rows_at + 2u * id.y] + params.offset) / params.length;
        let factor = params.factor * (1.0 + params.scale * log(1.0 + f32(times)));
{% else %}
        let factor = params.factor;
{% endif %}
        out[row_at(params.out, id.y) + id.x] = factor * x[row_at(params.x, id.y) + id.x];
    }
}
