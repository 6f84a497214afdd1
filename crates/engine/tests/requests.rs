//! The promise of serving many requests with one session: answers are those of a session of their own, share what they
//! have in common, and with fixed steps depend on nothing but themselves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bilayer_engine::generate::speculate::{Bounds, DraftModel, Drafter, DrafterSource, Lookup};
use bilayer_engine::generate::{Generation, Request, Stop};
use bilayer_engine::requests::{
    Event, Executor, ExecutorSettings, RequestId, Served, Shift, Submission,
};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::{Overlap, SavedSequence, Session, Settings};
use bilayer_engine::{Model, OpenOptions};
use bilayer_graph::{Backend, Graph};
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Placement, place};

#[path = "requests/checks.rs"]
mod checks;
#[path = "../../../tests/support/devices.rs"]
mod devices;
#[path = "requests/drafts.rs"]
mod drafts;
#[path = "support/halves.rs"]
mod halves;
#[path = "../../../tests/support/model.rs"]
mod model;
#[path = "requests/saved.rs"]
mod saved;
#[path = "requests/served.rs"]
mod served;
#[path = "../../../tests/support/words.rs"]
mod words;

use devices::{Call, Failing, Fault, Script, cpu};
use halves::halves;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");

fn model() -> Model {
    Model::open(DEMO.as_ref(), OpenOptions::default()).unwrap()
}

fn session(model: &Model, threads: usize, sequences: usize) -> Session {
    let mut settings = Settings {
        threads: Some(threads),
        ctx_size: Some(256),
        sequences,
        cached_sequences: 8,
        kv_tokens: Some(512),
        ubatch_size: 64,
        outputs: Some(32),
        ..Settings::default()
    };
    settings.placing.gpu_layers = bilayer_scheduler::Offload::Count(0);
    Session::new(model, settings).unwrap()
}

fn executor(model: &Model, threads: usize) -> Executor {
    let settings = ExecutorSettings::default();
    Executor::new(session(model, threads, 16), settings)
}

fn sampler(model: &Model, seed: u64, temperature: f32) -> Sampler {
    let options = Options { seed, temperature, ..Options::default() };
    Sampler::new(options, model.config().vocab, 256).unwrap()
}

fn submission(model: &Model, prompt: &str, seed: u64, predict: usize) -> Submission {
    let prompt = model.prompt_tokens(prompt).unwrap();
    let request = Request { predict: Some(predict), ..Request::new(prompt) };
    Submission::new(request, sampler(model, seed, 0.8))
}

/// Texts and cached tokens of all requests, once all have ended.
fn finish(executor: &mut Executor) -> BTreeMap<RequestId, (String, usize)> {
    let (mut events, mut found) = (Vec::new(), BTreeMap::<RequestId, (String, usize)>::new());
    while executor.step(&mut events) {
        for (id, event) in events.drain(..) {
            let answer = found.entry(id).or_default();
            match event {
                Event::Token(delta) => {
                    answer.0 += &delta.token.text;
                    answer.1 = delta.served.cached;
                }
                Event::Ended { text, .. } => answer.0 += &text,
                Event::Failed(error) => panic!("{error}"),
                Event::Prefilled(_) | Event::PromptLogprobs(_) => {}
            }
        }
    }
    found
}

fn alone(model: &Model, executor: &mut Executor, prompt: &str, seed: u64) -> String {
    let id = executor.submit(submission(model, prompt, seed, 24)).unwrap();
    finish(executor).remove(&id).unwrap().0
}

#[test]
fn a_single_request_gets_what_generation_gives() {
    let model = model();
    let mut session = session(&model, 1, 1);
    for seed in 0..3 {
        let prompt = model.prompt_tokens("ROMEO:\n").unwrap();
        let request = Request { predict: Some(24), ..Request::new(prompt) };
        let sequence = session.open().unwrap();
        let sampler = sampler(&model, seed, 0.8);
        let mut generation =
            Generation::new(&model, &mut session, sequence, sampler, request).unwrap();
        let mut expected = String::new();
        while let Some(token) = generation.next().unwrap() {
            expected += &token.text;
        }
        assert_eq!(generation.stop(), Some(Stop::Length));
        drop(generation);
        session.close(sequence);
        let mut executor = executor(&model, 1);
        assert_eq!(alone(&model, &mut executor, "ROMEO:\n", seed), expected, "seed {seed}");
    }
}

#[test]
fn a_deterministic_answer_is_the_same_alone_and_among_others() {
    let model = model();
    // Alone, then every length of the others at each number of steps before the request: 5 and 4 of these.
    for threads in [1, 2, 4] {
        let mut reference = None;
        for round in 0..21 {
            let settings = ExecutorSettings { deterministic: true, ..ExecutorSettings::default() };
            let mut executor = Executor::new(session(&model, threads, 16), settings);
            let prompt = "First Citizen:\nBefore we proceed any further, hear me";
            // Others arrive before and after, with and without a common prefix.
            let mut others = Vec::new();
            let count = if round == 0 { 0 } else { 15 };
            for other in 0..count {
                let own = format!(
                    "{}{}",
                    &prompt[..other * 3],
                    "KING:\n".repeat(1 + (other + round) % 5)
                );
                others.push(submission(&model, &own, other as u64, 4 + other));
            }
            let rest = others.split_off(others.len() / 2);
            for other in others {
                executor.submit(other).unwrap();
            }
            let mut events = Vec::new();
            for _ in 0..round % 4 {
                executor.step(&mut events);
            }
            let id = executor.submit(submission(&model, prompt, 7, 24)).unwrap();
            for other in rest {
                executor.submit(other).unwrap();
            }
            let text = finish(&mut executor).remove(&id).unwrap().0;
            assert!(text.len() > 10, "{text}");
            let expected = reference.get_or_insert_with(|| text.clone());
            assert_eq!(*expected, text, "{threads} threads, round {round}");
        }
    }
}

#[test]
fn a_second_request_computes_only_what_is_new() {
    let model = model();
    let mut executor = executor(&model, 2);
    let prompt = "ROMEO:\nBut, soft! what light through yonder window breaks?\n";
    let tokens = model.prompt_tokens(prompt).unwrap().len();
    let first = executor.submit(submission(&model, prompt, 1, 4)).unwrap();
    let (text, cached) = finish(&mut executor).remove(&first).unwrap();
    assert_eq!(cached, 0);
    let second = executor.submit(submission(&model, prompt, 1, 4)).unwrap();
    let (again, cached) = finish(&mut executor).remove(&second).unwrap();
    assert_eq!(cached, tokens - 1);
    assert_eq!(text, again, "a cached prefix changes nothing here");
    executor.clear_cache(None);
    let third = executor.submit(submission(&model, prompt, 1, 4)).unwrap();
    assert_eq!(finish(&mut executor).remove(&third).unwrap().1, 0);
}

#[test]
fn more_requests_than_fit_are_computed_again_and_all_are_answered() {
    let model = model();
    // 512 tokens of KV cache for 12 requests of up to 140 each.
    let mut executor = executor(&model, 2);
    let prompt = |n: usize| format!("{}\nKING:\n", "Speak again. ".repeat(4 + n % 3));
    let ids: Vec<RequestId> = (0..12)
        .map(|n| executor.submit(submission(&model, &prompt(n), n as u64, 80)).unwrap())
        .collect();
    let (mut events, mut ended, mut preempted) = (Vec::new(), BTreeMap::new(), 0);
    while executor.step(&mut events) {
        for (id, event) in events.drain(..) {
            if let Event::Ended { stop, served, .. } = event {
                preempted += served.preempted;
                assert!(ended.insert(id, (stop, served.generated)).is_none(), "{id:?} ended twice");
            }
        }
    }
    assert_eq!(ended.keys().copied().collect::<Vec<_>>(), ids);
    assert!(preempted > 0, "the cache was too small for all");
    for (id, (stop, generated)) in ended {
        assert!(stop != Stop::Length || generated == 80, "{id:?} {stop:?} {generated}");
    }
    assert_eq!((executor.running(), executor.waiting()), (0, 0));
}

#[test]
fn a_prompt_in_parts_keeps_steps_short_and_streams_running() {
    let model = model();
    let mut executor = executor(&model, 2);
    executor.submit(submission(&model, "ROMEO:\n", 1, 60)).unwrap();
    let mut events = Vec::new();
    for _ in 0..8 {
        executor.step(&mut events);
    }
    let long = "To be, or not to be, that is the question. ".repeat(8);
    executor.submit(submission(&model, &long, 2, 4)).unwrap();
    let mut mixed = 0;
    for _ in 0..12 {
        executor.step(&mut events);
        let step = executor.last_step();
        if step.prefill_rows > 0 {
            mixed += 1;
            assert_eq!(step.decode_rows, 1, "the running answer goes on");
        }
    }
    assert!(mixed >= 2, "a prompt of more than 64 tokens takes several steps");
}

/// A greedy request.
fn greedy(model: &Model, prompt: &str, predict: usize) -> Submission {
    Submission { sampler: sampler(model, 1, 0.0), ..submission(model, prompt, 1, predict) }
}

/// Text and counts of all requests, once all have ended.
fn served(executor: &mut Executor) -> BTreeMap<RequestId, (String, Served)> {
    let (mut events, mut texts) = (Vec::new(), BTreeMap::<RequestId, String>::new());
    let mut found = BTreeMap::new();
    while executor.step(&mut events) {
        for (id, event) in events.drain(..) {
            match event {
                Event::Token(delta) => {
                    let text = texts.entry(id).or_default();
                    *text += &delta.token.text;
                }
                Event::Ended { text, served, .. } => {
                    let before = texts.remove(&id).unwrap_or_default();
                    found.insert(id, (before + &text, served));
                }
                Event::Failed(error) => panic!("{error}"),
                Event::Prefilled(_) | Event::PromptLogprobs(_) => {}
            }
        }
    }
    found
}

#[test]
fn drafts_change_no_greedy_answer_however_many_run() {
    let model = model();
    let prompts = ["ROMEO:\n", "KING RICHARD III:\nNow is the", "To be, or not to be, to be, or"];
    let mut plain = executor(&model, 2);
    let expected: Vec<String> = prompts
        .iter()
        .map(|prompt| {
            let id = plain.submit(greedy(&model, prompt, 60)).unwrap();
            served(&mut plain).remove(&id).unwrap().0
        })
        .collect();
    let settings = || Settings { sequences: 5, ctx_size: Some(256), ..Settings::default() };
    // Room for one of the texts.
    let small = || Settings { ctx_size: Some(128), kv_tokens: Some(128), ..settings() };
    let bounds = Bounds { draft_p_min: 0.0, ..Bounds::default() };
    for kind in ["lookup", "model", "small"] {
        let drafters: Box<dyn DrafterSource> = match kind {
            "lookup" => Box::new(Lookup::new(bounds)),
            "small" => Box::new(DraftModel::new(&model, &model, small(), bounds).unwrap()),
            _ => Box::new(DraftModel::new(&model, &model, settings(), bounds).unwrap()),
        };
        let mut drafted = executor(&model, 2).with_drafts(drafters);
        for running in 1..=prompts.len() {
            let ids: Vec<RequestId> = prompts[..running]
                .iter()
                .map(|prompt| drafted.submit(greedy(&model, prompt, 60)).unwrap())
                .collect();
            let found = served(&mut drafted);
            for (id, expected) in ids.iter().zip(&expected) {
                let (text, served) = &found[id];
                assert_eq!(text, expected, "{kind}, {running} at once");
                assert_eq!(served.generated, 60);
                assert!(served.accepted <= served.drafted);
                // A model agrees with itself.
                assert!(kind != "model" || served.accepted > 20, "{running}: {served:?}");
            }
        }
        let warnings = drafted.take_warnings();
        assert!(warnings.is_empty(), "{kind}: {warnings:?}");
        assert_eq!(drafted.kv_used(), 0.0, "rejected tokens hold no pages");
    }
}

/// The session finds up to 64 best tokens of a row, on a device that notes how many each step asked for.
#[test]
fn a_step_searches_for_as_many_best_tokens_as_its_requests_need() {
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap();
    let settings =
        |top_k| Settings { ctx_size: Some(128), sequences: 3, top_k, ..Settings::default() };
    let cpu = || bilayer_cpu::Cpu::new(Default::default()).unwrap();
    let device = Failing::new(
        Box::new(cpu()),
        Script { call: Call::Submit, after: usize::MAX, fault: Fault::Lost },
    );
    let asked = device.asked.clone();
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &Placement::single(model.graph().layers(), 0))?)
    };
    let with = |device: Box<dyn Backend>, top_k| {
        let session = Session::on(&model, vec![device], &planner, settings(top_k)).unwrap();
        Executor::new(session, ExecutorSettings::default())
    };
    let (mut finding, mut plain) = (with(Box::new(device), Some(64)), with(Box::new(cpu()), None));
    assert_eq!((finding.session().top_k(), plain.session().top_k()), (Some(64), None));
    let options = |temperature, top_k| Options { temperature, top_k, ..Options::default() };
    let (greedy, ten) = (options(0.0, 40), options(0.8, 10));
    let (sixty, all) = (options(0.8, 60), options(0.8, 0));
    for (requests, expected) in [
        (vec![&greedy], 1),
        (vec![&ten], 10),
        (vec![&greedy, &ten], 10),
        (vec![&sixty, &greedy, &ten], 60),
        (vec![&greedy, &all], 0),
    ] {
        asked.lock().unwrap().clear();
        let texts = |executor: &mut Executor| -> Vec<String> {
            for (options, seed) in requests.iter().zip(0..) {
                let options = Options { seed, ..(*options).clone() };
                let sampler = Sampler::new(options, model.config().vocab, 128).unwrap();
                let request = submission(&model, "w1 w2 w3", seed, 8);
                executor.submit(Submission { sampler, ..request }).unwrap();
            }
            finish(executor).into_values().map(|(text, _)| text).collect()
        };
        assert_eq!(texts(&mut finding), texts(&mut plain), "{expected}");
        let asked = asked.lock().unwrap();
        let of_all = asked.iter().filter(|(rows, _)| *rows == requests.len());
        let most = of_all.map(|(_, top_k)| *top_k).collect::<Vec<_>>();
        assert!(most.len() > 1 && most.iter().all(|most| *most == expected), "{most:?}");
        assert!(asked.iter().all(|(rows, top_k)| *rows > 0 || *top_k == 0), "{asked:?}");
    }
}

#[test]
fn a_shifted_context_goes_on_as_the_shortened_text_would() {
    let model = model();
    let prompt = model.prompt_tokens("ROMEO:\nBut, soft! what light").unwrap();
    let shift = Shift { keep: prompt.len(), discard: Some(100) };
    let mut executor = executor(&model, 2);
    let request =
        Request { predict: Some(500), shift: Some(shift), ..Request::new(prompt.clone()) };
    let id = executor.submit(Submission::new(request.clone(), sampler(&model, 1, 0.0))).unwrap();
    let (found, counts) = served(&mut executor).remove(&id).unwrap();
    assert_eq!(counts.generated, 500);
    assert!(counts.shifted >= 2, "{counts:?}");
    // Without a shift: whenever the context is full, a new request continues the shortened text.
    let (mut tokens, mut text, mut generated) = (prompt, String::new(), 0);
    let mut session = session(&model, 2, 1);
    while generated < 500 {
        let sequence = session.open().unwrap();
        let predict = (256 - tokens.len()).min(500 - generated);
        let request = Request { predict: Some(predict), ..Request::new(tokens.clone()) };
        let sampler = sampler(&model, 1, 0.0);
        let mut generation =
            Generation::new(&model, &mut session, sequence, sampler, request).unwrap();
        while let Some(token) = generation.next().unwrap() {
            tokens.push(token.id);
            text += &token.text;
            generated += 1;
        }
        drop(generation);
        session.close(sequence);
        tokens.drain(shift.keep..shift.keep + 100);
    }
    assert_eq!(found, text);
    // One answer alone, with and without draft tokens.
    for drafter in [None, Some(&mut Lookup::new(Bounds::default()) as &mut dyn Drafter)] {
        let sequence = session.open().unwrap();
        let sampler = sampler(&model, 1, 0.0);
        let mut alone =
            Generation::new(&model, &mut session, sequence, sampler, request.clone()).unwrap();
        if let Some(drafter) = drafter {
            alone = alone.with_drafter(drafter).unwrap();
        }
        let mut text = String::new();
        while let Some(token) = alone.next().unwrap() {
            text += &token.text;
        }
        let counts = alone.statistics();
        assert_eq!((counts.generated, alone.stop()), (500, Some(Stop::Length)));
        assert!(counts.shifted >= 2, "{counts:?}");
        assert_eq!(text, found);
        drop(alone);
        session.close(sequence);
    }
}

/// How requests are served on two devices, the second of which is lost at a submit.
#[derive(Clone, Copy)]
struct Load {
    overlap: Overlap,
    deterministic: bool,
    drafts: bool,
    lost_after: usize,
}

/// What came of it.
struct Outcome {
    texts: Vec<String>,
    has_failed: bool,
    /// The most steps in progress together.
    together: usize,
}

impl Load {
    /// The executor, and whether its second device has failed.
    fn executor(self, model: &Model) -> (Executor, Arc<Mutex<bool>>) {
        let layers = model.graph().layers();
        let cpu = || -> Box<dyn Backend> {
            let options = bilayer_cpu::Options { threads: Some(1), ..Default::default() };
            Box::new(bilayer_cpu::Cpu::new(options).unwrap())
        };
        let script = Script { call: Call::Submit, after: self.lost_after, fault: Fault::Lost };
        let device = Failing::new(cpu(), script);
        let failed = device.failed.clone();
        let placement = Placement::offload(layers, layers / 2, 0, 1);
        let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
            Ok(place(graph, machine, budget, &placement)?)
        };
        let settings = Settings {
            threads: Some(1),
            ctx_size: Some(128),
            sequences: 4,
            kv_tokens: Some(512),
            outputs: Some(8),
            overlap: self.overlap,
            ..Settings::default()
        };
        let backends = vec![cpu(), Box::new(device)];
        let session = Session::on(model, backends, &planner, settings).unwrap();
        let settings =
            ExecutorSettings { deterministic: self.deterministic, ..ExecutorSettings::default() };
        let mut executor = Executor::new(session, settings);
        if self.drafts {
            let bounds = Bounds { draft_p_min: 0.0, ..Bounds::default() };
            executor = executor.with_drafts(Box::new(Lookup::new(bounds)));
        }
        (executor, failed)
    }

    /// Answers to ten requests, more than run at once: some wait while the device is lost. Five arrive while others are
    /// answered, and one more is cancelled.
    fn serve(self, model: &Model) -> Outcome {
        let (mut executor, failed) = self.executor(model);
        let request = |n: u32| {
            let prompt: Vec<u32> = (0..8 + 5 * n).map(|i| 3 + (i * 7 + n) % 100).collect();
            let vocab = model.config().vocab;
            let options = Options { temperature: 0.0, ..Options::default() };
            let request = Request { predict: Some(12), ignore_eos: true, ..Request::new(prompt) };
            Submission::new(request, Sampler::new(options, vocab, 128).unwrap())
        };
        let (mut ids, mut events, mut together) = (Vec::new(), Vec::new(), 0);
        let mut step = |executor: &mut Executor, events: &mut Vec<_>| {
            let goes_on = executor.step(events);
            together = together.max(executor.session().begun() + 1);
            goes_on
        };
        ids.extend((0..2).map(|n| executor.submit(request(n)).unwrap()));
        let cancelled = executor.submit(request(11)).unwrap();
        ids.extend((2..5).map(|n| executor.submit(request(n)).unwrap()));
        (0..7).for_each(|_| assert!(step(&mut executor, &mut events)));
        executor.cancel(cancelled);
        ids.extend((5..10).map(|n| executor.submit(request(n)).unwrap()));
        while step(&mut executor, &mut events) {}
        let mut found = BTreeMap::<RequestId, (String, usize)>::new();
        for (id, event) in events.into_iter().filter(|(id, _)| *id != cancelled) {
            let answer = found.entry(id).or_default();
            match event {
                Event::Token(delta) => answer.0 += &delta.token.text,
                Event::Ended { text, served, .. } => {
                    (answer.0, answer.1) =
                        (std::mem::take(&mut answer.0) + &text, served.generated);
                }
                Event::Failed(error) => panic!("{error}"),
                Event::Prefilled(_) | Event::PromptLogprobs(_) => {}
            }
        }
        assert_eq!(
            found.keys().copied().collect::<Vec<_>>(),
            ids,
            "lost after {}",
            self.lost_after
        );
        assert!(found.values().all(|(_, generated)| *generated == 12));
        assert_eq!(executor.kv_used(), 0.0, "what ended holds no pages");
        let has_failed = *failed.lock().unwrap();
        assert_eq!(executor.take_warnings().len(), usize::from(has_failed));
        let texts = found.into_values().map(|(text, _)| text).collect();
        Outcome { texts, has_failed, together }
    }
}

#[test]
fn a_device_that_is_lost_under_load_loses_no_request() {
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap();
    let one =
        Load { overlap: Overlap::Off, deterministic: false, drafts: false, lost_after: usize::MAX };
    let expected = one.serve(&model);
    assert!(!expected.has_failed && expected.together == 1);
    let turns = Load { overlap: Overlap::Always, ..one };
    let loads = [one, turns, Load { drafts: true, ..turns }, Load { deterministic: true, ..turns }];
    for load in loads {
        for lost_after in [usize::MAX, 0, 1, 5, 20, 30] {
            let found = Load { lost_after, ..load }.serve(&model);
            assert_eq!(found.has_failed, lost_after != usize::MAX, "{lost_after}");
            assert_eq!(found.texts, expected.texts, "lost after {lost_after}");
            let has_turns = load.overlap == Overlap::Always && lost_after > 5;
            assert!(found.together == if has_turns { 2 } else { found.together });
        }
    }
}
