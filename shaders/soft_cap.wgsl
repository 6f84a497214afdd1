// cap * tanh(x / cap), one quad per thread; the argument is clamped to where no GPU's tanh overflows.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    cap: f32,
    zero: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.quads {
        let most = vec4<f32>(15.0);
        let y = x[row_at(params.x, id.y) + id.x];
        let capped = params.cap * tanh(clamp(y / params.cap, -most, most));
        // Clamping may make a number of NaN.
        let is_number = (bitcast<vec4<u32>>(y) & vec4<u32>(0x7fffffffu)) <= vec4<u32>(0x7f800000u);
        out[row_at(params.out, id.y) + id.x] = select(y, capped, is_number);
    }
}
