// The KV cache of a layer is one buffer of keys and one of values, both in chunks of sixteen bytes: 4 elements of
// f32, 8 of f16 and bf16, 16 of 8 bits, 32 of 4 and 5 bits (byte i of a chunk has elements i and 16 + i); the last chunk of
// a head is padded. Types in blocks of 32 have words, which follow all chunks: f16 scales, two per word, or a scale and a
// minimum per word, and then, for 5 bits, a word per block with the fifth bit of its element i in bit i.
//   keys   [page][head][chunk][token of the page]: adjacent threads handle adjacent tokens
//   values [page][head][token of the page][chunk]: adjacent threads handle adjacent elements
// Words are in the same orders. Values that are the first elements of the keys have no buffer: chunks and words of a
// value are then 32 apart as those of its key.

// Chunk c of a key is at its offset + 32 c, of a value at its offset + c.
fn key_place(page: u32, head: u32, token: u32) -> u32 {
    return (page * params.kv_heads + head) * {{ 32 * key.chunks }}u + token;
}

fn value_place(page: u32, head: u32, token: u32) -> u32 {
{% if in_keys %}
    return key_place(page, head, token);
{% else %}
    return ((page * params.kv_heads + head) * 32u + token) * {{ value.chunks }}u;
{% endif %}
}
{% if key.words > 0 %}

// Word w is at the offset + 32 w.
fn key_words_place(page: u32, head: u32, token: u32) -> u32 {
    return params.key_scales + (page * params.kv_heads + head) * {{ 32 * key.words }}u + token;
}
{% endif %}
{% if value.words > 0 %}

// Word w is at the offset + w.
fn value_words_place(page: u32, head: u32, token: u32) -> u32 {
{% if in_keys %}
    return key_words_place(page, head, token);
{% else %}
    return params.value_scales + ((page * params.kv_heads + head) * 32u + token) * {{ value.words }}u;
{% endif %}
}
{% endif %}
