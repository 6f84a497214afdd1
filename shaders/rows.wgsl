// Copies the rows whose logits are requested, one quad per thread.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    outputs_at: u32, // offset of the list in `step`
    zero: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.quads {
        let source = step[params.outputs_at + id.y];
        out[row_at(params.out, id.y) + id.x] = x[row_at(params.x, source) + id.x];
    }
}
