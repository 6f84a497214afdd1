enable f16;
// Rounds rows to halves, for products on matrix units. A row is multiplied by a power of two that brings its largest
// magnitude to [2^14, 2^15), so that no value overflows and few are rounded to less than eleven bits; `xs` has the factor
// that undoes it. What is no number stays none.

struct Params {
    x: vec2<u32>,
    width: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.xh }}) var<storage, read_write> xh: array<vec4<f16>>;
@group(0) @binding({{ at.xs }}) var<storage, read_write> xs: array<f32>;
{% include "parts/view" %}
{% include "parts/reduce" %}

// A quad of the row, with zeros beyond its width.
fn quad_of(row: u32, quad: u32) -> vec4<f32> {
    let last = (params.width + 3u) / 4u - 1u;
    let v = x[row_at(params.x, row) + min(quad, last)];
    return select(vec4<f32>(), v, vec4<u32>(0u, 1u, 2u, 3u) + 4u * quad < vec4<u32>(params.width));
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let quads = 16u * ((params.width + 63u) / 64u);
    var peaks = vec4<f32>();
    for (var quad = lane; quad < quads; quad += {{ threads }}u) {
        peaks = max(peaks, abs(quad_of(row, quad)));
    }
    let peak = reduce_max(max(max(peaks.x, peaks.y), max(peaks.z, peaks.w)), lane);
    // The exponent of the peak; tiny rows are not brought all the way.
    let exponent = max(bitcast<u32>(peak) >> 23u & 0xffu, 15u);
    let factor = bitcast<f32>((268u - exponent) << 23u);
    for (var quad = lane; quad < quads; quad += {{ threads }}u) {
        xh[row * quads + quad] = vec4<f16>(quad_of(row, quad) * factor);
    }
    if lane == 0u {
        xs[row] = bitcast<f32>((exponent - 14u) << 23u);
    }
}
