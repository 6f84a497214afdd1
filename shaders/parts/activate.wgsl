{# The activation function named by `activation`, alone and with its factor. Arguments of exp and tanh are clamped to where no GPU overflows. #}
{% if activation in ["clamped_swiglu", "relu"] %}
// `y`, which clamping made of `x`, or NaN where `x` is: a clamp may lose it.
fn number_or_nan(y: vec4<f32>, x: vec4<f32>) -> vec4<f32> {
    return select(x, y, (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) <= vec4<u32>(0x7f800000u));
}

{% endif %}
fn activate(x: vec4<f32>) -> vec4<f32> {
{% if activation == "silu" %}
    return x / (1.0 + exp(min(-x, vec4<f32>(88.0))));
{% elif activation == "gelu" %}
    // max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, which avoids cancellation; erfc as in Abramowitz and Stegun 7.1.26.
    let t = 1.0 / (1.0 + 0.3275911 * 0.7071067812 * abs(x));
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return max(x, vec4<f32>()) - 0.5 * abs(x) * p * exp(max(-0.5 * x * x, vec4<f32>(-88.0)));
{% elif activation == "clamped_swiglu" %}
    let y = number_or_nan(min(x, vec4<f32>(7.0)), x);
    return y / (1.0 + exp(min(-1.702 * y, vec4<f32>(88.0))));
{% elif activation == "sigmoid" %}
    return 1.0 / (1.0 + exp(min(-x, vec4<f32>(88.0))));
{% elif activation == "identity" %}
    return x;
{% elif activation == "relu" %}
    return number_or_nan(max(x, vec4<f32>()), x);
{% elif activation == "squared_relu" %}
    return x * max(x, vec4<f32>()); // the product keeps NaN
{% else %}
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x); // sqrt(2 / pi)
    return 0.5 * x * (1.0 + tanh(clamp(inner, vec4<f32>(-15.0), vec4<f32>(15.0))));
{% endif %}
}

fn gated(x: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
{% if activation == "clamped_swiglu" %}
    return activate(x) * (number_or_nan(clamp(up, vec4<f32>(-7.0), vec4<f32>(7.0)), up) + 1.0);
{% else %}
    return activate(x) * up;
{% endif %}
}
