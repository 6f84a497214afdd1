// Sixteen signed bytes; the scale d, and d times the sum of the bytes.
struct Piece {
    q: vec4<u32>,
    s: vec2<f32>,
}

fn magnitudes(x: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
}

fn quantized(v: mat4x4<f32>) -> Piece {
    // The largest magnitude as bits, which are in the order of the numbers: infinity and NaN come last, whereas a
    // maximum of floats may skip a NaN.
    let peaks = max(max(magnitudes(v[0]), magnitudes(v[1])), max(magnitudes(v[2]), magnitudes(v[3])));
    let peak = bitcast<f32>(max(max(peaks.x, peaks.y), max(peaks.z, peaks.w)));
    let d = peak / 127.0;
    let inverse = select(0.0, 127.0 / peak, peak > 1e-30);
{% for i in range(4) %}
    let q{{ i }} = vec4<i32>(round(v[{{ i }}] * inverse));
{% endfor %}
    let sums = q0 + q1 + q2 + q3;
    let q = vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3));
    return Piece(q, vec2<f32>(d, d * f32(sums.x + sums.y + sums.z + sums.w)));
}
