//! How much is offloaded, how it is split, and what is pinned: the best of all placements by a formula of the test's own.

use bilayer_graph::{Graph, OpKind};
use bilayer_quant::Type;
use bilayer_scheduler::{
    Budget, Cost, DeviceTimes, Error, Machine, Offload, OpOffload, Placement, Plan, Request,
    offload, place,
};

use crate::models::{
    BUDGET, GIB, alike, assert_close, cards, cost, dense, dense_of, gpu, host, measured, sparse,
    weight,
};

const LAYERS: u32 = 4;
const PARTS: u32 = LAYERS + 1;

fn of(graph: &Graph, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    let request = Request { op_offload: OpOffload::Never, ..request.clone() };
    offload(graph, machine, &BUDGET, &request)
}

fn asked(offload: Offload) -> Request {
    Request { offload, ..Request::default() }
}

/// Numbers that look random, in a range.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, least: f64, most: f64) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + (most - least) * ((self.0 >> 40) as f64 / f64::from(1 << 24))
    }

    fn cost(&mut self, least: f64, most: f64) -> Cost {
        let [decode, prefill] = [self.next(least, most), self.next(least, most) / 8.0];
        cost([decode, 2.0 * decode, prefill, prefill * self.next(0.5, 1.0)])
    }

    fn device(&mut self, least: f64, most: f64) -> DeviceTimes {
        DeviceTimes {
            embedding: self.cost(0.0, 0.1),
            layers: (0..LAYERS).map(|_| self.cost(least, most)).collect(),
            output: self.cost(least, most),
            segment: self.cost(0.0, 0.5),
            upload: None,
        }
    }
}

/// Milliseconds of 512 tokens of a question and 128 of the answer, with so many parts on each card after the host: the
/// sum over parts and segments in decode; in prefill, if several devices multiply, what the slowest takes and a quarter of
/// what the others do.
fn answer_ms(machine: &Machine, counts: &[u32]) -> f64 {
    let devices = &machine.times.as_ref().unwrap().devices;
    let mut places = vec![0; PARTS as usize - counts.iter().sum::<u32>() as usize];
    for (card, &count) in counts.iter().enumerate() {
        places.extend(vec![card + 1; count as usize]);
    }
    let (mut decode, mut prefill, mut prompt) = (0.0, vec![0.0; devices.len()], 0.0);
    let mut add = |device: usize, cost: Cost| {
        decode += cost.decode_ms;
        prefill[device] += cost.prefill_ms.unwrap();
        prompt += cost.prompt_ms.unwrap();
    };
    add(0, devices[0].embedding);
    add(0, devices[0].segment);
    let mut last = 0;
    for (part, &place) in places.iter().enumerate() {
        let times = &devices[place];
        add(place, *times.layers.get(part).unwrap_or(&times.output));
        if place != last {
            add(place, times.segment);
            last = place;
        }
    }
    let busy = places.iter().collect::<std::collections::BTreeSet<_>>().len();
    let longest = prefill.iter().copied().fold(0.0, f64::max);
    let shared = longest + (prefill.iter().sum::<f64>() - longest) / 4.0;
    512.0 * (if busy > 1 { shared } else { prompt }) + 128.0 * decode
}

#[test]
fn auto_takes_the_fewest_parts_of_the_shortest_answer() {
    let graph = dense(LAYERS);
    let mut numbers = Numbers(7);
    let mut chosen = [0; PARTS as usize + 1];
    for _ in 0..20 {
        let mut machine = cards(&[GIB]);
        let most = numbers.next(2.0, 20.0);
        machine.times = measured(vec![numbers.device(1.0, 8.0), numbers.device(0.5, most)]);
        let ms: Vec<f64> = (0..=PARTS).map(|count| answer_ms(&machine, &[count])).collect();
        // A part more must gain a hundredth.
        let mut best = 0;
        for count in 1..ms.len() {
            if ms[count] < 0.99 * ms[best] {
                best = count;
            }
        }
        let plan = of(&graph, &machine, &asked(Offload::Auto)).unwrap();
        assert_eq!((plan.gpu_layers, plan.max_gpu_layers), (best as u32, PARTS), "{ms:?}");
        assert_close(plan.predicted.as_ref().unwrap().answer_ms(), ms[best]);
        chosen[best] += 1;
        for (count, &expected) in (0..).zip(&ms) {
            let plan = of(&graph, &machine, &asked(Offload::Count(count))).unwrap();
            assert_close(plan.predicted.unwrap().answer_ms(), expected);
        }
    }
    // All are the best of some machine.
    assert!(chosen.iter().filter(|&&count| count > 0).count() >= 4, "{chosen:?}");
}

#[test]
fn several_cards_get_the_best_of_three_splits() {
    let graph = dense(LAYERS);
    let mut numbers = Numbers(11);
    let mut firsts = 0;
    for _ in 0..8 {
        let mut machine = cards(&[3 * GIB, GIB]);
        let most = numbers.next(2.0, 12.0);
        let devices = [
            numbers.device(8.0, 9.0),
            numbers.device(1.0, most),
            numbers.device(1.0, 12.0 - most / 2.0),
        ];
        machine.times = measured(devices.to_vec());
        let layers_ms = |device: &DeviceTimes| -> f64 {
            let each = |cost: &Cost| 512.0 * cost.prefill_ms.unwrap() + 128.0 * cost.decode_ms;
            device.layers.iter().map(each).sum()
        };
        let [first, second] = [layers_ms(&devices[1]), layers_ms(&devices[2])];
        for count in 1..=PARTS {
            // Part j goes to the first card if its share of all exceeds j of the count.
            let divided = |share: f64| {
                let mine =
                    (0..count).filter(|&part| share * f64::from(count) > f64::from(part)).count();
                [mine as u32, count - mine as u32]
            };
            let alone = if first < second { [count, 0] } else { [0, count] };
            let splits = [divided(0.75), alone, divided(second / (first + second))];
            let least = splits
                .map(|split| answer_ms(&machine, &split))
                .into_iter()
                .fold(f64::MAX, f64::min);
            let plan = of(&graph, &machine, &asked(Offload::Count(count))).unwrap();
            assert_close(plan.predicted.as_ref().unwrap().answer_ms(), least);
            let parts = [plan.devices[1].parts, plan.devices[2].parts];
            assert_close(answer_ms(&machine, &parts), least);
            let note = format!(
                "layers are split by times and free memory: gpu0 {}, gpu1 {}",
                parts[0], parts[1]
            );
            assert_eq!(plan.notes, [note]);
            firsts += usize::from(parts[0] > parts[1]);
        }
    }
    assert!((4..36).contains(&firsts), "{firsts}");
}

#[test]
fn requests_count_parts() {
    let graph = dense(3);
    let machine = cards(&[GIB]);
    let cases = [
        (Offload::All, 4),
        (Offload::Count(0), 0),
        (Offload::Count(3), 3),
        (Offload::Count(9), 4),
        (Offload::Auto, 4),
        (Offload::Percent(0), 0),
        (Offload::Percent(12), 0),
        (Offload::Percent(13), 1),
        (Offload::Percent(37), 1),
        (Offload::Percent(38), 2),
        (Offload::Percent(100), 4),
        (Offload::Percent(200), 4),
    ];
    for (offload, count) in cases {
        let plan = of(&graph, &machine, &asked(offload)).unwrap();
        assert_eq!(
            (plan.gpu_layers, plan.devices[1].parts, plan.max_gpu_layers),
            (count, count, 4)
        );
        assert_eq!(plan.placement, Placement::offload(3, count, 0, 1), "{offload:?}");
    }
    let note = "4 of 4 layers is the most that fits; chosen by memory, not by measured speed";
    assert_eq!(of(&graph, &machine, &asked(Offload::Auto)).unwrap().notes, [note]);
    // Without a card, or a host.
    let alone = of(&graph, &cards(&[]), &asked(Offload::All)).unwrap();
    assert_eq!((alone.map.as_str(), alone.gpu_layers), ("out:cpu 2-0:cpu", 0));
    assert_eq!(of(&graph, &Machine::new(Vec::new()), &asked(Offload::All)), Err(Error::NoDevice));
}

/// A machine whose card has as much memory as so many parts need, less some bytes.
fn fitted(graph: &Graph, count: u32, less: u64) -> Machine {
    let placement = Placement::offload(graph.layers(), count, 0, 1);
    let plan = place(graph, &cards(&[GIB]), &BUDGET, &placement).unwrap();
    cards(&[plan.devices[1].used_bytes - less])
}

#[test]
fn what_does_not_fit_is_refused_with_the_most_that_does() {
    let graph = dense(3);
    for count in 1..=4 {
        let plan = of(&graph, &fitted(&graph, count, 0), &asked(Offload::Auto)).unwrap();
        assert_eq!((plan.gpu_layers, plan.max_gpu_layers), (count, count));
        let less = fitted(&graph, count, 1);
        let plan = of(&graph, &less, &asked(Offload::Auto)).unwrap();
        assert_eq!((plan.gpu_layers, plan.max_gpu_layers), (count - 1, count - 1));
        for wanted in [count, 4] {
            let error = of(&graph, &less, &asked(Offload::Count(wanted))).unwrap_err();
            let Error::DoesNotFit { what, largest } = &error else { panic!("{error}") };
            assert_eq!((what.device.as_str(), *largest), ("gpu", Some(count - 1)));
            assert!(
                what.used_bytes > what.budget_bytes
                    && what.budget_bytes == less.devices[1].memory_bytes
            );
        }
        let fits = of(&graph, &less, &asked(Offload::Count(0))).unwrap();
        assert_eq!((fits.gpu_layers, fits.max_gpu_layers), (0, count - 1));
    }
    let note = "0 of 4 layers is the most that fits; chosen by memory, not by measured speed";
    assert_eq!(of(&graph, &cards(&[0]), &asked(Offload::Auto)).unwrap().notes, [note]);
}

/// A host that holds weights in memory of its own may be too small for few parts offloaded, as the card is for many.
#[test]
fn the_most_that_fits_is_found_whichever_device_is_too_small() {
    let graph = dense(LAYERS);
    let needs = |count: u32, device: usize| {
        let placement = Placement::offload(LAYERS, count, 0, 1);
        place(&graph, &cards(&[GIB]), &BUDGET, &placement).unwrap().devices[device].used_bytes
    };
    let sizes = (0..=PARTS).flat_map(|few| (0..=PARTS).map(move |many| (few, many)));
    let streams = [OpOffload::Never, OpOffload::Auto, OpOffload::From(16)];
    let (mut found, mut none) = (0, 0);
    for ((few, many), op_offload) in sizes.flat_map(|size| streams.map(|stream| (size, stream))) {
        let mut machine = cards(&[needs(many, 1)]);
        machine.devices[0].memory_bytes = needs(few, 0);
        machine.devices[0].copies_weights = true;
        let fits = |count| {
            let request = Request { op_offload, ..asked(Offload::Count(count)) };
            offload(&graph, &machine, &BUDGET, &request)
        };
        let expected = (0..=PARTS).rev().find(|&count| fits(count).is_ok());
        let largest = match fits(PARTS) {
            Ok(plan) => Some(plan.max_gpu_layers),
            Err(Error::DoesNotFit { largest, .. }) => largest,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(largest, expected, "{few} to {many}, {op_offload:?}");
        *if expected.is_some() { &mut found } else { &mut none } += 1;
    }
    assert!(found > 10 && none > 5, "{found} and {none}");
}

#[test]
fn only_weights_in_the_files_map_may_exceed_the_hosts_memory() {
    let graph = dense(2);
    let placement = Placement::single(2, 0);
    let whole = place(&graph, &cards(&[GIB]), &BUDGET, &placement).unwrap().devices[0].clone();
    let besides = whole.used_bytes - whole.weight_bytes;
    let on = |memory_bytes: u64, copies_weights: bool| {
        let mut host = host(memory_bytes);
        host.copies_weights = copies_weights;
        of(&graph, &Machine::new(vec![host]), &asked(Offload::Auto))
    };
    assert!(on(whole.used_bytes, false).unwrap().notes.is_empty());
    let [note] = &on(besides, false).unwrap().notes[..] else { panic!("one note") };
    assert!(note.starts_with("cpu has room for"), "{note}");
    assert!(note.ends_with("; weights are read from the file again and again"), "{note}");
    for (memory, copies) in [(besides - 1, false), (whole.used_bytes - 1, true)] {
        let error = on(memory, copies).unwrap_err();
        assert!(matches!(&error, Error::DoesNotFit { largest: None, .. }), "{error}");
    }
    // A placement by hand must fit as a whole.
    let mut small = cards(&[GIB]);
    small.devices[0].memory_bytes = besides;
    assert!(place(&graph, &small, &BUDGET, &placement).is_err());
}

/// A machine on which each part takes so many milliseconds of decode on the host and on each of some cards.
fn timed(bytes: &[u64], host_ms: f64, cards_ms: &[f64]) -> Machine {
    let mut machine = cards(bytes);
    let zero = cost([0.0; 4]);
    let each = std::iter::once(&host_ms).chain(cards_ms);
    let each =
        each.map(|&ms| alike(3, zero, cost([ms, ms, 0.0, 0.0]), cost([ms, ms, 0.0, 0.0]), zero));
    machine.times = measured(each.collect());
    machine
}

#[test]
fn notes_tell_why_a_number_was_chosen() {
    let graph = dense(3);
    let note =
        |machine: &Machine| of(&graph, machine, &asked(Offload::Auto)).unwrap().notes.join("; ");
    let all = "4 of 4 layers give the shortest answer: 2.00 times as fast as the CPU alone";
    assert_eq!(note(&timed(&[GIB], 4.0, &[2.0])), all);
    let slow = "no layer is offloaded: the GPU is slower than the CPU (16.00 ms a token on the CPU alone, \
        20.00 with 4 layers on the GPU)";
    assert_eq!(note(&timed(&[GIB], 4.0, &[5.0])), slow);
    let both = "no layer is offloaded: the GPUs are slower than the CPU (16.00 ms a token on the CPU alone, \
        20.00 with 4 layers on the GPUs)";
    assert_eq!(note(&timed(&[GIB, GIB], 4.0, &[5.0, 6.0])), both);
    assert_eq!(note(&timed(&[0], 4.0, &[2.0])), "nothing fits on the GPU");
    assert_eq!(note(&timed(&[0, 0], 4.0, &[2.0, 2.0])), "nothing fits on the GPUs");
    // 16 ms to 2 of 4 and 2 of 2.
    let two = fitted(&graph, 2, 0).devices[1].memory_bytes;
    let some = "2 of 4 layers give the shortest answer: 1.33 times as fast as the CPU alone; more does not fit";
    assert_eq!(note(&timed(&[two], 4.0, &[2.0])), some);
    // A gain of less than a hundredth is none.
    let mut even = timed(&[GIB], 4.0, &[4.0]);
    even.times.as_mut().unwrap().devices[1].output = cost([3.85, 3.85, 0.0, 0.0]);
    assert!(note(&even).starts_with("no layer is offloaded"));
    even.times.as_mut().unwrap().devices[1].output = cost([3.8, 3.8, 0.0, 0.0]);
    let head = "1 of 4 layers give the shortest answer: 1.01 times as fast as the CPU alone";
    assert_eq!(note(&even), head);
}

/// A host with room for two of four parts and the card's others.
#[test]
fn auto_offloads_what_the_host_alone_has_no_room_for() {
    let graph = dense(3);
    let placement = Placement::offload(3, 2, 0, 1);
    let needed = place(&graph, &cards(&[GIB]), &BUDGET, &placement).unwrap().devices[0].used_bytes;
    let auto = |mut machine: Machine| {
        machine.devices[0].memory_bytes = needed;
        machine.devices[0].copies_weights = true;
        assert!(of(&graph, &machine, &asked(Offload::Count(1))).is_err());
        let plan = of(&graph, &machine, &asked(Offload::Auto)).unwrap();
        (plan.gpu_layers, plan.max_gpu_layers, plan.notes.join("; "))
    };
    let note = |count: u32| {
        format!(
            "{count} of 4 layers give the shortest answer; the CPU alone has no room for the model"
        )
    };
    assert_eq!(auto(timed(&[GIB], 4.0, &[2.0])), (4, 4, note(4)));
    // A slow card gets the fewest parts that fit.
    assert_eq!(auto(timed(&[GIB], 4.0, &[5.0])), (2, 4, note(2)));
    let untimed = "4 of 4 layers is the most that fits; chosen by memory, not by measured speed";
    assert_eq!(auto(cards(&[GIB])), (4, 4, untimed.to_owned()));
}

#[test]
fn parts_are_split_by_memory_where_times_are_not_known_and_by_shares_where_they_are_given() {
    let graph = dense(3);
    let machine = cards(&[GIB, 3 * GIB]);
    let parts = |plan: &Plan| [plan.devices[1].parts, plan.devices[2].parts];
    let plan = of(&graph, &machine, &asked(Offload::All)).unwrap();
    assert_eq!(parts(&plan), [1, 3]);
    assert_eq!(plan.notes, ["layers are split by free memory: gpu0 1, gpu1 3"]);
    let none = of(&graph, &machine, &asked(Offload::Count(0))).unwrap();
    assert_eq!((parts(&none), none.notes.len()), ([0, 0], 0));
    let shares: [(&[f64], u32, [u32; 2]); 5] = [
        (&[1.0, 1.0], 4, [2, 2]),
        (&[3.0, 1.0], 4, [3, 1]),
        (&[1.0], 4, [4, 0]),
        (&[0.0, 2.0], 3, [0, 3]),
        (&[1.0, 2.0], 3, [1, 2]),
    ];
    for (shares, count, expected) in shares {
        let request = Request { shares: shares.to_vec(), ..asked(Offload::Count(count)) };
        let plan = of(&graph, &machine, &request).unwrap();
        assert_eq!(parts(&plan), expected, "{shares:?}");
        let note = format!("layers are split as asked: gpu0 {}, gpu1 {}", expected[0], expected[1]);
        assert_eq!(plan.notes, [note]);
    }
}

#[test]
fn what_one_card_has_no_room_for_goes_to_the_other() {
    let graph = dense(6);
    let bytes = |counts: [u32; 2]| {
        let split = [(1, counts[0]), (2, counts[1])];
        let placement = Placement::split(6, 0, &split);
        let plan = place(&graph, &cards(&[GIB, GIB]), &BUDGET, &placement).unwrap();
        [1, 2].map(|card| plan.devices[card].used_bytes)
    };
    let parts = |plan: &Plan| [plan.devices[1].parts, plan.devices[2].parts];
    // Every split that fits is found: as many parts as the cards have room for, and not one more.
    for (first, second) in [(1, 1), (1, 3), (3, 1), (2, 4), (4, 3), (5, 2)] {
        // Each with room for one hidden state more, since some layers' activations take that.
        let exact = bytes([first, second]).map(|bytes| bytes + 4 * 8 * 64);
        let machine = cards(&exact);
        let fits = |counts: [u32; 2]| {
            let found = bytes(counts);
            (0..2).all(|card| counts[card] == 0 || found[card] <= exact[card])
        };
        let most = (0..=7).rev().find(|&count| (0..=count).any(|one| fits([one, count - one])));
        let plan = of(&graph, &machine, &asked(Offload::Auto)).unwrap();
        assert_eq!(Some(plan.gpu_layers), most, "{first} and {second}");
        assert!(fits(parts(&plan)));
        let too_many = plan.gpu_layers + 1;
        if too_many <= 7 {
            let error = of(&graph, &machine, &asked(Offload::Count(too_many))).unwrap_err();
            assert!(
                matches!(error, Error::DoesNotFit { largest, .. } if largest == most),
                "{error}"
            );
        }
    }
    // Shares are not changed.
    let exact = cards(&bytes([2, 5]));
    let shares = Request { shares: vec![1.0, 1.0], ..asked(Offload::Count(7)) };
    assert!(matches!(of(&graph, &exact, &shares), Err(Error::DoesNotFit { .. })));
    // Nor are errors of the host, which no card can mend.
    let mut tiny = cards(&[GIB, GIB]);
    tiny.devices[0].memory_bytes = 100;
    let error = of(&graph, &tiny, &asked(Offload::All)).unwrap_err();
    assert!(matches!(&error, Error::DoesNotFit { what, .. } if what.device == "cpu"), "{error}");
}

/// The nodes that are elsewhere than their layer, by name with their layer.
fn moved(graph: &Graph, plan: &Plan) -> Vec<(String, usize)> {
    let exceptions = plan.placement.exceptions.iter();
    exceptions.map(|(&node, &device)| (graph.nodes[node].label(), device)).collect()
}

#[test]
fn pins_move_ops_with_their_weights_and_what_joins_the_results() {
    let graph = sparse(2, 4, 2);
    let machine = cards(&[GIB]);
    let with = |pins: &[(&str, usize)], count: u32| {
        let pins = pins.iter().map(|&(name, device)| (weight(&graph, name), device)).collect();
        let request = Request { pins, ..asked(Offload::Count(count)) };
        moved(&graph, &of(&graph, &machine, &request).unwrap())
    };
    let names = |names: &[&str], device: usize| -> Vec<(String, usize)> {
        names.iter().map(|name| ((*name).to_owned(), device)).collect()
    };
    // Activation and mix follow the experts.
    let experts = [("1.gate_exps", 0), ("1.up_exps", 0), ("1.down_exps", 0)];
    let all = ["experts", "experts", "act", "experts", "mix"].map(|name| format!("layer 1 {name}"));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(with(&experts, 3), names(&all, 0));
    // Where the layer is, nothing moves; nor with a device that does not exist.
    assert_eq!(with(&experts, 0), []);
    assert_eq!(with(&[("1.gate_exps", 2)], 3), []);
    // One of two operands of the activation is no majority.
    assert_eq!(with(&[("1.up_exps", 0)], 3), names(&["layer 1 experts"], 0));
    // The mix reads 128 elements of the experts' results and 4 of the route.
    assert_eq!(with(&[("1.down_exps", 0)], 3), names(&["layer 1 experts", "layer 1 mix"], 0));
    // The route follows the router.
    assert_eq!(with(&[("0.router", 1)], 0), names(&["layer 0 product", "layer 0 topk"], 1));
    // A sum follows what its own layer has made; the rows that it adds to are of the layer before.
    assert_eq!(with(&[("1.o", 0)], 3), names(&["layer 1 product", "layer 1 sum"], 0));
}

#[test]
fn caches_stay_with_the_host_where_that_is_asked_for() {
    let graph = dense(2);
    let machine = cards(&[GIB]);
    let with = |count: u32| {
        let request = Request { cache_on_host: true, ..asked(Offload::Count(count)) };
        of(&graph, &machine, &request).unwrap()
    };
    let plan = with(2);
    assert_eq!(moved(&graph, &plan), [("layer 1 attn".to_owned(), 0)]);
    assert_eq!((plan.devices[1].kv_bytes, plan.map.as_str()), (0, "out:gpu 1:gpu+cpu 0:cpu"));
    assert_eq!(moved(&graph, &with(0)), []);
    assert_eq!(moved(&graph, &with(3)).len(), 2);
}

#[test]
fn what_a_card_lacks_stays_on_the_host() {
    let graph = dense_of(2, Type::Q8_0);
    let mut machine = cards(&[GIB, GIB]);
    let shares = Request { shares: vec![1.0, 1.0], ..asked(Offload::Count(2)) };
    machine.devices[2].ops.retain(|&op| op != OpKind::Attend);
    machine.devices[1].types.retain(|&ty| ty != Type::Q8_0);
    let plan = of(&graph, &machine, &shares).unwrap();
    // Layer 1 is on the first card, which has no products of that type; the head on the second one, which need not attend.
    let found = moved(&graph, &plan);
    let products =
        found.iter().filter(|(name, device)| (name.as_str(), *device) == ("layer 1 product", 0));
    assert_eq!(products.count(), 7);
    let notes = [
        "matmul with weights of Q8_0 stays on the host: gpu0 cannot run it",
        "layers are split as asked: gpu0 1, gpu1 1",
    ];
    assert_eq!(plan.notes, notes);
    let swapped = Request { shares: vec![0.0, 1.0], ..shares };
    let plan = of(&graph, &machine, &swapped).unwrap();
    assert_eq!(moved(&graph, &plan), [("layer 1 attn".to_owned(), 0)]);
    assert_eq!(plan.notes[0], "attend stays on the host: gpu1 cannot run it");
    // By hand, they are errors.
    let message = |device: usize| {
        let placement = Placement::offload(2, 3, 0, device);
        place(&graph, &machine, &BUDGET, &placement).unwrap_err().to_string()
    };
    let ty = "gpu0 cannot run matmul with weights of Q8_0 (`layer 0 product`); place it on another device";
    assert_eq!(message(1), ty);
    let op = "gpu1 cannot run attend (`layer 0 attn`); place it on another device";
    assert_eq!(message(2), op);
    let lacking = Machine::new(vec![machine.devices[2].clone()]);
    let error = bilayer_scheduler::plan(&graph, &lacking, &BUDGET).unwrap_err();
    assert!(error.to_string().starts_with("gpu cannot run attend"), "{error}");
}

#[test]
fn a_model_on_one_device_is_on_the_first() {
    let machine = Machine::new(vec![gpu(GIB), host(GIB)]);
    let budget = Budget { margin_bytes: 2 * GIB, ..BUDGET };
    let plan = bilayer_scheduler::plan(&dense(2), &machine, &BUDGET).unwrap();
    assert_eq!((plan.map.as_str(), plan.embedding.as_str()), ("out:gpu 1-0:gpu", "gpu"));
    // No memory is left beside the margin.
    let error = bilayer_scheduler::plan(&dense(2), &machine, &budget).unwrap_err();
    assert!(matches!(&error, Error::DoesNotFit { what, .. } if what.budget_bytes == 0), "{error}");
}
