// Table rows for the step's tokens or positions: a thread handles a unit of 64 weights.
struct Params {
    out: vec2<u32>, // view, in quads
    ids_at: u32, // offset of the ids in `step`
    units: u32,
    quads: u32, // per row
    row_blocks: u32,
    base: u32,
    blocks: u32,
    first_row: u32, // first table row in this chunk of weights
    rows: u32,
    ids_stride: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}
{% include "parts/weights" %}

fn put(row: u32, piece: u32, values: mat4x4<f32>) {
    let place = row_at(params.out, row) + 4u * piece;
{% for i in range(4) %}
    if 4u * piece + {{ i }}u < params.quads {
        out[place + {{ i }}u] = values[{{ i }}];
    }
{% endfor %}
}
{% if ints %}

fn values(q: vec4<u32>, s: f32, m: f32) -> mat4x4<f32> {
    return mat4x4<f32>(
        s * vec4<f32>(unpack4xI8(q.x)) + m,
        s * vec4<f32>(unpack4xI8(q.y)) + m,
        s * vec4<f32>(unpack4xI8(q.z)) + m,
        s * vec4<f32>(unpack4xI8(q.w)) + m,
    );
}
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = step[params.ids_at + params.ids_stride * id.y];
    if id.x >= params.units || row < params.first_row || row - params.first_row >= params.rows {
        return;
    }
    let at = Place(params.base, params.blocks, (row - params.first_row) * params.row_blocks);
{% if ints %}
    let w = load(at, id.x);
{% for p in range(4) %}
{% if strided %}
    put(id.y, 8u * (id.x / 2u) + id.x % 2u + {{ 2 * p }}u, values(w.q{{ p }}, w.s[{{ p }}], w.m[{{ p }}]));
{% else %}
    put(id.y, 4u * id.x + {{ p }}u, values(w.q{{ p }}, w.s[{{ p }}], w.m[{{ p }}]));
{% endif %}
{% endfor %}
{% else %}
{% for p in range(4) %}
    put(id.y, 4u * id.x + {{ p }}u, load_piece(at, 4u * id.x + {{ p }}u));
{% endfor %}
{% endif %}
}
