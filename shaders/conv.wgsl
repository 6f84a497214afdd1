{# Variant: taps, bias, threads. #}
// Causal convolution over time: a thread carries the last rows of one channel through all spans of state, in order.

struct Params {
    x: vec2<u32>, // view, in floats
    out: vec2<u32>, // view, in floats
    channels: u32,
    weight: u32, // offset in `vectors`, in floats; the taps of a channel follow each other
    bias: u32, // offset in `vectors`, in floats
    states_at: u32, // offset of the spans of state in `step`
    slot: u32, // floats from one slot to the next
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.state }}) var<storage, read_write> state: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = id.x;
    if c >= params.channels {
        return;
    }
{% for tap in range(taps) %}
    let w{{ tap }} = vectors[params.weight + {{ taps }}u * c + {{ tap }}u];
{% endfor %}
{% if bias %}
    let bias = vectors[params.bias + c];
{% else %}
    let bias = 0.0;
{% endif %}
    for (var span = 0u; span < step[5]; span++) {
        let at = params.states_at + 4u * span;
        let first = step[at];
        let end = first + step[at + 1u];
        let source = step[at + 2u];
        let to = step[at + 3u] * params.slot + c;
{% for past in range(taps - 1) %}
        var p{{ past }} = 0.0;
{% endfor %}
        // No slot at the beginning of a sequence.
        if source != 0xffffffffu {
{% for past in range(taps - 1) %}
            p{{ past }} = state[source * params.slot + {{ past }}u * params.channels + c];
{% endfor %}
        }
        for (var row = first; row < end; row++) {
            let now = x[params.x.x + row * params.x.y + c];
            out[params.out.x + row * params.out.y + c] = bias{% for past in range(taps - 1) %} + w{{ past }} * p{{ past }}{% endfor %} + w{{ taps - 1 }} * now;
{% for past in range(taps - 2) %}
            p{{ past }} = p{{ past + 1 }};
{% endfor %}
            p{{ taps - 2 }} = now;
        }
{% for past in range(taps - 1) %}
        state[to + {{ past }}u * params.channels] = p{{ past }};
{% endfor %}
    }
}
