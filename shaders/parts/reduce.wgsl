{# Sum and maximum over a workgroup's `threads` threads, returned to every thread. Three variants: the workgroup is
   one subgroup (`subgroup == threads`); it consists of several subgroups of a known size; or subgroups are unknown
   (`subgroup == 0`) and a tree in workgroup memory is used. With `teams`, a workgroup has several sets of so many threads, each
   with a result of its own, but not in the second variant. `lane` is the number in the workgroup. Only in uniform control flow. #}
{% set teams = teams | default(1) %}
{% if subgroup == threads %}
{% for name, op in [("add", "subgroupAdd"), ("max", "subgroupMax")] %}
fn reduce_{{ name }}(x: f32, lane: u32) -> f32 {
    return {{ op }}(x);
}
{% endfor %}
{% else %}
var<workgroup> shares: array<f32, {{ threads * teams if subgroup == 0 else threads // subgroup }}>;
{% for name in ["add", "max"] %}
{% macro join(a, b) %}{% if name == "add" %}{{ a }} + {{ b }}{% else %}max({{ a }}, {{ b }}){% endif %}{% endmacro %}
fn reduce_{{ name }}(x: f32, lane: u32) -> f32 {
    workgroupBarrier(); // all threads have read the previous result
{% if subgroup == 0 %}
    shares[lane] = x;
    workgroupBarrier();
{% for half in halves %}
    if lane{% if teams > 1 %} % {{ threads }}u{% endif %} < {{ half }}u {
        shares[lane] = {{ join("shares[lane]", "shares[lane + " ~ half ~ "u]") }};
    }
    workgroupBarrier();
{% endfor %}
    return shares[{% if teams > 1 %}lane / {{ threads }}u * {{ threads }}u{% else %}0{% endif %}];
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
