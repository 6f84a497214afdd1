// Parameters and bindings of attention's passes over the keys, and the cache.
struct Params {
    q: vec2<u32>,
    out: vec2<u32>,
    tiles_at: u32, // offsets of the arrays in `step`
    pages_at: u32,
    tile_words: u32,
    heads: u32,
    kv_heads: u32,
    group: u32, // query heads per key-value head
    window: u32, // tokens that a token attends to, including itself, per side if bidirectional
    key_scales: u32, // offsets of the scales in the caches, in u32
    value_scales: u32,
    sinks: u32, // offset in `vectors`, in floats
    scale: f32,
    softcap: f32,
    chunk: u32, // positions of a chunk, to which attention is confined
    first_tile: u32, // of this dispatch
    first_group: u32, // of each tile, along the grid's y
    bias: u32, // offset of slopes or of a table of biases in `vectors`, in floats
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.q }}) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding({{ at.keys }}) var<storage, read> keys: array<vec4<u32>>;
{% if at.values %}
@group(0) @binding({{ at.values }}) var<storage, read> values: array<vec4<u32>>;
{% endif %}
{% if at.vectors %}
@group(0) @binding({{ at.vectors }}) var<storage, read> vectors: array<f32>;
{% endif %}
@group(0) @binding({{ at.out }}) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding({{ at.parts }}) var<storage, read_write> parts: array<vec4<f32>>;
{% include "parts/view" %}
{% include "parts/cache" %}

const NEVER = -1e30;
{% include "parts/cache_levels" %}
{% if not both_ways %}
// The first position that the token at `position` attends to.
fn first_seen(position: u32) -> u32 {
    let window = position + 1u - min(params.window, position + 1u);
    return max(window, position - position % params.chunk);
}

{% endif %}
