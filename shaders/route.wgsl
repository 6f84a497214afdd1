{# Variant: score (softmax, sigmoid), bias, factors, group_best (experts for a group's score, or none), threads, subgroup. #}
// Selects the experts of a row, one workgroup per row: each pass finds the best expert after the previous one. Logits
// decide, or with a bias the biased scores; the weights are the scores of the chosen. With groups, their scores come first:
// a thread handles a group, then compares it with the others.
struct Params {
    x: vec2<u32>, // view, in floats
    out: vec2<u32>, // view, in floats
    experts: u32,
    used: u32,
    bias: u32, // offset in `vectors`, in floats
    normalise: u32,
    scale: f32,
    no_number: u32, // the bits of a NaN: a constant would be folded away
    factors: u32, // offset in `vectors`, in floats
    group_size: u32,
    groups: u32,
    groups_used: u32,
    zero0: u32,
    zero1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
{% if bias or factors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% include "parts/reduce" %}

const LEAST = -3.4e38;
{% if group_best %}

var<workgroup> group_scores: array<f32, {{ groups_max }}>;
var<workgroup> is_open: array<u32, {{ groups_max }}>;
{% endif %}

// A logit's score; for softmax without the divisor, where `peak` is the largest logit.
fn score(logit: f32, peak: f32) -> f32 {
{% if score == "softmax" %}
    return exp(logit - peak);
{% else %}
    return 1.0 / (1.0 + exp(min(-logit, 88.0))); // more overflows
{% endif %}
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = params.x.x + id.x * params.x.y;
    let place = params.out.x + id.x * params.out.y;
    // Infinities and NaN are detected by the exponent, since drivers may assume that floats are finite.
    var odd = 0.0;
    var most = LEAST;
    for (var i = lane; i < params.experts; i += {{ threads }}u) {
        let v = x[row + i];
        if (bitcast<u32>(v) & 0x7f800000u) == 0x7f800000u {
            odd = 1.0;
        } else {
            most = max(most, v);
        }
    }
    // With one of them the weights are NaN. There is no early return: FXC refuses barriers after control flow that depends on
    // workgroup memory.
    let any_odd = reduce_max(odd, lane) > 0.0;
    let peak = reduce_max(most, lane);
{% if score == "softmax" %}
    var share = 0.0;
    for (var i = lane; i < params.experts; i += {{ threads }}u) {
        share += score(x[row + i], peak);
    }
    let divisor = reduce_add(share, lane);
{% else %}
    let divisor = 1.0;
{% endif %}
{% if group_best %}
    for (var group = lane; group < params.groups; group += {{ threads }}u) {
        var first = LEAST;
        var second = LEAST;
        for (var i = group * params.group_size; i < (group + 1u) * params.group_size; i++) {
{% if bias %}
            let v = score(x[row + i], peak) / divisor + vectors[params.bias + i];
{% elif group_best == 1 %}
            let v = x[row + i];
{% else %}
            let v = score(x[row + i], peak) / divisor;
{% endif %}
            second = max(second, min(first, v));
            first = max(first, v);
        }
{% if group_best == 1 %}
        group_scores[group] = first;
{% else %}
        group_scores[group] = first + select(second, 0.0, params.group_size == 1u);
{% endif %}
    }
    workgroupBarrier();
    for (var group = lane; group < params.groups; group += {{ threads }}u) {
        let own = group_scores[group];
        var before = 0u;
        for (var other = 0u; other < params.groups; other++) {
            let v = group_scores[other];
            before += select(0u, 1u, v > own || (v == own && other < group));
        }
        is_open[group] = select(0u, 1u, before < params.groups_used);
    }
    workgroupBarrier();
{% endif %}
    var last = vec2<f32>(3.4e38, -1.0);
    var sum = 0.0;
    for (var n = 0u; n < params.used; n++) {
        var best = vec2<f32>(LEAST, 16777216.0);
        for (var i = lane; i < params.experts; i += {{ threads }}u) {
{% if group_best %}
            if is_open[i / params.group_size] == 0u {
                continue;
            }
{% endif %}
{% if bias %}
            let v = score(x[row + i], peak) / divisor + vectors[params.bias + i];
{% else %}
            let v = x[row + i];
{% endif %}
            let later = v < last.x || (v == last.x && f32(i) > last.y);
            if later && v > best.x {
                best = vec2<f32>(v, f32(i));
            }
        }
        let value = reduce_max(best.x, lane);
        let near = select(-16777216.0, -best.y, best.x == value);
        last = vec2<f32>(value, -reduce_max(near, lane));
        let chosen = select(u32(last.y), n, any_odd);
        let weight = score(x[row + chosen], peak) / divisor;
        sum += weight;
        if lane == 0u {
            out[place + n] = weight;
            out[place + params.used + n] = f32(chosen);
        }
    }
    if lane == 0u {
        let factor = params.scale / select(1.0, sum, params.normalise != 0u);
        for (var n = 0u; n < params.used; n++) {
{% if factors %}
            let weight = out[place + n] * (factor * vectors[params.factors + u32(out[place + params.used + n])]);
{% else %}
            let weight = out[place + n] * factor;
{% endif %}
            out[place + n] = select(weight, bitcast<f32>(params.no_number), any_odd);
        }
    }
}
