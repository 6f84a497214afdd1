{% set facts = {"numbers": "floats"} %}
// F16: two half-precision floats in four bytes.
fn load_piece(at: Place, piece: u32) -> mat4x4<f32> {
    let a = value_16(at, 16u * piece, 0u);
    let b = value_16(at, 16u * piece, 1u);
    return mat4x4<f32>(
        vec4<f32>(unpack2x16float(a.x), unpack2x16float(a.y)),
        vec4<f32>(unpack2x16float(a.z), unpack2x16float(a.w)),
        vec4<f32>(unpack2x16float(b.x), unpack2x16float(b.y)),
        vec4<f32>(unpack2x16float(b.z), unpack2x16float(b.w)),
    );
}
