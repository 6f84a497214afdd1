//! Sizes: texts, weights, caches, states, activations and values in transfer.

use bilayer_graph::{Activation, Attend, Facts, Graph, Pairs, Recorder, Rope, Value};
use bilayer_quant::Type;
use bilayer_scheduler::{
    Budget, Bytes, Error, Offload, Placement, Plan, PlannedSegment, Request, cut, offload, place,
    working_bytes,
};

use crate::models::{
    BUDGET, F32, FFN, GIB, LAYER_BYTES, TOKEN_BYTES, Typed, VOCAB, WIDTH, attend, attention, cards,
    dense, embedding, gpu, head, host, matrices, norm, product, sparse, weight,
};

#[test]
fn sizes_are_read_with_or_without_a_unit() {
    let cases = [
        ("24GiB", 0, 24 << 30),
        ("1.5 gb", 0, 3 << 29),
        ("3G", 0, 3 << 30),
        ("512MiB", 30, 512 << 20),
        ("2m", 0, 2 << 20),
        ("7MB", 0, 7 << 20),
        ("5k", 0, 5 << 10),
        ("5kb", 0, 5 << 10),
        ("5KiB", 0, 5 << 10),
        ("2T", 0, 2 << 40),
        ("2tb", 0, 2 << 40),
        ("2tib", 0, 2 << 40),
        ("100 B", 20, 100),
        ("4", 20, 4 << 20),
        ("4", 0, 4),
        ("0.5", 10, 512),
    ];
    for (given, bare, bytes) in cases {
        assert_eq!(Bytes::parse(given, bare), Ok(Bytes(bytes)), "{given}");
    }
    for (given, error) in [
        ("24 parsecs", "must be a size such as"),
        ("GiB", "must begin with a number"),
        ("1.2.3", "must begin with a number"),
    ] {
        let found = Bytes::parse(given, 0).unwrap_err();
        assert!(found.contains(error), "{given}: {found}");
    }
}

#[test]
fn sizes_have_three_digits() {
    let kib = |kib: f64| (kib * 1024.0) as u64;
    let cases = [
        (kib(9.99), "9.99 KiB"),
        (kib(9.998), "10.0 KiB"),
        (kib(99.9), "99.9 KiB"),
        (kib(99.97), "100 KiB"),
        (kib(999.4), "999 KiB"),
        (kib(999.6), "0.98 MiB"),
        (5 << 40, "5.00 TiB"),
    ];
    for (bytes, shown) in cases {
        assert_eq!(Bytes(bytes).to_string(), shown);
    }
}

/// What a segment of all nodes on one device takes.
fn working(graph: &Graph, facts: &Facts, budget: &Budget) -> u64 {
    let segments = cut(graph, &Placement::single(graph.layers(), 0));
    working_bytes(graph, &segments[0], budget, facts)
}

/// What it takes for activations, in elements of four bytes.
fn elements(graph: &Graph, facts: &Facts) -> u64 {
    let shared = Facts { shares_memory: true, ..facts.clone() };
    let bytes = working(graph, &shared, &BUDGET);
    assert_eq!(bytes % 4, 0);
    bytes / 4
}

/// Products one after the other, with matrices of a type; each result is read by the next product.
fn chain(ty: Type, widths: &[usize]) -> Graph {
    let of_name = matrices(ty);
    let catalog = Typed(&of_name);
    let mut of = Recorder::new(&catalog);
    let mut value = embedding(&mut of, widths[0]);
    for (number, &width) in widths.iter().enumerate().skip(1) {
        value = product(&mut of, &format!("{number}"), value, width);
    }
    of.finish(value)
}

#[test]
fn values_share_memory_with_the_last_but_one() {
    // Eight rows; the result shares with nothing.
    let cases: [(&[usize], u64); 6] = [
        (&[64, 256], 64 + 256),
        (&[64, 128, 256], 64 + 128 + 256),
        (&[64, 128, 64, 128, 256], 64 + 128 + 256),
        // The largest of those that share.
        (&[64, 128, 192, 64, 256], 192 + 128 + 256),
        // Rows of no multiple of 64 share with equal ones only.
        (&[96, 64, 96, 64, 256], 96 + 64 + 256),
        (&[96, 64, 128, 64, 160, 256], 96 + 64 + 128 + 160 + 256),
    ];
    for (widths, rows) in cases {
        assert_eq!(elements(&chain(Type::F32, widths), &host(GIB)), 8 * rows, "{widths:?}");
    }
    assert_eq!(
        elements(&chain(Type::F32, &[96, 64, 97, 64, 256]), &host(GIB)),
        8 * (96 + 64 + 97 + 256)
    );
}

/// A device that multiplies matrices of Q8_0 with integers.
fn quantizing() -> Facts {
    Facts { quantized: vec![Type::Q8_0], ..gpu(GIB) }
}

/// Bytes of a row as integers: 24 for 16 of its elements, rounded up to 64, as elements of four.
fn integers(width: u64) -> u64 {
    width.next_multiple_of(64) / 16 * 24 / 4
}

#[test]
fn products_with_integers_take_memory_for_them() {
    let device = quantizing();
    // Floats are alive until they are quantized.
    let one = chain(Type::Q8_0, &[64, 256]);
    assert_eq!(elements(&one, &device), 8 * (64 + integers(64) + 256));
    let odd = chain(Type::Q8_0, &[96, 256]);
    assert_eq!(elements(&odd, &device), 8 * (96 + integers(96) + 256));
    // Other types and devices read floats.
    assert_eq!(elements(&chain(Type::F32, &[64, 256]), &device), 8 * (64 + 256));
    assert_eq!(elements(&one, &host(GIB)), 8 * (64 + 256));
    // Integers of one product share with those of the next one; floats, too: the first ones end before the product.
    let two = chain(Type::Q8_0, &[64, 64, 64, 256]);
    assert_eq!(elements(&two, &device), 8 * (64 + integers(64) + 256));
    // Integers of rows of no multiple of 64 share with equal ones only, and not with the floats.
    let odd = chain(Type::Q8_0, &[96, 96, 96, 256]);
    assert_eq!(elements(&odd, &device), 8 * (96 + integers(96) + 256));
    let mixed = chain(Type::Q8_0, &[96, 160, 256]);
    assert_eq!(elements(&mixed, &device), 8 * (96 + integers(96) + 160 + integers(160) + 256));
}

#[test]
fn norms_write_integers_and_floats_as_products_want_them() {
    let graph = |second: Type| {
        let of_name = move |name: &str| match name {
            "gain" => Type::F32,
            "second" => second,
            _ => Type::Q8_0,
        };
        let catalog = Typed(&of_name);
        let mut of = Recorder::new(&catalog);
        let embedded = embedding(&mut of, WIDTH);
        let normed = norm(&mut of, "gain", embedded);
        let first = product(&mut of, "first", normed, 128);
        let other = product(&mut of, "second", normed, 128);
        let sum = of.add("sum", first, other);
        of.finish(sum)
    };
    // The products' place is free while the rows are read, integers are alive from the norm to the products, and the sum
    // is the result.
    let device = quantizing();
    let integers = 8 * integers(64);
    assert_eq!(elements(&graph(Type::Q8_0), &device), 8 * (2 * 128 + 128) + integers);
    // The norm writes floats, too, while the products are made.
    assert_eq!(elements(&graph(Type::F32), &device), 8 * (3 * 128 + 64) + integers);
    assert_eq!(elements(&graph(Type::F32), &gpu(GIB)), 8 * (3 * 128 + 64));
    assert_eq!(elements(&graph(Type::Q8_0), &gpu(GIB)), 8 * (3 * 128 + 64));
}

#[test]
fn results_of_one_kernel_lie_side_by_side() {
    let of_types = |q: Type, k: Type| {
        let of_name = move |name: &str| match name {
            "q" => q,
            "k" => k,
            _ => Type::F32,
        };
        let catalog = Typed(&of_name);
        let mut of = Recorder::new(&catalog);
        let embedded = embedding(&mut of, WIDTH);
        let q = product(&mut of, "q", embedded, 64);
        let k = product(&mut of, "k", embedded, 128);
        let wide = product(&mut of, "wide", q, 128);
        let narrow = product(&mut of, "narrow", wide, 64);
        let last = product(&mut of, "last", narrow, 128);
        let sum = of.add("sum", last, k);
        let result = product(&mut of, "result", sum, 64);
        elements(&of.finish(result), &gpu(GIB))
    };
    // Apart: 128 for k, 128 for what is wide, for the sum and the embedding, 64 for q and what is narrow, and the result.
    assert_eq!(of_types(Type::F16, Type::F32), 8 * (128 + 128 + 64 + 64));
    // Together: q stays as long as k.
    assert_eq!(of_types(Type::F16, Type::F16), 8 * (192 + 128 + 64 + 64));
}

#[test]
fn products_before_an_activation_take_memory_of_their_own() {
    let mut of = Recorder::new(&F32);
    let embedded = embedding(&mut of, WIDTH);
    let wide = product(&mut of, "wide", embedded, FFN);
    let wide = of.gate("act", wide, None, Activation::Gelu);
    let result = product(&mut of, "result", wide, WIDTH);
    assert_eq!(elements(&of.finish(result), &gpu(GIB)), 8 * (64 + 128 + 128 + 64));
}

/// How attention has its queries and keys.
#[derive(Clone, Copy)]
struct Attending {
    is_rotated: bool,
    is_cached: bool,
    /// The type of the matrix of queries.
    q: Type,
}

/// Attention of four heads of keys and values between an embedding and a result.
fn attending(Attending { is_rotated, is_cached, q }: Attending) -> Graph {
    let of_name = move |name: &str| if name == "q" { q } else { Type::F32 };
    let catalog = Typed(&of_name);
    let mut of = Recorder::new(&catalog);
    let embedded = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let cache = is_cached.then(|| of.cache(4, 16, None));
    let mut q = product(&mut of, "q", embedded, 64);
    let mut k = product(&mut of, "k", embedded, 64);
    let v = product(&mut of, "v", embedded, 64);
    if is_rotated {
        let frequencies = vec![1.0; 8].into();
        let rope = Rope { pairs: Pairs::Halves, frequencies, magnitude: 1.0, factors: None };
        q = of.rope("q_rope", q, 16, &rope);
        k = of.rope("k_rope", k, 16, &rope);
    }
    let op = Attend { kv_heads: 4, ..attend(q, k, v, cache, None) };
    let out = of.attend("attn", op);
    of.layer(None);
    let out = product(&mut of, "result", out, WIDTH);
    let sum = of.add("sum", out, embedded);
    of.finish(sum)
}

#[test]
fn attention_takes_memory_for_rotated_queries_and_for_keys_that_are_not_cached() {
    // Keys with values, whose place the results of attention take; the embedding until the end, the result, and queries.
    let kind = Attending { is_rotated: false, is_cached: true, q: Type::F16 };
    let plain = attending(kind);
    assert_eq!(elements(&plain, &gpu(GIB)), 8 * (128 + 64 + 64 + 64));
    // Rotated queries are others.
    let rotated = attending(Attending { is_rotated: true, ..kind });
    assert_eq!(elements(&rotated, &gpu(GIB)), 8 * (128 + 64 + 64 + 64 + 64));
    // Queries, keys and values side by side, and apart from them the results of attention.
    let together = attending(Attending { q: Type::F32, ..kind });
    assert_eq!(elements(&together, &gpu(GIB)), 8 * (192 + 64 + 64 + 64));
    // Keys and values of two pages in f32, whatever caches store.
    let uncached = attending(Attending { q: Type::F32, is_cached: false, ..kind });
    let kept = 64 * 4 * (16 + 16);
    assert_eq!(elements(&uncached, &gpu(GIB)), 8 * (192 + 64 + 64 + 64) + kept);
}

#[test]
fn inputs_and_outputs_share_with_nothing() {
    let graph = chain(Type::F32, &[64, 64, 64, 64, 64, 64, 256]);
    let shared = Facts { shares_memory: true, ..gpu(GIB) };
    let of = |nodes: std::ops::Range<usize>, inputs: &[u32], outputs: &[u32]| {
        let values = |of: &[u32]| of.iter().map(|&value| Value(value)).collect();
        let (inputs, outputs) = (values(inputs), values(outputs));
        let segment = PlannedSegment { device: 0, nodes, inputs, outputs };
        working_bytes(&graph, &segment, &BUDGET, &shared) / 32
    };
    // Two values by turns, and the result.
    assert_eq!(of(0..7, &[], &[6]), 64 + 64 + 256);
    for output in [0, 1, 4, 5] {
        assert_eq!(of(0..7, &[], &[output, 6]), 3 * 64 + 256, "{output}");
    }
    // An input is kept, and counts once more in transfer.
    assert_eq!(of(1..7, &[0], &[6]), 3 * 64 + 256 + 64);
}

#[test]
fn integers_of_whole_rows_share_with_floats() {
    let of_name = |name: &str| match name {
        "a" => Type::F32,
        "b" => Type::F16,
        "c" => Type::BF16,
        _ => Type::Q8_0,
    };
    let catalog = Typed(&of_name);
    let mut of = Recorder::new(&catalog);
    let embedded = embedding(&mut of, WIDTH);
    let narrow = product(&mut of, "narrow", embedded, 64);
    let [a, b, c] = ["a", "b", "c"].map(|name| product(&mut of, name, narrow, 128));
    let sum = of.add("sum", a, b);
    let sum = of.add("sum", sum, c);
    // Three products and two sums at once. The embedding and both parts of its integers lie where products are later, and the
    // product that reads them where the first sum is.
    assert_eq!(elements(&of.finish(sum), &quantizing()), 8 * 5 * 128);
}

#[test]
fn keys_that_are_not_cached_are_there_during_attention() {
    let mut of = Recorder::new(&F32);
    let embedded = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let wide = product(&mut of, "wide", embedded, 128);
    let [q, k, v] = ["q", "k", "v"].map(|name| product(&mut of, name, wide, 64));
    let out = of.attend("attn", Attend { kv_heads: 4, ..attend(q, k, v, None, None) });
    of.layer(None);
    let result = product(&mut of, "result", out, WIDTH);
    // What is wide lies there before, and the embedding with queries, keys and values; results of attention lie apart.
    let kept = 64 * 4 * (16 + 16);
    assert_eq!(elements(&of.finish(result), &gpu(GIB)), kept + 8 * (192 + 64 + 64));
}

fn placed(graph: &Graph, budget: &Budget, count: u32) -> Plan {
    let placement = Placement::offload(graph.layers(), count, 0, 1);
    place(graph, &cards(&[GIB]), budget, &placement).unwrap()
}

/// Elements that a layer's activations take for eight tokens: queries, keys and values, or gate and up; what a layer
/// continues; a temporary value; and what its attention has added to.
const ACTIVATIONS: u64 = 8 * (128 + 3 * 64);

#[test]
fn devices_hold_weights_caches_activations_and_values_in_transfer() {
    let plan = placed(&dense(3), &Budget { margin_bytes: 100, ..BUDGET }, 2);
    let [first, second] = &plan.devices[..] else { panic!("two devices") };
    let table = 4 * (VOCAB * WIDTH) as u64;
    assert_eq!(first.weight_bytes, 2 * LAYER_BYTES + table);
    // The head has a norm of its own.
    assert_eq!(second.weight_bytes, LAYER_BYTES + table + 4 * 64);
    assert_eq!((first.kv_bytes, second.kv_bytes), (2 * 64 * TOKEN_BYTES, 64 * TOKEN_BYTES));
    // Hidden states of eight rows leave the first device and come to the second; logits of two rows leave that.
    let hidden = 4 * 8 * 64;
    let logits = 4 * 2 * 256;
    assert_eq!((first.staging_bytes, second.staging_bytes), (hidden, hidden + logits));
    assert_eq!(first.activation_bytes, 4 * ACTIVATIONS + hidden);
    // On a card the product before a norm may write what the norm makes of its result.
    assert_eq!(second.activation_bytes, 4 * ACTIVATIONS + logits + hidden);
    for (device, memory) in [(first, 64 * GIB), (second, GIB)] {
        let parts = [device.weight_bytes, device.kv_bytes, device.activation_bytes];
        assert_eq!(device.used_bytes, parts.iter().sum::<u64>() + device.staging_bytes);
        assert_eq!(device.budget_bytes, memory - 100);
        assert_eq!((device.state_bytes, device.expert_bytes, device.stream_bytes), (0, 0, 0));
    }
    assert_eq!((&first.label[..], &first.name[..], first.parts), ("cpu", "a host", 2));
    assert_eq!((&second.label[..], &second.name[..], second.parts), ("gpu", "a card", 2));
    for layer in &plan.layers {
        assert_eq!((layer.weight_bytes, layer.kv_bytes), (LAYER_BYTES, 64 * TOKEN_BYTES));
    }
    // A device whose results the host reads in place has only its inputs in transfer.
    let mut shared = cards(&[GIB]);
    shared.devices[1].shares_memory = true;
    let placement = Placement::offload(3, 2, 0, 1);
    let plan = place(&dense(3), &shared, &BUDGET, &placement).unwrap();
    assert_eq!((plan.devices[0].staging_bytes, plan.devices[1].staging_bytes), (hidden, hidden));
}

/// An integrated GPU: what it holds is missing to the host.
#[test]
fn memory_that_a_device_shares_with_the_host_is_counted_once() {
    let graph = dense(4);
    let of = |host: u64, is_shared: bool, count: Offload| {
        let mut machine = cards(&[GIB]);
        machine.devices[0].memory_bytes = host;
        machine.devices[1].uses_host_memory = is_shared;
        offload(&graph, &machine, &BUDGET, &Request { offload: count, ..Request::default() })
    };
    let two = of(GIB, true, Offload::Count(2)).unwrap();
    let [cpu, gpu] = &two.devices[..] else { panic!("two devices") };
    // The host's weights can be read from the file again.
    let kept = cpu.used_bytes - cpu.weight_bytes;
    assert_eq!((cpu.budget_bytes, gpu.budget_bytes), (GIB, GIB - kept));
    assert!(two.notes.is_empty(), "{:?}", two.notes);

    let room = cpu.used_bytes + gpu.used_bytes;
    assert!(of(room, true, Offload::Count(2)).unwrap().notes.is_empty());
    let notes = of(room - 1, true, Offload::Count(2)).unwrap().notes;
    assert!(notes[0].starts_with("cpu and gpu share memory, and "), "{notes:?}");
    assert!(of(room - 1, false, Offload::Count(2)).unwrap().notes.is_empty());

    let least = kept + gpu.used_bytes;
    let most = |host, is_shared| of(host, is_shared, Offload::Auto).unwrap().max_gpu_layers;
    assert_eq!((most(least, true), most(least - 1, true), most(least - 1, false)), (2, 1, 5));
    let error = of(least - 1, true, Offload::Count(2)).unwrap_err();
    let Error::DoesNotFit { what, largest: Some(1) } = error else { panic!("{error}") };
    assert_eq!((&*what.device, what.budget_bytes), ("gpu", gpu.used_bytes - 1));
}

#[test]
fn several_segments_of_a_device_have_their_own_activations() {
    let graph = dense(3);
    let of = |layers: [usize; 3]| {
        let placement = Placement { layers: layers.to_vec(), ..Placement::single(3, 0) };
        let plan = place(&graph, &cards(&[GIB]), &BUDGET, &placement).unwrap();
        (plan.devices[1].activation_bytes, plan.devices[1].staging_bytes)
    };
    // A layer's input and output are in transfer, and share with nothing: instead of the value that a layer continues and
    // with its result.
    let hidden = 4 * 8 * 64;
    let one = of([0, 1, 0]);
    // On a card the product before a norm may write what the norm makes of its result.
    assert_eq!(one, (4 * ACTIVATIONS + 2 * hidden, 2 * hidden));
    assert_eq!(of([1, 0, 1]), (2 * one.0, 2 * one.1));
}

#[test]
fn states_take_their_slots() {
    let mut of = Recorder::new(&F32);
    let hidden = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    // Four taps of 64 channels: three rows are kept.
    let taps = of.stack_vector("taps", [64, 4]).unwrap();
    let hidden = of.conv("conv", hidden, taps, None);
    of.layer(Some(1));
    let hidden = attention(&mut of, 1, hidden, None);
    let plan = placed(&head(of, hidden), &BUDGET, 2);
    let slots = 3 * 4 * 3 * 64;
    let bytes = |plan: &Plan| {
        plan.devices.iter().map(|of| (of.state_bytes, of.kv_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&plan), [(slots, 0), (0, 64 * TOKEN_BYTES)]);
    let layers: Vec<_> = plan.layers.iter().map(|of| (of.state_bytes, of.kv_bytes)).collect();
    assert_eq!(layers, bytes(&plan));
    let [host, _] = &plan.devices[..] else { panic!("two devices") };
    let parts = host.weight_bytes + host.activation_bytes + host.staging_bytes;
    assert_eq!(host.used_bytes, parts + slots);
}

#[test]
fn experts_and_shared_weights_count_once() {
    let graph = sparse(1, 4, 2);
    let plan = placed(&graph, &BUDGET, 2);
    let bytes = |name: &str| graph.weight(weight(&graph, name)).bytes() as u64;
    assert_eq!(bytes("0.gate_exps"), 4 * 4 * 128 * 64);
    let all: u64 = graph.weights.iter().map(|weight| weight.bytes() as u64).sum();
    let table = bytes("table");
    assert_eq!((plan.devices[0].weight_bytes, plan.devices[1].weight_bytes), (table, all - table));
    // A tied head is the embedding's table.
    let mut of = Recorder::new(&F32);
    let table = of.matrix("table", VOCAB, WIDTH).unwrap();
    let hidden = of.embed("embed", table);
    let logits = of.matmul("head", hidden, table, None);
    let tied = of.finish(logits);
    assert_eq!(placed(&tied, &BUDGET, 0).devices[0].weight_bytes, 4 * 256 * 64);
    assert_eq!(tied.logits, Value(1));
}

#[test]
fn sums_do_not_overflow() {
    let budget = Budget { context: usize::MAX / 64, ..BUDGET };
    let mut machine = cards(&[]);
    machine.devices[0].memory_bytes = u64::MAX - 1;
    let error = place(&dense(1), &machine, &budget, &Placement::single(1, 0)).unwrap_err();
    let bilayer_scheduler::Error::DoesNotFit { what, largest: None } = error else {
        panic!("{error}")
    };
    assert_eq!((what.used_bytes, what.kv_bytes), (u64::MAX, u64::MAX));
}
