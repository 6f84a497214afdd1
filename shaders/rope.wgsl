// Transforms a token's queries, keys and values before attention: optional head norm, RoPE and Hadamard transform, and the
// append of keys and values to the KV cache. One workgroup per head of a token; a thread handles sixteen bytes of the cache,
// or 64 elements if they are quantized, because the scales of 64 elements share a word. With the Hadamard transform, a
// thread handles a whole block of 32 elements of a query.
//
// Angles are fractions of a turn in 32-bit integers, so that wrap-around is the argument reduction: exact for every
// position, and sin and cos only receive [-pi, pi], where every GPU is accurate.

struct Params {
    q: vec2<u32>,
    q_out: vec2<u32>,
    k: vec2<u32>,
    v: vec2<u32>,
    rows_at: u32, // offsets of the arrays in `step`
    pages_at: u32,
    turns: u32, // offsets in `vectors`, in quads
    q_gain: u32,
    k_gain: u32,
    heads: u32,
    kv_heads: u32,
    eps: f32,
    magnitude: f32,
    key_scales: u32, // offsets of the scales in the caches, in u32
    value_scales: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
{% if at.step %}
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
{% endif %}
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<vec4<u32>>;
{% endif %}
{% if query %}
@group(0) @binding({{ at.q }}) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding({{ at.q_out }}) var<storage, read_write> q_out: array<vec4<f32>>;
{% endif %}
{% if append %}
@group(0) @binding({{ at.k }}) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding({{ at.keys }}) var<storage, read_write> keys: array<u32>;
{% if at.values %}
@group(0) @binding({{ at.v }}) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding({{ at.values }}) var<storage, read_write> values: array<u32>;
{% endif %}
{% endif %}
{% include "parts/view" %}
{% if norm_q or norm_k %}
{% include "parts/reduce" %}
{% include "parts/root" %}
{% endif %}
{% if append %}
{% include "parts/cache" %}
{% endif %}

{% if rotate %}
// Cosines and sines of four pairs' angles for a token, times the magnitude.
struct Angles {
    cos: vec4<f32>,
    sin: vec4<f32>,
}

// The angle of a pair advances by high / 2^32 + low / 2^44 of a turn per position (positions below 2^20).
fn angles(position: u32, four: u32) -> Angles {
    let high = vectors[params.turns + 2u * four];
    let low = vectors[params.turns + 2u * four + 1u];
    let turns = position * high + ((position * low) >> vec4<u32>(12u));
    let radians = vec4<f32>(bitcast<vec4<i32>>(turns)) * 1.4629180792671596e-9; // 2 pi / 2^32
    return Angles(cos(radians) * params.magnitude, sin(radians) * params.magnitude);
}
{% endif %}
{% if hadamard %}

struct Block {
{% for i in range(8) %}
    x{{ i }}: vec4<f32>,
{% endfor %}
}

// The Hadamard transform of four elements, times 2.
fn hadamard_quad(x: vec4<f32>) -> vec4<f32> {
    let y = vec4<f32>(x.xy + x.zw, x.xy - x.zw);
    return vec4<f32>(y.x + y.y, y.x - y.y, y.z + y.w, y.z - y.w);
}

// The Hadamard transform of a block: of each quad, then across the quads.
fn hadamard(x: Block) -> Block {
{% for i in range(8) %}
    let a{{ i }} = hadamard_quad(x.x{{ i }});
{% endfor %}
{% for old, new, apart in [("a", "b", 1), ("b", "c", 2), ("c", "d", 4)] %}
{% for i in range(8) %}
{% if i // apart % 2 == 0 %}
    let {{ new }}{{ i }} = {{ old }}{{ i }} + {{ old }}{{ i + apart }};
{% else %}
    let {{ new }}{{ i }} = {{ old }}{{ i - apart }} - {{ old }}{{ i }};
{% endif %}
{% endfor %}
{% endfor %}
    let factor = 0.17677669529663687; // 1 / sqrt(32)
    return Block({% for i in range(8) %}d{{ i }} * factor{% if not loop.last %}, {% endif %}{% endfor %});
}
{% endif %}
{% macro turned(name, norm) %}

fn {{ name }}_plain(place: u32, quad: u32, factor: f32) -> vec4<f32> {
{% if norm %}
    let gain = bitcast<vec4<f32>>(vectors[params.{{ name }}_gain + quad]);
    return gain * ({{ name }}[place + quad] * factor);
{% else %}
    return {{ name }}[place + quad];
{% endif %}
}

// The four elements `quad` of the head at `place`, normalized with `factor` and rotated by `position`.
fn {{ name }}_turned(place: u32, quad: u32, factor: f32, position: u32) -> vec4<f32> {
    let x = {{ name }}_plain(place, quad, factor);
{% if not rotate %}
    return x;
{% elif pairs == "interleaved" %}
    if quad >= {{ (dims + 3) // 4 }}u {
        return x;
    }
    let four = angles(position, quad / 2u);
    let cos = select(four.cos.xxyy, four.cos.zzww, quad % 2u == 1u);
    let sin = select(four.sin.xxyy, four.sin.zzww, quad % 2u == 1u);
    let y = x * cos + vec4<f32>(-x.y, x.x, -x.w, x.z) * sin;
    return select(x, y, vec4<u32>(0u, 1u, 2u, 3u) + 4u * quad < vec4<u32>({{ dims }}u));
{% elif dims % 8 == 0 %}
    if quad >= {{ dims // 4 }}u {
        return x;
    }
    let first = quad < {{ dims // 8 }}u;
    let other = {{ name }}_plain(place, select(quad - {{ dims // 8 }}u, quad + {{ dims // 8 }}u, first), factor);
    let four = angles(position, quad % {{ dims // 8 }}u);
    return x * four.cos + select(other, -other, first) * four.sin;
{% else %}
    var y = x;
    for (var i = 0u; i < 4u; i++) {
        let place_in_head = 4u * quad + i;
        if place_in_head < {{ dims }}u {
            let first = place_in_head < {{ dims // 2 }}u;
            let pair = place_in_head % {{ dims // 2 }}u;
            let j = select(pair, pair + {{ dims // 2 }}u, first);
            let other = {{ name }}_plain(place, j / 4u, factor)[j % 4u];
            let four = angles(position, pair / 4u);
            y[i] = x[i] * four.cos[pair % 4u] + select(other, -other, first) * four.sin[pair % 4u];
        }
    }
    return y;
{% endif %}
}
{% if norm %}

fn {{ name }}_factor(place: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var quad = lane; quad < {{ quads }}u; quad += {{ threads }}u) {
        squares += dot({{ name }}[place + quad], {{ name }}[place + quad]);
    }
    return inverse_root(reduce_add(squares, lane) / {{ head_dim }}.0 + params.eps);
}
{% endif %}
{% endmacro %}
{% if query %}
{{ turned("q", norm_q) }}
{% endif %}
{% if append %}
{{ turned("k", norm_k) }}

{% macro append_to(buffer, name, type, turned) %}
{% set step = "32u * chunk" if name == "key" else "chunk" %}
{% set apart = "32u * " if name == "key" else "" %}
{% macro element(quad) %}{% if turned %}k_turned(place, {{ quad }}, factor, position){% else %}v[place + {{ quad }}]{% endif %}{% endmacro %}

// Appends the head at `place` as `token` of `page`.
fn append_{{ name }}(place: u32, page: u32, head: u32, token: u32, lane: u32{% if turned %}, factor: f32, position: u32{% endif %}) {
    let to = {{ name }}_place(page, head, token);
{% if type.words > 0 %}
    let words_to = {{ name }}_words_place(page, head, token);
    for (var pair = lane; pair < {{ (type.blocks + 1) // 2 }}u; pair += {{ threads }}u) {
        var scales = 0u;
        for (var i = 0u; i < 2u; i++) {
            let block = 2u * pair + i;
            if block >= {{ type.blocks }}u {
                break;
            }
            // A short block repeats its last quad, which changes no extreme.
{% for i in range(8) %}
{% if quads % 8 == 0 %}
            let x{{ i }} = {{ element("8u * block + " ~ i ~ "u") }};
{% else %}
            let x{{ i }} = {{ element("min(8u * block + " ~ i ~ "u, " ~ (quads - 1) ~ "u)") }};
{% endif %}
{% endfor %}
{% if turned and hadamard %}
            let y = hadamard(Block(x0, x1, x2, x3, x4, x5, x6, x7));
{% endif %}
{% set y = "y." if turned and hadamard else "" %}
            let coded = {{ type.rule }}_{{ type.bits }}_of({% for i in range(8) %}{{ y }}x{{ i }}, {% endfor %}{{ quads }}u - 8u * block);
{% for c in range(2 if type.bits == 8 else 1) %}
            let chunk{{ c }} = 4u * (to + {{ apart }}({{ "2u * block + " ~ c ~ "u" if type.bits == 8 else "block" }}));
{% if c == 1 and type.chunks % 2 == 1 %}
            // The last block fills one chunk only.
            if 2u * block + 1u < {{ type.chunks }}u {
{% endif %}
{% for i in range(4) %}
            {{ buffer }}[chunk{{ c }} + {{ i }}u] = coded.chunk{{ c }}[{{ i }}];
{% endfor %}
{% if c == 1 and type.chunks % 2 == 1 %}
            }
{% endif %}
{% endfor %}
{% if type.bits == 5 %}
            {{ buffer }}[words_to + {{ apart }}({{ type.scale_words }}u + block)] = coded.fifths;
{% endif %}
{% if type.minimum %}
            {{ buffer }}[words_to + {{ apart }}block] = coded.scales;
        }
{% else %}
            scales |= (coded.scales & 0xffffu) << (16u * i);
        }
        {{ buffer }}[words_to + {{ apart }}pair] = scales;
{% endif %}
    }
{% else %}
    for (var chunk = lane; chunk < {{ type.chunks }}u; chunk += {{ threads }}u) {
        let at = 4u * (to + {{ step }});
{% if type.name == "f32" %}
        let x = bitcast<vec4<u32>>({{ element("chunk") }});
{% else %}
        let low = in_{{ type.name }}({{ element("2u * chunk") }});
{% if quads % 2 == 0 %}
        let high = in_{{ type.name }}({{ element("2u * chunk + 1u") }});
{% else %}
        var high = vec2<u32>();
        if 2u * chunk + 1u < {{ quads }}u {
            high = in_{{ type.name }}({{ element("2u * chunk + 1u") }});
        }
{% endif %}
        let x = vec4<u32>(low, high);
{% endif %}
{% for i in range(4) %}
        {{ buffer }}[at + {{ i }}u] = x[{{ i }}];
{% endfor %}
    }
{% endif %}
}
{% endmacro %}
{% include "parts/cache_codes" %}
{{ append_to("keys", "key", key, true) }}
{% if at.values %}
{{ append_to("values", "value", value, false) }}
{% endif %}
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    var head = group.x;
{% if at.step %}
    let position = step[params.rows_at + 2u * row];
{% else %}
    let position = 0u;
{% endif %}
{% if query %}
    if head < params.heads {
        let place = row_at(params.q, row) + head * {{ quads }}u;
        let to = row_at(params.q_out, row) + head * {{ quads }}u;
        let factor = {% if norm_q %}q_factor(place, lane){% else %}1.0{% endif %};
{% if hadamard %}
        for (var block = lane; block < {{ quads // 8 }}u; block += {{ threads }}u) {
            var x = Block();
{% for i in range(8) %}
            x.x{{ i }} = q_turned(place, 8u * block + {{ i }}u, factor, position);
{% endfor %}
            let y = hadamard(x);
{% for i in range(8) %}
            q_out[to + 8u * block + {{ i }}u] = y.x{{ i }};
{% endfor %}
        }
{% else %}
        for (var quad = lane; quad < {{ quads }}u; quad += {{ threads }}u) {
            q_out[to + quad] = q_turned(place, quad, factor, position);
        }
{% endif %}
        return;
    }
    head -= params.heads;
{% endif %}
{% if append %}
    let table = params.pages_at + step[params.rows_at + 2u * row + 1u];
    let page = step[table + position / 32u];
    let token = position % 32u;
    if head < params.kv_heads {
        let place = row_at(params.k, row) + head * {{ quads }}u;
        let factor = {% if norm_k %}k_factor(place, lane){% else %}1.0{% endif %};
        append_key(place, page, head, token, lane, factor, position);
{% if at.values %}
    } else {
        head -= params.kv_heads;
        append_value(row_at(params.v, row) + head * {{ quads }}u, page, head, token, lane);
{% endif %}
    }
{% endif %}
}
