//! The printed form of a plan.

use bilayer_graph::Recorder;
use bilayer_scheduler::{
    Basis, ExpertCache, ExpertUses, Groups, Machine, Offload, OpOffload, Placement, Request, Times,
    offload, place,
};

use crate::models::{
    BUDGET, F32, GIB, WIDTH, alike, attention, cards, cost, dense, embedding, head, measured,
    sparse,
};

#[test]
fn a_plan_is_printed_by_devices_and_groups_of_equal_layers() {
    let machine = cards(&[GIB, GIB]);
    let placement = Placement { output: 1, ..Placement::offload(4, 2, 0, 1) };
    let plan = place(&dense(4), &machine, &BUDGET, &placement).unwrap();
    // Layers of 147968 bytes and caches of 8192; a table and a head of 65536, with a norm of 256; activations of 10240 with
    // a result of 2048, and on the card with what products write before norms, of 2048 too; 2048 of hidden states, and of logits. The second card holds nothing.
    let expected = "\
out:gpu0 3:gpu0 2-0:cpu

device          budget        used     weights       cache activations     staging
cpu           64.0 GiB     536 KiB     498 KiB    24.0 KiB    12.0 KiB    2.00 KiB
gpu0          1.00 GiB     235 KiB     209 KiB    8.00 KiB    14.0 KiB    4.00 KiB

layers     device         weights       cache
0-2 each   cpu            144 KiB    8.00 KiB
3          gpu0           144 KiB    8.00 KiB
";
    assert_eq!(plan.to_string(), expected);
    let unlimited = Machine::new(vec![bilayer_graph::Facts::host("all", u64::MAX)]);
    let plan = place(&dense(1), &unlimited, &BUDGET, &Placement::single(1, 0)).unwrap();
    let line = plan.to_string().lines().nth(3).unwrap().to_owned();
    assert!(line.starts_with("cpu          unlimited "), "{line}");
}

#[test]
fn states_have_a_column_where_there_are_any() {
    let mut of = Recorder::new(&F32);
    let hidden = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let taps = of.stack_vector("taps", [64, 4]).unwrap();
    let hidden = of.conv("conv", hidden, taps, None);
    of.layer(Some(1));
    let hidden = attention(&mut of, 1, hidden, None);
    let graph = head(of, hidden);
    let plan = place(&graph, &cards(&[]), &BUDGET, &Placement::single(2, 0)).unwrap();
    let text = plan.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let heads = "device          budget        used     weights       cache      states activations     staging";
    assert_eq!(lines[2], heads);
    // Three slots of three rows of 64.
    assert!(lines[3].contains("    8.00 KiB    2.25 KiB "), "{}", lines[3]);
    let layers = [
        "layers     device         weights cache, state",
        "0          cpu           1.00 KiB    2.25 KiB",
        "1          cpu           48.2 KiB    8.00 KiB",
    ];
    assert_eq!(lines[5..8], layers);
}

/// Times of a host and a card in which a prompt's token takes half a millisecond, or a quarter.
fn timed(layers: u32) -> Machine {
    let mut machine = cards(&[GIB]);
    let zero = cost([0.0; 4]);
    let of = |ms: f64| alike(layers, zero, cost([ms, 2.0 * ms, 0.5, 0.25]), zero, zero);
    machine.times = measured(vec![of(8.0), of(2.0)]);
    machine
}

#[test]
fn predictions_are_printed_with_their_basis() {
    let mut machine = timed(2);
    let text = |machine: &Machine, count: u32| {
        let placement = Placement::offload(2, count, 0, 1);
        place(&dense(2), machine, &BUDGET, &placement).unwrap().to_string()
    };
    let one = text(&machine, 0);
    assert!(one.contains("\n0-1 each   cpu            144 KiB    8.00 KiB    8.000 ms\n"), "{one}");
    let lines = "\n\ndecode   16.00 ms a token, 62.5 tok/s (measured)\n\
        prefill  0.500 ms a token, 2000 tok/s (measured)\n";
    assert!(one.ends_with(lines), "{one}");
    // Two devices: ten milliseconds of which one takes eight. A batch of any size takes as long as two groups.
    machine.times = machine.times.map(|times| Times { basis: Basis::Estimated, ..times });
    let both = text(&machine, 2);
    let lines = "decode   10.00 ms a token, 100.0 tok/s (estimated)\n\
        prefill  0.625 ms a token, 1600 tok/s (estimated)\n\
        overlap  up to 1.25 times as fast with two groups of sequences in turn";
    assert!(both.contains(lines), "{both}");
    let placement = Placement::offload(2, 2, 0, 1);
    let mut plan = place(&dense(2), &machine, &BUDGET, &placement).unwrap();
    let predicted = plan.predicted.as_mut().unwrap();
    predicted.groups = Groups { bound: 1.25, sequences_min: Some(7) };
    assert!(plan.to_string().ends_with(" in turn, from 7 sequences on (estimated)\n"));
    let predicted = plan.predicted.as_mut().unwrap();
    predicted.groups.sequences_min = None;
    assert!(predicted.to_string().ends_with(" in turn; one batch is as fast (estimated)\n"));
    predicted.groups.bound = 1.0;
    predicted.prefill_ms_per_token = None;
    assert_eq!(predicted.to_string(), "decode   10.00 ms a token, 100.0 tok/s (estimated)\n");
    // The mean of a group of equal layers.
    machine.times.as_mut().unwrap().devices[0].layers[1].decode_ms = 5.0;
    let uneven = text(&machine, 0);
    assert!(
        uneven.contains("\n0-1 each   cpu            144 KiB    8.00 KiB    6.500 ms\n"),
        "{uneven}"
    );
}

#[test]
fn residents_are_told_in_words() {
    let graph = sparse(2, 4, 2);
    let text = |experts: u64, uses: Option<ExpertUses>| {
        let request = Request {
            offload: Offload::All,
            op_offload: OpOffload::Never,
            experts: ExpertCache::Bytes(experts * 98_304),
            uses,
            ..Request::default()
        };
        offload(&graph, &cards(&[GIB]), &BUDGET, &request).unwrap().to_string()
    };
    let some = "\nexperts: 480 KiB on gpu, 2 to 3 of 4 in each of 2 layers; 62 % of a token's experts are \
        expected there (if all were used alike; counts are learned while the model runs)\n";
    assert!(text(5, None).ends_with(some), "{}", text(5, None));
    let uses = ExpertUses { source: "counts of a text".to_owned(), layers: Default::default() };
    let each = "\nexperts: 192 KiB on gpu, 1 of 4 in each of 2 layers; 25 % of a token's experts are expected \
        there (by counts of a text)\n";
    assert!(text(2, Some(uses.clone())).ends_with(each), "{}", text(2, Some(uses)));
}
