// Copies whole pages of one cache buffer, in order: a thread copies the same sixteen bytes of every page, so each
// copy sees the previous ones.

struct Params {
    chunks: u32, // per page
    scales: u32, // a page's scales, in units of sixteen bytes
    scales_at: u32, // offset of the scales, in units of sixteen bytes
    copies_at: u32, // offset of the list in `step`
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.cache }}) var<storage, read_write> cache: array<vec4<u32>>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var page = params.chunks;
    var mine = id.x;
    if mine >= params.chunks {
        page = params.scales;
        mine = mine - params.chunks;
        if mine >= params.scales {
            return;
        }
        mine += params.scales_at;
    }
    for (var i = 0u; i < step[3]; i++) {
        let source = step[params.copies_at + 2u * i];
        let to = step[params.copies_at + 2u * i + 1u];
        cache[to * page + mine] = cache[source * page + mine];
    }
}
