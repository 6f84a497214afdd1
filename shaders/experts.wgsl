// Sorts the pairs of row and slot in its route by expert, for products that process an expert's columns together: one
// workgroup. Each thread handles one expert, counts its pairs and lists them in order; one thread splits the lists
// into groups of at most params.most. `table`: the number of groups; from word 4 on, for each group its expert, its
// first column and the end of its columns; then the pairs, i.e. the columns, at params.pairs_at. Pairs without an expert
// are those of one more, whose number in the table is NO_EXPERT.
struct Params {
    route: vec2<u32>, // view, in floats
    used: u32,
    experts: u32,
    most: u32,
    pairs_at: u32,
    columns_at: u32, // offset of the number of rows in `step`
    zero: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding({{ at.step }}) var<storage, read> step: array<u32>;
@group(0) @binding({{ at.route }}) var<storage, read> route: array<f32>;
@group(0) @binding({{ at.table }}) var<storage, read_write> table: array<u32>;

// Number of pairs per expert, later the index of the next one.
var<workgroup> counts: array<u32, {{ experts_max + 1 }}>;

const NO_EXPERT: u32 = 0xffffffffu;

// The expert of a slot in a route.
fn expert_at(at: u32) -> u32 {
    return select(u32(max(route[at], 0.0)), params.experts, route[at] < 0.0);
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(local_invocation_index) thread: u32) {
    let rows = step[params.columns_at];
    for (var expert = thread; expert <= params.experts; expert += {{ threads }}u) {
        var count = 0u;
        for (var row = 0u; row < rows; row++) {
            let at = params.route.x + row * params.route.y + params.used;
            for (var place = 0u; place < params.used; place++) {
                count += select(0u, 1u, expert_at(at + place) == expert);
            }
        }
        counts[expert] = count;
    }
    workgroupBarrier();
    if thread == 0u {
        var column = 0u;
        var groups = 0u;
        for (var expert = 0u; expert <= params.experts; expert++) {
            let end = column + counts[expert];
            counts[expert] = column;
            while column < end {
                let next = min(column + params.most, end);
                table[4u * groups + 4u] = select(expert, NO_EXPERT, expert == params.experts);
                table[4u * groups + 5u] = column;
                table[4u * groups + 6u] = next;
                column = next;
                groups++;
            }
        }
        table[0] = groups;
    }
    workgroupBarrier();
    for (var expert = thread; expert <= params.experts; expert += {{ threads }}u) {
        var column = counts[expert];
        for (var row = 0u; row < rows; row++) {
            let at = params.route.x + row * params.route.y + params.used;
            for (var place = 0u; place < params.used; place++) {
                if expert_at(at + place) == expert {
                    table[params.pairs_at + column] = row * params.used + place;
                    column++;
                }
            }
        }
    }
}
