// Measures the subgroup size in a workgroup of {{ threads }}: (size, subgroups, threads that saw another size, threads that are
// not the lane of their number).
struct Params { unused: vec4<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> found: array<atomic<u32>>;

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    // Lanes are counted by a subgroup addition, in case the built-in is wrong.
    let lanes = subgroupAdd(1u);
    if lane == 0u {
        atomicAdd(&found[1], 1u);
    }
    if lanes != size {
        atomicAdd(&found[2], 1u);
    }
    // Kernels take a thread's number in its subgroup for its lane.
    if lane != thread % lanes {
        atomicAdd(&found[3], 1u);
    }
    if thread == 0u {
        atomicStore(&found[0], size + params.unused.x);
    }
}
