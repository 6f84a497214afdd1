//! What an executor reports: times and counts of the steps, log-probabilities, ends, failures and slots.

use std::time::Duration;

use bilayer_engine::placement::Placing;
use bilayer_engine::requests::{PositionLogprobs, StepReport, SubmitError};
use bilayer_engine::sampling::logprobs;
use bilayer_engine::session::{Run, Spent, Wanted};
use bilayer_engine::{Adapters, LoraFile, Strength, open_file};

use super::*;

pub fn tiny() -> Model {
    Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap()
}

/// The tiny model on two simulated devices.
fn simulated(model: &Model) -> Session {
    let settings = Settings {
        ctx_size: Some(256),
        sequences: 4,
        ubatch_size: 16,
        overlap: Overlap::Off,
        ..Settings::default()
    };
    halves(model, settings)
}

pub fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|at| 3 + at * 7 % 90).collect()
}

/// A greedy request of a number of tokens.
pub fn exactly(model: &Model, prompt: Vec<u32>, predict: usize) -> Submission {
    let request = Request { predict: Some(predict), ignore_eos: true, ..Request::new(prompt) };
    Submission::new(request, sampler(model, 1, 0.0))
}

/// One of the events in short, with the times and counts that come with it.
#[derive(Debug, PartialEq)]
enum Short {
    /// Tokens of the prompt that are computed, and the time for them.
    Prefilled(usize, Duration),
    /// Number of the token, the time since the first, and since the one before.
    Token(usize, Duration, Option<Duration>),
    /// Number of tokens.
    Ended(Stop, usize),
    Other,
}

fn short(event: &Event) -> Short {
    match event {
        Event::Prefilled(served) => Short::Prefilled(served.processed, served.prefill),
        Event::Token(delta) => {
            Short::Token(delta.served.generated, delta.served.decode, delta.served.gap)
        }
        Event::Ended { stop, served, .. } => Short::Ended(*stop, served.generated),
        _ => Short::Other,
    }
}

/// The requests' events of a step in short, and how long it took.
fn step(
    executor: &mut Executor,
    all: &mut Vec<(RequestId, Event)>,
) -> (Vec<(u64, Short)>, Duration) {
    let began = executor.session().clock().now();
    let mut events = Vec::new();
    assert!(executor.step(&mut events));
    let took = executor.session().clock().now() - began;
    let found = events.iter().map(|(id, event)| (id.0, short(event))).collect();
    all.append(&mut events);
    (found, took)
}

/// All events until nothing is left to do.
pub fn run(executor: &mut Executor) -> Vec<(RequestId, Event)> {
    let mut events = Vec::new();
    let ends = (0..999).any(|_| !executor.step(&mut events));
    assert!(ends, "it does not end: {} events", events.len());
    events
}

/// What was last told of a request.
pub fn last(events: &[(RequestId, Event)], of: RequestId) -> Served {
    let told = events.iter().rev().find_map(|(id, event)| match event {
        Event::Ended { served, .. } if *id == of => Some(served.clone()),
        _ => None,
    });
    told.expect("it ended")
}

#[test]
fn times_and_counts_are_those_of_the_steps() {
    let model = tiny();
    let session = simulated(&model);
    let row_bytes = session.crossing_bytes();
    assert!(row_bytes > 0);
    let settings = ExecutorSettings { step: Duration::from_secs(3600), ..Default::default() };
    let mut executor = Executor::new(session, settings);
    let now = |executor: &Executor| executor.session().clock().now();
    let early = |by: u64, executor: &Executor| Some(now(executor) - Duration::from_millis(by));
    let submission = exactly(&model, tokens(40), 3);
    let first = executor.submit(Submission { arrived: early(5, &executor), ..submission }).unwrap();
    assert_eq!((executor.running(), executor.waiting(), executor.decode_time()), (0, 1, None));
    let mut all = Vec::new();
    let mut reports: Vec<StepReport> = Vec::new();
    let mut next = |executor: &mut Executor| {
        let (found, took) = step(executor, &mut all);
        reports.push(executor.last_step().clone());
        assert!(took > Duration::ZERO);
        (found, took)
    };
    // A prompt in parts of 16 rows; the last one gives the first token.
    let (found, a) = next(&mut executor);
    let began = Short::Prefilled(0, Duration::ZERO);
    assert_eq!(found, [(0, began), (0, Short::Prefilled(16, a))]);
    assert_eq!((executor.running(), executor.waiting()), (1, 0));
    let (found, b) = next(&mut executor);
    assert_eq!(found, [(0, Short::Prefilled(32, a + b))]);
    let (found, c) = next(&mut executor);
    let token = Short::Token(1, Duration::ZERO, None);
    assert_eq!(found, [(0, Short::Prefilled(40, a + b + c)), (0, token)]);
    assert_eq!(executor.decode_time(), None);
    // 40 tokens are in two pages; three requests of 256 fit beside.
    let pages = executor.session().cache().pages();
    assert_eq!(executor.kv_used(), 2.0 / pages as f64);
    let (found, d) = next(&mut executor);
    assert_eq!(found, [(0, Short::Token(2, d, Some(d)))]);
    assert_eq!(executor.decode_time(), Some(d));
    let submission = exactly(&model, tokens(10), 2);
    let again = Submission { arrived: early(7, &executor), reuse: false, ..submission };
    let second = executor.submit(again).unwrap();
    let (found, e) = next(&mut executor);
    let ended = |count| Short::Ended(Stop::Length, count);
    let expected = [
        (1, Short::Prefilled(0, Duration::ZERO)),
        (0, Short::Token(3, d + e, Some(e))),
        (0, ended(3)),
        (1, Short::Prefilled(10, e)),
        (1, Short::Token(1, Duration::ZERO, None)),
    ];
    assert_eq!(found, expected);
    let (found, f) = next(&mut executor);
    assert_eq!(found, [(1, Short::Token(2, f, Some(f))), (1, ended(2))]);
    assert!(!executor.step(&mut Vec::new()));
    let rows: Vec<[usize; 3]> =
        reports.iter().map(|of| [of.decode_rows, of.prefill_rows, of.tokens]).collect();
    let expected = [[0, 16, 0], [0, 16, 0], [0, 8, 1], [1, 0, 1], [1, 10, 2], [1, 0, 1]];
    assert_eq!(rows, expected);
    let sum = |steps: &[StepReport]| {
        let mut sum = Spent::default();
        steps.iter().for_each(|of| sum.add(&of.spent));
        sum
    };
    let (one, two) = (last(&all, first), last(&all, second));
    assert_eq!((&one.spent, &two.spent), (&sum(&reports[..5]), &sum(&reports[4..])));
    assert!(reports.iter().all(|of| of.spent.total > Duration::ZERO));
    assert_eq!([one.crossed_bytes, two.crossed_bytes], [42, 11].map(|rows| rows * row_bytes));
    assert_eq!([one.queued, two.queued], [5, 7].map(Duration::from_millis));
    assert_eq!([one.prefill, two.prefill], [a + b + c, e]);
    assert_eq!([one.decode, two.decode], [d + e, f]);
    assert_eq!([one.prompt, one.processed, two.prompt, two.processed], [40, 40, 10, 10]);
    assert_eq!([one.slot, two.slot], [0, 1]);
    assert_eq!((executor.running(), executor.waiting(), executor.kv_used()), (0, 0, 0.0));
}

#[test]
fn what_was_cached_counts_as_processed() {
    let model = tiny();
    let mut executor = Executor::new(simulated(&model), ExecutorSettings::default());
    executor.submit(exactly(&model, tokens(20), 1)).unwrap();
    run(&mut executor);
    let id = executor.submit(exactly(&model, tokens(50), 1)).unwrap();
    let all = run(&mut executor);
    let of_prompt: Vec<usize> = all
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Prefilled(served) => Some(served.processed),
            _ => None,
        })
        .collect();
    assert_eq!(of_prompt, [20, 36, 50]);
    assert!(all.iter().all(|(of, event)| match event {
        Event::Prefilled(served) => *of == id && served.cached == 20,
        _ => true,
    }));
}

/// Log-probabilities are equal, and close.
fn assert_close(found: &PositionLogprobs, expected: &PositionLogprobs, what: usize) {
    let flat = |(chosen, best): &PositionLogprobs| -> Vec<(u32, f32)> {
        std::iter::once(chosen).chain(best).map(|of| (of.id, of.logprob)).collect()
    };
    let (found, expected) = (flat(found), flat(expected));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-3, "{what}: {found:?}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_logits_before_each_token() {
    let model = tiny();
    let prompt = tokens(40);
    let mut plain = session(&model, 1, 1);
    let sequence = plain.open().unwrap();
    let (vocab, mut rows) = (plain.vocab(), Vec::new());
    for tokens in [&prompt[..32], &prompt[32..]] {
        let all = Run { sequence, tokens, wanted: Wanted::All };
        rows.extend_from_slice(plain.step(&[all]).unwrap());
    }
    let row = |at: usize| &rows[at * vocab..][..vocab];
    for (predict, of_token) in [(0, Some(3)), (2, Some(3)), (2, None)] {
        let mut executor = executor(&model, 1);
        let mut request = exactly(&model, prompt.clone(), predict);
        request.prompt_logprobs = Some(2);
        request.request.logprobs = of_token;
        executor.submit(request).unwrap();
        let events = run(&mut executor);
        let of_prompt = events.iter().position(|(_, of)| matches!(of, Event::PromptLogprobs(_)));
        let first = events.iter().position(|(_, event)| {
            matches!(event, Event::Token(_)) || matches!(event, Event::Ended { .. })
        });
        assert!(of_prompt < first);
        let mut selected = Vec::new();
        for (_, event) in &events {
            match event {
                Event::PromptLogprobs(found) => {
                    assert_eq!(found.len(), 39);
                    for (at, found) in found.iter().enumerate() {
                        assert_close(found, &logprobs(row(at), prompt[at + 1], 2), at);
                    }
                }
                Event::Token(delta) => selected.push(delta.token.clone()),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert_eq!(selected.len(), predict);
        assert!(selected.iter().all(|token| token.logprobs.is_some() == of_token.is_some()));
        if let Some(token) = selected.first()
            && let Some(found) = &token.logprobs
        {
            assert_close(found, &logprobs(row(39), token.id, 3), 39);
            assert_eq!(found.0.id, found.1[0].id, "it is the most likely one");
        }
    }
}

#[test]
fn a_prompt_that_is_computed_again_has_its_log_probabilities_once() {
    let model = tiny();
    let prompt = tokens(60);
    let found = |first: Option<u32>| {
        // Eight pages, of which a prompt of two rows with logits in each step has to give its two back.
        let settings = Settings {
            threads: Some(1),
            ctx_size: Some(256),
            sequences: 2,
            kv_tokens: Some(256),
            outputs: Some(2),
            placing: Placing::cpu(),
            ..Settings::default()
        };
        let session = Session::new(&model, settings).unwrap();
        let mut executor = Executor::new(session, ExecutorSettings::default());
        if let Some(len) = first {
            executor.submit(exactly(&model, tokens(len), 45)).unwrap();
            executor.step(&mut Vec::new());
        }
        let mut request = exactly(&model, prompt.clone(), 1);
        request.prompt_logprobs = Some(0);
        let id = executor.submit(request).unwrap();
        let events = run(&mut executor);
        let preempted = last(&events, id).preempted;
        let found = events.into_iter().find_map(|(_, event)| match event {
            Event::PromptLogprobs(found) => Some(found),
            _ => None,
        });
        (found.unwrap(), preempted)
    };
    let ((expected, none), (found, preempted)) = (found(None), found(Some(155)));
    assert_eq!((expected.len(), found.len(), none, preempted), (59, 59, 0, 1));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_close(found, expected, at);
    }
}

#[test]
fn log_probabilities_need_all_logits() {
    let model = tiny();
    let settings = || Settings {
        ctx_size: Some(128),
        sequences: 2,
        outputs: Some(8),
        top_k: Some(64),
        ..Settings::default()
    };
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &Placement::single(model.graph().layers(), 0))?)
    };
    // Rows with logits of each step, and the best tokens that it searches for: none if all logits are needed, as long as
    // the prompt's are.
    for (of_prompt, of_token, expected) in [
        (None, None, [(1, 1); 3]),
        (Some(1), None, [(5, 0), (1, 1), (1, 1)]),
        (None, Some(1), [(1, 0); 3]),
        (Some(1), Some(1), [(5, 0), (1, 0), (1, 0)]),
    ] {
        let script = Script { call: Call::Submit, after: usize::MAX, fault: Fault::Lost };
        let cpu = Box::new(bilayer_cpu::Cpu::new(Default::default()).unwrap());
        let device = Failing::new(cpu, script);
        let asked = device.asked.clone();
        let session = Session::on(&model, vec![Box::new(device)], &planner, settings());
        let mut executor = Executor::new(session.unwrap(), ExecutorSettings::default());
        let mut request = exactly(&model, tokens(5), 3);
        request.prompt_logprobs = of_prompt;
        request.request.logprobs = of_token;
        executor.submit(request).unwrap();
        asked.lock().unwrap().clear();
        run(&mut executor);
        assert_eq!(*asked.lock().unwrap(), expected, "{of_prompt:?} {of_token:?}");
    }
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let model = tiny();
    let settings = ExecutorSettings { waiting: 3, waiting_per_key: 2, ..Default::default() };
    let mut executor = Executor::new(simulated(&model), settings);
    let of = |prompt| exactly(&model, prompt, 1);
    let mut error = |submission| match executor.submit(submission) {
        Err(error) => error.to_string(),
        Ok(id) => format!("{id:?}"),
    };
    assert!(error(of(Vec::new())).contains("prompt"));
    let context = error(of(tokens(256)));
    assert!(context.contains("257 tokens") && context.contains("256 tokens"), "{context}");
    assert!(error(of(vec![3, 1 << 20])).contains("1048576"));
    let mut adapted = of(tokens(5));
    adapted.request.lora = Some(vec![1.0]);
    assert!(error(adapted).contains("lora"));
    assert_eq!([255, 5].map(|len| error(of(tokens(len)))), ["RequestId(0)", "RequestId(1)"]);
    let of_key = error(of(tokens(5)));
    assert!(of_key.contains("2 of this key"), "{of_key}");
    assert_eq!(error(Submission { key: 1, ..of(tokens(5)) }), "RequestId(2)");
    let full = executor.submit(Submission { key: 2, ..of(tokens(5)) });
    assert!(matches!(full, Err(SubmitError::Refused(_))), "{full:?}");
}

#[test]
fn an_answer_ends_with_the_context() {
    let model = tiny();
    for (len, generated) in [(250, 6), (255, 1)] {
        let mut executor = Executor::new(simulated(&model), ExecutorSettings::default());
        let request = Request { ignore_eos: true, ..Request::new(tokens(len)) };
        executor.submit(Submission::new(request, sampler(&model, 1, 0.0))).unwrap();
        let all = run(&mut executor);
        let (_, ended) = all.last().unwrap();
        assert_eq!(short(ended), Short::Ended(Stop::Context, generated), "{len}");
    }
}

#[test]
fn cancelled_requests_end_and_others_go_on() {
    let model = tiny();
    let mut executor = Executor::new(simulated(&model), ExecutorSettings::default());
    let ids = [5, 6, 7].map(|len| executor.submit(exactly(&model, tokens(len), 4)).unwrap());
    let request = exactly(&model, tokens(8), 4);
    let cancel = request.request.cancel.clone();
    let watched = executor.submit(request).unwrap();
    let mut all = Vec::new();
    executor.step(&mut all);
    assert_eq!(
        executor.slots().iter().map(|of| (of.request.0, of.slot)).collect::<Vec<_>>(),
        [(0, 0), (1, 1), (2, 2), (3, 3)]
    );
    executor.cancel(ids[1]);
    cancel.cancel();
    all.extend(run(&mut executor));
    let ended: Vec<(u64, Short)> = all
        .iter()
        .filter(|(_, event)| matches!(event, Event::Ended { .. }))
        .map(|(id, event)| (id.0, short(event)))
        .collect();
    let ends = |id: RequestId| (id.0, Short::Ended(Stop::Length, 4));
    let interrupted = Short::Ended(Stop::Interrupted, last(&all, watched).generated);
    assert_eq!(ended, [(watched.0, interrupted), ends(ids[0]), ends(ids[2])]);
    assert_eq!((executor.running(), executor.slots().len()), (0, 0));
}

#[test]
fn other_namespaces_and_strengths_of_adapters_share_no_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let [base, adapter] = ["base", "adapter"].map(|name| folder.path().join(name));
    std::fs::write(&base, words::tiny(Type::F32, 7)).unwrap();
    std::fs::write(&adapter, words::adapter(&base, 2)).unwrap();
    let loras = vec![LoraFile::open(&adapter, 1.0).unwrap()];
    let adapters = Adapters { loras, strength: Strength::OfSequence, control: None };
    let model = Model::adapted(open_file(&base).unwrap(), &[], adapters).unwrap();
    let mut executor = executor(&model, 1);
    let mut cached = |namespace, lora: Option<f32>, slot| {
        let mut request = exactly(&model, tokens(20), 1);
        request.request.lora = lora.map(|strength| vec![strength]);
        let request = Submission { namespace, slot: Some(slot), ..request };
        let id = executor.submit(request).unwrap();
        served(&mut executor)[&id].1.cached
    };
    // The second of each finds what the first has left.
    for (slot, (namespace, lora)) in
        (0..).zip([(0, None), (3, None), (0, Some(0.5)), (0, Some(0.25)), (3, Some(0.5))])
    {
        assert_eq!(
            [(); 2].map(|()| cached(namespace, lora, slot)),
            [0, 19],
            "{namespace} {lora:?}"
        );
    }
    // The strength that it was opened with is the usual one.
    assert_eq!(cached(0, Some(1.0), 0), 19);
    // In one slot each replaces the other.
    assert_eq!(
        [(0, None), (3, None), (0, Some(0.5))].map(|(of, lora)| cached(of, lora, 9)),
        [0; 3]
    );
    executor.clear_cache(Some(3));
    let mut cached = |namespace, slot| {
        let request = exactly(&model, tokens(20), 1);
        let id = executor.submit(Submission { namespace, slot: Some(slot), ..request }).unwrap();
        served(&mut executor)[&id].1.cached
    };
    assert_eq!([cached(3, 1), cached(0, 0)], [0, 19]);
    // What a sequence with other strengths holds is not that of the model.
    assert!(executor.save_slot(0).unwrap().is_some());
    let error = executor.save_slot(2).unwrap_err().to_string();
    assert!(error.contains("slot 2") && error.contains("0.5"), "{error}");
}

/// Steps are refused, once; everything else works.
fn refusing(model: &Model, after: usize, overlap: Overlap) -> (Executor, Arc<Mutex<bool>>) {
    let layers = model.graph().layers();
    let cpu = || -> Box<dyn Backend> {
        let options = bilayer_cpu::Options { threads: Some(1), ..Default::default() };
        Box::new(bilayer_cpu::Cpu::new(options).unwrap())
    };
    let device = Failing::new(cpu(), Script { call: Call::Submit, after, fault: Fault::Refused });
    let failed = device.failed.clone();
    let placement = Placement::offload(layers, layers / 2, 0, 1);
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &placement)?)
    };
    let settings = Settings {
        threads: Some(1),
        ctx_size: Some(128),
        sequences: 4,
        overlap,
        ..Settings::default()
    };
    let session = Session::on(model, vec![cpu(), Box::new(device)], &planner, settings).unwrap();
    (Executor::new(session, ExecutorSettings::default()), failed)
}

#[test]
fn a_step_that_fails_is_repeated_request_by_request() {
    let model = tiny();
    let texts = |after: usize, overlap: Overlap, count: u32| {
        let (mut executor, failed) = refusing(&model, after, overlap);
        let ids = (0..count).map(|n| {
            let prompt = (0..8 + 5 * n).map(|i| 3 + (i * 7 + n) % 100).collect();
            executor.submit(exactly(&model, prompt, 6)).unwrap()
        });
        let ids: Vec<RequestId> = ids.collect();
        let (events, mut found) = (run(&mut executor), BTreeMap::<RequestId, Vec<u32>>::new());
        let mut failures = 0;
        for (id, event) in events {
            match event {
                Event::Token(delta) => found.entry(id).or_default().push(delta.token.id),
                Event::Failed(error) => {
                    failures += 1;
                    assert!(error.to_string().contains("calls"), "{error}");
                }
                _ => {}
            }
        }
        assert_eq!((executor.running(), executor.kv_used()), (0, 0.0));
        assert_eq!(*failed.lock().unwrap(), after < 1000);
        let texts: Vec<Vec<u32>> =
            ids.iter().map(|id| found.remove(id).unwrap_or_default()).collect();
        (texts, failures)
    };
    let (expected, failures) = texts(1000, Overlap::Off, 3);
    assert!(failures == 0 && expected.iter().all(|text| text.len() == 6), "{expected:?}");
    for overlap in [Overlap::Off, Overlap::Always] {
        for after in 0..5 {
            assert_eq!(texts(after, overlap, 3), (expected.clone(), 0), "{overlap:?} {after}");
        }
    }
    for after in 0..5 {
        // Nobody else was in its step.
        let (found, failures) = texts(after, Overlap::Off, 1);
        assert_eq!((failures, found[0].len()), (1, after));
    }
}
