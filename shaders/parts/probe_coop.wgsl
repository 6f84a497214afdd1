enable f16;
enable wgpu_cooperative_matrix;
// Multiplies two cooperative matrices in every subgroup, and tells the subgroups' size and number: those of kernels with
// cooperative matrices may have another size than those of other kernels.
{% set teams = threads // 8 %}
struct Params { unused: vec4<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> found: array<u32>; // size and number of subgroups
@group(0) @binding(2) var<storage, read_write> product: array<f32>;
var<workgroup> a: array<f16, {{ coop * coop }}>;
var<workgroup> b: array<f16, {{ coop * coop }}>;
var<workgroup> c: array<f32, {{ teams * coop * coop }}>; // one of each subgroup

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(num_subgroups) count: u32,
    @builtin(subgroup_id) team: u32,
) {
    // a[i, k] = i + 3 k, b[k, j] = k - 2 j: small integers, so that sums are exact.
    for (var i = thread; i < {{ coop * coop }}u; i += {{ threads }}u) {
        let major = f32(i / {{ coop }}u);
        let minor = f32(i % {{ coop }}u);
        a[i] = f16(major + 3.0 * minor);
        b[i] = f16(minor - 2.0 * major);
    }
    for (var i = thread; i < {{ teams * coop * coop }}u; i += {{ threads }}u) {
        c[i] = f32(params.unused.x);
    }
    workgroupBarrier();
    let own = min(team, {{ teams - 1 }}u) * {{ coop * coop }}u;
    let left = coopLoadT<coop_mat{{ coop }}x{{ coop }}<f16, A>>(&a[0], {{ coop }}u);
    let right = coopLoad<coop_mat{{ coop }}x{{ coop }}<f16, B>>(&b[0], {{ coop }}u);
    let zero = coopLoad<coop_mat{{ coop }}x{{ coop }}<f32, C>>(&c[own], {{ coop }}u);
    coopStore(coopMultiplyAdd(left, right, zero), &c[own], {{ coop }}u);
    workgroupBarrier();
    for (var i = thread; i < {{ coop * coop }}u; i += {{ threads }}u) {
        product[i] = c[i]; // [columns, rows]
    }
    if thread == 0u {
        found[0] = size;
        found[1] = count;
    }
}
