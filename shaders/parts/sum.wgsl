{# The input of a norm: `a`, or `a + b` (a residual), which is then also kept in `sum`. Params have views of them. #}
@group(0) @binding({{ at.a }}) var<storage, read> a: array<vec4<f32>>;
{% if at.b %}
@group(0) @binding({{ at.b }}) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding({{ at.sum }}) var<storage, read_write> sum: array<vec4<f32>>;
{% endif %}

fn load(row: u32, quad: u32) -> vec4<f32> {
    let near = min(quad, row_quads() - 1u);
    let x = a[row_at(params.a, row) + near]{% if at.b %} + b[row_at(params.b, row) + near]{% endif %};
    return kept(x, quad);
}
{% if at.b %}
fn keep(row: u32, quad: u32, x: vec4<f32>) {
    if quad < row_quads() {
        sum[row_at(params.sum, row) + quad] = x;
    }
}
{% endif %}
