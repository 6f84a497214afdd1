{# Variant: parts (elements of a state's row per thread), delta, threads, subgroup. #}
// A linear recurrence over time: a workgroup takes one row of one head's state, spread over its threads, through all
// spans of state, in order.

struct Params {
    x: vec2<u32>, // views, in floats
    b: vec2<u32>,
    c: vec2<u32>,
    dt: vec2<u32>,
    beta: vec2<u32>,
    out: vec2<u32>,
    bias: u32, // offsets in `vectors`, in floats
    decay: u32,
    skip: u32,
    head_dim: u32,
    state_dim: u32,
    groups: u32,
    neighbours: u32, // consecutive heads of the same group
    states_at: u32, // offset of the spans of state in `step`
    slot: u32, // floats from one slot to the next
    b_factor: f32,
    c_factor: f32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
@group(0) @binding({{ at.x }}) var<storage, read> x: array<f32>;
@group(0) @binding({{ at.bc }}) var<storage, read> bc: array<f32>;
@group(0) @binding({{ at.dt }}) var<storage, read> dt: array<f32>;
{% if delta %}
@group(0) @binding({{ at.beta }}) var<storage, read> beta: array<f32>;
{% endif %}
@group(0) @binding({{ at.state }}) var<storage, read_write> state: array<f32>;
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<f32>;
{% include "parts/reduce" %}

// ln(1 + exp(v)): v itself where exp overflows, a series where 1 + exp(v) would lose digits.
fn softplus(v: f32) -> f32 {
    let e = exp(min(v, 40.0));
    let series = e * (1.0 - e * (0.5 - e * (0.33333334 - 0.25 * e)));
    return select(select(log(1.0 + e), series, e < 0.03), v, v > 40.0);
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = group.x;
    let head = place / params.head_dim;
    let of_group = head / params.neighbours % params.groups * params.state_dim;
    let bias = vectors[params.bias + head];
    let decay = vectors[params.decay + head];
{% if not delta %}
    let skip = vectors[params.skip + head];
{% endif %}
    for (var span = 0u; span < step[5]; span++) {
        let at = params.states_at + 4u * span;
        let first = step[at];
        let end = first + step[at + 1u];
        let source = step[at + 2u];
        let to = step[at + 3u] * params.slot + place * params.state_dim;
{% for part in range(parts) %}
        let n{{ part }} = lane + {{ part * threads }}u;
        var s{{ part }} = 0.0;
        // No slot at the beginning of a sequence.
        if n{{ part }} < params.state_dim && source != 0xffffffffu {
            s{{ part }} = state[source * params.slot + place * params.state_dim + n{{ part }}];
        }
{% endfor %}
        for (var row = first; row < end; row++) {
            let now = x[params.x.x + row * params.x.y + place];
            let rate = softplus(dt[params.dt.x + row * params.dt.y + head] + bias);
            let kept = exp(rate * decay);
            let b_at = params.b.x + row * params.b.y + of_group;
            let c_at = params.c.x + row * params.c.y + of_group;
{% for part in range(parts) %}
            var b{{ part }} = 0.0;
            if n{{ part }} < params.state_dim {
                b{{ part }} = params.b_factor * bc[b_at + n{{ part }}];
            }
{% endfor %}
{% if delta %}
            let known = reduce_add({% for part in range(parts) %}{% if part > 0 %} + {% endif %}s{{ part }} * b{{ part }}{% endfor %}, lane);
            let share = 1.0 / (1.0 + exp(min(-beta[params.beta.x + row * params.beta.y + head], 88.0))); // more overflows
            let added = share * (now - kept * known);
{% else %}
            let added = rate * now;
{% endif %}
            var sum = 0.0;
{% for part in range(parts) %}
            if n{{ part }} < params.state_dim {
                s{{ part }} = kept * s{{ part }} + added * b{{ part }};
                sum += s{{ part }} * bc[c_at + n{{ part }}];
            }
{% endfor %}
            let total = params.c_factor * reduce_add(sum, lane);
            if lane == 0u {
                out[params.out.x + row * params.out.y + place] = total{% if not delta %} + skip * now{% endif %};
            }
        }
{% for part in range(parts) %}
        if n{{ part }} < params.state_dim {
            state[to + n{{ part }}] = s{{ part }};
        }
{% endfor %}
    }
}
