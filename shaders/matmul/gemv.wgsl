{# Which text: type (its loader and planes), layout, ints, strided, slots, rows (R), columns (N), matrices, bias,
   residual, gate (the name of an activation, or none), threads, subgroup. #}
// Products of a matrix (or several of one input) with {{ columns }} columns: a workgroup makes {{ rows }} rows. A thread
// takes units of 64 weights, so that neighbours read neighbouring bytes; each unit is unpacked once for all columns. All
// sums stay in registers and are added up at the end; one subgroup needs no barrier.
struct Params {
    x: vec2<u32>, // view of floats, in quads; or (0, pieces of a row)
    out: vec2<u32>, // in floats
    residual: vec2<u32>, // in floats
    first_column: u32,
    columns_at: u32, // where `step` has the number of columns
    units: u32,
    rows: u32, // of all matrices together
    row_blocks: u32,
    bias: u32, // place in `vectors`, in floats
    matrices: array<vec4<u32>, 3>, // base, blocks, the first row
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
{% if ints_x %}
@group(0) @binding({{ at.xq }}) var<storage, read> xq: array<vec4<u32>>;
@group(0) @binding({{ at.xs }}) var<storage, read> xs: array<vec2<f32>>;
{% else %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
{% endif %}
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
{% if at.residual %}
@group(0) @binding({{ at.residual }}) var<storage, read> residual: array<f32>;
{% endif %}
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% include "parts/weights" %}
{% include "parts/reduce" %}
{% if gate %}
{% include "parts/activate" %}
{% endif %}

fn place(row: u32) -> Place {
{% if gate or matrices == 1 %}
    return Place(params.matrices[0].x, params.matrices[0].y, row * params.row_blocks);
{% else %}
    var matrix = params.matrices[0];
{% for i in range(1, matrices) %}
    if row >= params.matrices[{{ i }}].z {
        matrix = params.matrices[{{ i }}];
    }
{% endfor %}
    return Place(matrix.x, matrix.y, (row - matrix.z) * params.row_blocks);
{% endif %}
}
{% if gate %}

fn place_up(row: u32) -> Place {
    return Place(params.matrices[1].x, params.matrices[1].y, row * params.row_blocks);
}
{% endif %}
{% if ints and ints_x %}

fn product(q: vec4<u32>, a: vec4<u32>) -> f32 {
    return f32(
        dot4I8Packed(q.x, a.x) + dot4I8Packed(q.y, a.y) + dot4I8Packed(q.z, a.z) + dot4I8Packed(q.w, a.w)
    );
}

// A unit times a column's four pieces: d and d times the sum stand in `s`.
fn unit_product(w: Unit, a0: vec4<u32>, a1: vec4<u32>, a2: vec4<u32>, a3: vec4<u32>, d: vec4<f32>, sums: vec4<f32>) -> f32 {
    let p = vec4<f32>(product(w.q0, a0), product(w.q1, a1), product(w.q2, a2), product(w.q3, a3));
    return dot(w.s * d, p) + dot(w.m, sums);
}
{% elif ints %}

fn unpacked(q: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        vec4<f32>(unpack4xI8(q.x)),
        vec4<f32>(unpack4xI8(q.y)),
        vec4<f32>(unpack4xI8(q.z)),
        vec4<f32>(unpack4xI8(q.w)),
    );
}
{% endif %}
{% if not ints_x %}

fn column(quad: u32) -> mat4x4<f32> {
    return mat4x4<f32>(x[quad], x[quad + 1u], x[quad + 2u], x[quad + 3u]);
}

fn sum_of(a: mat4x4<f32>) -> f32 {
    return dot(a[0] + a[1] + a[2] + a[3], vec4<f32>(1.0));
}

fn product(w: mat4x4<f32>, a: mat4x4<f32>) -> f32 {
    return dot(w[0], a[0]) + dot(w[1], a[1]) + dot(w[2], a[2]) + dot(w[3], a[3]);
}
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (id.x + id.y * 65535u) * {{ rows }}u;
    let first_column = params.first_column + id.z * {{ columns }}u;
    let columns = step[params.columns_at];
    if first_row >= params.rows || first_column >= columns {
        return;
    }
{% for r in range(rows) %}
    let row{{ r }} = min(first_row + {{ r }}u, params.rows - 1u);
    let at{{ r }} = place(row{{ r }});
{% if gate %}
    let at{{ rows + r }} = place_up(row{{ r }});
{% endif %}
{% endfor %}
{% for c in range(columns) %}
    let column{{ c }} = min(first_column + {{ c }}u, columns - 1u);
    let x{{ c }} = params.x.x + column{{ c }} * params.x.y;
{% for s in range(slots) %}
    var sum{{ s }}_{{ c }} = 0.0;
{% endfor %}
{% endfor %}
    for (var unit = lane; unit < params.units; unit += {{ threads }}u) {
{% if strided %}
        let piece = 8u * (unit / 2u) + unit % 2u;
{% set step_of = 2 %}
{% else %}
        let piece = 4u * unit;
{% set step_of = 1 %}
{% endif %}
{% if ints %}
{% for s in range(slots) %}
        let w{{ s }} = load(at{{ s }}, unit);
{% endfor %}
{% for c in range(columns) %}
{% if ints_x %}
{% for p in range(4) %}
        let a{{ c }}_{{ p }} = xq[x{{ c }} + piece + {{ p * step_of }}u];
        let s{{ c }}_{{ p }} = xs[x{{ c }} + piece + {{ p * step_of }}u];
{% endfor %}
        let d{{ c }} = vec4<f32>(s{{ c }}_0.x, s{{ c }}_1.x, s{{ c }}_2.x, s{{ c }}_3.x);
        let sums{{ c }} = vec4<f32>(s{{ c }}_0.y, s{{ c }}_1.y, s{{ c }}_2.y, s{{ c }}_3.y);
{% for s in range(slots) %}
        sum{{ s }}_{{ c }} += unit_product(w{{ s }}, a{{ c }}_0, a{{ c }}_1, a{{ c }}_2, a{{ c }}_3, d{{ c }}, sums{{ c }});
{% endfor %}
{% else %}
{% for p in range(4) %}
        let a{{ c }}_{{ p }} = column(x{{ c }} + 4u * (piece + {{ p * step_of }}u));
        let t{{ c }}_{{ p }} = sum_of(a{{ c }}_{{ p }});
{% endfor %}
{% for s in range(slots) %}
{% for p in range(4) %}
        sum{{ s }}_{{ c }} += w{{ s }}.s[{{ p }}] * product(unpacked(w{{ s }}.q{{ p }}), a{{ c }}_{{ p }}) + w{{ s }}.m[{{ p }}] * t{{ c }}_{{ p }};
{% endfor %}
{% endfor %}
{% endif %}
{% endfor %}
{% else %}
{% for p in range(4) %}
{% for s in range(slots) %}
        let w{{ s }}_{{ p }} = load_piece(at{{ s }}, piece + {{ p }}u);
{% endfor %}
{% for c in range(columns) %}
        let a{{ c }}_{{ p }} = column(x{{ c }} + 4u * (piece + {{ p }}u));
{% for s in range(slots) %}
        sum{{ s }}_{{ c }} += product(w{{ s }}_{{ p }}, a{{ c }}_{{ p }});
{% endfor %}
{% endfor %}
{% endfor %}
{% endif %}
    }
{% for s in range(slots) %}
{% for c in range(columns) %}
    let total{{ s }}_{{ c }} = reduce_add(sum{{ s }}_{{ c }}, lane);
{% endfor %}
{% endfor %}
    if lane > 0u {
        return;
    }
{% for c in range(columns) %}
    if first_column + {{ c }}u < columns {
{% for r in range(rows) %}
{% if gate %}
        var y{{ r }} = activate(vec4<f32>(total{{ r }}_{{ c }})).x * total{{ rows + r }}_{{ c }};
{% else %}
        var y{{ r }} = total{{ r }}_{{ c }};
{% endif %}
{% if bias %}
        y{{ r }} += vectors[params.bias + row{{ r }}];
{% endif %}
{% if residual %}
        y{{ r }} += residual[params.residual.x + column{{ c }} * params.residual.y + row{{ r }}];
{% endif %}
        out[params.out.x + column{{ c }} * params.out.y + row{{ r }}] = y{{ r }};
{% endfor %}
    }
{% endfor %}
}
