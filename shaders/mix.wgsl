// Weighted sum of the chosen experts' outputs, one quad per thread.

struct Params {
    x: vec2<u32>, // [rows, used * width]
    out: vec2<u32>,
    route: vec2<u32>, // in floats
    quads: u32, // per row of the result
    used: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.route }}) var<storage, read> route: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.quads {
        return;
    }
    let first = row_at(params.x, id.y) + id.x;
    let weights = row_at(params.route, id.y);
    var sum = vec4<f32>();
    for (var place = 0u; place < params.used; place++) {
        sum += route[weights + place] * x[first + place * params.quads];
    }
    out[row_at(params.out, id.y) + id.x] = sum;
}
