{# Shared by the products: parameters, bindings, and the offsets of their matrices' rows. #}
struct Params {
    x: vec2<u32>, // view of floats, in quads; or (0, pieces per row), or of halves, in eights
    out: vec2<u32>, // in floats
    residual: vec2<u32>, // in floats
    first_column: u32,
    columns_at: u32, // offset of the number of columns in `step`
    units: u32,
    rows: u32, // of all matrices together
    row_blocks: u32,
    bias: u32, // offset of the bias or of factors in `vectors`, in floats
    matrices: array<vec4<u32>, 3>, // base, blocks, the first row
    route: vec2<u32>, // in floats
    used: u32, // experts per row
    pitch: u32, // distance between the inputs of a row's experts, in units of x; 0 if they share it
    part: vec2<u32>, // rows of the stack in this chunk: the first, and their number
    pairs_at: u32, // offset of the pairs in `table`
    zero: u32,
    norm: Norm,
    emitted: Emitted,
}

struct Norm {
    width: f32, // of what squares were summed
    eps: f32,
    quads: u32, // of sums, for each row
    zero: u32,
}

struct Emitted {
    gain: u32, // offset in `vectors`, in floats
    at: u32, // offset of `y`, in quads
    stride: u32, // from row to row, in quads or pieces
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
{% if ints_x %}
@group(0) @binding({{ at.xq }}) var<storage, read> xq: array<vec4<u32>>;
@group(0) @binding({{ at.xs }}) var<storage, read> xs: array<vec2<f32>>;
{% elif halves_x %}
struct Eight {
    a: vec4<f16>,
    b: vec4<f16>,
}
@group(0) @binding({{ at.xh }}) var<storage, read> xh: array<Eight>;
@group(0) @binding({{ at.xs }}) var<storage, read> xs: array<f32>; // the factor of each row
{% else %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
{% endif %}
{% if at.squares %}
@group(0) @binding({{ at.squares }}) var<storage, read> squares: array<vec4<f32>>;
{% endif %}
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
{% if at.residual %}
@group(0) @binding({{ at.residual }}) var<storage, read> residual: array<f32>;
{% endif %}
{% if experts == "pair" %}
@group(0) @binding({{ at.route }}) var<storage, read> route: array<f32>;
{% elif experts == "group" %}
@group(0) @binding({{ at.table }}) var<storage, read> table: array<u32>;
{% endif %}
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% if at.yq %}
@group(0) @binding({{ at.yq }}) var<storage, read_write> yq: array<vec4<u32>>;
@group(0) @binding({{ at.ys }}) var<storage, read_write> ys: array<vec2<f32>>;
{% endif %}
{% if at.y %}
@group(0) @binding({{ at.y }}) var<storage, read_write> y: array<vec4<f32>>;
{% endif %}
{% if at.squares_out %}
@group(0) @binding({{ at.squares_out }}) var<storage, read_write> squares_out: array<f32>;
{% endif %}
{% include "parts/weights" %}
{% if gate %}
{% include "parts/activate" %}
{% endif %}

{% if experts %}
// The first row of the workgroup's expert in the stack; its matrix has params.rows.
var<private> expert_row: u32;

const NO_EXPERT: u32 = 0xffffffffu;

{% if experts == "pair" %}
// The expert of a row and a slot in its route.
fn expert_of(pair: u32) -> u32 {
    let row = params.route.x + (pair / params.used) * params.route.y;
    let number = route[row + params.used + pair % params.used];
    return select(u32(max(number, 0.0)), NO_EXPERT, number < 0.0);
}
{% endif %}

// Column `column` of the product: a pair of row and slot in its route.
fn pair_of(column: u32) -> u32 {
    return {% if experts == "group" %}table[params.pairs_at + column]{% else %}column{% endif %};
}

fn x_of(column: u32) -> u32 {
    let pair = pair_of(column);
    return params.x.x + (pair / params.used) * params.x.y + (pair % params.used) * params.pitch;
}

// The row of x of a column.
fn row_of(column: u32) -> u32 {
    return pair_of(column) / params.used;
}

fn out_of(column: u32) -> u32 {
    let pair = pair_of(column);
    return params.out.x + (pair / params.used) * params.out.y + (pair % params.used) * params.rows;
}

// Whether any of the rows from `first` up to `end` of an expert's matrix, which begins at `start`, are in this chunk.
fn is_here(start: u32, first: u32, end: u32) -> bool {
    return start + min(end, params.rows) > params.part.x && start + first < params.part.x + params.part.y;
}

// The index within this chunk of a row of the expert's matrix; too large if it is not in this chunk.
fn here(row: u32) -> u32 {
    return expert_row + row - params.part.x;
}

fn place_in(matrix: vec4<u32>, row: u32) -> Place {
    return Place(matrix.x, matrix.y, min(here(row), params.part.y - 1u) * params.row_blocks);
}

fn place(row: u32) -> Place {
    return place_in(params.matrices[0], row);
}
{% if gate %}

fn place_up(row: u32) -> Place {
    return place_in(params.matrices[1], row);
}
{% endif %}
{% else %}
fn x_of(column: u32) -> u32 {
    return params.x.x + column * params.x.y;
}

fn row_of(column: u32) -> u32 {
    return column;
}

fn out_of(column: u32) -> u32 {
    return params.out.x + column * params.out.y;
}

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
{% endif %}
