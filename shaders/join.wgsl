// Two values group by group, one element per thread.

struct Params {
    a: vec2<u32>, // view, in floats
    b: vec2<u32>, // view, in floats
    out: vec2<u32>, // view, in floats
    widths: vec2<u32>, // elements of a group in a and in b
    all: u32, // elements of a row of the result
    zero0: u32,
    zero1: u32,
    zero2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.a }}) var<storage, read> a: array<f32>;
@group(0) @binding({{ at.b }}) var<storage, read> b: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.all {
        return;
    }
    let width = params.widths.x + params.widths.y;
    let group = id.x / width;
    let i = id.x % width;
    var x = 0.0;
    if i < params.widths.x {
        x = a[params.a.x + id.y * params.a.y + group * params.widths.x + i];
    } else {
        x = b[params.b.x + id.y * params.b.y + group * params.widths.y + i - params.widths.x];
    }
    out[params.out.x + id.y * params.out.y + id.x] = x;
}
