// Counts a command buffer that the device has completed, as the last dispatch in it.
struct Params { unused: vec4<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> count: array<u32>;

@compute @workgroup_size(1)
fn main() {
    count[0] += 1u + params.unused.x;
}
