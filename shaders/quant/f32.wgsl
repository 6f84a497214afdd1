{% set facts = {"numbers": "floats"} %}
// F32: the bits of the floats, unconverted.
fn load_piece(at: Place, piece: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        bitcast<vec4<f32>>(value_16(at, 16u * piece, 0u)),
        bitcast<vec4<f32>>(value_16(at, 16u * piece, 1u)),
        bitcast<vec4<f32>>(value_16(at, 16u * piece, 2u)),
        bitcast<vec4<f32>>(value_16(at, 16u * piece, 3u)),
    );
}
