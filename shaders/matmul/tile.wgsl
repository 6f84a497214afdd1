{# Variant: as matmul/gemv, without rows and columns. #}
// GEMM: products of a matrix (or two, gated) with many columns. 256 threads compute a tile of 64 rows and 64 columns,
// or of 32 rows of two matrices. A unit of 64 weights of each row is loaded once to workgroup memory, in pieces of
// sixteen, and used for all 64 columns; a thread accumulates 16 sums. Integers that floats are multiplied with are unpacked there,
// a piece at a time. At most 14 KiB of workgroup memory.
//
// Workgroup memory is ordered [piece][row or column], and the rows and columns of a thread are 16 apart: so neighbouring
// threads read neighbouring vectors, without bank conflicts, and write neighbouring rows of the result.
{% include "parts/product" %}
{% set tile_rows = 32 if gate else 64 %}
{# Pieces that share a scale. #}
{% set share = group // 16 if ints else 1 %}
{% if ints %}
var<workgroup> tile_q: array<vec4<u32>, 256>; // [4 pieces, 64 slots]
var<workgroup> tile_s: array<vec2<f32>, {{ 256 // share }}>; // [{{ 4 // share }} groups, 64 slots]: scale and minimum
{% endif %}
{% if ints_x %}
var<workgroup> tile_a: array<vec4<u32>, 256>; // [4 pieces, 64 columns]
var<workgroup> tile_d: array<vec2<f32>, 256>; // d, and d times the sum (with a zero, times -zero)
{% else %}
var<workgroup> tile_w: array<vec4<f32>, 256>; // [4 quads, 64 slots], one piece
var<workgroup> tile_x: array<vec4<f32>, 256>; // [4 quads, 64 columns], one piece
{% endif %}

fn place_of_slot(slot: u32, first_row: u32) -> Place {
{% if gate %}
    let row = min(first_row + slot % 32u, params.rows - 1u);
    if slot < 32u {
        return place(row);
    }
    return place_up(row);
{% else %}
    return place(min(first_row + slot, params.rows - 1u));
{% endif %}
}
{% if ints and ints_x %}

fn product(q: vec4<u32>, a: vec4<u32>) -> f32 {
    return f32(
        dot4I8Packed(q.x, a.x) + dot4I8Packed(q.y, a.y) + dot4I8Packed(q.z, a.z) + dot4I8Packed(q.w, a.w)
    );
}
{% endif %}
{% if not ints_x %}

// Loads a piece of every column, one quad per thread.
fn bring(thread: u32, first_column: u32, columns: u32, piece: u32) {
    let start = x_of(min(first_column + thread / 4u, columns - 1u));
    let quad = 4u * piece + thread % 4u;
    let to = 64u * (thread % 4u) + thread / 4u;
{% if ragged %}
    tile_x[to] = select(vec4<f32>(), x[start + min(quad, params.pitch - 1u)], quad < params.pitch);
{% else %}
    tile_x[to] = x[start + quad];
{% endif %}
}
{% endif %}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = id.x * {{ tile_rows }}u;
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
        let last_row = min(first_row + {{ tile_rows }}u, params.rows);
        for (var column = first_column + thread / 64u; column < min(first_column + 64u, columns); column += 4u) {
            let to = out_of(column);
            for (var row = first_row + thread % 64u; row < last_row; row += 64u) {
                out[to + row] = 0.0;
            }
        }
        return;
    }
    let start = expert * params.rows;
    if !is_here(start, first_row, first_row + {{ tile_rows }}u) {
        return;
    }
    expert_row = start;
{% else %}
    let first_column = params.first_column + id.z * 64u;
    let columns = step[params.columns_at];
{% endif %}
    let down = thread % 16u;
    let across = thread / 16u;
{% for i in range(4) %}
{% for c in range(4) %}
    var sum{{ i }}_{{ c }} = 0.0;
{% endfor %}
{% endfor %}
    for (var unit = 0u; unit < params.units; unit++) {
{% if strided %}
        let piece = 8u * (unit / 2u) + unit % 2u;
{% set step_of = 2 %}
{% else %}
        let piece = 4u * unit;
{% set step_of = 1 %}
{% endif %}
{% if ints_x %}
        workgroupBarrier();
{% endif %}
{% if ints %}
        if thread < 64u {
            let w = load(place_of_slot(thread, first_row), unit);
{% for p in range(4) %}
            tile_q[thread + {{ 64 * p }}u] = w.q{{ p }};
{% endfor %}
{% for g in range(4 // share) %}
            tile_s[thread + {{ 64 * g }}u] = vec2<f32>(w.s[{{ share * g }}], w.m[{{ share * g }}]);
{% endfor %}
        }
{% endif %}
{% if ints_x %}
        {
            let column = min(first_column + thread / 4u, columns - 1u);
            let at = x_of(column) + piece + {{ step_of }}u * (thread % 4u);
            let to = 64u * (thread % 4u) + thread / 4u;
            tile_a[to] = xq[at];
            tile_d[to] = xs[at]{% if zero is not none %} * vec2<f32>(1.0, -{{ zero }}.0){% endif %};
        }
        workgroupBarrier();
        for (var g = 0u; g < {{ 4 // share }}u; g++) {
{% for i in range(4) %}
{% for k in range(share) %}
            let w{{ i }}_{{ k }} = tile_q[64u * ({{ share }}u * g + {{ k }}u) + down + {{ 16 * i }}u];
{% endfor %}
            let s{{ i }} = tile_s[64u * g + down + {{ 16 * i }}u];
{% endfor %}
{% for c in range(4) %}
{% for k in range(share) %}
            let a{{ c }}_{{ k }} = tile_a[64u * ({{ share }}u * g + {{ k }}u) + across + {{ 16 * c }}u];
            let d{{ c }}_{{ k }} = tile_d[64u * ({{ share }}u * g + {{ k }}u) + across + {{ 16 * c }}u];
{% endfor %}
            let rest{{ c }} = {% for k in range(share) %}d{{ c }}_{{ k }}.y{{ "" if loop.last else " + " }}{% endfor %};
{% for i in range(4) %}
{% set products %}{% for k in range(share) %}d{{ c }}_{{ k }}.x * product(w{{ i }}_{{ k }}, a{{ c }}_{{ k }}){{ "" if loop.last else " + " }}{% endfor %}{% endset %}
{% if zero is none %}
            sum{{ i }}_{{ c }} += s{{ i }}.x * ({{ products }}) + s{{ i }}.y * rest{{ c }};
{% elif zero == 0 %}
            sum{{ i }}_{{ c }} += s{{ i }}.x * ({{ products }});
{% else %}
            sum{{ i }}_{{ c }} += s{{ i }}.x * ({{ products }} + rest{{ c }});
{% endif %}
{% endfor %}
{% endfor %}
        }
{% else %}
        for (var p = 0u; p < 4u; p++) {
            workgroupBarrier();
{% if ints %}
            let slot = thread / 4u;
            let s = tile_s[64u * (p / {{ share }}u) + slot];
            tile_w[64u * (thread % 4u) + slot] = vec4<f32>(unpack4xI8(tile_q[64u * p + slot][thread % 4u])) * s.x + s.y;
{% else %}
            if thread < 64u {
                let w = load_piece(place_of_slot(thread, first_row), piece + p);
{% for q in range(4) %}
                tile_w[thread + {{ 64 * q }}u] = w[{{ q }}];
{% endfor %}
            }
{% endif %}
            bring(thread, first_column, columns, piece + {{ step_of }}u * p);
            workgroupBarrier();
{% for i in range(4) %}
            let w{{ i }} = mat4x4<f32>({% for q in range(4) %}tile_w[down + {{ 64 * q + 16 * i }}u]{{ "" if loop.last else ", " }}{% endfor %});
{% endfor %}
{% for c in range(4) %}
            let x{{ c }} = across + {{ 16 * c }}u;
            let a{{ c }} = mat4x4<f32>(tile_x[x{{ c }}], tile_x[x{{ c }} + 64u], tile_x[x{{ c }} + 128u], tile_x[x{{ c }} + 192u]);
{% for i in range(4) %}
            sum{{ i }}_{{ c }} += dot(w{{ i }}[0], a{{ c }}[0]) + dot(w{{ i }}[1], a{{ c }}[1]) + dot(w{{ i }}[2], a{{ c }}[2]) + dot(w{{ i }}[3], a{{ c }}[3]);
{% endfor %}
{% endfor %}
        }
{% endif %}
    }
{% for c in range(4) %}
    let column{{ c }} = first_column + across + {{ 16 * c }}u;
    if column{{ c }} < columns {
        let to = out_of(column{{ c }});
{% for i in range(2 if gate else 4) %}
        let row{{ i }} = first_row + down + {{ 16 * i }}u;
        if row{{ i }} < params.rows{% if experts %} && here(row{{ i }}) < params.part.y{% endif %} {
{% if gate %}
            var y = gated(vec4<f32>(sum{{ i }}_{{ c }}), vec4<f32>(sum{{ i + 2 }}_{{ c }})).x;
{% else %}
            var y = sum{{ i }}_{{ c }};
{% endif %}
{% if factors %}
            y *= vectors[params.bias + expert_row / params.rows];
{% endif %}
{% if bias %}
            y += vectors[params.bias + row{{ i }}{% if experts %} + expert_row{% endif %}];
{% endif %}
{% if residual %}
            y += residual[params.residual.x + column{{ c }} * params.residual.y + row{{ i }}];
{% endif %}
            out[to + row{{ i }}] = y;
        }
{% endfor %}
    }
{% endfor %}
}
