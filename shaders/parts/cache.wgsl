// The cache of a layer is one buffer of keys and one of values, both of chunks of sixteen bytes: 4 elements of f32,
// 8 of f16 (the last chunk of a head padded), 16 of q8_0, whose scales follow all chunks, two f16 a word.
//   keys   [page][head][chunk][token of the page]: neighbouring threads take neighbouring tokens
//   values [page][head][token of the page][chunk]: neighbouring threads take neighbouring elements
// Scales lie in the same orders.

// Chunk c of a key lies at its place + 32 c, of a value at its place + c.
fn key_place(page: u32, head: u32, token: u32) -> u32 {
    return (page * params.kv_heads + head) * {{ 32 * key_chunks }}u + token;
}

fn value_place(page: u32, head: u32, token: u32) -> u32 {
    return ((page * params.kv_heads + head) * 32u + token) * {{ value_chunks }}u;
}
{% if key == "q8_0" %}

// Word w, of the scales of elements 64 w to 64 w + 63, lies at the place + 32 w.
fn key_scales_place(page: u32, head: u32, token: u32) -> u32 {
    return params.key_scales + (page * params.kv_heads + head) * {{ 32 * scale_words }}u + token;
}
{% endif %}
{% if value == "q8_0" %}

// Word w, of the scales of elements 64 w to 64 w + 63, lies at the place + w.
fn value_scales_place(page: u32, head: u32, token: u32) -> u32 {
    return params.value_scales + ((page * params.kv_heads + head) * 32u + token) * {{ scale_words }}u;
}
{% endif %}
