// The largest elements of each stretch of a row, in order, with their indices: one workgroup per stretch. Each pass
// finds the largest element after the previous one; the stretch stays in the cache, and nothing is kept in arrays.
struct Params {
    x: vec2<u32>, // view, in floats
    width: u32,
    k: u32, // at most; the step says how many
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.parts }}) var<storage, read_write> parts: array<vec2<f32>>;
{% include "parts/reduce" %}

const LEAST = -3.4e38;

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = params.x.x + id.y * params.x.y;
    let first = id.x * {{ stretch }}u;
    let end = min(first + {{ stretch }}u, params.width);
    let k = min(step[6], params.k);
    let place = (id.y * groups.x + id.x) * k;
    // Infinities and NaN are detected by the exponent, since drivers may assume that floats are finite.
    var odd = 0.0;
    for (var i = first + lane; i < end; i += {{ threads }}u) {
        if (bitcast<u32>(x[row + i]) & 0x7f800000u) == 0x7f800000u {
            odd = 1.0;
        }
    }
    let any_odd = reduce_max(odd, lane) > 0.0;
    var last = vec2<f32>(3.4e38, -1.0);
    for (var n = 0u; n < k; n++) {
        var best = vec2<f32>(LEAST, 16777216.0);
        for (var i = first + lane; i < end; i += {{ threads }}u) {
            let v = x[row + i];
            let later = v < last.x || (v == last.x && f32(i) > last.y);
            if later && v > best.x {
                best = vec2<f32>(v, f32(i));
            }
        }
        let value = reduce_max(best.x, lane);
        let near = select(-16777216.0, -best.y, best.x == value);
        last = vec2<f32>(value, -reduce_max(near, lane));
        if lane == 0u {
            parts[place + n] = select(last, vec2<f32>(0.0, -1.0), any_odd);
        }
    }
}
