// The largest elements of a row among the largest of its stretches: as many values as the step asks for, in order, zeros
// up to place `k`, then their indices and zeros. One workgroup per row.
struct Params {
    out: vec2<u32>, // view, in floats
    stretches: u32,
    k: u32, // places for values in a row of `out`
    no_number: vec4<u32>, // the bits of a NaN: a constant would be folded away
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.parts }}) var<storage, read> parts: array<vec2<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% include "parts/reduce" %}

const LEAST = -3.4e38;

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let k = min(step[6], params.k);
    let count = params.stretches * k;
    let first = id.x * count;
    let place = params.out.x + id.x * params.out.y;
    var odd = 0.0;
    for (var i = lane; i < count; i += {{ threads }}u) {
        if parts[first + i].y < 0.0 {
            odd = 1.0;
        }
    }
    let any_odd = reduce_max(odd, lane) > 0.0;
    let rest = select(0.0, bitcast<f32>(params.no_number.x), any_odd);
    for (var n = k + lane; n < params.k; n += {{ threads }}u) {
        out[place + n] = rest;
        out[place + params.k + n] = rest;
    }
    var last = vec2<f32>(3.4e38, -1.0);
    for (var n = 0u; n < k; n++) {
        var best = vec2<f32>(LEAST, 16777216.0);
        for (var i = lane; i < count; i += {{ threads }}u) {
            let v = parts[first + i];
            let later = v.x < last.x || (v.x == last.x && v.y > last.y);
            let better = v.x > best.x || (v.x == best.x && v.y < best.y);
            if later && better {
                best = v;
            }
        }
        let value = reduce_max(best.x, lane);
        let near = select(-16777216.0, -best.y, best.x == value);
        last = vec2<f32>(value, -reduce_max(near, lane));
        if lane == 0u {
            if any_odd {
                out[place + n] = bitcast<f32>(params.no_number.x);
                out[place + params.k + n] = bitcast<f32>(params.no_number.x);
            } else {
                out[place + n] = last.x;
                out[place + params.k + n] = last.y;
            }
        }
    }
}
