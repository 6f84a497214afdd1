// A part of every group of elements of a row, one element per thread.

struct Params {
    x: vec2<u32>, // view, in floats
    out: vec2<u32>, // view, in floats
    width: u32, // of a part
    first: u32, // its first element in a group
    stride: u32, // elements of a group
    all: u32, // elements of a row of the result
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.all {
        return;
    }
    let place = id.x / params.width * params.stride + params.first + id.x % params.width;
    out[params.out.x + id.y * params.out.y + id.x] = x[params.x.x + id.y * params.x.y + place];
}
