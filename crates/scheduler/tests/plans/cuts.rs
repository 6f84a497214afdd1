//! Segments, maps, labels, losses and messages.

use bilayer_graph::{Graph, Recorder, Value};
use bilayer_scheduler::{
    Budget, Error, Excess, Loss, Placement, PlannedSegment, cut, displaced, place,
};

use crate::models::{BUDGET, F32, GIB, VOCAB, WIDTH, cards, dense, embedding, product};

/// Values 0 to 4: an embedding, a product in layer 0, in layer 1 a product and its sum with the embedding, and logits.
fn line() -> Graph {
    let mut of = Recorder::new(&F32);
    let embedded = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let first = product(&mut of, "first", embedded, WIDTH);
    of.layer(Some(1));
    let second = product(&mut of, "second", first, WIDTH);
    let sum = of.add("sum", second, embedded);
    of.layer(None);
    let logits = product(&mut of, "head", sum, VOCAB);
    of.finish(logits)
}

fn placement(layers: [usize; 2], exceptions: &[(usize, usize)]) -> Placement {
    let exceptions = exceptions.iter().copied().collect();
    Placement { embedding: 0, layers: layers.to_vec(), output: 0, exceptions }
}

fn segment(
    device: usize,
    nodes: std::ops::Range<usize>,
    inputs: &[u32],
    outputs: &[u32],
) -> PlannedSegment {
    let values = |of: &[u32]| of.iter().map(|&value| Value(value)).collect();
    PlannedSegment { device, nodes, inputs: values(inputs), outputs: values(outputs) }
}

#[test]
fn segments_end_where_the_device_changes_and_name_what_crosses() {
    let graph = line();
    // A value that returns to the device that made it passes through the host too; inputs ascend.
    let cases = [
        (placement([0, 0], &[]), vec![segment(0, 0..5, &[], &[4])]),
        (
            placement([1, 0], &[]),
            vec![
                segment(0, 0..1, &[], &[0]),
                segment(1, 1..2, &[0], &[1]),
                segment(0, 2..5, &[0, 1], &[4]),
            ],
        ),
        (
            placement([0, 0], &[(3, 1)]),
            vec![
                segment(0, 0..3, &[], &[0, 2]),
                segment(1, 3..4, &[0, 2], &[3]),
                segment(0, 4..5, &[3], &[4]),
            ],
        ),
    ];
    for (placement, segments) in cases {
        assert_eq!(cut(&graph, &placement), segments, "{placement:?}");
        let compiled = segments[0].segment(&graph);
        assert_eq!(
            (&compiled.nodes, &compiled.outputs),
            (&segments[0].nodes, &segments[0].outputs)
        );
        assert_eq!(compiled.inputs, segments[0].inputs);
    }
    // The logits are a result wherever they are made, and what is made of them is none.
    let mut graph = line();
    graph.top_k(2);
    let last = [segment(0, 0..5, &[], &[4]), segment(1, 5..6, &[4], &[])];
    assert_eq!(cut(&graph, &placement([0, 0], &[(5, 1)])), last);
}

#[test]
fn values_that_no_op_makes_are_inputs_and_no_outputs() {
    let mut of = Recorder::new(&F32);
    let given = of.given(WIDTH);
    of.layer(Some(0));
    let first = product(&mut of, "first", given, WIDTH);
    of.layer(Some(1));
    let second = of.add("sum", first, given);
    let graph = of.finish(second);
    let segments = [segment(0, 0..1, &[0], &[1]), segment(1, 1..2, &[0, 1], &[2])];
    assert_eq!(cut(&graph, &placement([0, 1], &[])), segments);
}

#[test]
fn a_map_names_all_devices_of_a_part() {
    let machine = cards(&[GIB, GIB]);
    let cases = [
        (placement([0, 0], &[]), "out:cpu 1-0:cpu"),
        (placement([1, 0], &[(1, 2)]), "out:cpu 1:cpu 0:gpu0+gpu1"),
        (placement([0, 0], &[(4, 1)]), "out:cpu+gpu0 1-0:cpu"),
        (placement([1, 1], &[(4, 2)]), "out:cpu+gpu1 1-0:gpu0"),
        // The embedding is no part of the map.
        (placement([0, 0], &[(0, 1)]), "out:cpu 1-0:cpu"),
        (placement([0, 0], &[(1, 1), (2, 1)]), "out:cpu 1-0:cpu+gpu0"),
        (placement([0, 0], &[(3, 1), (2, 2)]), "out:cpu 1:cpu+gpu0+gpu1 0:cpu"),
        // An exception that is none.
        (placement([0, 2], &[(1, 0)]), "out:cpu 1:gpu1 0:cpu"),
    ];
    for (placement, map) in cases {
        let plan = place(&line(), &machine, &BUDGET, &placement).unwrap();
        assert_eq!(plan.map, map, "{placement:?}");
    }
    let parts = place(&line(), &machine, &BUDGET, &placement([1, 2], &[])).unwrap();
    assert_eq!(parts.devices.iter().map(|device| device.parts).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!([parts.layers[0].device.as_str(), &parts.layers[1].device], ["gpu0", "gpu1"]);
    assert_eq!([parts.embedding.as_str(), &parts.output], ["cpu", "cpu"]);
    let beyond = place(&line(), &machine, &BUDGET, &placement([0, 3], &[]));
    assert_eq!(beyond, Err(Error::NoDevice));
}

/// Cards of which the second one has as much memory as it needs for a placement, less so many bytes.
fn fitted(graph: &Graph, layers: &[usize], less: u64) -> bilayer_scheduler::Machine {
    let mut machine = cards(&[GIB, GIB]);
    let placed = Placement { layers: layers.to_vec(), ..Placement::single(graph.layers(), 0) };
    let plan = place(graph, &machine, &BUDGET, &placed).unwrap();
    machine.devices[2].memory_bytes = plan.devices[2].used_bytes - less;
    machine
}

#[test]
fn lost_parts_go_to_other_devices_that_have_room_and_then_to_the_host() {
    let graph = dense(4);
    let of = |machine: &bilayer_scheduler::Machine, placement: &Placement, loss: Loss<'_>| {
        displaced(&graph, machine, &BUDGET, placement, &loss).unwrap().placement
    };
    let all = Placement::offload(4, 5, 0, 1);
    let loss = Loss { device: 1, keeps: 2, host: 0, closed: &[] };
    let roomy = cards(&[GIB, GIB]);
    // The first device keeps its last layers and the head.
    let kept = of(&roomy, &all, loss);
    assert_eq!((kept.layers, kept.output, kept.embedding), (vec![2, 2, 1, 1], 1, 0));
    // Room for one layer: the last of those that were lost.
    let one = fitted(&graph, &[0, 2, 1, 1], 0);
    assert_eq!(of(&one, &all, loss).layers, [0, 2, 1, 1]);
    let none = fitted(&graph, &[0, 2, 1, 1], 1);
    assert_eq!(of(&none, &all, loss).layers, [0, 0, 1, 1]);
    // A closed device takes nothing, nor does the host keep what others can take.
    assert_eq!(of(&roomy, &all, Loss { closed: &[2], ..loss }).layers, [0, 0, 1, 1]);
    assert_eq!(of(&roomy, &all, Loss { closed: &[1], ..loss }).layers, [2, 2, 1, 1]);
    assert_eq!(of(&roomy, &all, Loss { keeps: 9, ..loss }), all);
    // Only the layers of that device are lost.
    let mixed = Placement { layers: vec![0, 1, 2, 1], ..Placement::single(4, 2) };
    let after = of(&roomy, &mixed, Loss { keeps: 1, closed: &[2], ..loss });
    assert_eq!((after.layers, after.output, after.embedding), (vec![0, 0, 2, 1], 2, 2));
}

#[test]
fn a_device_that_keeps_nothing_loses_the_head_and_all_exceptions() {
    let graph = dense(2);
    let machine = cards(&[GIB, GIB]);
    let lost = Loss { device: 1, keeps: 0, host: 0, closed: &[] };
    let of = |placement: &Placement, loss: &Loss<'_>| {
        displaced(&graph, &machine, &BUDGET, placement, loss).unwrap().placement
    };
    let mut placement = Placement::single(2, 1);
    placement.exceptions.extend([(3, 1), (4, 2)]);
    let after = of(&placement, &lost);
    assert_eq!((after.embedding, &after.layers[..], after.output), (0, &[2, 2][..], 2));
    assert_eq!(after.exceptions.into_iter().collect::<Vec<_>>(), [(3, 0), (4, 2)]);
    // Others' heads and embeddings stay where they are, and so does everything of a device that keeps something.
    let other = Placement { embedding: 2, output: 0, ..placement.clone() };
    let after = of(&other, &lost);
    assert_eq!((after.embedding, &after.layers[..], after.output), (2, &[2, 2][..], 0));
    let kept = of(&placement, &Loss { keeps: 2, ..lost });
    assert_eq!(kept, placement);
    // The head goes first.
    let small = fitted(&graph, &[0, 2], 0);
    let after = displaced(&graph, &small, &BUDGET, &Placement::single(2, 1), &lost).unwrap();
    assert_eq!((&after.placement.layers[..], after.placement.output), (&[0, 0][..], 2));
    // What a host without room cannot take is an error.
    let mut tiny = cards(&[GIB]);
    tiny.devices[0].memory_bytes = 1000;
    let error = displaced(&graph, &tiny, &BUDGET, &Placement::single(2, 1), &lost).unwrap_err();
    assert!(matches!(&error, Error::DoesNotFit { what, .. } if what.device == "cpu"), "{error}");
}

#[test]
fn a_host_takes_lost_weights_beyond_its_memory_if_it_reads_them_in_the_files_map() {
    let graph = dense(2);
    let (all, lost) = (Placement::single(2, 1), Loss { device: 1, keeps: 0, host: 0, closed: &[] });
    let whole = place(&graph, &cards(&[]), &BUDGET, &Placement::single(2, 0)).unwrap();
    let besides = whole.devices[0].used_bytes - whole.devices[0].weight_bytes;
    let of = |memory_bytes: u64, copies_weights: bool| {
        let mut machine = cards(&[GIB]);
        machine.devices[0].memory_bytes = memory_bytes;
        machine.devices[0].copies_weights = copies_weights;
        displaced(&graph, &machine, &BUDGET, &all, &lost)
    };
    let after = of(besides, false).unwrap();
    assert_eq!(after.placement, Placement::single(2, 0));
    assert!(after.notes[0].ends_with("read from the file again and again"), "{:?}", after.notes);
    assert!(of(besides - 1, false).is_err() && of(besides, true).is_err());
}

#[test]
fn messages_tell_what_is_too_much_and_what_fits() {
    let what = Excess {
        device: "gpu".to_owned(),
        budget_bytes: GIB,
        used_bytes: 3 * GIB / 2,
        weight_bytes: GIB,
        kv_bytes: GIB / 4,
        state_bytes: 0,
        activation_bytes: GIB / 8,
    };
    let sizes = "gpu has room for 1.00 GiB but would hold 1.50 GiB: 512 MiB too much (weights 1.00 GiB, \
        cache 256 MiB, activations 128 MiB)";
    let advice = [
        (
            Some(0),
            "nothing fits there: use -ngl 0, a shorter context (-c) or a smaller batch (-ub)",
        ),
        (Some(7), "-ngl 7 fits, as does more with a shorter context (-c) or a smaller batch (-ub)"),
        (None, "a shorter context, a smaller batch or a smaller quantization needs less"),
    ];
    for (largest, advice) in advice {
        let error = Error::DoesNotFit { what: what.clone(), largest };
        assert_eq!(error.to_string(), format!("{sizes}; {advice}"));
    }
    let caches = [
        (0, "no --expert-cache fits beside what else is placed there"),
        ((5 << 20) - 1, "--expert-cache 4MiB fits"),
    ];
    for (largest, advice) in caches {
        let error = Error::CacheDoesNotFit { what: what.clone(), largest };
        assert_eq!(error.to_string(), format!("{sizes}; {advice}"));
    }
    let with_states = Excess { state_bytes: 2 << 20, ..what };
    let sizes = sizes.replace("activations", "states 2.00 MiB, activations");
    assert_eq!(with_states.to_string(), sizes);
}

#[test]
fn budgets_count_pages_slots_and_rows() {
    use bilayer_graph::{Rows, StateInfo, ValueInfo};

    let pages = [(1, 1), (32, 1), (33, 2), (64, 2), (65, 3), (0, 0)];
    for (context, expected) in pages {
        assert_eq!(Budget { context, ..BUDGET }.pages(), expected, "{context} tokens");
    }
    // Three slots of ten f32.
    assert_eq!(BUDGET.state_bytes(&StateInfo { layer: 0, elements: 10 }), 3 * 10 * 4);
    let value = |rows| BUDGET.value_bytes(&ValueInfo { width: 10, rows });
    assert_eq!([Rows::Tokens, Rows::Outputs].map(value), [8 * 10 * 4, 2 * 10 * 4]);
    let usual = Budget::default();
    assert_eq!((usual.context, usual.states, usual.tokens, usual.outputs), (4096, 2, 512, 1));
    assert_eq!(usual.margin_bytes, 0);
}
