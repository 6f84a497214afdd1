// Attention of a tile of queries to one part of their keys, in one pass over the cache (flash attention).
//
// A workgroup handles `queries` query vectors: `heads_tile` query heads of one key-value head times `tile_rows`
// tokens, so that keys and values are read once for all of them. It iterates over its keys in blocks of as many
// tokens as it has threads. For the scores a thread handles one token (keys are laid out so that these reads
// coalesce, and queries are uniform); for the sums it handles some elements of the values, and takes the weights from
// the threads that have them. Maximum and sum are kept in registers: a single subgroup needs no barrier.
//
// With one part the result is written to `out`; with several (`step[4]`, the grid's z), the sums, the maximum and the
// sum of weights go to `parts`, for attend/merge.

{% include "parts/attend" %}
{% if not subgroup %}
var<workgroup> scores: array<f32, {{ queries * threads }}>;
var<workgroup> weights: array<f32, {{ queries * threads }}>;
{% if token_groups > 1 %}
var<workgroup> folded: array<vec4<f32>, {{ threads }}>;
{% endif %}
{% endif %}
{# The buffer of the values, and the distance between the chunks of a value. #}
{% set stored = "keys" if in_keys else "values" %}
{% set apart = "32u * " if in_keys else "" %}
{% from "parts/cache_unpack" import unpack %}

// Writes quad `k` of a thread's chunk to the result or the parts; threads beyond the chunks write nothing.
fn write(place: u32, chunk: u32, k: u32, sum: vec4<f32>, whole: bool) {
    let quad = {{ value.quads }}u * chunk + k;
    if quad < {{ out_quads }}u {
        if whole {
            out[place + quad] = sum;
        } else {
            parts[place + quad] = sum;
        }
    }
}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
{% include "parts/attend_span" %}

{% for r in range(tile_rows) %}
    // Row {{ r }}: beyond the tile's rows the last one is repeated, and not written.
    let row{{ r }} = min({{ r }}u, rows - 1u);
    let own{{ r }} = first_position + row{{ r }};
{% if both_ways %}
    let last{{ r }} = min(own{{ r }} + ahead, span_end - 1u);
    let first{{ r }} = max(own{{ r }} + 1u - min(params.window, own{{ r }} + 1u), span_begin);
{% else %}
    let last{{ r }} = own{{ r }};
    let first{{ r }} = first_seen(own{{ r }});
{% endif %}
    let q_row{{ r }} = row_at(params.q, first_row + row{{ r }});
{% for h in range(heads_tile) %}
    let q{{ r * heads_tile + h }} = q_row{{ r }} + min(first_head + {{ h }}u, last_head) * {{ quads }}u;
{% endfor %}
{% endfor %}
{% if slopes %}
{% for h in range(heads_tile) %}
    let slope{{ h }} = vectors[params.bias + min(first_head + {{ h }}u, last_head)];
{% endfor %}
{% endif %}
{% if reach %}
{% for h in range(heads_tile) %}
    // Where the bias of distance 0 is.
    let near_bias{{ h }} = i32(params.bias + min(first_head + {{ h }}u, last_head) * {{ 2 * reach + 1 }}u + {{ reach }}u);
{% endfor %}
{% endif %}
{% for m in range(queries) %}
    var max{{ m }} = NEVER;
    var sum{{ m }} = 0.0;
{% for i in range(own) %}
{% for k in range(value.quads) %}
    var o{{ m }}_{{ i }}_{{ k }} = vec4<f32>();
{% endfor %}
{% endfor %}
{% endfor %}

    let token_of_lane = lane / {{ token_lanes }}u;
{% for i in range(own) %}
    let chunk{{ i }} = min(lane % {{ token_lanes }}u + {{ i * threads }}u, {{ value.chunks - 1 }}u);
{% endfor %}

    for (var block = start; block < to; block += {{ threads }}u) {
        // Scores of this thread's token.
        let token = block + lane;
        let near = min(token, to - 1u);
        let page = step[table + near / 32u];
        let key_at = key_place(page, kv_head, near % 32u);
{% if key.words > 0 %}
        let key_words_at = key_words_place(page, kv_head, near % 32u);
{% endif %}
{% for m in range(queries) %}
        var s{{ m }} = 0.0;
{% endfor %}
        for (var chunk = 0u; chunk < {{ key.chunks }}u; chunk += {{ key_unroll }}u) {
{% for u in range(key_unroll) %}
            let c{{ u }} = chunk + {{ u }}u;
            let k{{ u }}_ = keys[key_at + 32u * c{{ u }}];
{% endfor %}
{% for u in range(key_unroll) %}
{% set k = "k" ~ u ~ "_" %}
{% set c = "c" ~ u %}
{{ unpack(k, key, c, "keys", "key_words_at", "32u * ") }}
{% for i in range(key.quads) %}
{% if key.padded %}
            let e{{ u }}_{{ i }} = min({{ key.quads }}u * {{ c }} + {{ i }}u, {{ quads - 1 }}u); // the padding of floats is zero
{% if key.words > 0 %}
            let x{{ u }}_{{ i }} = select(vec4<f32>(), {{ k }}{{ i }}, {{ key.quads }}u * {{ c }} + {{ i }}u < {{ quads }}u);
{% endif %}
{% else %}
            let e{{ u }}_{{ i }} = {{ key.quads }}u * {{ c }} + {{ i }}u;
{% endif %}
{% endfor %}
{% set x = "x" ~ u ~ "_" if key.padded and key.words > 0 else k %}
{% for m in range(queries) %}
{% set products %}{% for i in range(key.quads) %}{% if i > 0 %} + {% endif %}dot(q[q{{ m }} + e{{ u }}_{{ i }}], {{ x }}{{ i }}){% endfor %}{% endset %}
            s{{ m }} += {% if key.scaled %}{{ k }}d * ({{ products }}){% else %}{{ products }}{% endif %};
{% endfor %}
{% endfor %}
        }

        // Weights are relative to the highest score so far; the accumulators are rescaled when it rises.
{% for r in range(tile_rows) %}
        let seen{{ r }} = token < to && token >= first{{ r }} && token <= last{{ r }};
{% endfor %}
{% for m in range(queries) %}
        s{{ m }} *= params.scale;
{% if softcap %}
        // Clamping may make a number of NaN.
        let is_number{{ m }} = (bitcast<u32>(s{{ m }}) & 0x7fffffffu) <= 0x7f800000u;
        let capped{{ m }} = params.softcap * tanh(clamp(s{{ m }} / params.softcap, -15.0, 15.0));
        s{{ m }} = select(s{{ m }}, capped{{ m }}, is_number{{ m }});
{% endif %}
{% if slopes %}
        s{{ m }} -= slope{{ m % heads_tile }} * f32(abs(i32(token) - i32(own{{ m // heads_tile }})));
{% endif %}
{% if reach %}
        let distance{{ m }} = clamp(i32(token) - i32(own{{ m // heads_tile }}), -{{ reach }}, {{ reach }});
        s{{ m }} += vectors[near_bias{{ m % heads_tile }} + distance{{ m }}];
{% endif %}
        s{{ m }} = select(NEVER, s{{ m }}, seen{{ m // heads_tile }});
{% if not subgroup %}
        scores[{{ m * threads }}u + lane] = s{{ m }};
{% endif %}
{% endfor %}
{% if not subgroup %}
        workgroupBarrier();
{% endif %}
{% for m in range(queries) %}
{% if subgroup %}
        let top{{ m }} = max(max{{ m }}, subgroupMax(s{{ m }}));
{% else %}
        var top{{ m }} = max{{ m }};
        for (var i = 0u; i < {{ threads }}u; i++) {
            top{{ m }} = max(top{{ m }}, scores[{{ m * threads }}u + i]);
        }
{% endif %}
        let shrink{{ m }} = exp(max{{ m }} - top{{ m }});
        let w{{ m }} = select(0.0, exp(s{{ m }} - top{{ m }}), seen{{ m // heads_tile }});
        max{{ m }} = top{{ m }};
        sum{{ m }} = sum{{ m }} * shrink{{ m }} + w{{ m }};
{% if not subgroup %}
        weights[{{ m * threads }}u + lane] = w{{ m }};
{% endif %}
{% for i in range(own) %}
{% for k in range(value.quads) %}
        o{{ m }}_{{ i }}_{{ k }} *= shrink{{ m }};
{% endfor %}
{% endfor %}
{% endfor %}
{% if not subgroup %}
        workgroupBarrier();
{% endif %}

        // The weighted sum of the values: a thread handles its elements of each token, or of every
        // {{ token_groups }}th. {{ unroll }} loads are in flight at once; tokens beyond the last one have weight 0.
        let count = min({{ threads }}u, to - block);
{% if threads <= 32 %}
        let page_of_block = step[table + block / 32u];
{% endif %}
        for (var i = 0u; i < count; i += {{ token_groups * unroll }}u) {
{% for u in range(unroll) %}
            let j{{ u }} = i + {{ token_groups * u }}u + token_of_lane;
            let t{{ u }} = block + min(j{{ u }}, count - 1u);
{% if threads <= 32 %}
            let page{{ u }} = page_of_block;
{% else %}
            let page{{ u }} = step[table + t{{ u }} / 32u];
{% endif %}
            let value_at{{ u }} = value_place(page{{ u }}, kv_head, t{{ u }} % 32u);
{% for i in range(own) %}
            let v{{ u }}_{{ i }}_ = {{ stored }}[value_at{{ u }} + {{ apart }}chunk{{ i }}];
{% endfor %}
{% endfor %}
{% for u in range(unroll) %}
{% if value.words > 0 %}
            let value_words_at{{ u }} = value_words_place(page{{ u }}, kv_head, t{{ u }} % 32u);
{% endif %}
{% for m in range(queries) %}
{% if subgroup %}
            let p{{ u }}_{{ m }} = subgroupShuffle(w{{ m }}, j{{ u }});
{% else %}
            let p{{ u }}_{{ m }} = weights[{{ m * threads }}u + j{{ u }}];
{% endif %}
{% endfor %}
{% for i in range(own) %}
{{ unpack("v" ~ u ~ "_" ~ i ~ "_", value, "chunk" ~ i, stored, "value_words_at" ~ u, apart) }}
{% for m in range(queries) %}
{% for k in range(value.quads) %}
            o{{ m }}_{{ i }}_{{ k }} += p{{ u }}_{{ m }}{% if value.scaled %} * v{{ u }}_{{ i }}_d{% endif %} * v{{ u }}_{{ i }}_{{ k }};
{% endfor %}
{% endfor %}
{% endfor %}
{% endfor %}
        }
    }

    // Combines the threads' partial sums.
{% for m in range(queries) %}
{% if subgroup %}
    sum{{ m }} = subgroupAdd(sum{{ m }});
{% for far in folds %}
{% for i in range(own) %}
{% for k in range(value.quads) %}
    o{{ m }}_{{ i }}_{{ k }} += subgroupShuffleXor(o{{ m }}_{{ i }}_{{ k }}, {{ far }}u);
{% endfor %}
{% endfor %}
{% endfor %}
{% else %}
    workgroupBarrier();
    scores[lane] = sum{{ m }};
    workgroupBarrier();
    sum{{ m }} = 0.0;
    for (var i = 0u; i < {{ threads }}u; i++) {
        sum{{ m }} += scores[i];
    }
{% if token_groups > 1 %}
{% for i in range(own) %}
{% for k in range(value.quads) %}
    folded[lane] = o{{ m }}_{{ i }}_{{ k }};
    workgroupBarrier();
    o{{ m }}_{{ i }}_{{ k }} = vec4<f32>();
    for (var i = lane % {{ token_lanes }}u; i < {{ threads }}u; i += {{ token_lanes }}u) {
        o{{ m }}_{{ i }}_{{ k }} += folded[i];
    }
    workgroupBarrier();
{% endfor %}
{% endfor %}
{% endif %}
{% endif %}
{% endfor %}

{% for m in range(queries) %}
{% set r = m // heads_tile %}
{% set h = m % heads_tile %}
    if {{ r }}u < rows && first_head + {{ h }}u <= last_head {
        let head = first_head + {{ h }}u;
        var factor = 1.0;
        var place = 0u;
        if splits == 1u {
{% if sinks %}
            // The sink adds to the denominator only.
            let sink = vectors[params.sinks + head];
            let top = max(max{{ m }}, sink);
            let weight = exp(max{{ m }} - top);
            factor = weight / (sum{{ m }} * weight + exp(sink - top));
{% else %}
            factor = 1.0 / sum{{ m }};
{% endif %}
            place = row_at(params.out, first_row + {{ r }}u) + head * {{ out_quads }}u;
        } else {
            place = (((first_row + {{ r }}u) * params.heads + head) * splits + id.z) * {{ out_quads + 1 }}u;
            if lane == 0u {
                parts[place + {{ out_quads }}u] = vec4<f32>(max{{ m }}, sum{{ m }}, 0.0, 0.0);
            }
        }
{% for i in range(own) %}
{% for k in range(value.quads) %}
        write(place, lane + {{ i * threads }}u, {{ k }}u, o{{ m }}_{{ i }}_{{ k }} * factor, splits == 1u);
{% endfor %}
{% endfor %}
    }
{% endfor %}
}
