{# Variant: type (its loader and planes), layout, ints, strided, slots, rows (R), columns (N), matrices, bias,
   factors, residual, gate (the name of an activation, or none), experts (none; "pair": a column is a row and a slot in its route;
   "group": the columns of a workgroup belong to one expert), ragged (x ends within the last unit), unroll (pieces of floats
   in flight), threads, subgroup; at.squares (x lacks the factor of an RMS norm, which follows from them), teams (of so many threads each; more than one
   where the next product's input is emitted: `at.yq` quantized, `at.y` floats, with `at.squares_out` before a norm). #}
// GEMV: products of a matrix (or several with one input) with {{ columns }} columns. A workgroup computes {{ rows }}
// rows. A thread handles units of 64 weights, or of floats pieces of sixteen, {{ unroll }} at once, so that adjacent threads read
// adjacent bytes; each is unpacked once for all columns. All sums are kept in registers and reduced at the end; a single
// subgroup needs no barrier.
{% if teams > 1 %}
// Here {{ teams }} teams of threads compute {{ rows }} rows each: together a piece of the next product's input, which they emit.
{% endif %}
{% set number = "thread" if teams > 1 else "lane" %}
{% include "parts/product" %}
{% include "parts/reduce" %}
{% if at.squares %}
{% include "parts/root" %}
{% endif %}
{% if teams > 1 %}
{% if at.yq %}
{% include "parts/quantize" %}
{% endif %}

// What is emitted, column by column, and the sums of squares of each team.
var<workgroup> made: array<f32, {{ columns * rows * teams }}>;
{% if at.squares_out %}
var<workgroup> made_squares: array<f32, {{ columns * teams }}>;
{% endif %}
{% endif %}
{% if ints and ints_x and pairs %}

// The values of a piece at even and at odd indices, two per word: x0 2^16 + x2, x1 2^16 + x3, and so on.
struct Pairs {
    even: vec4<i32>,
    odd: vec4<i32>,
}

fn paired(a: vec4<u32>) -> Pairs {
    let b = bitcast<vec4<i32>>(a);
    let even = ((b << vec4<u32>(24u)) >> vec4<u32>(8u)) + ((b << vec4<u32>(8u)) >> vec4<u32>(24u));
    let odd = (((b << vec4<u32>(16u)) >> vec4<u32>(24u)) << vec4<u32>(16u)) + (b >> vec4<u32>(24u));
    return Pairs(even, odd);
}

// Two products in one: (q0 + q2 2^16) (x0 2^16 + x2) = ... + (q0 x0 + q2 x2) 2^16 + q0 x2, modulo 2^32. As long as
// neither half of a sum exceeds sixteen bits, here {{ pairs }} products at most, rounding to the upper half is exact.
// A GPU without a four-byte dot product instruction needs half the multiplications this way.
fn product(q: vec4<u32>, x: Pairs) -> f32 {
    let even = bitcast<vec4<i32>>(q & vec4<u32>(0x00ff00ffu));
    let odd = bitcast<vec4<i32>>((q >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu));
    let t = even * x.even + odd * x.odd;
{% if pairs == 8 %}
    return f32((t.x + t.y + t.z + t.w + 0x8000) >> 16u);
{% elif pairs == 4 %}
    let u = (t.xy + t.zw + vec2<i32>(0x8000)) >> vec2<u32>(16u);
    return f32(u.x + u.y);
{% else %}
    let u = (t + vec4<i32>(0x8000)) >> vec4<u32>(16u);
    return f32(u.x + u.y + u.z + u.w);
{% endif %}
}
{% elif ints and ints_x %}

fn product(q: vec4<u32>, a: vec4<u32>) -> f32 {
    return f32(
        dot4I8Packed(q.x, a.x) + dot4I8Packed(q.y, a.y) + dot4I8Packed(q.z, a.z) + dot4I8Packed(q.w, a.w)
    );
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

{% if ragged %}
// Loads from quad `quad` of the row of x that begins at `start`, with zeros beyond its end.
fn column_of(start: u32, quad: u32) -> mat4x4<f32> {
    let quads = params.pitch;
    let last = start + quads - 1u;
    return mat4x4<f32>(
        select(vec4<f32>(), x[min(start + quad, last)], quad < quads),
        select(vec4<f32>(), x[min(start + quad + 1u, last)], quad + 1u < quads),
        select(vec4<f32>(), x[min(start + quad + 2u, last)], quad + 2u < quads),
        select(vec4<f32>(), x[min(start + quad + 3u, last)], quad + 3u < quads),
    );
}
{% else %}
fn column_of(start: u32, quad: u32) -> mat4x4<f32> {
    return column(start + quad);
}
{% endif %}

fn sum_of(a: mat4x4<f32>) -> f32 {
    return dot(a[0] + a[1] + a[2] + a[3], vec4<f32>(1.0));
}

fn product(w: mat4x4<f32>, a: mat4x4<f32>) -> f32 {
    return dot(w[0], a[0]) + dot(w[1], a[1]) + dot(w[2], a[2]) + dot(w[3], a[3]);
}
{% endif %}

@compute @workgroup_size({{ threads * teams }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) {{ number }}: u32) {
{% if teams > 1 %}
    let lane = thread % {{ threads }}u;
    let team = thread / {{ threads }}u;
    let made_piece = id.x + id.y * 65535u;
    if made_piece * {{ rows * teams }}u >= params.rows {
        return;
    }
    let first_row = made_piece * {{ rows * teams }}u + team * {{ rows }}u;
{% else %}
    let first_row = (id.x + id.y * 65535u) * {{ rows }}u;
{% endif %}
{% macro one(word) %}{% if subgroup == threads %}subgroupBroadcastFirst({{ word }}){% else %}{{ word }}{% endif %}{% endmacro %}
{% if experts == "group" %}
    let group = params.first_column + id.z;
    if group >= {{ one("table[0]") }} {
        return;
    }
    let expert = {{ one("table[4u * group + 4u]") }};
    let first_column = {{ one("table[4u * group + 5u]") }};
    let columns = {{ one("table[4u * group + 6u]") }};
{% else %}
    let first_column = params.first_column + id.z * {{ columns }}u;
    let columns = {{ one("step[params.columns_at]") }}{% if experts %} * params.used{% endif %};
{% endif %}
    if {% if teams == 1 %}first_row >= params.rows || {% endif %}first_column >= columns {
        return;
    }
{% if experts %}
{% if experts == "pair" %}
    let expert = {{ one("expert_of(first_column)") }};
{% endif %}
    if expert == NO_EXPERT {
        // The products are 0.
        let last_column = min(first_column + {{ columns }}u, columns);
        for (var column = first_column; column < last_column; column++) {
            let to = out_of(column);
            for (var row = first_row + lane; row < min(first_row + {{ rows }}u, params.rows); row += {{ threads }}u) {
                out[to + row] = 0.0;
            }
        }
        return;
    }
    let start = expert * params.rows;
    if !is_here(start, first_row, first_row + {{ rows }}u) {
        return;
    }
    expert_row = start;
{% endif %}
{% for r in range(rows) %}
    let row{{ r }} = min(first_row + {{ r }}u, params.rows - 1u);
    let at{{ r }} = place(row{{ r }});
{% if gate %}
    let at{{ rows + r }} = place_up(row{{ r }});
{% endif %}
{% endfor %}
{% for c in range(columns) %}
    let column{{ c }} = min(first_column + {{ c }}u, columns - 1u);
    let x{{ c }} = x_of(column{{ c }});
{% for s in range(slots) %}
    var sum{{ s }}_{{ c }} = 0.0;
{% endfor %}
{% endfor %}
{% if at.squares %}
{% set ahead = 4 // columns if columns < 4 else 1 %}
    // Sums of the squares of what the norm is of. {{ ahead }} loads of each column are in flight.
{% for c in range(columns) %}
    let squares_at{{ c }} = column{{ c }} * params.norm.quads;
    var sum_squares{{ c }} = vec4<f32>();
{% endfor %}
    for (var first = lane; first < params.norm.quads; first += {{ ahead * threads }}u) {
{% for i in range(ahead) %}
        let quad{{ i }} = min(first + {{ i * threads }}u, params.norm.quads - 1u);
{% for c in range(columns) %}
        let squares{{ c }}_{{ i }} = squares[squares_at{{ c }} + quad{{ i }}];
{% endfor %}
{% endfor %}
{% for i in range(ahead) %}
        let is_here{{ i }} = first + {{ i * threads }}u < params.norm.quads;
{% for c in range(columns) %}
        sum_squares{{ c }} += select(vec4<f32>(), squares{{ c }}_{{ i }}, is_here{{ i }});
{% endfor %}
{% endfor %}
    }
{% endif %}
{% if not ints %}
    let pieces = 4u * params.units;
    for (var first = lane; first < pieces; first += {{ unroll * threads }}u) {
{% for p in range(unroll) %}
        let piece{{ p }} = min(first + {{ p * threads }}u, pieces - 1u);
{% endfor %}
{% else %}
    for (var unit = lane; unit < params.units; unit += {{ threads }}u) {
{% if strided %}
        let piece = 8u * (unit / 2u) + unit % 2u;
{% set step_of = 2 %}
{% else %}
        let piece = 4u * unit;
{% set step_of = 1 %}
{% endif %}
{% endif %}
{% if ints %}
{% for s in range(slots) %}
        let w{{ s }} = load(at{{ s }}, unit);
{% endfor %}
{% for c in range(columns) %}
{% if ints_x %}
{% for p in range(4) %}
        let a{{ c }}_{{ p }} = {% if pairs %}paired({% endif %}xq[x{{ c }} + piece + {{ p * step_of }}u]{% if pairs %}){% endif %};
        let s{{ c }}_{{ p }} = xs[x{{ c }} + piece + {{ p * step_of }}u];
{% endfor %}
        let d{{ c }} = vec4<f32>(s{{ c }}_0.x, s{{ c }}_1.x, s{{ c }}_2.x, s{{ c }}_3.x);
        let sums{{ c }} = vec4<f32>(s{{ c }}_0.y, s{{ c }}_1.y, s{{ c }}_2.y, s{{ c }}_3.y);
{% for s in range(slots) %}
        let p{{ s }}_{{ c }} = vec4<f32>({% for p in range(4) %}product(w{{ s }}.q{{ p }}, a{{ c }}_{{ p }}){{ "" if loop.last else ", " }}{% endfor %});
        sum{{ s }}_{{ c }} += dot(w{{ s }}.s * d{{ c }}, p{{ s }}_{{ c }}) + dot(w{{ s }}.m, sums{{ c }});
{% endfor %}
{% else %}
{% for p in range(4) %}
        let a{{ c }}_{{ p }} = column_of(x{{ c }}, 4u * (piece + {{ p * step_of }}u));
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
{% for p in range(unroll) %}
{% for s in range(slots) %}
        let w{{ s }}_{{ p }} = load_piece(at{{ s }}, piece{{ p }});
{% endfor %}
{% for c in range(columns) %}
        let a{{ c }}_{{ p }} = column_of(x{{ c }}, 4u * piece{{ p }});
{% for s in range(slots) %}
        sum{{ s }}_{{ c }} += select(0.0, product(w{{ s }}_{{ p }}, a{{ c }}_{{ p }}), first + {{ p * threads }}u < pieces);
{% endfor %}
{% endfor %}
{% endfor %}
{% endif %}
    }
{% if at.squares %}
{% for c in range(columns) %}
    let square{{ c }} = reduce_add(dot(sum_squares{{ c }}, vec4<f32>(1.0)), {{ number }});
    let factor{{ c }} = inverse_root(square{{ c }} / params.norm.width + params.norm.eps);
{% endfor %}
{% endif %}
{% for s in range(slots) %}
{% for c in range(columns) %}
    let total{{ s }}_{{ c }} = reduce_add(sum{{ s }}_{{ c }}, {{ number }}){% if at.squares %} * factor{{ c }}{% endif %};
{% endfor %}
{% endfor %}
    if lane == 0u {
{% for c in range(columns) %}
        if first_column + {{ c }}u < columns {
            let to{{ c }} = out_of(column{{ c }});
{% for r in range(rows) %}
{% if gate %}
            var y{{ r }} = gated(vec4<f32>(total{{ r }}_{{ c }}), vec4<f32>(total{{ rows + r }}_{{ c }})).x;
{% else %}
            var y{{ r }} = total{{ r }}_{{ c }};
{% endif %}
{% if factors %}
            y{{ r }} *= vectors[params.bias + expert_row / params.rows];
{% endif %}
{% if bias %}
            y{{ r }} += vectors[params.bias + row{{ r }}{% if experts %} + expert_row{% endif %}];
{% endif %}
{% if residual %}
            y{{ r }} += residual[params.residual.x + column{{ c }} * params.residual.y + row{{ r }}];
{% endif %}
{% if experts %}
            if here(row{{ r }}) < params.part.y {
                out[to{{ c }} + row{{ r }}] = y{{ r }};
            }
{% else %}
            out[to{{ c }} + row{{ r }}] = y{{ r }};
{% endif %}
{% if teams > 1 %}
            made[{{ c * rows * teams + r }}u + team * {{ rows }}u] = y{{ r }}{% if at.squares_out %} * vectors[params.emitted.gain + row{{ r }}]{% endif %};
{% endif %}
{% endfor %}
{% if at.squares_out %}
            made_squares[{{ c * teams }}u + team] = {% for r in range(rows) %}y{{ r }} * y{{ r }}{{ "" if loop.last else " + " }}{% endfor %};
{% endif %}
        }
{% endfor %}
    }
{% if teams > 1 %}
    workgroupBarrier();
    let column = first_column + thread;
    if thread < {{ columns }}u && column < columns {
        let from_made = thread * {{ rows * teams }}u;
        let piece = mat4x4<f32>({% for i in range(rows * teams) %}made[from_made + {{ i }}u]{{ "" if loop.last else ", " }}{% endfor %});
{% if at.yq %}
        let one = quantized(piece);
        yq[column * params.emitted.stride + made_piece] = one.q;
        ys[column * params.emitted.stride + made_piece] = one.s;
{% else %}
{% for i in range(4) %}
        y[params.emitted.at + column * params.emitted.stride + 4u * made_piece + {{ i }}u] = piece[{{ i }}];
{% endfor %}
{% endif %}
{% if at.squares_out %}
        let from_squares = thread * {{ teams }}u;
        squares_out[column * params.rows / {{ rows * teams }}u + made_piece] = {% for i in range(teams) %}made_squares[from_squares + {{ i }}u]{{ "" if loop.last else " + " }}{% endfor %};
{% endif %}
    }
{% endif %}
}
