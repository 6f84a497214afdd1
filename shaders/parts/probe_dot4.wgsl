// A dot product of four signed bytes each, to find out whether the driver's compiler takes it.
struct Params { words: vec4<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;

@compute @workgroup_size(1)
fn main() {
    found[0] = bitcast<u32>(dot4I8Packed(params.words.x, params.words.y));
}
