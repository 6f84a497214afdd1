// Mean of the rows from the first of a span to a requested one, one quad per thread. Rows of one span share their
// offset in the page tables, which is unique to the span.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    quads: u32,
    outputs_at: u32, // offsets of the arrays in `step`
    rows_at: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.quads {
        return;
    }
    let last = step[params.outputs_at + id.y];
    let span = step[params.rows_at + 2u * last + 1u];
    var sum = x[row_at(params.x, last) + id.x];
    var row = last;
    while row > 0u && step[params.rows_at + 2u * row - 1u] == span {
        row--;
        sum += x[row_at(params.x, row) + id.x];
    }
    out[row_at(params.out, id.y) + id.x] = sum / f32(last + 1u - row);
}
