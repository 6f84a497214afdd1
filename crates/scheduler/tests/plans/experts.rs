//! Mixtures of experts: which can be split, how they are, which experts are resident, and how long that takes.

use std::collections::BTreeMap;

use bilayer_graph::{
    Activation, Experts, Facts, Graph, Link, Node, Op, Part, Recorder, Route, Score, Stack, Value,
    Weight,
};
use bilayer_scheduler::{
    Error, ExpertCache, ExpertUses, Machine, Mixture, Offload, OpOffload, Placement, Plan, Request,
    SplitChoice, cut, mixtures, offload, place, split_experts,
};

use crate::models::{
    ATTENTION, BUDGET, F32, FFN, GIB, NETWORK, WIDTH, alike, assert_close, cards, cost, embedding,
    gpu, head, measured, sparse, weight,
};

/// Bytes of an expert.
const EXPERT: u64 = 4 * NETWORK;

/// What differs from a usual mixture.
#[derive(Clone, Copy, Default)]
struct Mixing {
    /// The activation is read outside.
    is_read: bool,
    /// Products are scaled.
    is_scaled: bool,
    /// Gate and up are one product, with a bias; the last product has factors.
    is_joined: bool,
    /// The activation reads another value.
    is_mixed: bool,
}

fn mixed(mixing: Mixing) -> Graph {
    let mut of = Recorder::new(&F32);
    let hidden = embedding(&mut of, WIDTH);
    let other = mixing.is_mixed.then(|| {
        let table = of.matrix("second", 256, FFN).unwrap();
        of.embed("embed", table)
    });
    of.layer(Some(0));
    let logits = crate::models::product(&mut of, "router", hidden, 4);
    let route = Route {
        logits,
        bias: None,
        used: 1,
        groups: None,
        score: Score::Sigmoid,
        normalise: false,
        scale: 1.0,
        factors: None,
        out: Value(0),
    };
    let route = of.route("topk", route);
    let one = |of: &mut Recorder<'_>, name: &str, input: Value, rows: usize| {
        let stack = of.stack(name, |_| String::new(), [4, rows, of.width(input)]).unwrap();
        let bias = (name == "both")
            .then(|| of.expert_vectors(&format!("{name}_bias"), [4, rows]).unwrap());
        let factors = (name == "down" && mixing.is_joined)
            .then(|| of.expert_factors(&format!("{name}_factors"), 4).unwrap());
        of.experts("experts", Experts { input, route, stack, bias, factors, out: Value(0) })
    };
    let wide = if mixing.is_joined {
        let both = one(&mut of, "both", hidden, 2 * FFN);
        let gate = of.part("gate", both, 2 * FFN, 0..FFN);
        let up = of.part("up", both, 2 * FFN, FFN..2 * FFN);
        of.gate("act", gate, Some(up), Activation::Silu)
    } else {
        let wide = one(&mut of, "up", hidden, FFN);
        let wide = if mixing.is_scaled { of.scale("scale", wide, 2.0) } else { wide };
        of.gate("act", wide, other, Activation::Relu)
    };
    let out = one(&mut of, "down", wide, WIDTH);
    let out = of.mix("mix", out, route);
    let sum = of.add("sum", out, hidden);
    if mixing.is_read {
        let narrow = crate::models::product(&mut of, "narrow", wide, WIDTH);
        let sum = of.add("sum", sum, narrow);
        return head(of, sum);
    }
    head(of, sum)
}

#[test]
fn mixtures_are_found_where_nothing_else_reads_what_is_inside() {
    let found = mixtures(&sparse(2, 4, 2));
    // An embedding; seven ops of attention, a norm, the router and the route; four of the mixture; the mix and a sum.
    let of = |layer: u32, first: usize| Mixture {
        route: Value(first as u32 - 1),
        layer: Some(layer),
        nodes: first..first + 4,
        used: 2,
        experts: 4,
    };
    assert_eq!(found, [of(0, 11), of(1, 27)]);
    // A mixture of which a token uses all experts is dense.
    assert_eq!(mixtures(&sparse(1, 4, 4)), []);
    let count = |mixing: Mixing| mixtures(&mixed(mixing)).len();
    assert_eq!(count(Mixing::default()), 1);
    assert_eq!(count(Mixing { is_joined: true, ..Mixing::default() }), 1);
    assert_eq!(count(Mixing { is_read: true, ..Mixing::default() }), 0);
    assert_eq!(count(Mixing { is_scaled: true, ..Mixing::default() }), 0);
    assert_eq!(count(Mixing { is_mixed: true, ..Mixing::default() }), 0);
    // Weights of one, with biases and factors.
    let graph = mixed(Mixing { is_joined: true, ..Mixing::default() });
    let [mixture] = &mixtures(&graph)[..] else { panic!("one") };
    let names: Vec<&str> = mixture.weights(&graph).map(|id| &*graph.weight(id).name).collect();
    assert_eq!(names, ["both", "both_bias", "down", "down_factors"]);
}

fn choice(route: u32, residents: &[u32]) -> SplitChoice {
    SplitChoice { route: Value(route), residents: residents.to_vec(), uses: vec![0.5; 4] }
}

#[test]
fn a_split_mixture_has_residents_others_and_a_sum() {
    let graph = sparse(2, 4, 2);
    let split = split_experts(&graph, &[choice(26, &[3, 1])]);
    // What is before stays, and the mix and the head follow.
    assert_eq!(split.nodes[..27], graph.nodes[..27]);
    assert_eq!(split.nodes[36..], graph.nodes[31..]);
    assert_eq!(split.values[..graph.values.len()], graph.values[..]);
    let [found] = &split.splits[..] else { panic!("one split") };
    assert_eq!((&found.resident_nodes, &found.rest_nodes, found.join), (&(27..31), &(31..35), 35));
    assert_eq!((found.layer, found.route), (Some(1), Value(26)));
    assert_eq!((&found.residents[..], &found.uses[..]), (&[3, 1][..], &[0.5; 4][..]));
    // Routes are new values of the route's shape.
    let new = graph.values.len() as u32;
    assert_eq!((found.resident_route, found.rest_route), (Value(new), Value(new + 1)));
    for route in [found.resident_route, found.rest_route] {
        assert_eq!(split.values[route.0 as usize], graph.values[26]);
    }
    // New weights have a slot for each resident.
    let wholes = ["1.gate_exps", "1.up_exps", "1.down_exps"];
    assert_eq!((found.stacks.len(), split.weights.len()), (3, graph.weights.len() + 3));
    for (number, (stack, name)) in found.stacks.iter().zip(wholes).enumerate() {
        let whole = graph.weight(weight(&graph, name));
        assert_eq!(stack.whole, Stack::from([whole.id]));
        let slots = split.weight(stack.slots);
        assert_eq!(slots.id.0 as usize, graph.weights.len() + number);
        let expected = Weight {
            id: slots.id,
            rows: whole.rows / 4 * 2,
            stacked: 2,
            is_resident: true,
            ..whole.clone()
        };
        assert_eq!(slots, &expected);
    }
    // Each part reads its own values; the others' result is new, and the sum is what the whole mixture made.
    let inputs = |node: usize| split.nodes[node].op.inputs().collect::<Vec<_>>();
    let out = |node: usize| split.nodes[node].op.out();
    let first = graph.nodes[24].op.out();
    assert_eq!([inputs(27), inputs(28)], [[first, Value(new)], [first, Value(new)]]);
    assert_eq!([inputs(31), inputs(32)], [[first, Value(new + 1)], [first, Value(new + 1)]]);
    assert_eq!(inputs(29), [out(27), out(28)]);
    assert_eq!(inputs(30), [out(29), Value(new)]);
    assert_eq!(inputs(33), [out(31), out(32)]);
    assert_eq!([out(31), out(32), out(33)].map(|value| value.0), [27, 28, 29]);
    assert_eq!(inputs(35), [out(30), out(34)]);
    assert_eq!(out(35), graph.nodes[30].op.out());
    let node = &split.nodes[35];
    assert_eq!((node.layer, node.name), (Some(1), "ffn_moe_join"));
    for (number, node) in split.nodes[27..35].iter().enumerate() {
        let like: &Node = &graph.nodes[27 + number % 4];
        assert_eq!(
            (node.layer, node.name, node.op.kind()),
            (like.layer, like.name, like.op.kind())
        );
    }
    let parts = [26, 27, 30, 31, 34, 35].map(|node| split.part_of(node));
    let [resident, rest] = [Some((0, Part::Resident)), Some((0, Part::Rest))];
    assert_eq!(parts, [None, resident, resident, rest, rest, None]);
    // What is split already is no mixture that can be.
    assert_eq!(mixtures(&split), mixtures(&graph)[..1]);
    // Both.
    let both = split_experts(&graph, &[choice(26, &[0]), choice(10, &[1, 2])]);
    let first: Vec<usize> = both.splits.iter().map(|split| split.resident_nodes.start).collect();
    assert_eq!((first, both.nodes.len()), (vec![11, 32], graph.nodes.len() + 10));
    assert_eq!(split_experts(&graph, &[]), graph);
}

#[test]
fn biases_factors_and_parts_of_experts_are_split_too() {
    let graph = mixed(Mixing { is_joined: true, ..Mixing::default() });
    let split = split_experts(&graph, &[choice(2, &[2])]);
    let [found] = &split.splits[..] else { panic!("one split") };
    let slots: Vec<(&str, usize, usize, bool)> = (found.stacks.iter())
        .map(|stack| split.weight(stack.slots))
        .map(|slots| (&*slots.name, slots.rows, slots.cols, slots.is_resident))
        .collect();
    assert_eq!(
        slots,
        [
            ("both", 256, 64, true),
            ("both_bias", 1, 256, true),
            ("down", 64, 128, true),
            ("down_factors", 1, 1, true),
        ]
    );
    let down = &split.nodes[found.resident_nodes.end - 1].op;
    assert!(matches!(down, Op::Experts(op) if op.factors == Some(found.stacks[3].slots)));
    let Op::Experts(first) = &split.nodes[found.resident_nodes.start].op else { panic!("experts") };
    assert_eq!((first.stack[0], first.bias), (found.stacks[0].slots, Some(found.stacks[1].slots)));
    let Op::Experts(rest) = &split.nodes[found.rest_nodes.start].op else { panic!("experts") };
    assert_eq!((&rest.stack, rest.bias), (&found.stacks[0].whole, Some(found.stacks[1].whole[0])));
    let part = |node: usize| match split.nodes[node].op {
        Op::Part { stride, first, width, .. } => (stride, first, width),
        _ => panic!("a part"),
    };
    let first = found.resident_nodes.start + 1;
    assert_eq!([part(first), part(first + 1)], [(256, 0, 128), (256, 128, 128)]);
}

#[test]
#[should_panic(expected = "each names a mixture")]
fn a_choice_names_a_mixture() {
    split_experts(&sparse(1, 4, 2), &[choice(9, &[0])]);
}

#[test]
#[should_panic(expected = "experts")]
fn a_choice_names_experts_that_there_are() {
    split_experts(&sparse(1, 4, 2), &[choice(10, &[4])]);
}

#[test]
fn parts_are_segments_of_their_own() {
    let graph = split_experts(&sparse(1, 4, 2), &[choice(10, &[0, 1])]);
    let segments = cut(&graph, &Placement::single(1, 0));
    let nodes: Vec<_> = segments.iter().map(|segment| segment.nodes.clone()).collect();
    assert_eq!(nodes, [0..11, 11..15, 15..19, 19..graph.nodes.len()]);
    // The host makes routes of the router's result, which is therefore read.
    let [first, resident, rest, last] = &segments[..] else { panic!("four") };
    let found = &graph.splits[0];
    let normed = graph.nodes[8].op.out();
    let sum = graph.nodes[7].op.out();
    assert_eq!(first.outputs, [sum, normed, Value(10)]);
    assert_eq!(resident.inputs, [normed, found.resident_route]);
    assert_eq!(rest.inputs, [normed, found.rest_route]);
    assert_eq!(
        [&resident.outputs, &rest.outputs],
        [&[graph.nodes[14].op.out()], &[graph.nodes[18].op.out()]]
    );
    assert_eq!(last.inputs, [sum, Value(10), graph.nodes[14].op.out(), graph.nodes[18].op.out()]);
}

fn request(experts: ExpertCache, offload: Offload) -> Request {
    Request { experts, offload, op_offload: OpOffload::Never, ..Request::default() }
}

fn of(graph: &Graph, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    offload(graph, machine, &BUDGET, request)
}

/// The residents of each layer that has some.
fn residents(plan: &Plan) -> Vec<Vec<u32>> {
    let experts = plan.experts.as_ref().map_or(&[][..], |experts| &experts.choices);
    experts.iter().map(|choice| choice.residents.clone()).collect()
}

#[test]
fn the_experts_that_are_used_most_are_resident() {
    let graph = sparse(2, 4, 2);
    let machine = cards(&[GIB]);
    let whole = of(&graph, &machine, &request(ExpertCache::Off, Offload::All)).unwrap();
    assert_eq!(whole.experts, None);
    let with = |bytes: u64, layers: &[(u32, [f64; 4])]| {
        let layers: BTreeMap<u32, Vec<f64>> =
            layers.iter().map(|(layer, counts)| (*layer, counts.to_vec())).collect();
        let uses = Some(ExpertUses { source: "counts".to_owned(), layers });
        let request = request(ExpertCache::Bytes(bytes), Offload::All);
        of(&graph, &machine, &Request { uses, ..request }).unwrap()
    };
    // Used alike: the first of each layer by turns.
    let plan = with(3 * EXPERT + EXPERT - 1, &[]);
    assert_eq!(residents(&plan), [vec![0, 1], vec![0]]);
    let experts = plan.experts.as_ref().unwrap();
    assert_eq!((experts.device, experts.bytes), (1, 3 * EXPERT));
    let layers: Vec<_> = (experts.layers.iter())
        .map(|layer| (layer.index, layer.resident, layer.experts, layer.hit_rate))
        .collect();
    assert_eq!(layers, [(0, 2, 4, 0.5), (1, 1, 4, 0.25)]);
    assert_eq!((experts.hit_rate, experts.counts.as_deref()), (0.375, Some("counts")));
    assert_eq!(experts.nodes, [11..15, 32..36]);
    // The card has them instead of all; the host has all.
    let all = 2 * 4 * EXPERT;
    let [host, card] = &plan.devices[..] else { panic!("two devices") };
    assert_eq!(card.expert_bytes, 3 * EXPERT);
    assert_eq!(card.weight_bytes, whole.devices[1].weight_bytes - all);
    assert_eq!(host.weight_bytes, whole.devices[0].weight_bytes + all);
    assert_eq!(
        card.used_bytes,
        card.weight_bytes + card.kv_bytes + card.activation_bytes + card.staging_bytes + 3 * EXPERT
    );
    for layer in &plan.layers {
        assert_eq!(layer.weight_bytes, whole.layers[0].weight_bytes);
    }
    // Two of a token's experts, in proportion to the counts, but each at most once: 1, 0.5, 0.25 and 0.25 of layer 1.
    let counts = [(0, [1.0, 2.0, 3.0, 2.0]), (1, [4.0, 2.0, 1.0, 1.0])];
    let plan = with(5 * EXPERT, &counts);
    assert_eq!(residents(&plan), [vec![2, 1, 3], vec![0, 1]]);
    let rates = plan.experts.as_ref().unwrap().layers.iter().map(|layer| layer.hit_rate);
    assert_eq!(rates.collect::<Vec<_>>(), [7.0 / 8.0, 0.75]);
    let uses = &plan.experts.as_ref().unwrap().choices[1].uses;
    assert_eq!(uses[..], [1.0, 0.5, 0.25, 0.25]);
    let capped = with(EXPERT, &[(0, [9.0, 1.0, 0.0, 0.0])]);
    assert_eq!(capped.experts.unwrap().choices[0].uses[..2], [1.0, 0.2]);
    // Counts of another model, or of none, are none; a layer without residents counts for the rate.
    let plan = with(EXPERT, &[(0, [0.0; 4])]);
    assert_eq!(residents(&plan), [[0]]);
    let experts = plan.experts.unwrap();
    assert_eq!((experts.hit_rate, &experts.choices[0].uses[..]), (0.125, &[0.5; 4][..]));
    // No room for one.
    assert_eq!(with(EXPERT - 1, &[]).experts, None);
    let nothing = of(&graph, &machine, &request(ExpertCache::Bytes(0), Offload::All)).unwrap();
    assert_eq!(nothing, whole);
}

#[test]
fn residents_are_on_the_card_with_most_memory() {
    let graph = sparse(1, 4, 2);
    let asked = request(ExpertCache::Bytes(2 * EXPERT), Offload::Count(0));
    for (bytes, device) in [([1, 3], 2), ([3, 1], 1), ([2, 2], 1)] {
        let machine = cards(&bytes.map(|gib| gib * GIB));
        let plan = of(&graph, &machine, &asked).unwrap();
        assert_eq!(plan.experts.as_ref().unwrap().device, device);
        assert_eq!(plan.devices[device].expert_bytes, 2 * EXPERT);
    }
    // Without a card there are none, nor on one that reads weights in the file.
    let alone = of(&graph, &cards(&[]), &asked).unwrap();
    assert_eq!(alone.experts, None);
    let mut machine = cards(&[GIB]);
    machine.devices[1].copies_weights = false;
    let plan = of(&graph, &machine, &asked).unwrap();
    assert_eq!((plan.experts, plan.devices[1].expert_bytes), (None, 0));
}

#[test]
fn mixtures_that_are_kept_on_the_host_get_residents_first() {
    let graph = sparse(2, 4, 2);
    let machine = cards(&[GIB]);
    let with = |pins: &[(&str, usize)]| {
        let pins = pins.iter().map(|&(name, device)| (weight(&graph, name), device)).collect();
        let asked = request(ExpertCache::Bytes(2 * EXPERT), Offload::All);
        of(&graph, &machine, &Request { pins, ..asked }).unwrap()
    };
    let layers = |plan: Plan| -> Vec<(u32, usize)> {
        let layers = plan.experts.map_or(Vec::new(), |experts| experts.layers);
        layers.iter().map(|layer| (layer.index, layer.resident)).collect()
    };
    assert_eq!(layers(with(&[])), [(0, 1), (1, 1)]);
    assert_eq!(layers(with(&[("1.gate_exps", 0)])), [(1, 2)]);
    // Those that are pinned to a card stay there.
    assert_eq!(layers(with(&[("1.gate_exps", 1)])), [(0, 2)]);
    assert_eq!(layers(with(&[("0.down_exps", 1), ("1.gate_exps", 1)])), []);
}

/// The plan with so many residents, on a card with just the memory for it less some bytes.
fn fitted(graph: &Graph, count: u64, less: u64) -> Machine {
    let asked = request(ExpertCache::Bytes(count * EXPERT), Offload::All);
    let plan = of(graph, &cards(&[GIB]), &asked).unwrap();
    cards(&[plan.devices[1].used_bytes - less])
}

#[test]
fn more_experts_than_fit_are_refused_with_the_largest_cache_that_fits() {
    let graph = sparse(2, 4, 2);
    let ask = |machine: &Machine, bytes: u64, offload: Offload| {
        of(&graph, machine, &request(ExpertCache::Bytes(bytes), offload))
    };
    let five = fitted(&graph, 5, 0);
    assert_eq!(ask(&five, 5 * EXPERT, Offload::All).unwrap().experts.unwrap().bytes, 5 * EXPERT);
    for bytes in [6 * EXPERT, 8 * EXPERT] {
        let error = ask(&five, bytes, Offload::All).unwrap_err();
        let Error::CacheDoesNotFit { what, largest } = &error else { panic!("{error}") };
        assert_eq!((what.device.as_str(), *largest), ("gpu", 5 * EXPERT));
        assert_eq!(what.used_bytes - what.budget_bytes, bytes - 5 * EXPERT);
    }
    // One byte less.
    let less = fitted(&graph, 5, 1);
    let error = ask(&less, 5 * EXPERT, Offload::All).unwrap_err();
    assert!(matches!(error, Error::CacheDoesNotFit { largest, .. } if largest == 5 * EXPERT - 1));
    // What is left over of an expert makes no difference.
    let error = ask(&less, 6 * EXPERT - 1, Offload::All).unwrap_err();
    assert!(matches!(error, Error::CacheDoesNotFit { largest, .. } if largest == 5 * EXPERT - 1));
    // Nothing fits.
    let error = ask(&cards(&[1000]), 2 * EXPERT, Offload::All).unwrap_err();
    assert!(matches!(error, Error::CacheDoesNotFit { largest: 0, .. }), "{error}");
    // With any number of layers, the experts come first.
    let all = fitted(&graph, 5, 0).devices[1].memory_bytes;
    let small = cards(&[all - 2 * EXPERT]);
    let plan = ask(&small, 4 * EXPERT, Offload::Auto).unwrap();
    assert_eq!(plan.experts.unwrap().bytes, 4 * EXPERT);
    assert!(plan.gpu_layers < 3, "{}", plan.map);
    let error = ask(&small, 8 * EXPERT, Offload::Auto).unwrap_err();
    let Error::CacheDoesNotFit { largest, .. } = error else { panic!("{error}") };
    assert!((4 * EXPERT..8 * EXPERT).contains(&largest), "{largest}");
    assert_eq!(ask(&small, largest, Offload::Count(0)).unwrap().gpu_layers, 0);
}

const AUTO_NOTE: &str = "expert-cache auto: the model is expected to be faster without";

#[test]
fn auto_takes_what_other_parts_leave() {
    let graph = sparse(2, 4, 2);
    let auto = |machine: &Machine, offload: Offload| {
        of(&graph, machine, &request(ExpertCache::Auto, offload))
    };
    for count in [1, 3, 5] {
        let plan = auto(&fitted(&graph, count, 0), Offload::All).unwrap();
        assert_eq!(plan.experts.as_ref().unwrap().bytes, count * EXPERT);
        assert_eq!(plan.devices[1].used_bytes, plan.devices[1].budget_bytes);
        assert!(!plan.notes.iter().any(|note| note == AUTO_NOTE));
        let less = auto(&fitted(&graph, count, 1), Offload::All);
        if count == 1 {
            // Neither whole layers nor a resident.
            assert!(matches!(less, Err(Error::DoesNotFit { .. })), "{less:?}");
        } else {
            assert_eq!(less.unwrap().experts.unwrap().bytes, (count - 1) * EXPERT);
        }
    }
    // With any number of layers all are on the card before experts, and fewer experts fit before fewer layers: whole
    // layers would leave more than half of the weights with the host.
    for (less, count) in [(0, 5), (1, 4)] {
        let plan = auto(&fitted(&graph, 5, less), Offload::Auto).unwrap();
        assert_eq!((plan.gpu_layers, plan.experts.unwrap().bytes), (3, count * EXPERT));
    }
    // Where all layers fit, residents are of no use.
    let plan = auto(&cards(&[GIB]), Offload::All).unwrap();
    assert_eq!((plan.experts, plan.notes), (None, vec![AUTO_NOTE.to_owned()]));
    // Where the user keeps them on the host, they are.
    let plan = auto(&cards(&[GIB]), Offload::Count(0)).unwrap();
    assert_eq!(plan.experts.unwrap().bytes, 8 * EXPERT);
}

/// A host and a card with times of layers; the card's link and the host's memory take time for results.
fn timed(host_ms: [f64; 4], card_ms: [f64; 4], host_gbps: f64) -> Machine {
    let mut machine = cards(&[GIB]);
    let zero = cost([0.0; 4]);
    let of = |layer: [f64; 4]| alike(1, zero, cost(layer), zero, zero);
    machine.times = measured(vec![of(host_ms), of(card_ms)]);
    machine.devices[0].read_gbps = Some(host_gbps);
    let link = Link { download_gbps: Some(0.001), ..Link::default() };
    machine.devices[1] = Facts { link, ..gpu(GIB) };
    machine
}

#[test]
fn parts_of_a_mixture_run_beside_each_other() {
    let graph = sparse(1, 4, 2);
    // Bytes of a step of one token: of attention and the router, and of an expert in each part, if all are used alike.
    let rest = 4.0 * (ATTENTION + 4 * 64) as f64;
    let expert = EXPERT as f64;
    // Ops without matrices: seven on the card; an activation, the sum of both parts, and the mix with the host.
    let whole = rest + 2.0 * expert + 10.0 * 1e-3;
    // Results of two experts, 64 elements each: through the link, and four times through the host's memory.
    let results = |gbps: f64| 512.0 / 0.001e6 + 4.0 * 512.0 / (gbps * 1e6);
    // A prompt's micro-batch of 128 tokens reads both experts of a part.
    let read = |gbps: f64| 2.0 * expert / (gbps * 1e6) / 128.0;
    for (host, card, gbps) in [
        ([8.0, 16.0, 4.0, 2.0], [2.0, 4.0, 1.0, 0.5], 1.0),
        ([8.0, 16.0, 4.0, 2.0], [2.0, 4.0, 1.0, 0.5], 0.0005),
        ([1.0, 2.0, 0.5, 0.25], [3.0, 9.0, 2.0, 1.0], 1.0),
    ] {
        let machine = timed(host, card, gbps);
        let asked = request(ExpertCache::Bytes(2 * EXPERT), Offload::All);
        let plan = of(&graph, &machine, &asked).unwrap();
        let found = plan.predicted.unwrap();
        let part = |figure: f64| figure * expert / whole;
        let others = |figure: usize| {
            card[figure] * (rest + 7.0 * 1e-3) / whole + host[figure] * 3.0 * 1e-3 / whole
        };
        let longer = |figure: usize| part(host[figure]).max(part(card[figure]));
        assert_close(found.decode_ms, others(0) + longer(0) + results(gbps));
        assert_close(found.batch_ms.unwrap(), others(1) + longer(1) + 8.0 * results(gbps));
        let prefill = others(2) + longer(2).max(read(gbps)) + results(gbps);
        assert_close(found.prefill_ms_per_token.unwrap(), prefill);
        assert_eq!(found.groups.sequences_min, None);
    }
}

#[test]
fn with_times_auto_compares_answers() {
    let graph = sparse(1, 4, 2);
    let auto = |machine: &Machine| {
        of(&graph, machine, &request(ExpertCache::Auto, Offload::Count(0))).unwrap()
    };
    // Without a link and memory that take time, two devices are faster than the host alone.
    let mut machine = timed([8.0, 16.0, 4.0, 2.0], [2.0, 4.0, 1.0, 0.5], 1000.0);
    machine.devices[1].link = Link::default();
    let plan = auto(&machine);
    assert_eq!(plan.experts.as_ref().unwrap().bytes, 4 * EXPERT);
    let alone = of(&graph, &machine, &request(ExpertCache::Off, Offload::Count(0))).unwrap();
    let ms = |plan: &Plan| plan.predicted.as_ref().unwrap().answer_ms();
    assert!(ms(&plan) < ms(&alone));
    // With a slow link they are not.
    machine.devices[1].link.download_gbps = Some(1e-6);
    let plan = auto(&machine);
    assert_eq!((plan.experts, plan.notes), (None, vec![AUTO_NOTE.to_owned()]));
}

#[test]
fn residents_share_their_activations() {
    let graph = sparse(2, 4, 2);
    let machine = cards(&[GIB]);
    let asked = request(ExpertCache::Bytes(8 * EXPERT), Offload::Count(0));
    let plan = of(&graph, &machine, &asked).unwrap();
    let card = &plan.devices[1];
    // Rows of 64, routes of 4, gates and ups of two experts, results of two experts; of eight tokens. Gate and up are one
    // product with the activation; the rows and the route are inputs, the result is an output.
    let inputs = 8 * (64 + 4);
    assert_eq!(card.activation_bytes, 4 * (inputs + 8 * (256 + 128)));
    assert_eq!(card.staging_bytes, 4 * (inputs + 8 * 128));
    assert_eq!((card.weight_bytes, card.expert_bytes), (0, 8 * EXPERT));
    // Two segments, since two layers have some.
    assert_eq!(plan.segments.iter().filter(|segment| segment.device == 1).count(), 2);
    let placed = split_experts(&graph, &plan.experts.unwrap().choices);
    let again = place(&placed, &machine, &BUDGET, &plan.placement).unwrap();
    assert_eq!(again.devices, plan.devices);
}
