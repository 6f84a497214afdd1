{# `found`: looks up the nibbles in four words of four in a table of sixteen signed bytes (`table`). An array at module
   scope would be copied at every use, so the table is four words, one of which is selected. #}
{% macro word(i) %}{{ (table[i] % 256) + (table[i + 1] % 256) * 256 + (table[i + 2] % 256) * 65536 + (table[i + 3] % 256) * 16777216 }}u{% endmacro %}
fn one_found(nibble: vec4<u32>) -> vec4<u32> {
    let upper = (nibble & vec4<u32>(4u)) != vec4<u32>();
    let first = select(vec4<u32>({{ word(0) }}), vec4<u32>({{ word(4) }}), upper);
    let last = select(vec4<u32>({{ word(8) }}), vec4<u32>({{ word(12) }}), upper);
    let words = select(first, last, nibble > vec4<u32>(7u));
    return (words >> ((nibble & vec4<u32>(3u)) << vec4<u32>(3u))) & vec4<u32>(0xffu);
}

fn found(nibbles: vec4<u32>) -> vec4<u32> {
    return one_found(nibbles & vec4<u32>(15u))
        | (one_found((nibbles >> vec4<u32>(8u)) & vec4<u32>(15u)) << vec4<u32>(8u))
        | (one_found((nibbles >> vec4<u32>(16u)) & vec4<u32>(15u)) << vec4<u32>(16u))
        | (one_found((nibbles >> vec4<u32>(24u)) & vec4<u32>(15u)) << vec4<u32>(24u));
}
