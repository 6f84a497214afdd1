// Sum of two values, one quad per thread.

struct Params {
    a: vec2<u32>,
    b: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.a }}) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding({{ at.b }}) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.quads {
        out[row_at(params.out, id.y) + id.x] =
            a[row_at(params.a, id.y) + id.x] + b[row_at(params.b, id.y) + id.x];
    }
}
