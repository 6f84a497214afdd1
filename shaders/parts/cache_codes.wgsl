// Bits of the KV cache from elements: halves of floats, codes and scales of blocks of 32 (bilayer_quant::cache).

// Magnitudes as bits, which are in the order of the numbers: infinity and NaN come last, whereas a maximum of floats may
// skip a NaN.
fn magnitudes(x: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
}
{% for type in [key, value] %}
{% if loop.first or type.name != key.name %}
{% if type.name == "f16" %}

// Four halves. A number out of range becomes the largest; infinity and NaN become NaN, so that they are noticed: packing
// them would give anything.
fn in_f16(x: vec4<f32>) -> vec2<u32> {
    let near = clamp(x, vec4<f32>(-65504.0), vec4<f32>(65504.0));
    let nan = vec4<u32>(0x7e00u, 0x7e000000u, 0x7e00u, 0x7e000000u);
    let marks = select(vec4<u32>(), nan, magnitudes(x) >= vec4<u32>(0x7f800000u));
    return vec2<u32>(pack2x16float(near.xy), pack2x16float(near.zw)) | (marks.xz | marks.yw);
}
{% elif type.name == "bf16" %}

// The upper halves of four numbers, to the nearest, ties to even; finite ones stay finite, NaN stays NaN.
fn in_bf16(x: vec4<f32>) -> vec2<u32> {
    let bits = magnitudes(x);
    let near = min((bits + 0x7fffu + ((bits >> vec4<u32>(16u)) & vec4<u32>(1u))) >> vec4<u32>(16u), vec4<u32>(0x7f7fu));
    let wild = (bits >> vec4<u32>(16u)) | select(vec4<u32>(), vec4<u32>(0x40u), bits > vec4<u32>(0x7f800000u));
    let signs = (bitcast<vec4<u32>>(x) >> vec4<u32>(16u)) & vec4<u32>(0x8000u);
    let halves = select(near, wild, bits >= vec4<u32>(0x7f800000u)) | signs;
    return halves.xz | (halves.yw << vec2<u32>(16u));
}
{% endif %}
{% endif %}
{% endfor %}
{% if key.words > 0 or value.words > 0 %}

// A block: its chunks, the fifth bits, and the scale in the low and the minimum in the high half.
struct Coded {
    chunk0: vec4<u32>,
    chunk1: vec4<u32>,
    fifths: u32,
    scales: u32,
}

// Scale and minimum as halves: NaN if an element is not finite, so that it is noticed.
fn halves(d: f32, m: f32, peak: u32) -> u32 {
    let near = clamp(vec2<f32>(d, m), vec2<f32>(-65504.0), vec2<f32>(65504.0));
    return select(pack2x16float(near), 0x7e007e00u, peak >= 0x7f800000u);
}

// The reciprocal, 0 of 0.
fn inverse_of(d: f32) -> f32 {
    return select(0.0, 1.0 / d, abs(d) > 1e-37);
}

fn highest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

fn lowest(x: vec4<f32>) -> f32 {
    return min(min(x.x, x.y), min(x.z, x.w));
}
{% endif %}
{% for type in [key, value] %}
{% if type.words > 0 and (loop.first or type.name != key.name) %}
{% set name = type.rule ~ "_" ~ type.bits %}
{% if type.rule == "symmetric" %}

// Four integers; halves away from zero.
fn {{ name }}_code(x: vec4<f32>) -> u32 {
    return pack4xI8(vec4<i32>(x + select(vec4<f32>(-0.5), vec4<f32>(0.5), x > vec4<f32>())));
}
{% elif type.rule == "codebook" %}

// The level nearest to x.
fn nearest(x: f32) -> vec2<f32> {
    var code = 0.0;
    var level = -127.0;
{% set levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113] %}
{% for i in range(15) %}
    code += select(0.0, 1.0, x > {{ (levels[i] + levels[i + 1]) / 2 }});
    level += select(0.0, {{ levels[i + 1] - levels[i] }}.0, x > {{ (levels[i] + levels[i + 1]) / 2 }});
{% endfor %}
    return vec2<f32>(code, level);
}
{% endif %}

// Codes a block of which `count` quads are its own.
fn {{ name }}_of(
{% for i in range(8) %}
    x{{ i }}: vec4<f32>,
{% endfor %}
    count: u32,
) -> Coded {
    let peaks = max(
        max(max(magnitudes(x0), magnitudes(x1)), max(magnitudes(x2), magnitudes(x3))),
        max(max(magnitudes(x4), magnitudes(x5)), max(magnitudes(x6), magnitudes(x7))),
    );
    let peak = max(max(peaks.x, peaks.y), max(peaks.z, peaks.w));
{% if type.rule == "symmetric" %}
    let d = bitcast<f32>(peak) / 127.0;
    let inverse = inverse_of(d);
    let scales = halves(d, 0.0, peak);
    return Coded(
        vec4<u32>({% for i in range(4) %}{{ name }}_code(x{{ i }} * inverse){% if not loop.last %}, {% endif %}{% endfor %}),
        vec4<u32>({% for i in range(4, 8) %}{{ name }}_code(x{{ i }} * inverse){% if not loop.last %}, {% endif %}{% endfor %}),
        0u,
        scales,
    );
{% else %}
    let high = highest(max(max(max(x0, x1), max(x2, x3)), max(max(x4, x5), max(x6, x7))));
{% if type.rule == "range" %}
    let low = lowest(min(min(min(x0, x1), min(x2, x3)), min(min(x4, x5), min(x6, x7))));
    let d = (high - low) / {{ 2 ** type.bits - 1 }}.0;
    let inverse = inverse_of(d);
    let scales = halves(d, low, peak);
{% for i in range(8) %}
    let c{{ i }} = vec4<u32>(clamp((x{{ i }} - low) * inverse + 0.5, vec4<f32>(), vec4<f32>({{ 2 ** type.bits - 1 }}.0)));
{% endfor %}
{% elif type.rule == "signed" %}
    // The element of largest magnitude, with its sign.
    let largest = select(-bitcast<f32>(peak), bitcast<f32>(peak), high == bitcast<f32>(peak));
    let d = largest / -{{ 2 ** (type.bits - 1) }}.0;
    let inverse = inverse_of(d);
    let scales = halves(d, 0.0, peak);
{% for i in range(8) %}
    let c{{ i }} = vec4<u32>(clamp(x{{ i }} * inverse + {{ 2 ** (type.bits - 1) }}.5, vec4<f32>(), vec4<f32>({{ 2 ** type.bits - 1 }}.0)));
{% endfor %}
{% else %}
    let largest = select(-bitcast<f32>(peak), bitcast<f32>(peak), high == bitcast<f32>(peak));
    let first = largest / -127.0;
    let inverse = inverse_of(first);
    var sums = vec2<f32>();
{% for i in range(8) %}
    var c{{ i }} = vec4<u32>();
    for (var i = 0u; i < 4u; i++) {
        let x = x{{ i }}[i] * inverse;
        let found = nearest(x);
        c{{ i }}[i] = u32(found.x);
        sums += select(vec2<f32>(), x * x * found.y * vec2<f32>(x, found.y), {{ i }}u < count);
    }
{% endfor %}
    let scales = halves(first * sums.x * inverse_of(sums.y), 0.0, peak);
{% endif %}
    let low4 = vec4<u32>(15u);
    var fifths = 0u;
{% if type.bits == 5 %}
    let places = vec4<u32>(1u, 2u, 4u, 8u);
{% for i in range(8) %}
    fifths |= dot(c{{ i }} >> vec4<u32>(4u), places) << {{ 4 * i }}u;
{% endfor %}
{% endif %}
    let chunk = vec4<u32>(
{% for i in range(4) %}
        pack4xU8(c{{ i }} & low4) | (pack4xU8(c{{ i + 4 }} & low4) << 4u),
{% endfor %}
    );
    return Coded(chunk, vec4<u32>(), fifths, scales);
{% endif %}
}
{% endif %}
{% endfor %}
