{# Variant: score (softmax, sigmoid), bias, factors, threads, subgroup. #}
// Selects the experts of a row, one workgroup per row: each pass finds the best expert after the previous one. Logits
// decide, or with a bias the biased scores; the weights are the scores of the chosen.
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
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
{% if bias or factors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% include "parts/reduce" %}

const LEAST = -3.4e38;

// A logit's score; for softmax without the divisor, where `peak` is the largest logit.
fn score(logit: f32, peak: f32) -> f32 {
{% if score == "softmax" %}
    return exp(logit - peak);
{% else %}
    return 1.0 / (1.0 + exp(-logit));
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
    let any_odd = reduce_max(odd, lane) > 0.0;
    let peak = reduce_max(most, lane);
    if any_odd {
        for (var n = lane; n < params.used; n += {{ threads }}u) {
            out[place + n] = bitcast<f32>(params.no_number);
            out[place + params.used + n] = f32(n);
        }
        return;
    }
{% if score == "softmax" %}
    var share = 0.0;
    for (var i = lane; i < params.experts; i += {{ threads }}u) {
        share += score(x[row + i], peak);
    }
    let divisor = reduce_add(share, lane);
{% else %}
    let divisor = 1.0;
{% endif %}
    var last = vec2<f32>(3.4e38, -1.0);
    var sum = 0.0;
    for (var n = 0u; n < params.used; n++) {
        var best = vec2<f32>(LEAST, 16777216.0);
        for (var i = lane; i < params.experts; i += {{ threads }}u) {
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
        let weight = score(x[row + u32(last.y)], peak) / divisor;
        sum += weight;
        if lane == 0u {
            out[place + n] = weight;
            out[place + params.used + n] = last.y;
        }
    }
    if lane == 0u {
        let factor = params.scale / select(1.0, sum, params.normalise != 0u);
        for (var n = 0u; n < params.used; n++) {
{% if factors %}
            out[place + n] *= factor * vectors[params.factors + u32(out[place + params.used + n])];
{% else %}
            out[place + n] *= factor;
{% endif %}
        }
    }
}
