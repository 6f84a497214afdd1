{# Variant: as attend/split, and `coop` (edge of a fragment), `slice_dims` (elements of values in workgroup memory at once),
   `turned` (halves of the memory that keys and values share), `held` (whether queries stay in fragments, for want of workgroup
   memory). #}
enable f16;
enable wgpu_cooperative_matrix;
// Attention of a tile of queries on matrix units, in one pass over the cache (flash attention).
//
// Four subgroups have sixteen query vectors each: `heads_tile` query heads of one key-value head times `tile_rows` tokens.
// A page of 32 tokens is unpacked to halves in workgroup memory, first its keys and then its values, both of which all
// subgroups multiply. Scores go through workgroup memory, where a thread finds those of its queries, and come back as
// weights in halves; maxima, sums and results are f32.
//
// Results stay in fragments, whose layout is unknown, so that rescaling them is expensive. It is done only if a score
// exceeds its query's reference by more than 8: weights are at most e^8, which halves hold as precisely as 1. Queries are
// scaled by powers of two, so that they fit halves. Parts of the keys are as in attend/split.
//
// A driver may choose the size of subgroups for each kernel. Where it is not that of the probe, sums begin as NaN, and so do all
// results, which are then noticed.
{% if not held %}
//
// Fragments of queries are loaded again for each page: AMD's compiler keeps a fragment of halves that lives through a loop in
// three times the registers, and spills.
{% endif %}
{% include "parts/attend" %}
{% from "parts/cache_unpack" import unpack %}
{% set rows = 16 // coop %}
{% set tokens = 32 // coop %}
{% set steps = head_dim // coop %}
{% set key_pitch = head_dim + 8 %}
{% set pitch = 40 %}
{# Threads of a subgroup that share a query, and the queries of a thread. #}
{% set sharers = [subgroup // 16, 1] | max %}
{% set own = [16 // subgroup, 1] | max %}
var<workgroup> page_of: array<f16, {{ turned }}>; // keys [32 tokens, head_dim + 8], or values [slice_dims, 40]
var<workgroup> scores: array<f32, {{ 4 * 512 }}>; // [4 subgroups, 32 tokens, 16 queries], and results [.., elements, 16]
var<workgroup> weights: array<f16, {{ 64 * pitch }}>; // [64 queries, 40], at first of the queries
{% if not held %}
var<workgroup> queries: array<f16, {{ 64 * key_pitch }}>; // [64 queries, head_dim + 8]
{% endif %}
var<workgroup> factors: array<f32, 64>; // by which scores of a query are multiplied
var<workgroup> rose: u32;

// The offset of a query vector of the tile; those beyond it repeat the last one.
fn query_place(query: u32, first_row: u32, rows: u32, first_head: u32, last_head: u32) -> u32 {
    let row = min(query / {{ heads_tile }}u, rows - 1u);
    let head = min(first_head + query % {{ heads_tile }}u, last_head);
    return row_at(params.q, first_row + row) + head * {{ quads }}u;
}

fn put_quad(to: u32, v: vec4<f32>, apart: u32) {
    let h = vec4<f16>(v);
    page_of[to] = h.x;
    page_of[to + apart] = h.y;
    page_of[to + 2u * apart] = h.z;
    page_of[to + 3u * apart] = h.w;
}

{% if softcap %}
fn capped(score: f32) -> f32 {
    // Clamping may make a number of NaN.
    let is_number = (bitcast<u32>(score) & 0x7fffffffu) <= 0x7f800000u;
    return select(score, params.softcap * tanh(clamp(score / params.softcap, -15.0, 15.0)), is_number);
}

{% endif %}
@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_size) subgroup: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let team = min(subgroup_id, 3u);
{% include "parts/attend_span" %}

    // The power of two that brings a query's largest magnitude to [2^14, 2^15).
    for (var query = thread; query < 64u; query += {{ threads }}u) {
        let at = query_place(query, first_row, rows, first_head, last_head);
        var peaks = vec4<f32>();
        for (var quad = 0u; quad < {{ quads }}u; quad++) {
            peaks = max(peaks, abs(q[at + quad]));
        }
        let peak = max(max(peaks.x, peaks.y), max(peaks.z, peaks.w));
        let exponent = max(bitcast<u32>(peak) >> 23u & 0xffu, 15u);
        factors[query] = bitcast<f32>((268u - exponent) << 23u);
    }
    for (var i = thread; i < {{ 4 * 512 }}u; i += {{ threads }}u) {
        scores[i] = bitcast<f32>(select(0x7fc00000u, 0u, subgroup == {{ subgroup }}u));
    }
    workgroupBarrier();
    let team_scores = team * 512u;
    let team_weights = team * {{ 16 * pitch }}u;
    let zero = coopLoad<coop_mat{{ coop }}x{{ coop }}<f32, C>>(&scores[team_scores], 16u);

{% if held %}
{% for first in range(0, head_dim, 32) %}
{% set dims = [head_dim - first, 32] | min %}
    // Elements {{ first }} to {{ first + dims }} of the queries.
    for (var i = thread; i < {{ 64 * (dims // 4) }}u; i += {{ threads }}u) {
        let query = i / {{ dims // 4 }}u;
        let quad = i % {{ dims // 4 }}u;
        let at = query_place(query, first_row, rows, first_head, last_head) + {{ first // 4 }}u + quad;
        let h = vec4<f16>(q[at] * factors[query]);
        let to = {{ pitch }}u * query + 4u * quad;
        weights[to] = h.x;
        weights[to + 1u] = h.y;
        weights[to + 2u] = h.z;
        weights[to + 3u] = h.w;
    }
    workgroupBarrier();
{% for k in range(dims // coop) %}
{% for a in range(rows) %}
    let q{{ a }}_{{ first // coop + k }} = coopLoadT<coop_mat{{ coop }}x{{ coop }}<f16, A>>(&weights[team_weights + {{ a * coop * pitch + k * coop }}u], {{ pitch }}u);
{% endfor %}
{% endfor %}
    workgroupBarrier();
{% endfor %}
{% else %}
    for (var i = thread; i < {{ 64 * quads }}u; i += {{ threads }}u) {
        let query = i / {{ quads }}u;
        let quad = i % {{ quads }}u;
        let at = query_place(query, first_row, rows, first_head, last_head) + quad;
        let h = vec4<f16>(q[at] * factors[query]);
        let to = {{ key_pitch }}u * query + 4u * quad;
        queries[to] = h.x;
        queries[to + 1u] = h.y;
        queries[to + 2u] = h.z;
        queries[to + 3u] = h.w;
    }
    let team_queries = team * {{ 16 * key_pitch }}u;
{% endif %}

{% for i in range(own) %}
    // Query {{ i }} of this thread.
    let query{{ i }} = lane % 16u + {{ i * subgroup }}u;
    let place{{ i }} = 16u * team + query{{ i }};
    let row{{ i }} = min(place{{ i }} / {{ heads_tile }}u, rows - 1u);
    let position{{ i }} = first_position + row{{ i }};
    let first{{ i }} = first_seen(position{{ i }});
    // The factor is a power of two, which the bits of its inverse follow from.
    let scale{{ i }} = params.scale * bitcast<f32>(0x7f000000u - bitcast<u32>(factors[place{{ i }}]));
    var top{{ i }} = NEVER;
    var sum{{ i }} = 0.0;
{% endfor %}
{% for a in range(rows) %}
{% for n in range(steps) %}
    var o{{ a }}_{{ n }} = zero;
{% endfor %}
{% endfor %}

    for (var block = start; block < to; block += 32u) {
        let page = step[table + block / 32u];
        workgroupBarrier();
        rose = 0u;
        for (var i = thread; i < {{ 32 * key.chunks }}u; i += {{ threads }}u) {
            let token = i % 32u;
            let c = i / 32u;
            let k = keys[key_place(page, kv_head, token) + 32u * c];
{% if key.words > 0 %}
            let key_words_at = key_words_place(page, kv_head, token);
{% endif %}
{{ unpack("k", key, "c", "keys", "key_words_at", "32u * ") }}
            let at = {{ key_pitch }}u * token + {{ 4 * key.quads }}u * c;
{% for i in range(key.quads) %}
            put_quad(at + {{ 4 * i }}u, k{{ i }}{% if key.scaled %} * kd{% endif %}, 1u);
{% endfor %}
        }
        workgroupBarrier();
        {
{% for a in range(rows) %}
{% for t in range(tokens) %}
            var s{{ a }}_{{ t }} = zero;
{% endfor %}
{% endfor %}
{% for k in range(steps) %}
{% if not held %}
{% for a in range(rows) %}
            let q{{ a }}_{{ k }} = coopLoadT<coop_mat{{ coop }}x{{ coop }}<f16, A>>(&queries[team_queries + {{ a * coop * key_pitch + k * coop }}u], {{ key_pitch }}u);
{% endfor %}
{% endif %}
{% for t in range(tokens) %}
            let k{{ k }}_{{ t }} = coopLoad<coop_mat{{ coop }}x{{ coop }}<f16, B>>(&page_of[{{ t * coop * key_pitch + k * coop }}], {{ key_pitch }}u);
{% for a in range(rows) %}
            s{{ a }}_{{ t }} = coopMultiplyAdd(q{{ a }}_{{ k }}, k{{ k }}_{{ t }}, s{{ a }}_{{ t }});
{% endfor %}
{% endfor %}
{% endfor %}
{% for a in range(rows) %}
{% for t in range(tokens) %}
            coopStore(s{{ a }}_{{ t }}, &scores[team_scores + {{ t * coop * 16 + a * coop }}u], 16u);
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();

        // Scores of this thread, and whether one rises too far above its reference.
{% for i in range(own) %}
        var highest{{ i }} = NEVER;
{% for u in range(32 // sharers) %}
        let t{{ i }}_{{ u }} = lane / 16u + {{ u * sharers }}u;
        let seen{{ i }}_{{ u }} = block + t{{ i }}_{{ u }} < to && block + t{{ i }}_{{ u }} >= first{{ i }} && block + t{{ i }}_{{ u }} <= position{{ i }};
        var s{{ i }}_{{ u }} = scores[team_scores + 16u * t{{ i }}_{{ u }} + query{{ i }}] * scale{{ i }};
{% if softcap %}
        s{{ i }}_{{ u }} = capped(s{{ i }}_{{ u }});
{% endif %}
        highest{{ i }} = max(highest{{ i }}, select(NEVER, s{{ i }}_{{ u }}, seen{{ i }}_{{ u }}));
{% endfor %}
{% if sharers > 1 %}
        highest{{ i }} = max(highest{{ i }}, subgroupShuffleXor(highest{{ i }}, 16u));
{% endif %}
{% if sharers > 2 %}
        highest{{ i }} = max(highest{{ i }}, subgroupShuffleXor(highest{{ i }}, 32u));
{% endif %}
        let rises{{ i }} = highest{{ i }} > top{{ i }} + 8.0;
        let shrink{{ i }} = select(1.0, exp(top{{ i }} - highest{{ i }}), rises{{ i }});
        top{{ i }} = select(top{{ i }}, highest{{ i }}, rises{{ i }});
        sum{{ i }} *= shrink{{ i }};
        if rises{{ i }} {
            rose = 1u;
        }
{% for u in range(32 // sharers) %}
        {
            let w = f16(select(0.0, exp(s{{ i }}_{{ u }} - top{{ i }}), seen{{ i }}_{{ u }}));
            sum{{ i }} += f32(w);
            weights[{{ pitch }}u * place{{ i }} + t{{ i }}_{{ u }}] = w;
        }
{% endfor %}
{% endfor %}
        if workgroupUniformLoad(&rose) != 0u {
{% for a in range(rows) %}
{# A fragment has the queries of some threads only; its elements [elements, 16 queries] lie at the queries' places. #}
{% for n in range(steps) %}
            coopStore(o{{ a }}_{{ n }}, &scores[team_scores + {{ a * coop }}u], 16u);
            workgroupBarrier();
            for (var e = lane / 16u; e < {{ coop }}u; e += {{ sharers }}u) {
{% for i in range(own) %}
                scores[team_scores + 16u * e + query{{ i }}] *= shrink{{ i }};
{% endfor %}
            }
            workgroupBarrier();
            o{{ a }}_{{ n }} = coopLoad<coop_mat{{ coop }}x{{ coop }}<f32, C>>(&scores[team_scores + {{ a * coop }}u], 16u);
            workgroupBarrier();
{% endfor %}
{% endfor %}
        }
{% for a in range(rows) %}
{% for t in range(tokens) %}
        let w{{ a }}_{{ t }} = coopLoadT<coop_mat{{ coop }}x{{ coop }}<f16, A>>(&weights[team_weights + {{ a * coop * pitch + t * coop }}u], {{ pitch }}u);
{% endfor %}
{% endfor %}
{% for slice in range(0, head_dim, slice_dims) %}
{% set chunks = slice_dims // (4 * value.quads) %}
{% if slice > 0 %}
        workgroupBarrier();
{% endif %}
        for (var i = thread; i < {{ 32 * chunks }}u; i += {{ threads }}u) {
            let token = i % 32u;
            let c = i / 32u + {{ slice // (4 * value.quads) }}u;
            let v = values[value_place(page, kv_head, token) + c];
            // Whatever lies beyond the last token may be no number.
            let held = block + token < to;
{% if value.words > 0 %}
            let value_words_at = value_words_place(page, kv_head, token);
{% endif %}
{{ unpack("v", value, "c", "values", "value_words_at", "") }}
            let at = {{ pitch * 4 * value.quads }}u * (i / 32u) + token;
{% for i in range(value.quads) %}
            put_quad(at + {{ pitch * 4 * i }}u, select(vec4<f32>(), v{{ i }}{% if value.scaled %} * vd{% endif %}, held), {{ pitch }}u);
{% endfor %}
        }
        workgroupBarrier();
{% for n in range(slice_dims // coop) %}
{% set at = slice // coop + n %}
{% for t in range(tokens) %}
        {
            let v = coopLoad<coop_mat{{ coop }}x{{ coop }}<f16, B>>(&page_of[{{ n * coop * pitch + t * coop }}], {{ pitch }}u);
{% for a in range(rows) %}
            o{{ a }}_{{ at }} = coopMultiplyAdd(w{{ a }}_{{ t }}, v, o{{ a }}_{{ at }});
{% endfor %}
        }
{% endfor %}
{% endfor %}
{% endfor %}
    }

{% for i in range(own) %}
{% if sharers > 1 %}
    sum{{ i }} += subgroupShuffleXor(sum{{ i }}, 16u);
{% endif %}
{% if sharers > 2 %}
    sum{{ i }} += subgroupShuffleXor(sum{{ i }}, 32u);
{% endif %}
    let head{{ i }} = first_head + place{{ i }} % {{ heads_tile }}u;
    let is_own{{ i }} = place{{ i }} / {{ heads_tile }}u < rows && head{{ i }} <= last_head;
    var factor{{ i }} = 1.0;
    var out{{ i }} = 0u;
    if splits == 1u {
{% if sinks %}
        // The sink adds to the denominator only.
        let sink = vectors[params.sinks + min(head{{ i }}, last_head)];
        let highest = max(top{{ i }}, sink);
        let weight = exp(top{{ i }} - highest);
        factor{{ i }} = weight / (sum{{ i }} * weight + exp(sink - highest));
{% else %}
        factor{{ i }} = 1.0 / sum{{ i }};
{% endif %}
        out{{ i }} = row_at(params.out, first_row + row{{ i }}) + head{{ i }} * {{ out_quads }}u;
    } else {
        out{{ i }} = (((first_row + row{{ i }}) * params.heads + head{{ i }}) * splits + id.z) * {{ out_quads + 1 }}u;
        if is_own{{ i }} && lane < 16u {
            parts[out{{ i }} + {{ out_quads }}u] = vec4<f32>(top{{ i }}, sum{{ i }}, 0.0, 0.0);
        }
    }
{% endfor %}
{% for n in range(steps) %}
    workgroupBarrier();
{% for a in range(rows) %}
    coopStore(o{{ a }}_{{ n }}, &scores[team_scores + {{ a * coop }}u], 16u);
{% endfor %}
    workgroupBarrier();
    for (var quad = lane / 16u; quad < {{ coop // 4 }}u; quad += {{ sharers }}u) {
{% for i in range(own) %}
        if is_own{{ i }} {
            let at = team_scores + 64u * quad + query{{ i }};
            let y = vec4<f32>(scores[at], scores[at + 16u], scores[at + 32u], scores[at + 48u]);
            if splits == 1u {
                out[out{{ i }} + {{ n * coop // 4 }}u + quad] = y * factor{{ i }};
            } else {
                parts[out{{ i }} + {{ n * coop // 4 }}u + quad] = y;
            }
        }
{% endfor %}
    }
{% endfor %}
}
