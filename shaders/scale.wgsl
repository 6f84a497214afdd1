// A value times a constant, one quad per thread.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    factor: f32,
    zero: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.quads {
        out[row_at(params.out, id.y) + id.x] =
            params.factor * x[row_at(params.x, id.y) + id.x];
    }
}
