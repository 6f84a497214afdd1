{# Variant: as matmul/tile, and `coop` (edge of a fragment), `subgroup` (its threads), `slots` (rows of weights, of both
   matrices if gated), `columns` (of the tile), `wide` (workgroup memory is read and written by four halves). The input is
   halves (shaders/halve.wgsl). #}
enable f16;
enable wgpu_cooperative_matrix;
// GEMM on matrix units: products of a matrix (or two, gated) with many columns. {{ columns // 16 }} subgroups compute a tile of
// {{ slots }} rows and {{ columns }} columns, two by {{ columns // 32 }}, each of these in fragments that its threads hold together. A unit
// of 64 weights of each row is unpacked to halves in workgroup memory, as are 64 values of each column; sums are f32.
//
// Rows in workgroup memory are 72 halves apart: sixteen rows of 16 bytes, which a subgroup reads at once, lie in all banks
// equally. A fragment is loaded once a unit and used for a whole row or column of the subgroup's fragments.
//
// A driver may choose the size of subgroups for each kernel. Where it is not that of the probe, sums begin as NaN, and so do all
// results, which are then noticed.
{% include "parts/product" %}
{% set part = 4 if wide else 1 %}
{% set element = "vec4<f16>" if wide else "f16" %}
{% set pitch = 72 // part %}
{% set area = coop * coop %}
{% set teams_across = columns // 32 %}
{% set down = slots // 2 // coop %}
{% set across = 32 // coop %}
{% set results = down // 2 if gate else down %}
{% set step_of = 2 if strided else 1 %}
{# Threads beyond the slots share the pieces of a slot, side by side, so that a subgroup reads fewer lines. #}
{% set shares = [threads // slots, 1] | max %}
{% set turns = [slots // threads, 1] | max %}
{% set eights = 8 * columns // threads %}
var<workgroup> tile_w: array<{{ element }}, {{ slots * pitch }}>; // [slots, 72 halves]
var<workgroup> tile_x: array<{{ element }}, {{ columns * pitch }}>; // [columns, 72 halves]
var<workgroup> sums: array<f32, {{ 2 * teams_across * area }}>; // a fragment of each subgroup, [columns, rows]

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
{% if wide %}
    tile_w[to] = h;
{% else %}
    tile_w[to] = h.x;
    tile_w[to + 1u] = h.y;
    tile_w[to + 2u] = h.z;
    tile_w[to + 3u] = h.w;
{% endif %}
}
{% if ints %}

fn put_piece(to: u32, q: vec4<u32>, s: f32, m: f32) {
    put_weights(to, vec4<f32>(unpack4xI8(q.x)) * s + m);
    put_weights(to + {{ 4 // part }}u, vec4<f32>(unpack4xI8(q.y)) * s + m);
    put_weights(to + {{ 8 // part }}u, vec4<f32>(unpack4xI8(q.z)) * s + m);
    put_weights(to + {{ 12 // part }}u, vec4<f32>(unpack4xI8(q.w)) * s + m);
}

// The pieces of a slot that one thread unpacks.
struct Share {
{% for p in range(4 // shares) %}
    q{{ p }}: vec4<u32>,
    s{{ p }}: f32,
    m{{ p }}: f32,
{% endfor %}
}

fn share_of(at: Place, unit: u32, share: u32) -> Share {
    let w = load(at, unit);
{% if shares == 1 %}
    return Share({% for p in range(4) %}w.q{{ p }}, w.s[{{ p }}], w.m[{{ p }}]{{ "" if loop.last else ", " }}{% endfor %});
{% elif shares == 2 %}
    let upper = share != 0u;
    return Share({% for p in range(2) %}select(w.q{{ p }}, w.q{{ p + 2 }}, upper), select(w.s[{{ p }}], w.s[{{ p + 2 }}], upper), select(w.m[{{ p }}], w.m[{{ p + 2 }}], upper){{ "" if loop.last else ", " }}{% endfor %});
{% else %}
    let odd = share % 2u != 0u;
    let upper = share / 2u != 0u;
    return Share(
        select(select(w.q0, w.q1, odd), select(w.q2, w.q3, odd), upper),
        select(select(w.s[0], w.s[1], odd), select(w.s[2], w.s[3], odd), upper),
        select(select(w.m[0], w.m[1], odd), select(w.m[2], w.m[3], odd), upper),
    );
{% endif %}
}

fn put_share(to: u32, w: Share) {
{% for p in range(4 // shares) %}
    put_piece(to + {{ 16 * p // part }}u, w.q{{ p }}, w.s{{ p }}, w.m{{ p }});
{% endfor %}
}
{% endif %}

fn put_column(to: u32, h: vec4<f16>) {
{% if wide %}
    tile_x[to] = h;
{% else %}
    tile_x[to] = h.x;
    tile_x[to + 1u] = h.y;
    tile_x[to + 2u] = h.z;
    tile_x[to + 3u] = h.w;
{% endif %}
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
{% if factors %}
    y *= vectors[params.bias + expert_row / params.rows];
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
    @builtin(subgroup_size) subgroup: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let team = min(subgroup_id, {{ 2 * teams_across - 1 }}u);
    let first_row = id.x * {{ rows }}u;
{% if experts %}
    let group = params.first_column + id.z;
    if group >= table[0] {
        return;
    }
    let expert = table[4u * group + 4u];
    let first_column = table[4u * group + 5u];
    let columns = table[4u * group + 6u];
    if expert == NO_EXPERT {
        // The products are 0.
        let last_row = min(first_row + {{ rows }}u, params.rows);
        let last_column = min(first_column + {{ columns }}u, columns);
        for (var column = first_column + thread / 32u; column < last_column; column += {{ threads // 32 }}u) {
            let to = out_of(column);
            for (var row = first_row + thread % 32u; row < last_row; row += 32u) {
                out[to + row] = 0.0;
            }
        }
        return;
    }
    let start = expert * params.rows;
    // As `is_here`, which naga does not see to be uniform.
    if start + min(first_row + {{ rows }}u, params.rows) <= params.part.x {
        return;
    }
    if start + first_row >= params.part.x + params.part.y {
        return;
    }
    expert_row = start;
{% else %}
    let first_column = params.first_column + id.z * {{ columns }}u;
    let columns = step[params.columns_at];
{% endif %}
    let team_sums = team * {{ area }}u;
    let team_w = team / {{ teams_across }}u * {{ slots // 2 * pitch }}u;
    let team_x = team % {{ teams_across }}u * {{ 32 * pitch }}u;
    for (var i = thread; i < {{ 2 * teams_across * area }}u; i += {{ threads }}u) {
        sums[i] = bitcast<f32>(select(0x7fc00000u, 0u, subgroup == {{ subgroup }}u));
    }
    workgroupBarrier();
{% for i in range(down) %}
{% for c in range(across) %}
    var sum{{ i }}_{{ c }} = coopLoad<coop_mat{{ coop }}x{{ coop }}<f32, C>>(&sums[team_sums], {{ coop }}u);
{% endfor %}
{% endfor %}
{# What a thread brings to workgroup memory: pieces of weights, and eights of columns. #}
{% if ints %}
{% for t in range(turns) %}
    let slot{{ t }} = thread / {{ shares }}u + {{ t * threads }}u;
    let at{{ t }} = place_of_slot(slot{{ t }}, first_row);
    let to{{ t }} = {{ pitch }}u * slot{{ t }}{% if shares > 1 %} + {{ 64 // shares // part }}u * (thread % {{ shares }}u){% endif %};
{% endfor %}
{% endif %}
{% for i in range(eights) %}
    let x_at{{ i }} = x_of(min(first_column + thread / 8u + {{ i * threads // 8 }}u, columns - 1u)) + {{ step_of }}u * (2u * (thread % 8u / 2u)) + thread % 2u;
    let x_to{{ i }} = {{ pitch }}u * (thread / 8u + {{ i * threads // 8 }}u) + {{ 8 // part }}u * (thread % 8u);
{% endfor %}
    for (var unit = 0u; unit < params.units; unit++) {
        let piece = {% if strided %}8u * (unit / 2u) + unit % 2u{% else %}4u * unit{% endif %};
        workgroupBarrier();
{# What is loaded is put away at once: with all loads in front NVIDIA's compiler makes a fifth of the speed of it. #}
{% if ints %}
{% for t in range(turns) %}
        put_share(to{{ t }}, share_of(at{{ t }}, unit, thread % {{ shares }}u));
{% endfor %}
{% else %}
        for (var i = thread; i < {{ 4 * slots }}u; i += {{ threads }}u) {
            let slot = i / 4u;
            let w = load_piece(place_of_slot(slot, first_row), piece + i % 4u);
            let to = {{ pitch }}u * slot + {{ 16 // part }}u * (i % 4u);
{% for q in range(4) %}
            put_weights(to + {{ 4 * q // part }}u, w[{{ q }}]);
{% endfor %}
        }
{% endif %}
{% for i in range(eights) %}
        {
            let h = xh[x_at{{ i }} + 2u * piece];
            put_column(x_to{{ i }}, h.a);
            put_column(x_to{{ i }} + {{ 4 // part }}u, h.b);
        }
{% endfor %}
        workgroupBarrier();
{# Small fragments are too many to write all products out. #}
{% for k in range(64 // coop if coop == 16 else 1) %}
{% if coop == 16 %}
        {
            let k = {{ k * coop // part }}u;
{% else %}
        for (var k = 0u; k < {{ 64 // part }}u; k += {{ coop // part }}u) {
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
    let team_row = first_row + team / {{ teams_across }}u * {{ rows // 2 }}u;
    let team_column = first_column + team % {{ teams_across }}u * 32u;
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
