//! Prefill with streamed weights: how fast it is, and when it is planned for that.

use bilayer_graph::Value;
use bilayer_scheduler::{
    Basis, Budget, Cost, Growth, Machine, OpOffload, PromptTimes, Request, Times, Upload, offload,
};

use crate::models::{
    ATTENTION, BUDGET, GIB, NETWORK, assert_close, cards, cost, dense, measured, sparse, weight,
};
use crate::streams::{MATRICES, asked, of, streamed, timed, times};

/// Milliseconds of a step of up to eight rows, between those of one and of eight.
fn step(cost: Cost, rows: f64) -> f64 {
    cost.decode_ms + (cost.batch_ms.unwrap() - cost.decode_ms) * (rows - 1.0) / 7.0
}

/// Milliseconds of a pass of so many tokens in micro-batches of so many rows at most, through an embedding on the host,
/// layers that are streamed, and the head.
fn pass_ms(machine: &Machine, tokens: usize, most: usize, overlap: f64) -> f64 {
    let [host, card] = &machine.times.as_ref().unwrap().devices[..] else { panic!("two devices") };
    let count = tokens.div_ceil(most);
    let rows = tokens.div_ceil(count) as f64;
    let of = |cost: Cost| count as f64 * step(cost, rows);
    // The first copy, and all others beside the layers before.
    let mut ms = 2.0 + of(host.embedding) + of(host.segment);
    for (layer, &cost) in card.layers.iter().enumerate() {
        let copy = if layer + 1 < card.layers.len() { 2.0 } else { 0.0 };
        ms += of(cost) + copy - overlap * of(cost).min(copy) + of(card.segment);
        // Of each token 64 keys and values of four bytes come back.
        ms += tokens as f64 * 4.0 * 64.0 / (MATRICES as f64 / 2.0);
    }
    ms + of(card.output) + of(card.segment)
}

#[test]
fn streaming_is_predicted_stage_by_stage() {
    let graph = dense(3);
    for (overlap, most) in [(0.0, 8), (0.5, 8), (1.0, 8), (0.25, 6), (1.0, 3)] {
        let machine = timed(3, overlap);
        let budget = Budget { tokens: most, context: 1000, ..BUDGET };
        let with = |op_offload| offload(&graph, &machine, &budget, &asked(1, op_offload)).unwrap();
        let plain = with(OpOffload::Never).predicted.unwrap();
        let plan = with(OpOffload::Auto);
        let streaming = plan.streaming.as_ref().unwrap();
        // As few passes as there can be, of alike length.
        let streamed = |tokens: usize| {
            let passes = tokens.div_ceil(8 * most);
            passes as f64 * pass_ms(&machine, tokens.div_ceil(passes), most, overlap)
        };
        let without = 512.0 * plain.prefill_ms_per_token.unwrap();
        let prompts = [(512, streamed(512), without), (2048, streamed(2048), 4.0 * without)];
        assert_eq!(streaming.prompts.len(), 2);
        for (found, (tokens, streamed_ms, without_ms)) in streaming.prompts.iter().zip(prompts) {
            assert_eq!(found.tokens, tokens);
            assert_close(found.streamed_ms, streamed_ms);
            assert_close(found.without_ms, without_ms);
        }
        assert_close(streaming.prefill_ms_per_token.unwrap(), streamed(512) / 512.0);
        assert_eq!(streaming.without_ms_per_token, plain.prefill_ms_per_token);
        let predicted = plan.predicted.as_ref().unwrap();
        assert_eq!(predicted.prefill_ms_per_token, streaming.prefill_ms_per_token);
        assert_eq!(predicted.decode_ms, plain.decode_ms);
        // Without streaming a step takes between one of eight rows and a prompt.
        let plain_ms = |tokens: f64| {
            let batch = plain.batch_ms.unwrap();
            batch + (without - batch) * (tokens - 8.0) / 504.0
        };
        let is_faster = |tokens: &usize| streamed(*tokens) < plain_ms(*tokens as f64);
        let crossover = (1..=most).map(|eighth| 8 * eighth).find(is_faster);
        assert_eq!(Some(streaming.tokens_min), crossover);
        assert!(crossover > Some(8), "{crossover:?}");
        let mut taken = plan.clone();
        taken.without_streaming();
        assert_eq!(taken.predicted, Some(plain));
    }
}

/// A copy of the weights serves all tokens of a pass.
#[test]
fn streamed_prompts_of_any_length_are_predicted_by_their_passes() {
    let graph = dense(3);
    let machine = timed(3, 0.5);
    let budget = Budget { context: 1000, ..BUDGET };
    let plan = offload(&graph, &machine, &budget, &asked(1, OpOffload::Auto)).unwrap();
    let streaming = plan.streaming.as_ref().unwrap();
    let growth = Growth::new(&graph, &machine, &budget, &plan);
    for tokens in [streaming.tokens_min, 64, 65, 300, 512] {
        let passes = tokens.div_ceil(64);
        let ms = passes as f64 * pass_ms(&machine, tokens.div_ceil(passes), 8, 0.5);
        assert_close(growth.prompt_ms(tokens).unwrap(), ms);
    }
    let PromptTimes { tokens, streamed_ms, .. } = streaming.prompts[1];
    // Three layers of attention see 768 tokens more than in a prompt of 512, and take the time of kernels for that.
    let attention = |seen: f64| 3.0 * 2.0 * 4.0 * 32.0 * seen;
    let usual = 2.0 * (3.0 * (ATTENTION + NETWORK) as f64 + 256.0 * 64.0) + attention(256.0);
    let devices = &machine.times.as_ref().unwrap().devices;
    let kernels = devices[1].layers.iter().chain([&devices[0].embedding, &devices[1].output]);
    let token_ms: f64 = kernels.map(|cost| cost.prompt_ms.unwrap()).sum();
    let more = tokens as f64 * token_ms * attention(768.0) / usual;
    assert_close(growth.prompt_ms(tokens).unwrap(), streamed_ms + more);
    // What is not streamed takes what it does without streaming.
    let plain = offload(&graph, &machine, &budget, &asked(1, OpOffload::Never)).unwrap();
    let without = Growth::new(&graph, &machine, &budget, &plain);
    let short = streaming.tokens_min - 1;
    assert_eq!(growth.prompt_ms(short), without.prompt_ms(short));
}

#[test]
fn streaming_that_is_never_faster_is_not_planned() {
    let graph = dense(3);
    let mut machine = timed(3, 1.0);
    let plan = |machine: &Machine, op_offload| of(&graph, machine, &asked(1, op_offload)).unwrap();
    machine.times.as_mut().unwrap().devices[1].upload = Some(Upload { gbps: 0.001, overlap: 1.0 });
    assert_eq!(plan(&machine, OpOffload::Auto).streaming, None);
    let forced = plan(&machine, OpOffload::From(16));
    let streaming = forced.streaming.as_ref().unwrap();
    assert!(streaming.prefill_ms_per_token > streaming.without_ms_per_token);
    assert_eq!(streaming.tokens_min, 16);
    assert_eq!(forced.predicted.unwrap().prefill_ms_per_token, streaming.prefill_ms_per_token);
    // A prompt that is not streamed takes what it does without.
    let long = plan(&machine, OpOffload::From(513));
    let streaming = long.streaming.as_ref().unwrap();
    assert_eq!(
        long.predicted.as_ref().unwrap().prefill_ms_per_token,
        streaming.without_ms_per_token
    );
    // Too little is known of the copies, or of prompts.
    machine.times.as_mut().unwrap().devices[1].upload = None;
    assert_eq!(plan(&machine, OpOffload::Auto).streaming, None);
    let unknown = plan(&machine, OpOffload::From(16)).streaming.unwrap();
    assert_eq!((unknown.prefill_ms_per_token, unknown.prompts.len()), (None, 0));
    let mut machine = timed(3, 1.0);
    machine.times.as_mut().unwrap().devices[1].layers[0].prompt_ms = None;
    assert_eq!(plan(&machine, OpOffload::Auto).streaming, None);
}

#[test]
fn the_card_on_which_prompts_are_fastest_is_streamed_to() {
    let graph = dense(2);
    let machine = |speeds: [f64; 2]| {
        let mut machine = cards(&[GIB, GIB]);
        let host = times(2, [2.0, 8.0, 1.0, 0.75], None);
        let card =
            |gbps| times(2, [0.5, 1.0, 0.0625, 0.03125], Some(Upload { gbps, overlap: 1.0 }));
        machine.times = measured(vec![host, card(speeds[0]), card(speeds[1])]);
        machine
    };
    let device = |speeds| {
        let request = Request { shares: vec![0.0, 1.0], ..asked(1, OpOffload::Auto) };
        of(&graph, &machine(speeds), &request).unwrap().streaming.unwrap().device
    };
    assert_eq!([device([0.2, 0.1]), device([0.1, 0.2])], [1, 2]);
}

#[test]
fn estimated_times_add_the_download_of_hidden_states() {
    let graph = dense(1);
    let mut machine = timed(1, 1.0);
    let ms = |machine: &Machine| {
        let plan = of(&graph, machine, &asked(1, OpOffload::From(4))).unwrap();
        plan.streaming.unwrap().prompts[0].streamed_ms
    };
    let known = ms(&machine);
    machine.times = machine.times.map(|times| Times { basis: Basis::Estimated, ..times });
    // 64 elements of four bytes, at the speed of the copy.
    assert_close(ms(&machine), known + 512.0 * 4.0 * 64.0 / (MATRICES as f64 / 2.0));
}

#[test]
fn short_prompts_copy_the_experts_that_they_use() {
    let graph = sparse(2, 8, 2);
    let experts = 8 * 4 * NETWORK;
    let rest = 4 * (ATTENTION + 8 * 64);
    let plan = |tokens: usize| {
        of(&graph, &cards(&[GIB]), &asked(1, OpOffload::From(tokens))).unwrap().streaming.unwrap()
    };
    let streaming = plan(2);
    assert_eq!(streaming.upload_bytes, 2 * (experts + rest));
    assert!(streaming.stages.iter().all(|stage| stage.experts.is_empty()));
    let routed = streaming.routed.as_ref().unwrap();
    // Two tokens use 1 - (6/8)^2 of the experts, three more than half.
    assert_eq!(routed.tokens_max, 2);
    assert_eq!(routed.upload_bytes, 2 * rest + 2 * experts * 7 / 16);
    assert_eq!(routed.pass_ms, None);
    // A layer is cut before the first product of experts; both halves are in one slot.
    let found: Vec<_> = (routed.stages.iter())
        .map(|of| (of.segment.nodes.clone(), of.unit, of.weights.len(), of.experts.len()))
        .collect();
    let expected = [
        (0..1, None, 0, 0),
        (1..11, Some(0), 5, 0),
        (11..17, Some(0), 0, 3),
        (17..27, Some(1), 5, 0),
        (27..33, Some(1), 0, 3),
        (33..36, None, 0, 0),
    ];
    assert_eq!(found, expected);
    let stage = &routed.stages[4];
    let names = ["1.gate_exps", "1.up_exps", "1.down_exps"];
    for (of, name) in stage.experts.iter().zip(names) {
        assert_eq!((of.route, of.stack[0]), (Value(26), weight(&graph, name)));
    }
    assert_eq!((routed.stages[3].caches.len(), stage.caches.len()), (1, 0));
    // Which stages a pass has depends on its tokens.
    let starts = |tokens| streaming.stages_of(tokens).len();
    assert_eq!([1, 2, 3].map(starts), [6, 6, 4]);
    assert_eq!(
        streaming.clone().paths_mut().map(|stages| stages.len()).collect::<Vec<_>>(),
        [4, 6]
    );
    // Nothing is routed if no streamed step is that short, or has a choice.
    assert_eq!(plan(3).routed, None);
    assert_eq!(plan(3).stages_of(1).len(), 4);
    assert_eq!(streamed(&sparse(1, 4, 4), &BUDGET).unwrap().routed, None);
    // Buffers serve both kinds of passes: hidden states of 64 tokens by turns, and of two tokens what crosses inside a
    // layer, of which two values and a route are alive at once.
    assert_eq!(streaming.host_bytes, 4 * (2 * 64 * 64 + 2 * 64 + 2 * 4));
}

/// Milliseconds of copies to the card.
#[derive(Clone, Copy)]
struct Copies {
    /// Of a layer but for its experts.
    rest_ms: f64,
    /// Of all of a layer's experts.
    experts_ms: f64,
    /// Whether only those are copied that are used.
    is_routed: bool,
}

/// Milliseconds of a pass of so many tokens through two layers of eight experts.
fn sparse_ms(machine: &Machine, tokens: usize, copies: Copies) -> f64 {
    let Copies { rest_ms, experts_ms, is_routed } = copies;
    let [host, card] = &machine.times.as_ref().unwrap().devices[..] else { panic!("two devices") };
    let count = tokens.div_ceil(8);
    let rows = tokens.div_ceil(count);
    let of = |cost: Cost| count as f64 * step(cost, rows as f64);
    // Bytes that a token reads before the experts, with five ops that read nothing, and of two experts, with three.
    let bytes = [4.0 * (ATTENTION + 8 * 64) as f64 + 5e-3, 8.0 * NETWORK as f64 + 3e-3];
    let layer = of(card.layers[0]);
    let [before, after] = bytes.map(|half| layer * half / bytes.iter().sum::<f64>());
    let used = |batches: usize| experts_ms * (1.0 - 0.75f64.powi((rows * batches) as i32));
    let beside = |compute: f64, copy: f64| compute + copy - 0.5 * compute.min(copy);
    let all_ms = rest_ms + if is_routed { 0.0 } else { experts_ms };
    let mut ms =
        all_ms + of(host.embedding) + of(host.segment) + of(card.output) + of(card.segment);
    for next in [all_ms, 0.0] {
        let download = tokens as f64 * 4.0 * 64.0 * rest_ms / (4 * (ATTENTION + 8 * 64)) as f64;
        ms += download + of(card.segment);
        if !is_routed {
            ms += beside(layer, next);
            continue;
        }
        // Experts of the last micro-batch are copied when it has passed the first half; alone, if it is the only one.
        let last = used(count) - used(count - 1);
        ms += beside(before, next + used(count - 1)) + of(card.segment);
        ms += if count > 1 { beside(after, last) } else { after + last };
    }
    ms
}

#[test]
fn passes_up_to_some_length_copy_experts_by_the_route() {
    let graph = sparse(2, 8, 2);
    let mut lengths = std::collections::BTreeSet::new();
    for experts_ms in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
        let mut machine = timed(2, 0.5);
        let devices = &mut machine.times.as_mut().unwrap().devices;
        devices[0].layers.fill(cost([8.0, 64.0, 8.0, 8.0]));
        let gbps = (8 * 4 * NETWORK) as f64 / (experts_ms * 1e6);
        devices[1].upload = Some(Upload { gbps, overlap: 0.5 });
        let rest_ms = (4 * (ATTENTION + 8 * 64)) as f64 / (gbps * 1e6);
        let plan = of(&graph, &machine, &asked(1, OpOffload::From(1))).unwrap();
        let streaming = plan.streaming.unwrap();
        let ms = |tokens: usize, is_routed| {
            sparse_ms(&machine, tokens, Copies { rest_ms, experts_ms, is_routed })
        };
        let grid = (1..=8).map(|eighth| 8 * eighth);
        let most = grid.take_while(|&n| ms(n, true) < ms(n, false)).last().unwrap_or(0);
        lengths.insert(most);
        for prompt in &streaming.prompts {
            let each = ms(64, most == 64);
            assert_close(prompt.streamed_ms, (prompt.tokens / 64) as f64 * each);
        }
        let Some(routed) = &streaming.routed else {
            assert_eq!(most, 0);
            continue;
        };
        assert_eq!(routed.tokens_max, most);
        assert_close(routed.pass_ms.unwrap(), ms(most, true));
        let used = 1.0 - 0.75f64.powi(most as i32);
        let bytes = 2.0 * ((4 * (ATTENTION + 8 * 64)) as f64 + used * (8 * 4 * NETWORK) as f64);
        assert_eq!(routed.upload_bytes, bytes as u64);
    }
    // Never, always, and for some lengths.
    assert!(lengths.len() >= 3, "{lengths:?}");
}

#[test]
fn streaming_is_told_in_words() {
    let graph = sparse(2, 8, 2);
    let plan = of(&graph, &cards(&[GIB]), &asked(1, OpOffload::From(2))).unwrap();
    let text = plan.to_string();
    // Two layers of eight experts of 98304 bytes and 50 KiB; of two tokens 7 of 16.
    let lines = [
        "prompts of 2 tokens or more run on gpu: 1.60 MiB of weights are streamed to it for every 64 tokens, through ",
        "prompts of up to 2 tokens copy only the experts that they use: 772 KiB for so many\n",
    ];
    for line in lines {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let mut timed = of(&dense(2), &timed(2, 1.0), &asked(1, OpOffload::Auto)).unwrap();
    let streaming = timed.streaming.as_mut().unwrap();
    streaming.prompts = vec![PromptTimes { tokens: 512, streamed_ms: 1234.0, without_ms: 5678.0 }];
    let text = timed.to_string();
    let line = "prefill of 512 tokens: 1.23 s with streaming, 5.68 s without\n";
    assert!(text.ends_with(line), "{text}");
}
