{# The sum and the maximum over a workgroup's `threads` threads; every thread gets them. Three flavours: the
   workgroup is one subgroup (`subgroup == threads`); it is several subgroups of a known size; or nothing is known
   of subgroups (`subgroup == 0`) and a tree in workgroup memory does it. Only in uniform control flow. #}
{% if subgroup == threads %}
{% for name, op in [("add", "subgroupAdd"), ("max", "subgroupMax")] %}
fn reduce_{{ name }}(x: f32, lane: u32) -> f32 {
    return {{ op }}(x);
}
{% endfor %}
{% else %}
var<workgroup> shares: array<f32, {{ threads if subgroup == 0 else threads // subgroup }}>;
{% for name in ["add", "max"] %}
{% macro join(a, b) %}{% if name == "add" %}{{ a }} + {{ b }}{% else %}max({{ a }}, {{ b }}){% endif %}{% endmacro %}
fn reduce_{{ name }}(x: f32, lane: u32) -> f32 {
    workgroupBarrier(); // the last result has been read by all
{% if subgroup == 0 %}
    shares[lane] = x;
    workgroupBarrier();
{% for half in halves %}
    if lane < {{ half }}u {
        shares[lane] = {{ join("shares[lane]", "shares[lane + " ~ half ~ "u]") }};
    }
    workgroupBarrier();
{% endfor %}
    return shares[0];
{% else %}
    let share = {{ "subgroupAdd" if name == "add" else "subgroupMax" }}(x);
    if lane % {{ subgroup }}u == 0u {
        shares[lane / {{ subgroup }}u] = share;
    }
    workgroupBarrier();
    var all = shares[0];
{% for i in range(1, threads // subgroup) %}
    all = {{ join("all", "shares[" ~ i ~ "]") }};
{% endfor %}
    return all;
{% endif %}
}
{% endfor %}
{% endif %}
