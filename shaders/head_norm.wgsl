// RMS norm or, if centered, layer norm of one head of one row per workgroup; the gain, if there is one, is that of a head
// or of the row. The variance is computed from the differences from the mean, in a separate pass.

struct Params {
    x: vec2<u32>,
    out: vec2<u32>,
    gain: u32, // offset in `vectors`, in quads
    quads: u32, // per head
    eps: f32,
    gain_quads: u32, // of a head or of a row
}

@group(0) @binding(0) var<uniform> params: Params;
{% if gain %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<vec4<f32>>;
{% endif %}
@group(0) @binding({{ at.x }}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
{% include "parts/view" %}
{% include "parts/reduce" %}
{% include "parts/root" %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let source = row_at(params.x, group.y) + group.x * params.quads;
    let to = row_at(params.out, group.y) + group.x * params.quads;
{% if centered %}
    var sum = 0.0;
    for (var quad = lane; quad < params.quads; quad += {{ threads }}u) {
        sum += dot(x[source + quad], vec4<f32>(1.0));
    }
    let mean = reduce_add(sum, lane) / f32(4u * params.quads);
{% endif %}
    var squares = 0.0;
    for (var quad = lane; quad < params.quads; quad += {{ threads }}u) {
        let d = x[source + quad]{% if centered %} - mean{% endif %};
        squares += dot(d, d);
    }
{% if gain %}
    let gain = params.gain + group.x * params.quads % params.gain_quads;
{% endif %}
    let total = reduce_add(squares, lane);
    let factor = inverse_root(total / f32(4u * params.quads) + params.eps);
    for (var quad = lane; quad < params.quads; quad += {{ threads }}u) {
        let y = {% if centered %}(x[source + quad] - mean){% else %}x[source + quad]{% endif %} * factor;
        out[to + quad] = {% if gain %}vectors[gain + quad] * y{% else %}y{% endif %};
    }
}
