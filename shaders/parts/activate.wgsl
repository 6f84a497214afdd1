{# The non-linearity named by `activation`. Arguments of exp and tanh are kept where no device overflows. #}
fn activate(x: vec4<f32>) -> vec4<f32> {
{% if activation == "silu" %}
    return x / (1.0 + exp(min(-x, vec4<f32>(88.0))));
{% else %}
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x); // sqrt(2 / pi)
    return 0.5 * x * (1.0 + tanh(clamp(inner, vec4<f32>(-15.0), vec4<f32>(15.0))));
{% endif %}
}
