//! The promise of groups of sequences in turn: both devices are always busy, on simulated devices of equal speed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bilayer_engine::Model;
use bilayer_engine::generate::Request;
use bilayer_engine::requests::{Event, Executor, ExecutorSettings, Submission};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::{Overlap, Run, SequenceId, Session, Settings, Wanted, What};
use bilayer_quant::Type;
use bilayer_scheduler::Demand;

#[path = "support/halves.rs"]
mod halves;
#[path = "../../../tests/support/model.rs"]
mod model;
#[path = "../../../tests/support/words.rs"]
mod words;

use halves::halves;

/// The tiny model on two simulated devices, with a trace.
fn session(sequences: usize, overlap: Overlap) -> Session {
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap();
    let settings = Settings {
        ctx_size: Some(256),
        sequences,
        overlap,
        trace_events: Some(1 << 14),
        ..Settings::default()
    };
    halves(&model, settings)
}

/// Milliseconds in which every sequence gets a token, if all are one group that no other is beside.
fn alone_ms(session: &mut Session, sequences: &[SequenceId]) -> f64 {
    let run = |&sequence| Run { sequence, tokens: &[1], wanted: Wanted::Last };
    let runs: Vec<Run<'_>> = sequences.iter().map(run).collect();
    let began = session.clock().now();
    for _ in 0..4 {
        session.begin(&runs).unwrap();
        session.finish().unwrap();
    }
    session.clock().since(began).as_secs_f64() * 1e3 / 4.0
}

/// Milliseconds in which every sequence gets a token.
fn round_ms(session: &mut Session, sequences: &[SequenceId], groups: usize) -> f64 {
    let of_step = sequences.len().div_ceil(groups);
    let rounds = 12;
    let began = session.clock().now();
    for _ in 0..rounds {
        for members in sequences.chunks(of_step) {
            let run = |&sequence| Run { sequence, tokens: &[1], wanted: Wanted::Last };
            let runs: Vec<Run<'_>> = members.iter().map(run).collect();
            if groups == 1 {
                session.step(&runs).unwrap();
                continue;
            }
            if session.begun() == groups {
                session.finish().unwrap();
            }
            session.begin(&runs).unwrap();
        }
    }
    while session.begun() > 0 {
        session.finish().unwrap();
    }
    session.clock().since(began).as_secs_f64() * 1e3 / f64::from(rounds)
}

/// The share of the time from the first step to the last in which each device computes.
fn busy(session: &Session) -> Vec<f64> {
    let trace = session.trace().unwrap();
    let of_lane = |lane: usize| {
        let events = trace.recorded().iter();
        events.filter(move |event| event.lane == lane && event.what == What::Segment)
    };
    let spans = (1..trace.lanes().len()).map(|lane| {
        let ends = of_lane(lane).map(|event| event.end_ns()).max().unwrap();
        let starts = of_lane(lane).map(|event| event.start_ns).min().unwrap();
        of_lane(lane).map(|event| event.ns).sum::<u64>() as f64 / (ends - starts) as f64
    });
    spans.collect()
}

#[test]
fn two_groups_in_turn_reach_the_overlap_bound() {
    let mut session = session(128, Overlap::Auto);
    let predicted = session.plan().predicted.clone().unwrap();
    let bound = predicted.groups.bound;
    assert!((1.95..=2.0).contains(&bound), "{}: {bound}", session.plan().map);
    let sequences: Vec<SequenceId> = (0..128).map(|_| session.open().unwrap()).collect();
    let one = alone_ms(&mut session, &sequences[..1]);
    session.trace_mut().unwrap().clear();
    let two = round_ms(&mut session, &sequences[..2], 2);
    assert!(2.0 * one / two > 0.9 * bound, "{one} ms and {two} ms, the bound is {bound}");
    let busy = busy(&session);
    assert!(busy.iter().all(|&share| share > 0.9), "{busy:?}");
    let ratio = predicted.round_ms(Demand { rows: 2, step_rows: 1 }, 2) / two;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    // Of many rows, whose head takes the GPU longer than the CPU: the GPU is always busy, which two halves of one step
    // cannot reach.
    let halves = round_ms(&mut session, &sequences, 1);
    session.trace_mut().unwrap().clear();
    let turns = round_ms(&mut session, &sequences, 2);
    let busy = self::busy(&session);
    assert!(busy[1] > 0.95, "{busy:?}");
    assert!(turns < 0.9 * halves, "{turns} ms, {halves} ms in one step");
    // What is faster is known: one batch of two sequences reads the weights once.
    let demand = |rows| Demand { rows, step_rows: 512 };
    assert_eq!([2, 128].map(|rows| session.groups(demand(rows))), [1, 2]);
    let batch = round_ms(&mut session, &sequences[..2], 1);
    assert!(batch < 1.1 * two, "{batch} ms, {two} ms in turn");
}

/// Milliseconds of greedy answers of 24 tokens to so many requests at once, and the most steps in progress together.
fn answers_ms(session: Session, requests: u32, settings: ExecutorSettings) -> (f64, usize) {
    let clock = session.clock().clone();
    let mut executor = Executor::new(session, settings);
    for number in 0..requests {
        let (vocab, context) = (executor.session().vocab(), executor.session().context());
        let options = Options { temperature: 0.0, ..Options::default() };
        let sampler = Sampler::new(options, vocab, context).unwrap();
        let request =
            Request { predict: Some(24), ignore_eos: true, ..Request::new(vec![5 + number]) };
        let submission = Submission { reuse: false, ..Submission::new(request, sampler) };
        executor.submit(submission).unwrap();
    }
    let (began, mut events, mut most) = (clock.now(), Vec::new(), 0);
    while executor.step(&mut events) {
        most = most.max(executor.session().begun() + 1);
    }
    let ended = events.iter().filter(|(_, event)| matches!(event, Event::Ended { .. })).count();
    assert_eq!(ended, requests as usize);
    (clock.since(began).as_secs_f64() * 1e3, most)
}

#[test]
fn requests_are_served_in_turn_where_that_is_faster() {
    let mixed = ExecutorSettings::default();
    let fixed = ExecutorSettings { deterministic: true, ..mixed };
    let on = |overlap| session(96, overlap);
    // Steps of one row each: nearly twice as fast.
    let (plain, none) = answers_ms(on(Overlap::Off), 2, fixed);
    let (turns, two) = answers_ms(on(Overlap::Auto), 2, fixed);
    assert_eq!((none, two), (1, 2));
    assert!(plain > 1.7 * turns, "{turns} ms in turn, {plain} ms one after the other");
    // Many rows.
    let (plain, _) = answers_ms(on(Overlap::Off), 96, mixed);
    let (turns, two) = answers_ms(on(Overlap::Auto), 96, mixed);
    assert!(two == 2 && plain > 1.5 * turns, "{turns} ms in turn, {plain} ms in one step");
    // Few rows are best in one step.
    assert_eq!(answers_ms(on(Overlap::Auto), 2, mixed).1, 1);
}
