{# Chunks of the KV cache as quads of floats, by text: a macro for kernels over the cache (parts/cache, parts/cache_levels). #}
{# A word of the cache. #}
{% macro word(buffer, at) %}{{ buffer }}[({{ at }}) / 4u][({{ at }}) % 4u]{% endmacro %}
{# The quads of chunk `c`, whose sixteen bytes are `name`: elements where the type has floats or minimums, otherwise levels
   with the scale `name`d. `words` is the place of the first word, and words are `apart`. #}
{% macro unpack(name, type, c, buffer, words, apart) %}
{% if type.name == "f32" %}
            let {{ name }}0 = bitcast<vec4<f32>>({{ name }});
{% elif type.name == "f16" %}
            let {{ name }}0 = vec4<f32>(unpack2x16float({{ name }}.x), unpack2x16float({{ name }}.y));
            let {{ name }}1 = vec4<f32>(unpack2x16float({{ name }}.z), unpack2x16float({{ name }}.w));
{% elif type.name == "bf16" %}
            let {{ name }}0 = from_bf16({{ name }}.xy);
            let {{ name }}1 = from_bf16({{ name }}.zw);
{% else %}
{% set block = "(" ~ c ~ " / 2u)" if type.bits == 8 else c %}
{% if type.minimum %}
            let {{ name }}s = unpack2x16float({{ word(buffer, words ~ " + " ~ apart ~ block) }});
            let {{ name }}d = {{ name }}s.x;
{% else %}
            let {{ name }}d = unpack2x16float({{ word(buffer, words ~ " + " ~ apart ~ "(" ~ block ~ " / 2u)") }})[{{ block }} % 2u];
{% endif %}
{% if type.bits == 8 %}
{% for i in range(4) %}
            let {{ name }}{{ i }} = vec4<f32>(unpack4xI8({{ name }}[{{ i }}]));
{% endfor %}
{% else %}
{% if type.bits == 5 %}
            let {{ name }}h = {{ word(buffer, words ~ " + " ~ apart ~ "(" ~ type.scale_words ~ "u + " ~ block ~ ")") }};
{% endif %}
{% for i in range(8) %}
{% set nibbles %}(({{ name }}[{{ i % 4 }}]{% if i > 3 %} >> 4u{% endif %}) & 0x0f0f0f0fu){% endset %}
{% set codes %}{{ nibbles }}{% if type.bits == 5 %} | fifths({{ name }}h >> {{ 4 * i }}u){% endif %}{% endset %}
            let {{ name }}{{ i }} = {% if type.minimum %}{{ name }}d * {% endif %}{{ type.rule }}_{{ type.bits }}({{ codes }}){% if type.minimum %} + {{ name }}s.y{% endif %};
{% endfor %}
{% endif %}
{% endif %}
{% endmacro %}
