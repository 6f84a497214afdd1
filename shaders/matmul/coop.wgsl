{# Variant: as matmul/tile, and `coop` (edge of a fragment), `subgroup` (its threads), `slots` (rows of weights, of both
   matrices if gated). The input is halves (shaders/halve.wgsl). #}
enable f16;
enable wgpu_cooperative_matrix;
// GEMM on matrix units: products of a matrix (or two, gated) with many columns. Four subgroups compute a tile of
// {{ slots }} rows and 64 columns, two by two, each of these in fragments that its threads hold together. A unit of 64 weights
// of each row is unpacked to halves in workgroup memory, as are 64 values of each column; sums are f32.
//
// Rows in workgroup memory are 72 halves apart: sixteen rows of 16 bytes, which a subgroup reads at once, lie in all banks
// equally. A fragment is loaded once a unit and used for a whole row or column of the subgroup's fragments.
{% include "parts/product" %}
{% set pitch = 72 %}
{% set area = coop * coop %}
{% set down = slots // 2 // coop %}
{% set across = 32 // coop %}
{% set results = down // 2 if gate else down %}
{% set step_of = 2 if strided else 1 %}
var<workgroup> tile_w: array<f16, {{ slots * pitch }}>; // [slots, 72]
var<workgroup> tile_x: array<f16, {{ 64 * pitch }}>; // [64 columns, 72]
var<workgroup> sums: array<f32, {{ 4 * area }}>; // a fragment of each subgroup, [columns, rows]

// Half of the slots belong to each row of subgroups; gated, a half of those has rows of the first matrix.
fn place_of_slot(slot: u32, first_row: u32) -> Place {
{% if gate %}
    let side = slot % {{ slots // 2 }}u;
    let row = min(first_row + slot / {{ slots // 2 }}u * {{ slots // 4 }}u + side % {{ slots // 4 }}u, params.rows - 1u);
    if side < {{ slots // 4 }}u {
        return place(row);
    }
    return place_up(row);
{% else %}
    return place(min(first_row + slot, params.rows - 1u));
{% endif %}
}

fn put_weights(to: u32, v: vec4<f32>) {
    let h = vec4<f16>(v);
    tile_w[to] = h.x;
    tile_w[to + 1u] = h.y;
    tile_w[to + 2u] = h.z;
    tile_w[to + 3u] = h.w;
}
{% if ints %}

fn put_piece(to: u32, q: vec4<u32>, s: f32, m: f32) {
    put_weights(to, vec4<f32>(unpack4xI8(q.x)) * s + m);
    put_weights(to + 4u, vec4<f32>(unpack4xI8(q.y)) * s + m);
    put_weights(to + 8u, vec4<f32>(unpack4xI8(q.z)) * s + m);
    put_weights(to + 12u, vec4<f32>(unpack4xI8(q.w)) * s + m);
}
{% endif %}

fn put_column(to: u32, h: vec4<f16>) {
    tile_x[to] = h.x;
    tile_x[to + 1u] = h.y;
    tile_x[to + 2u] = h.z;
    tile_x[to + 3u] = h.w;
}

// Stores a sum of row and column, and with two matrices that of the second, if they are of the product.
fn store(row: u32, column: u32, columns: u32, sum: f32, other: f32) {
    if column >= columns || row >= params.rows{% if experts %} || here(row) >= params.part.y{% endif %} {
        return;
    }
    let factor = xs[row_of(column)];
{% if gate %}
    var y = gated(vec4<f32>(sum * factor), vec4<f32>(other * factor)).x;
{% else %}
    var y = sum * factor;
{% endif %}
{% if bias %}
    y += vectors[params.bias + row{% if experts %} + expert_row{% endif %}];
{% endif %}
{% if residual %}
    y += residual[params.residual.x + column * params.residual.y + row];
{% endif %}
    out[out_of(column) + row] = y;
}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) team: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let first_row = id.x * {{ rows }}u;
{% if experts %}
    let group = params.first_column + id.z;
    if group >= table[0] {
        return;
    }
    let start = table[4u * group + 4u] * params.rows;
    let first_column = table[4u * group + 5u];
    let columns = table[4u * group + 6u];
    // As `is_here`, which naga does not see to be uniform.
    if start + min(first_row + {{ rows }}u, params.rows) <= params.part.x {
        return;
    }
    if start + first_row >= params.part.x + params.part.y {
        return;
    }
    expert_row = start;
{% else %}
    let first_column = params.first_column + id.z * 64u;
    let columns = step[params.columns_at];
{% endif %}
    let team_sums = team * {{ area }}u;
    let team_w = team / 2u * {{ slots // 2 * pitch }}u;
    let team_x = team % 2u * {{ 32 * pitch }}u;
    for (var i = thread; i < {{ 4 * area }}u; i += {{ threads }}u) {
        sums[i] = 0.0;
    }
    workgroupBarrier();
{% for i in range(down) %}
{% for c in range(across) %}
    var sum{{ i }}_{{ c }} = coopLoad<coop_mat{{ coop }}x{{ coop }}<f32, C>>(&sums[team_sums], {{ coop }}u);
{% endfor %}
{% endfor %}
    for (var unit = 0u; unit < params.units; unit++) {
{% if strided %}
        let piece = 8u * (unit / 2u) + unit % 2u;
{% else %}
        let piece = 4u * unit;
{% endif %}
        workgroupBarrier();
{% if ints %}
{# Threads beyond the slots share the pieces of a slot. #}
{% set shares = [threads // slots, 1] | max %}
{% if threads >= slots %}
        {
            let slot = thread % {{ slots }}u;
{% else %}
        for (var slot = thread; slot < {{ slots }}u; slot += {{ threads }}u) {
{% endif %}
            let at = place_of_slot(slot, first_row);
            let to = {{ pitch }}u * slot;
{% for share in range(shares) %}
            {% if shares > 1 %}if thread / {{ slots }}u == {{ share }}u {% endif %}{
                let w = load(at, unit);
{% for p in range(4 // shares * share, 4 // shares * (share + 1)) %}
                put_piece(to + {{ 16 * p }}u, w.q{{ p }}, w.s[{{ p }}], w.m[{{ p }}]);
{% endfor %}
            }
{% endfor %}
        }
{% else %}
        for (var i = thread; i < {{ 4 * slots }}u; i += {{ threads }}u) {
            let slot = i / 4u;
            let w = load_piece(place_of_slot(slot, first_row), piece + i % 4u);
            let to = {{ pitch }}u * slot + 16u * (i % 4u);
{% for q in range(4) %}
            put_weights(to + {{ 4 * q }}u, w[{{ q }}]);
{% endfor %}
        }
{% endif %}
{# Eight halves a thread and turn; eight threads read what a column has in a unit. #}
{% for i in range(512 // threads) %}
        {
            let part = thread + {{ i * threads }}u;
            let column = min(first_column + part / 8u, columns - 1u);
            let h = xh[x_of(column) + 2u * (piece + {{ step_of }}u * (part % 8u / 2u)) + part % 2u];
            let to = {{ pitch }}u * (part / 8u) + 8u * (part % 8u);
            put_column(to, h.a);
            put_column(to + 4u, h.b);
        }
{% endfor %}
        workgroupBarrier();
{# Small fragments are too many to write all products out. #}
{% for k in range(64 // coop if coop == 16 else 1) %}
{% if coop == 16 %}
        {
            let k = {{ k * coop }}u;
{% else %}
        for (var k = 0u; k < 64u; k += {{ coop }}u) {
{% endif %}
{% for c in range(across) %}
            let x{{ c }} = coopLoad<coop_mat{{ coop }}x{{ coop }}<f16, B>>(&tile_x[team_x + {{ c * coop * pitch }}u + k], {{ pitch }}u);
{% endfor %}
{% for i in range(down) %}
            let w{{ i }} = coopLoadT<coop_mat{{ coop }}x{{ coop }}<f16, A>>(&tile_w[team_w + {{ i * coop * pitch }}u + k], {{ pitch }}u);
{% for c in range(across) %}
            sum{{ i }}_{{ c }} = coopMultiplyAdd(w{{ i }}, x{{ c }}, sum{{ i }}_{{ c }});
{% endfor %}
{% endfor %}
        }
{% endfor %}
    }
    let team_row = first_row + team / 2u * {{ rows // 2 }}u;
    let team_column = first_column + team % 2u * 32u;
{% for c in range(across) %}
{% for i in range(results) %}
    workgroupBarrier();
    coopStore(sum{{ i }}_{{ c }}, &sums[team_sums], {{ coop }}u);
    workgroupBarrier();
    {
{% for e in range(area // subgroup) %}
        let sum{{ e }} = sums[team_sums + lane + {{ e * subgroup }}u];
{% endfor %}
{% if gate %}
        workgroupBarrier();
        coopStore(sum{{ i + results }}_{{ c }}, &sums[team_sums], {{ coop }}u);
        workgroupBarrier();
{% endif %}
{% for e in range(area // subgroup) %}
        {
            let at = lane + {{ e * subgroup }}u;
            let row = team_row + {{ i * coop }}u + at % {{ coop }}u;
            let column = team_column + {{ c * coop }}u + at / {{ coop }}u;
            store(row, column, columns, sum{{ e }}, {% if gate %}sums[team_sums + at]{% else %}0.0{% endif %});
        }
{% endfor %}
    }
{% endfor %}
{% endfor %}
}
