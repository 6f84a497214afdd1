// The KV cache of a layer is one buffer of keys and one of values, both in chunks of sixteen bytes: 4 elements of
// f32, 8 of f16 (the last chunk of a head padded), 16 of q8_0, whose scales follow all chunks, two f16 per word.
//   keys   [page][head][chunk][token of the page]: adjacent threads handle adjacent tokens
//   values [page][head][token of the page][chunk]: adjacent threads handle adjacent elements
// Scales are in the same orders. Values that are the first elements of the keys have no buffer: chunks and words of a value
// are then 32 apart as those of its key.

// Chunk c of a key is at its offset + 32 c, of a value at its offset + c.
fn key_place(page: u32, head: u32, token: u32) -> u32 {
    return (page * params.kv_heads + head) * {{ 32 * key_chunks }}u + token;
}

fn value_place(page: u32, head: u32, token: u32) -> u32 {
{% if in_keys %}
    return key_place(page, head, token);
{% else %}
    return ((page * params.kv_heads + head) * 32u + token) * {{ value_chunks }}u;
{% endif %}
}
{% if key == "q8_0" %}

// Word w, with the scales of elements 64 w to 64 w + 63, is at the offset + 32 w.
fn key_scales_place(page: u32, head: u32, token: u32) -> u32 {
    return params.key_scales + (page * params.kv_heads + head) * {{ 32 * scale_words }}u + token;
}
{% endif %}
{% if value == "q8_0" %}

// Word w, with the scales of elements 64 w to 64 w + 63, is at the offset + w.
fn value_scales_place(page: u32, head: u32, token: u32) -> u32 {
{% if in_keys %}
    return key_scales_place(page, head, token);
{% else %}
    return params.value_scales + ((page * params.kv_heads + head) * 32u + token) * {{ scale_words }}u;
{% endif %}
}
{% endif %}
