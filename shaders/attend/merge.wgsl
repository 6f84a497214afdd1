{# Variant: quads (of a head), sinks as `at.vectors`, floats, quantized, share (threads of a piece: 4, or 1 where barriers are
   expensive), unroll (parts in flight). #}
// Merges the partial results that attend/split left: {% if share == 1 %}a thread handles{% else %}{{ share }} threads handle{% endif %} a piece of sixteen elements of a row,
// optionally quantized for the next product. Maximum and sum are combined over the parts as they were over the keys.

struct Params {
    out: vec2<u32>,
    width: u32, // of all heads
    sinks: u32, // offset in `vectors`, in floats
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.parts }}) var<storage, read> parts: array<vec4<f32>>;
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
{% include "parts/view" %}
{% include "parts/emit" %}

{% if share > 1 %}
var<workgroup> merged: array<vec4<f32>, {{ threads }}>;
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let piece = id.x / {{ share }}u;
{% if share == 1 %}
    if piece >= row_pieces() {
        return;
    }
{% endif %}
    let splits = step[4];
    let heads = row_quads() / {{ quads }}u;
{% for q in range(4 // share) %}
    // Those beyond the row repeat the last one.
    let wanted{{ q }} = 4u * piece + {% if share > 1 %}id.x % {{ share }}u{% else %}{{ q }}u{% endif %};
    let quad{{ q }} = min(wanted{{ q }}, row_quads() - 1u);
    let head{{ q }} = quad{{ q }} / {{ quads }}u;
    let place{{ q }} = (id.y * heads + head{{ q }}) * splits * {{ quads + 1 }}u;
{% if at.vectors %}
    var top{{ q }} = vectors[params.sinks + head{{ q }}];
    var total{{ q }} = 1.0;
{% else %}
    var top{{ q }} = -1e30;
    var total{{ q }} = 0.0;
{% endif %}
    var sum{{ q }} = vec4<f32>();
{% endfor %}
    // Several loads are in flight; parts beyond the last one repeat it, with weight 0.
    for (var i = 0u; i < splits; i += {{ unroll }}u) {
{% for u in range(unroll) %}
        let offset{{ u }} = min(i + {{ u }}u, splits - 1u) * {{ quads + 1 }}u;
{% for q in range(4 // share) %}
        let part{{ u }}_{{ q }} = parts[place{{ q }} + offset{{ u }} + {{ quads }}u]; // maximum, sum of weights
        let sum{{ u }}_{{ q }} = parts[place{{ q }} + offset{{ u }} + quad{{ q }} % {{ quads }}u];
{% endfor %}
{% endfor %}
{% for u in range(unroll) %}
{% for q in range(4 // share) %}
        {
            let next = max(top{{ q }}, part{{ u }}_{{ q }}.x);
            let shrink = exp(top{{ q }} - next);
            let weight = {% if u > 0 %}select(0.0, exp(part{{ u }}_{{ q }}.x - next), i + {{ u }}u < splits){% else %}exp(part{{ u }}_{{ q }}.x - next){% endif %};
            total{{ q }} = total{{ q }} * shrink + part{{ u }}_{{ q }}.y * weight;
            sum{{ q }} = sum{{ q }} * shrink + sum{{ u }}_{{ q }} * weight;
            top{{ q }} = next;
        }
{% endfor %}
{% endfor %}
    }
{% for q in range(4 // share) %}
    let x{{ q }} = select(vec4<f32>(), sum{{ q }} / total{{ q }}, wanted{{ q }} < row_quads());
{% endfor %}
{% if share == 1 %}
    emit(id.y, piece, mat4x4<f32>(x0, x1, x2, x3));
{% else %}
    merged[thread] = x0;
    workgroupBarrier();
    if id.x % {{ share }}u == 0u && piece < row_pieces() {
        emit(id.y, piece, mat4x4<f32>(x0, merged[thread + 1u], merged[thread + 2u], merged[thread + 3u]));
    }
{% endif %}
}
