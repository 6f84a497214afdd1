// Every thread sums its share of the memory; adjacent threads read adjacent vectors.
struct Params { vectors: u32, threads: u32, unused: vec2<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> memory: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>();
    for (var at = id.x; at < params.vectors; at += params.threads) {
        sum ^= memory[at];
    }
    sums[id.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
