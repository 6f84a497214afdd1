{% set facts = {"numbers": "floats"} %}
// BF16: the upper 16 bits of two floats in four bytes.
fn halves(a: vec2<u32>) -> vec4<f32> {
    let bits = vec4<u32>(a.x << 16u, a.x & 0xffff0000u, a.y << 16u, a.y & 0xffff0000u);
    return bitcast<vec4<f32>>(bits);
}

fn load_piece(at: Place, piece: u32) -> mat4x4<f32> {
    let a = value_16(at, 16u * piece, 0u);
    let b = value_16(at, 16u * piece, 1u);
    return mat4x4<f32>(halves(a.xy), halves(a.zw), halves(b.xy), halves(b.zw));
}
