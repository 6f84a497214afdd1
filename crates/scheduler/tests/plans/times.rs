//! Predicted times: sums over parts, devices that work at the same time, groups of sequences, long contexts.

use std::collections::BTreeMap;

use bilayer_graph::{Facts, Graph, Recorder, Window};
use bilayer_quant::Type;
use bilayer_scheduler::{
    Basis, Budget, Cost, Demand, Groups, Growth, Machine, Placement, Plan, Predicted, cut,
    overlaps, place, timed_tokens,
};

use crate::models::{
    ATTENTION, BUDGET, F32, GIB, NETWORK, WIDTH, alike, assert_close, attention, cards, cost,
    dense, embedding, gpu, head, measured, product,
};

/// A host and a card with different times of everything, whole numbers.
fn machine(layers: u32) -> Machine {
    let mut machine = cards(&[GIB]);
    let one = |factor: f64, figures: [f64; 4]| cost(figures.map(|figure| factor * figure));
    let of = |by: f64| {
        let [embedding, layer, output, segment] = [
            [1.0, 2.0, 0.25, 0.125],
            [10.0, 20.0, 2.0, 1.0],
            [3.0, 4.0, 0.5, 0.75],
            [0.5, 0.75, 0.0625, 0.03125],
        ];
        alike(layers, one(by, embedding), one(by, layer), one(by, output), one(by, segment))
    };
    machine.times = measured(vec![of(8.0), of(1.0)]);
    machine
}

fn predicted(graph: &Graph, machine: &Machine, placement: &Placement) -> Predicted {
    place(graph, machine, &BUDGET, placement).unwrap().predicted.unwrap()
}

#[test]
fn a_step_takes_what_its_parts_and_segments_take() {
    let graph = dense(3);
    let machine = machine(3);
    // One device: the embedding, three layers, the head, one segment. A prompt is one step.
    let host = predicted(&graph, &machine, &Placement::offload(3, 0, 0, 1));
    assert_eq!(host.decode_ms, 8.0 * (1.0 + 30.0 + 3.0 + 0.5));
    assert_eq!(host.batch_ms, Some(8.0 * (2.0 + 60.0 + 4.0 + 0.75)));
    assert_eq!(host.prefill_ms_per_token, Some(8.0 * (0.125 + 3.0 + 0.75 + 0.03125)));
    assert_eq!(host.devices_ms, [8.0 * 34.5, 0.0]);
    assert_eq!(host.groups, Groups { bound: 1.0, sequences_min: None });
    assert_eq!(host.basis, Basis::Measured);
    let answer = 512.0 * host.prefill_ms_per_token.unwrap() + 128.0 * host.decode_ms;
    assert_eq!(host.answer_ms(), answer);

    // Two of the layers and the head on the card. A prompt keeps the host busy, but for the card's share of one of four
    // micro-batches.
    let both = predicted(&graph, &machine, &Placement::offload(3, 3, 0, 1));
    let [first, second] = [8.0 * (1.0 + 10.0 + 0.5), 20.0 + 3.0 + 0.5];
    assert_eq!((both.decode_ms, &both.devices_ms[..]), (first + second, &[first, second][..]));
    assert_eq!(both.batch_ms, Some(8.0 * (2.0 + 20.0 + 0.75) + 40.0 + 4.0 + 0.75));
    let [first_ms, second_ms] = [8.0 * (0.25 + 2.0 + 0.0625), 4.0 + 0.5 + 0.0625];
    assert_eq!(both.prefill_ms_per_token, Some(first_ms + second_ms / 4.0));
    assert_eq!(both.groups.bound, (first + second) / first);

    // The host only looks tokens up: no devices share the prompt.
    let all = predicted(&graph, &machine, &Placement::offload(3, 4, 0, 1));
    assert_eq!(all.decode_ms, 8.0 * (1.0 + 0.5) + 30.0 + 3.0 + 0.5);
    let prompt = 8.0 * (0.125 + 0.03125) + 3.0 + 0.75 + 0.03125;
    assert_eq!(all.prefill_ms_per_token, Some(prompt));
    assert_eq!(all.groups, Groups { bound: 1.0, sequences_min: None });
}

#[test]
fn a_part_on_two_devices_takes_shares_by_the_bytes_that_are_read() {
    let graph = dense(1);
    let machine = machine(1);
    let down = graph.nodes.iter().rposition(|node| node.layer.is_some()).unwrap() - 1;
    let exceptions = BTreeMap::from([(down, 0)]);
    let placement = Placement { exceptions, ..Placement::offload(1, 2, 0, 1) };
    let found = predicted(&graph, &machine, &placement);
    // Six of the layer's ops read nothing, and count as little.
    let (here, little) = (4.0 * 64.0 * 128.0, 6.0 * 1e-3);
    let share = here / (4.0 * (ATTENTION + NETWORK) as f64 + little);
    // The host runs the embedding and the product, the card what is before it and after it.
    assert_close(found.devices_ms[0], 8.0 * (1.0 + 10.0 * share + 2.0 * 0.5));
    assert_close(found.devices_ms[1], 10.0 * (1.0 - share) + 3.0 + 2.0 * 0.5);
    assert_close(found.decode_ms, found.devices_ms.iter().sum());
}

#[test]
fn predictions_of_equal_plans_have_equal_bits() {
    let graph = dense(12);
    let mut machine = machine(12);
    for device in &mut machine.times.as_mut().unwrap().devices {
        for (layer, times) in (3..).zip(&mut device.layers) {
            times.decode_ms = 1.0 / f64::from(layer);
        }
    }
    let of = || predicted(&graph, &machine, &Placement::offload(12, 6, 0, 1));
    let first = of();
    assert!((0..16).all(|_| of() == first));
}

#[test]
fn unknown_times_are_not_predicted() {
    let graph = dense(1);
    let mut machine = machine(1);
    let placement = Placement::offload(1, 1, 0, 1);
    let times = machine.times.as_mut().unwrap();
    times.devices[1].output.batch_ms = None;
    times.devices[1].output.prefill_ms = None;
    let found = predicted(&graph, &machine, &placement);
    assert_eq!((found.batch_ms, found.prefill_ms_per_token), (None, None));
    assert_eq!(found.answer_ms(), 128.0 * found.decode_ms);
    // Nothing is known of a third device.
    let mut three = machine.clone();
    three.devices.push(gpu(GIB));
    assert_eq!(place(&graph, &three, &BUDGET, &placement).unwrap().predicted, None);
    machine.times.as_mut().unwrap().devices[0].layers.clear();
    assert_eq!(place(&graph, &machine, &BUDGET, &placement).unwrap().predicted, None);
    let unknown = place(&graph, &cards(&[GIB]), &BUDGET, &placement).unwrap();
    assert_eq!((unknown.predicted, unknown.layers[0].ms), (None, None));
}

#[test]
fn devices_overlap_if_two_multiply_and_no_value_is_the_input_of_two_segments() {
    let mut of = Recorder::new(&F32);
    let embedded = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let first = product(&mut of, "first", embedded, WIDTH);
    let sum = of.add("sum", first, embedded);
    of.layer(Some(1));
    let second = product(&mut of, "second", sum, WIDTH);
    let last = of.add("sum", second, embedded);
    let graph = of.finish(last);
    let of = |exceptions: &[(usize, usize)]| {
        let exceptions = exceptions.iter().copied().collect();
        overlaps(&graph, &cut(&graph, &Placement { exceptions, ..Placement::single(2, 0) }))
    };
    assert!(!of(&[]));
    // A card that only looks tokens up or adds is not busy.
    assert!(!of(&[(0, 1)]) && !of(&[(4, 1)]));
    assert!(of(&[(1, 1)]) && of(&[(3, 1)]));
    // The embedding is an input of two segments of the card.
    assert!(!of(&[(1, 1), (4, 1)]));
    // And an input of one segment of each of two cards.
    assert!(of(&[(1, 1), (4, 2)]));
}

#[test]
fn steps_of_some_tokens_take_between_one_and_a_batch() {
    let of = |batch_ms| {
        let mut found = predicted(&dense(1), &machine(1), &Placement::single(1, 1));
        (found.decode_ms, found.batch_ms) = (6.0, batch_ms);
        found
    };
    let known = of(Some(20.0));
    for (tokens, ms) in [(1.0, 6.0), (4.5, 13.0), (8.0, 20.0), (10.0, 25.0)] {
        assert_close(known.step_ms(tokens), ms);
    }
    assert_eq!(of(None).step_ms(3.0), 18.0);
}

/// A host and a card that each run one layer, in so many milliseconds of a step of one, of a batch, and of a prompt's token.
fn layered(figures: [[f64; 3]; 2]) -> Predicted {
    let mut machine = cards(&[GIB]);
    let zero = cost([0.0; 4]);
    let of = |[one, batch, prompt]: [f64; 3]| {
        alike(2, zero, cost([one, batch, prompt, prompt]), zero, zero)
    };
    machine.times = measured(figures.map(of).to_vec());
    let placement = Placement { layers: vec![0, 1], ..Placement::single(2, 0) };
    predicted(&dense(2), &machine, &Placement { output: 1, ..placement })
}

#[test]
fn rounds_of_groups_take_the_steps_of_the_busiest_device() {
    let found = layered([[8.0, 22.0, 1.0], [2.0, 16.0, 3.0]]);
    let round = |rows, step_rows, groups| found.round_ms(Demand { rows, step_rows }, groups);
    let whole = usize::MAX;
    // One row; in between; a batch; so many rows that they take longer than the weights.
    let steps =
        [(1, 8.0 + 2.0), (4, 14.0 + 8.0), (8, 22.0 + 16.0), (9, 22.0 + 27.0), (30, 30.0 + 90.0)];
    for (rows, ms) in steps {
        assert_close(round(rows, whole, 1), ms);
        assert_close(round(rows, whole, 0), ms);
    }
    // Three steps, of 4 rows at most.
    assert_close(round(10, 4, 1), 3.0 * 22.0);
    assert_close(round(3, 0, 1), 3.0 * 10.0);
    // Two groups of four: the host is busy for two steps, and a group waits for both devices.
    assert_close(round(8, whole, 2), 2.0 * 14.0);
    assert_close(round(2, whole, 2), 2.0 * 8.0);
    assert_close(round(1, whole, 2), 10.0);
    // Three steps of two groups: each waits one and a half times.
    assert_close(round(3, 1, 2), f64::max(3.0 * 8.0, 1.5 * 10.0));
    let even = layered([[5.0, 5.0, 0.5], [5.0, 5.0, 0.5]]);
    let round = |rows, groups| even.round_ms(Demand { rows, step_rows: 1 }, groups);
    assert_close(round(3, 2), 15.0);
    assert_close(round(3, 3), 15.0);
    assert_close(round(1, 3), 10.0);
    assert_eq!(even.groups.bound, 2.0);
}

#[test]
fn groups_are_preferred_if_they_gain_enough() {
    // A batch takes as long as one row, two groups as long as one batch: nothing is gained.
    let even = layered([[5.0, 5.0, 0.25], [5.0, 5.0, 0.25]]);
    let any = |rows| Demand { rows, step_rows: usize::MAX };
    assert_eq!([1, 2, 8].map(|rows| even.groups(any(rows), 2)), [1, 1, 1]);
    // Above 20 rows a device takes a quarter of a millisecond for each, and both groups together 10 up to 40 rows. One
    // batch takes half a millisecond a row: nine tenths of that are more than 10 from 23 rows on.
    assert_eq!(even.groups, Groups { bound: 2.0, sequences_min: Some(23) });
    assert_eq!([22, 23, 40].map(|rows| even.groups(any(rows), 2)), [1, 2, 2]);
    assert_eq!((even.groups(any(40), 1), even.groups(any(40), 0)), (1, 1));
    // No more groups than rows.
    let single = |rows| Demand { rows, step_rows: 1 };
    assert_eq!(even.groups(single(1), 4), 1);
    assert_eq!(even.groups(single(2), 4), 2);
    let uneven = layered([[9.0, 9.0, 0.0], [3.0, 3.0, 0.0]]);
    assert_eq!(uneven.groups.bound, 12.0 / 9.0);
    assert_eq!(uneven.groups.sequences_min, None);
    // Devices that take no time gain nothing.
    assert_eq!(layered([[0.0; 3]; 2]).groups, Groups { bound: 1.0, sequences_min: None });
}

/// A layer of each window, on a machine whose card reads 10^6 bytes in a millisecond.
fn windowed() -> (Graph, Machine) {
    let mut of = Recorder::new(&F32);
    let mut hidden = embedding(&mut of, WIDTH);
    for (layer, window) in
        [None, Some(Window::Last(100)), Some(Window::Chunk(60))].into_iter().enumerate()
    {
        of.layer(Some(layer as u32));
        hidden = attention(&mut of, layer as u32, hidden, window);
    }
    let mut machine = machine(3);
    machine.devices[1] = Facts { read_gbps: Some(1.0), ..gpu(GIB) };
    (head(of, hidden), machine)
}

fn grown(budget: &Budget, machine: &Machine, graph: &Graph, count: u32) -> Plan {
    place(graph, machine, budget, &Placement::offload(3, count, 0, 1)).unwrap()
}

#[test]
fn decode_grows_by_the_keys_and_values_that_are_read() {
    let (graph, machine) = windowed();
    let budget = Budget { value_type: Type::F32, ..BUDGET };
    let plan = grown(&budget, &machine, &graph, 4);
    let growth = Growth::new(&graph, &machine, &budget, &plan);
    let alone = plan.predicted.as_ref().unwrap().decode_ms;
    // A token is two heads of 16 keys in F16 and as many values in F32.
    let token_ms = f64::from(2 * 16 * (2 + 4)) / 1e6;
    for (tokens, seen) in
        [(0, 0.0), (20, 60.0), (50, 50.0 + 50.0 + 30.0), (1000, 1000.0 + 100.0 + 30.0)]
    {
        assert_close(growth.decode_ms(tokens).unwrap(), alone + token_ms * seen);
    }
    // Nothing is known of the host's bandwidth; the last layer is on the card, whose chunks show 30 tokens on average.
    let plan = grown(&budget, &machine, &graph, 2);
    let growth = Growth::new(&graph, &machine, &budget, &plan);
    let alone = plan.predicted.as_ref().unwrap().decode_ms;
    assert_close(growth.decode_ms(1000).unwrap(), alone + token_ms * 30.0);
    let unknown = Machine { times: None, ..machine };
    let plan = grown(&budget, &unknown, &graph, 2);
    let growth = Growth::new(&graph, &unknown, &budget, &plan);
    assert_eq!((growth.decode_ms(10), growth.prompt_ms(10)), (None, None));
}

#[test]
fn prompts_grow_by_the_operations_of_attention() {
    let (graph, machine) = windowed();
    let budget = Budget { tokens: 512, ..BUDGET };
    let plan = grown(&budget, &machine, &graph, 4);
    let growth = Growth::new(&graph, &machine, &budget, &plan);
    let each = plan.predicted.as_ref().unwrap().prefill_ms_per_token.unwrap();
    // Two operations for each element of the matrices, the head's included.
    let matrices = 2.0 * (3.0 * ATTENTION as f64 + 256.0 * 64.0);
    // And for each element of queries and values of four heads, with each token seen.
    let attention = |seen: f64| 2.0 * 4.0 * 32.0 * seen;
    let usual = matrices + attention(256.0 + 100.0 + 30.0);
    assert_close(growth.prompt_ms(512).unwrap(), 512.0 * each);
    for (tokens, seen) in [(600, 300.0 + 130.0), (4096, 2048.0 + 130.0)] {
        let ops = matrices + attention(seen);
        assert_close(growth.prompt_ms(tokens).unwrap(), each * tokens as f64 * ops / usual);
    }
}

#[test]
fn short_prompts_lie_between_the_steps_that_are_timed() {
    let (graph, machine) = windowed();
    let of = |tokens: usize, count: u32| {
        let budget = Budget { tokens, ..BUDGET };
        let plan = grown(&budget, &machine, &graph, count);
        let growth = Growth::new(&graph, &machine, &budget, &plan);
        let ms = [1, 8, 68, 128, 320, 512].map(|tokens| growth.prompt_ms(tokens).unwrap());
        (plan.predicted.unwrap(), ms)
    };
    // The host looks tokens up, the card does the rest: a micro-batch takes twice as long per token as a prompt.
    let (predicted, found) = of(512, 4);
    let piece = 128.0 * (8.0 * (0.25 + 0.0625) + 6.0 + 0.5 + 0.0625);
    let batch = predicted.batch_ms.unwrap();
    let prompt = 512.0 * predicted.prefill_ms_per_token.unwrap();
    let middle = |low: f64, high: f64| f64::midpoint(low, high);
    let expected =
        [predicted.decode_ms, batch, middle(batch, piece), piece, middle(piece, prompt), prompt];
    found.into_iter().zip(expected).for_each(|(found, expected)| assert_close(found, expected));
    // Two devices share a prompt: micro-batches of it are of any size.
    let (predicted, found) = of(512, 2);
    let batch = predicted.batch_ms.unwrap();
    let prompt = 512.0 * predicted.prefill_ms_per_token.unwrap();
    assert_close(found[3], batch + (prompt - batch) * 120.0 / 504.0);
    // Steps of eight tokens are measured as such, and a prompt is a number of them; none is shorter than a token's.
    let (predicted, found) = of(8, 4);
    let each = predicted.prefill_ms_per_token.unwrap();
    assert_close(found[5], 512.0 * each);
    assert_close(found[2], 68.0 * each);
    assert!(8.0 * each < predicted.decode_ms);
    assert_close(found[1], predicted.decode_ms);
}

#[test]
fn few_sizes_of_steps_are_measured() {
    for (step, timed) in [(0, 1), (1, 1), (16, 16), (100, 64), (511, 256), (512, 512), (4096, 512)]
    {
        assert_eq!(timed_tokens(step), timed, "{step}");
    }
}

#[test]
fn prompts_of_mixtures_compute_with_the_experts_of_a_token() {
    let graph = crate::models::sparse(1, 8, 2);
    let machine = machine(1);
    let plan = place(&graph, &machine, &BUDGET, &Placement::single(1, 1)).unwrap();
    let growth = Growth::new(&graph, &machine, &BUDGET, &plan);
    let each = plan.predicted.as_ref().unwrap().prefill_ms_per_token.unwrap();
    let weights = ATTENTION + 8 * 64 + 2 * NETWORK + 256 * 64;
    let ops = |seen: f64| 2.0 * weights as f64 + 2.0 * 4.0 * 32.0 * seen;
    let expected = 2048.0 * each * ops(1024.0) / ops(256.0);
    assert_close(growth.prompt_ms(2048).unwrap(), expected);
}

/// A part's figures are added, whatever is known of them.
#[test]
fn costs_of_layers_are_told_with_the_plan() {
    let plan = place(&dense(2), &machine(2), &BUDGET, &Placement::offload(2, 2, 0, 1)).unwrap();
    let ms: Vec<Option<f64>> = plan.layers.iter().map(|layer| layer.ms).collect();
    assert_eq!(ms, [Some(80.0), Some(10.0)]);
    assert_eq!(Cost::default().batch_ms, None);
}
