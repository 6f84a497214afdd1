{# What the products have in common: parameters, bindings, and where the rows of their matrices begin. #}
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
