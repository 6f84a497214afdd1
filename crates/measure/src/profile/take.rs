//! Takes a profile: one session whose layers move from N to N, visiting every N in every round, back and forth.

use std::collections::BTreeSet;

use bilayer_graph::Graph;
use bilayer_scheduler::{Budget, Machine, Offload, PROMPT_TOKENS, Plan};

use super::curves::{self, Curves, Work};
use super::median::median;
use super::options::{DECODE_TOKENS, Options, USUAL_PROMPT};
use super::{Point, Profile, Span, SpanKind, Step, knee, recommend};
use crate::bench::Setup;
use crate::timing::{self, POSITION};
use crate::trace::{Names, Timeline, Totals};
use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::SequenceId;
use bilayer_engine::session::{Event, Prefill, Run, Session, Settings, Timed, Wanted, What};

use crate::Error;

/// Capacity for the trace of a step or two.
const EVENTS: usize = 1 << 16;

/// Numbers of offloaded layers whose steps are shown, besides the recommended one and the knee.
const STEPS: u32 = 6;

/// Default duration of a prompt at the slowest N, in seconds.
const PROMPT_SECONDS: f64 = 1.5;

/// A prompt with streamed weights that takes longer, in seconds, is measured in the first round only.
const STREAMED_SECONDS: f64 = 2.0;

/// Default duration of decode at each N in each round, in seconds.
const DECODE_SECONDS: f64 = 0.6;

/// Steps before decode is timed come in turns of so many, at most so many turns. They end once a turn takes more than this share
/// of the one before, or so many seconds.
const SETTLING_STEPS: usize = 8;
const SETTLING_MAX: usize = 32;
const SETTLED: f64 = 0.97;
const SETTLING_SECONDS: f64 = 0.25;

/// A profile and its session, placed as recommended, with the trace of its last steps.
pub struct Taken {
    /// The profile.
    pub profile: Profile,
    /// The session.
    pub session: Session,
}

/// Measures every N that fits. `progress` receives the number of finished measurements and their total, and stops the
/// work by returning false; then there is no profile.
///
/// # Errors
/// Those of [`Session::new`] and [`Session::place`].
pub fn take(
    model: &Model,
    settings: Settings<'_>,
    options: Options,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Option<Taken>, Error> {
    let placing = Placing { remeasure: true, ..settings.placing.clone() };
    let all = Placing { gpu_layers: Offload::Auto, ..placing.clone() };
    let context = options.context(settings.ctx_size, model.config().context)?;
    let setup = alone(&settings);
    let mut session = Session::new(
        model,
        Settings {
            ctx_size: Some(context),
            sequences: 1,
            outputs: Some(1),
            top_k: None,
            trace_events: Some(EVENTS),
            placing: all,
            time_device: Some(timing::device),
            ..settings
        },
    )?;
    let most = session.plan().max_gpu_layers;
    // Timing every op delays the device between ops: only the last steps do so.
    session.time_each(Timed::Segment)?;
    let bench = Bench::new(&mut session, placing, options)?;
    let rounds = options.rounds.max(1);
    let threads = session.backends().next().map_or(1, |backend| backend.facts().threads);
    let is_alone = session.backends().count() == 1;
    let of_curves = if is_alone { curves::points(threads, setup.ubatch_size) } else { 0 };
    let total = rounds * (most as usize + 1) + of_curves;
    let mut done = 0;
    let mut tell = || {
        done += 1;
        progress(done, total)
    };
    let Some(Visits { samples, plans }) = bench.visits(&mut session, rounds, &mut tell)? else {
        return Ok(None);
    };
    let setup = Setup { threads: Some(threads), context: bench.context(), ..setup };
    let curves = match is_alone {
        true => curves::measured(model, &setup, bench.work(rounds), &mut tell)?,
        false => None,
    };
    if is_alone && curves.is_none() {
        return Ok(None);
    }
    // Without a GPU there is nothing to offload to.
    let parts = if is_alone { 0 } else { session.plan().layers.len() as u32 + 1 };
    let points = points(&samples, &plans, parts);
    let (recommended, why) = recommend(&points);
    let why = curves.as_ref().map_or(why, Curves::why);
    session.time_each(Timed::Op)?;
    let mut steps = Vec::new();
    // The session stays as recommended.
    for count in shown(most, &points, recommended).into_iter().chain([recommended]) {
        bench.place(&mut session, count)?;
        bench.sample(&mut session)?;
        steps.extend(median_step(&session, count));
    }
    let timeline = steps.last().map_or(Vec::new(), |step| step.spans.clone());
    steps.sort_by_key(|step| step.gpu_layers);
    let knee = knee(&points);
    let blank = blank(&session, rounds);
    let profile = Profile {
        context,
        prompt_tokens: bench.prompt.len(),
        streamed_prompt_tokens: bench.streamed_prompt(&session, &points),
        curves,
        knee,
        recommended,
        why,
        timeline,
        steps,
        points,
        ..blank
    };
    Ok(Some(Taken { profile, session }))
}

/// The setup of curves of the CPU alone.
fn alone(settings: &Settings<'_>) -> Setup {
    let asked = Setup::new(settings, &[]);
    Setup { threads: None, context: 0, trace_events: None, placings: vec![Placing::cpu()], ..asked }
}

/// A profile with what is known of model and machine, and without figures.
fn blank(session: &Session, rounds: usize) -> Profile {
    let model = session.model();
    let mut facts = session.backends().map(|backend| backend.facts());
    let cpu = facts.next();
    let gpus: Vec<&str> = facts.map(|facts| facts.name.as_str()).collect();
    let threads = cpu.map_or(1, |facts| facts.threads);
    Profile {
        model: model.name(),
        parameters: model.graph().parameters() as u64,
        bytes: model.graph().weights.iter().map(|weight| weight.bytes() as u64).sum(),
        gpu: if gpus.is_empty() { "no GPU".to_owned() } else { gpus.join(", ") },
        cpu: cpu.map_or(String::new(), |facts| facts.identity.clone()),
        threads,
        read_gbps: cpu
            .and_then(|facts| facts.read_gbps)
            .unwrap_or_else(|| bilayer_cpu::probe::read_gbps(threads)),
        context: 0,
        prompt_tokens: 0,
        streamed_prompt_tokens: None,
        rounds,
        points: Vec::new(),
        knee: 0,
        recommended: 0,
        why: String::new(),
        timeline: Vec::new(),
        steps: Vec::new(),
        curves: None,
    }
}

/// What was measured at each number of offloaded layers, and how these were placed.
struct Visits {
    samples: Vec<Vec<Sample>>,
    plans: Vec<Option<Plan>>,
}

/// The result of one visit to an N: milliseconds per token, and their breakdown.
#[derive(Clone)]
struct Sample {
    decode_ms: f64,
    prefill_tps: f64,
    streamed_prefill_tps: Option<f64>,
    totals: Totals,
    /// The share of the experts of decode that were resident.
    hit_rate: Option<f64>,
    /// What the GPUs hold, bytes.
    held: Option<u64>,
}

/// The work at each N.
struct Bench {
    sequence: SequenceId,
    prompt: Vec<u32>,
    decode: usize,
    placing: Placing,
}

impl Bench {
    fn new(session: &mut Session, placing: Placing, options: Options) -> Result<Bench, Error> {
        let predicted = session.plan().predicted.as_ref();
        let slowest = session.times().map(|times| {
            let sum = |device: &bilayer_scheduler::DeviceTimes| {
                let layers = device.layers.iter().chain([&device.output]);
                layers.fold((0.0, 0.0), |(prefill, decode), cost| {
                    (prefill + cost.prefill_ms.unwrap_or(0.0), decode + cost.decode_ms)
                })
            };
            let each = times.devices.iter().map(sum);
            each.fold((0.0, 0.0), |a: (f64, f64), b| (a.0.max(b.0), a.1.max(b.1)))
        });
        let within = |ms: f64, seconds: f64, range: &std::ops::RangeInclusive<usize>| {
            let tokens = if ms > 0.0 { (seconds * 1e3 / ms) as usize } else { *range.end() };
            tokens.clamp(*range.start(), *range.end())
        };
        let (prefill_ms, decode_ms) =
            slowest.unwrap_or((0.0, predicted.map_or(0.0, |p| p.decode_ms)));
        // What is not given takes what is left of the context.
        let room = |other: usize| session.context().saturating_sub(other + 1).max(1);
        let decode = options.decode.unwrap_or_else(|| {
            let usual = within(decode_ms, DECODE_SECONDS, &DECODE_TOKENS);
            usual.min(room(options.prompt.unwrap_or(1)))
        });
        let prompt = options
            .prompt
            .unwrap_or_else(|| within(prefill_ms, PROMPT_SECONDS, &USUAL_PROMPT).min(room(decode)));
        let vocab = session.vocab() as u32;
        Ok(Bench {
            sequence: session.open()?,
            prompt: (0..prompt as u32).map(|i| (i * 7919 + 13) % vocab).collect(),
            decode,
            placing,
        })
    }

    /// Tokens of the longest test.
    fn context(&self) -> usize {
        self.prompt.len().max(self.decode)
    }

    /// The work of each point of the curves.
    fn work(&self, rounds: usize) -> Work {
        Work { prompt: self.prompt.len(), decode: self.decode, rounds }
    }

    /// Places `count` parts on the GPU.
    fn place(&self, session: &mut Session, count: u32) -> Result<(), Error> {
        let placing = Placing { gpu_layers: Offload::Count(count), ..self.placing.clone() };
        Ok(session.place(&|graph: &Graph, machine: &Machine, budget: &Budget| {
            placing.plan(graph, machine, budget)
        })?)
    }

    /// Visits every number of layers in every round, back and forth. `None` once `tell` returns false.
    fn visits(
        &self,
        session: &mut Session,
        rounds: usize,
        tell: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Visits>, Error> {
        let most = session.plan().max_gpu_layers;
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); most as usize + 1];
        let mut plans: Vec<Option<Plan>> = vec![None; most as usize + 1];
        for round in 0..rounds {
            for step in 0..=most {
                let count = if round % 2 == 0 { step } else { most - step };
                self.place(session, count)?;
                plans[count as usize].get_or_insert_with(|| session.plan().clone());
                let sample = self.sample(session)?;
                let own = &mut samples[count as usize];
                let streamed_prefill_tps = self.streamed(session, own.first())?;
                own.push(Sample { streamed_prefill_tps, ..sample });
                if !tell() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Visits { samples, plans }))
    }

    /// Tokens per second of a prompt.
    fn prefill(&self, session: &mut Session, prompt: &[u32]) -> Result<f64, Error> {
        session.truncate(self.sequence, 0);
        let began = session.clock().now();
        session.prefill(self.sequence, prompt, &mut |_| true)?;
        Ok(prompt.len() as f64 / session.clock().since(began).as_secs_f64())
    }

    /// Tokens of the prompt with streamed weights: as many as `auto` plans for, if there is room.
    fn streamed_tokens(&self, session: &Session) -> usize {
        PROMPT_TOKENS.max(self.prompt.len()).min(session.context())
    }

    /// [`Bench::streamed_tokens`], if any point has such a prompt.
    fn streamed_prompt(&self, session: &Session, points: &[Point]) -> Option<usize> {
        let is_streamed = points.iter().any(|point| point.streamed_prefill_tps.is_some());
        is_streamed.then(|| self.streamed_tokens(session))
    }

    /// Tokens per second of a prompt with streamed weights, if the plan has these and streams such a prompt; what the
    /// `first` sample at this N found, if it took long.
    fn streamed(
        &self,
        session: &mut Session,
        first: Option<&Sample>,
    ) -> Result<Option<f64>, Error> {
        let tokens = self.streamed_tokens(session);
        if !session.plan().streaming.as_ref().is_some_and(|streaming| streaming.takes(tokens)) {
            return Ok(None);
        }
        let known = first.and_then(|first| first.streamed_prefill_tps);
        if known.is_some_and(|tps| tokens as f64 / tps > STREAMED_SECONDS) {
            return Ok(known);
        }
        let prompt: Vec<u32> = self.prompt.iter().copied().cycle().take(tokens).collect();
        self.prefill(session, &prompt).map(Some)
    }

    fn step(&self, session: &mut Session, token: u32) -> Result<(), Error> {
        let run = Run { sequence: self.sequence, tokens: &[token], wanted: Wanted::Last };
        session.step(&[run]).map(|_| ()).map_err(Error::from)
    }

    /// Returns to the depth at which the times for predictions were measured.
    fn go_back(&self, session: &mut Session) -> Result<(), Error> {
        let behind = POSITION.saturating_sub(self.decode / 2).min(self.prompt.len());
        let there = session.truncate(self.sequence, behind);
        if there < behind {
            session.prefill(self.sequence, &self.prompt[there..behind], &mut |_| true)?;
        }
        self.step(session, 1)
    }

    /// Decodes until it gets no faster: a GPU that had little to do raises its clock within some tenths of a second.
    fn settle(&self, session: &mut Session) -> Result<(), Error> {
        if session.backends().count() == 1 {
            return Ok(());
        }
        until_settled(|| {
            self.go_back(session)?;
            let began = session.clock().now();
            for token in 0..SETTLING_STEPS.min(self.decode) as u32 {
                self.step(session, token)?;
            }
            Ok(session.clock().since(began).as_secs_f64())
        })
    }

    /// A prompt, then tokens one by one.
    fn sample(&self, session: &mut Session) -> Result<Sample, Error> {
        let sequence = self.sequence;
        // Warm up without timing: caches fill, clocks rise.
        session.truncate(sequence, 0);
        let few = &self.prompt[..self.prompt.len().min(8)];
        session.prefill(sequence, few, &mut |_| true)?;
        session.set_prefill(Prefill::InPlace);
        let prefill_tps = self.prefill(session, &self.prompt)?;
        session.set_prefill(Prefill::Planned);
        self.settle(session)?;
        self.go_back(session)?;
        let vocab = session.vocab() as u32;
        let is_async: Vec<bool> =
            session.backends().map(|backend| backend.facts().is_async).collect();
        let mut each = Vec::with_capacity(self.decode);
        // No evaluation between steps: idle threads would go to sleep.
        session.trace_mut().expect("asked for").clear();
        let before = session.expert_hits();
        for i in 0..self.decode as u32 {
            let began = session.clock().now();
            self.step(session, (i * 31 + 7) % vocab)?;
            each.push(session.clock().since(began).as_secs_f64() * 1e3);
        }
        let hits = session.expert_hits().zip(before).map(|(now, before)| now.since(before));
        let totals = Timeline::new(session.trace().expect("asked for")).step_totals(&is_async);
        let of = |part: &dyn Fn(&Totals) -> f64| median(totals.iter().map(part).collect());
        let mut held = session.backends().skip(1).map(|gpu| gpu.held_bytes()).peekable();
        Ok(Sample {
            held: held.peek().is_some().then(|| held.sum()).flatten(),
            decode_ms: median(each),
            prefill_tps,
            streamed_prefill_tps: None,
            hit_rate: hits.and_then(|hits| hits.rate()),
            totals: Totals {
                wall: of(&|totals| totals.wall),
                cpu: of(&|totals| totals.cpu),
                gpu: of(&|totals| totals.gpu),
                devices: (0..is_async.len()).map(|i| of(&|totals| totals.devices[i])).collect(),
                crossing: of(&|totals| totals.crossing),
                idle: of(&|totals| totals.idle),
            },
        })
    }
}

/// Takes turns, each of which returns its seconds, until one is hardly faster than the one before or long enough by itself.
fn until_settled(mut turn: impl FnMut() -> Result<f64, Error>) -> Result<(), Error> {
    let mut before = f64::INFINITY;
    for _ in 0..SETTLING_MAX {
        let took = turn()?;
        if took > SETTLED * before || took > SETTLING_SECONDS {
            break;
        }
        before = took;
    }
    Ok(())
}

/// The points of every N; those that do not fit have no figures.
fn points(samples: &[Vec<Sample>], plans: &[Option<Plan>], parts: u32) -> Vec<Point> {
    let of = |count: usize, part: &dyn Fn(&Sample) -> f64| {
        let all: Option<Vec<f64>> = samples.get(count).map(|all| all.iter().map(part).collect());
        all.map_or(f64::NAN, median)
    };
    let first = of(0, &|sample| sample.decode_ms);
    let point = |gpu_layers: u32| {
        let count = gpu_layers as usize;
        let plan = plans.get(count).and_then(Option::as_ref);
        let predicted = plan.and_then(|plan| plan.predicted.as_ref());
        let decode_ms = of(count, &|sample| sample.decode_ms);
        let before = count.checked_sub(1).map(|before| of(before, &|sample| sample.decode_ms));
        let gpu_bytes = |plan: &Plan| plan.devices[1..].iter().map(|gpu| gpu.used_bytes).sum();
        Point {
            gpu_layers,
            map: plan.map_or(String::new(), |plan| plan.map.clone()),
            decode_ms,
            predicted_decode_ms: predicted.map(|predicted| predicted.decode_ms),
            prefill_tps: of(count, &|sample| sample.prefill_tps),
            predicted_prefill_tps: match plan.and_then(|plan| plan.streaming.as_ref()) {
                Some(streaming) => streaming.without_ms_per_token,
                None => predicted.and_then(|p| p.prefill_ms_per_token),
            }
            .map(|ms| 1e3 / ms),
            streamed_prefill_tps: plan
                .and_then(|plan| plan.streaming.as_ref())
                .map(|_| of(count, &|sample| sample.streamed_prefill_tps.unwrap_or(f64::NAN)))
                .filter(|tps| tps.is_finite()),
            speedup: first / decode_ms,
            marginal: before.map(|before| before - decode_ms).filter(|ms| ms.is_finite()),
            cpu_ms: of(count, &|sample| sample.totals.cpu),
            gpu_ms: of(count, &|sample| sample.totals.gpu),
            crossing_ms: of(count, &|sample| sample.totals.crossing),
            idle_ms: of(count, &|sample| sample.totals.idle),
            expert_hit_rate: Some(of(count, &|sample| sample.hit_rate.unwrap_or(f64::NAN)))
                .filter(|rate| rate.is_finite()),
            expected_expert_hit_rate: plan.and_then(|plan| Some(plan.experts.as_ref()?.hit_rate)),
            gpu_bytes: plan.map(gpu_bytes),
            gpu_held_bytes: samples.get(count).and_then(|all| all.first()?.held),
            fits: plan.is_some(),
        }
    };
    (0..=parts).map(point).collect()
}

/// The numbers of offloaded layers, besides the recommended one, whose steps are shown: the ends, the knee, and some
/// between them.
fn shown(most: u32, points: &[Point], recommended: u32) -> BTreeSet<u32> {
    let spaced = (0..=STEPS).map(|i| most * i / STEPS);
    let all = spaced.chain([knee(points)]);
    all.filter(|&count| count != recommended && count <= most).collect()
}

/// The step of median duration in the session's trace.
fn median_step(session: &Session, gpu_layers: u32) -> Option<Step> {
    let recorded = Timeline::new(session.trace()?);
    let events = recorded.events();
    let mut steps: Vec<&Event> = events.iter().filter(|event| event.what == What::Step).collect();
    steps.sort_by_key(|event| event.ns);
    let step = **steps.get(steps.len() / 2)?;
    let spans = spans(session, &events, &step);
    Some(Step { gpu_layers, ms: step.ns as f64 / 1e6, of: steps.len(), spans })
}

/// What ran in a step.
fn spans(session: &Session, events: &[Event], step: &Event) -> Vec<Span> {
    let Some(trace) = session.trace() else { return Vec::new() };
    let recorded = Timeline::new(trace);
    let names = Names::of(session);
    let inside = |event: &&Event| event.end_ns() > step.start_ns && event.start_ns < step.end_ns();
    let mine: Vec<&Event> = events.iter().filter(inside).collect();
    let has_ops = |lane| mine.iter().any(|event| event.lane == lane && event.what == What::Op);
    let span = |event: &&Event| {
        let (from, to) = (event.start_ns.max(step.start_ns), event.end_ns().min(step.end_ns()));
        let kind = match event.what {
            What::Op | What::Beside => SpanKind::Op,
            What::Segment if !has_ops(event.lane) => SpanKind::Op,
            What::Write | What::Stream | What::Read => SpanKind::Transfer,
            What::Submit => SpanKind::Submit,
            What::Wait => SpanKind::Wait,
            What::Idle => SpanKind::Idle,
            What::Segment | What::Step | What::Between => return None,
        };
        Some(Span {
            lane: trace.lanes()[event.lane].clone(),
            name: recorded.name(event, &|node| names.get(node)),
            kind,
            start_us: (from - step.start_ns) as f64 / 1e3,
            us: to.saturating_sub(from) as f64 / 1e3,
            bytes: recorded.bytes(event, &names),
        })
    };
    mine.iter().filter_map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::{SETTLING_MAX, until_settled};

    #[test]
    fn turns_end_when_they_get_no_faster() {
        let turns = |seconds: &dyn Fn(usize) -> f64| {
            let mut count = 0;
            let ended = until_settled(|| {
                count += 1;
                Ok(seconds(count))
            });
            ended.unwrap_or_else(|error| panic!("{error}"));
            count
        };
        let rising_clock = [0.08, 0.05, 0.03, 0.0299];
        assert_eq!(turns(&|turn| rising_clock[turn - 1]), 4);
        assert_eq!(turns(&|_| 0.01), 2, "of the same speed");
        assert_eq!(turns(&|_| 1.0), 1, "a turn of a slow model");
        assert_eq!(turns(&|turn| 0.2 / 2f64.powi(turn as i32)), SETTLING_MAX);
    }
}
