// The route of every row to all experts in order: weights of 1, then the experts' indices, one element per thread.

struct Params {
    out: vec2<u32>, // view, in floats
    experts: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= 2u * params.experts {
        return;
    }
    var x = 1.0;
    if id.x >= params.experts {
        x = f32(id.x - params.experts);
    }
    out[params.out.x + id.y * params.out.y + id.x] = x;
}
