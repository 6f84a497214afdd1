//! Benchmarks a model with llama-bench's tests, on sessions reused from one test to the next.
//!
//! **What is counted.** As in llama-bench, a prompt requests logits only after each batch, generation runs one token
//! per step and requests its logits, and neither tokenization nor sampling is included. The tokens at a test's depth
//! are in the cache before the clock starts and stay there: after each repetition the sequence is truncated to them.
//!
//! **Which tokens.** Position `i` of the sequence always has the same token, drawn at random from the vocabulary once
//! (a ChaCha8 stream with a fixed key), so every repetition, placement and cache type does the same work.

use std::fmt;
use std::ops::ControlFlow;

use bilayer_cpu::{host, probe};
use bilayer_graph::Graph;
use bilayer_scheduler::{Budget, Demand, Machine, Plan};
use bilayer_settings::{Phrase, Setting};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Progress, Run, SequenceId, Session, Settings, Wanted};
use bilayer_engine::{Cancel, Model};

use crate::Error;

mod measured;
mod setup;
mod summary;

pub use measured::Measured;
use setup::Devices;
pub use setup::Setup;
pub use summary::Summary;

/// One of llama-bench's tests: a prompt, then tokens one by one, after what is already in the cache; optionally with
/// several sequences in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt, run at once.
    pub prompt: usize,
    /// Generated tokens, one per step.
    pub generate: usize,
    /// Cached tokens before the test, shared by the sequences.
    pub depth: usize,
    /// Number of sequences, at least 1. Each has its own prompt, which a decoder runs alone and an encoder together with
    /// others; a step generates one token of each.
    pub parallel: usize,
}

impl Default for Test {
    /// An empty test with one sequence.
    fn default() -> Test {
        Test { prompt: 0, generate: 0, depth: 0, parallel: 1 }
    }
}

impl Test {
    /// Tokens counted for the speed, over all sequences.
    pub fn tokens(&self) -> usize {
        self.parallel * (self.prompt + self.generate)
    }

    /// Context per sequence in tokens.
    pub fn context(&self) -> usize {
        self.depth + self.prompt + self.generate
    }

    /// Checks that a step of up to `step_tokens` generates a token of each sequence.
    ///
    /// # Errors
    /// It has room for fewer.
    pub fn check(&self, step_tokens: usize) -> Result<(), Error> {
        if self.generate == 0 || self.parallel <= step_tokens {
            return Ok(());
        }
        let expected = Phrase::from(format!("at most the {step_tokens} "))
            .noun("tokens of a step", Setting::UbatchSize)
            .text(", which has one of each sequence; use a smaller ")
            .setting(Setting::Parallel)
            .text(" or a larger ")
            .setting(Setting::UbatchSize);
        let name = Phrase::default().noun("parallel", Setting::Parallel);
        Err(bilayer_engine::Error::setting(name, self.parallel, expected).into())
    }
}

impl fmt::Display for Test {
    /// llama-bench's name: `pp512`, `tg128 @ d1024`, `pp512+tg128`; and `tg128 x4` for four sequences.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Test { prompt, generate, depth, parallel } = *self;
        let times = if parallel > 1 { format!(" x{parallel}") } else { String::new() };
        let behind = if depth > 0 { format!("{times} @ d{depth}") } else { times };
        f.pad(&match (prompt, generate) {
            (_, 0) => format!("pp{prompt}{behind}"),
            (0, _) => format!("tg{generate}{behind}"),
            _ => format!("pp{prompt}+tg{generate}{behind}"),
        })
    }
}

/// Distance in the list of tokens between sequences that generate together.
const APART: usize = 7919;

/// Options of running a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Number of repetitions.
    pub repetitions: usize,
    /// Whether to warm up: the whole prompt, one token of generation.
    pub warm_up: bool,
    /// Maximum tokens of a prompt per call; the logits after each batch are waited for.
    pub batch_size: usize,
    /// Whether the read bandwidth of the model's file is measured before and after a test without a prompt.
    pub probe: bool,
}

impl Default for Method {
    /// Five repetitions after a warm-up, as of llama-bench.
    fn default() -> Method {
        Method { repetitions: 5, warm_up: true, batch_size: crate::BATCH_SIZE, probe: false }
    }
}

/// The phase of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Filling the cache.
    Depth,
    /// Measuring read bandwidth.
    Probe,
    /// Running once untimed.
    WarmUp,
    /// The repetition with this number, from 0.
    Repetition(usize),
}

/// Benchmarks of one model, with the session of the last setup.
pub struct Bench {
    model: Model,
    live: Option<Live>,
}

struct Live {
    setup: Setup,
    session: Session,
    /// The first one keeps the tokens before a test from one test to the next.
    sequences: Vec<SequenceId>,
    /// The token of each position.
    tokens: Vec<u32>,
    /// Why there is no GPU although one was requested.
    without: Option<String>,
}

impl Bench {
    /// A benchmark without a session.
    pub fn new(model: &Model) -> Bench {
        Bench { model: model.clone(), live: None }
    }

    /// Makes a session for the setup, unless the last one has an equal setup, and applies the placement of that
    /// number. Unchanged weights are not loaded again. Returns the session.
    ///
    /// # Errors
    /// Those of [`Session::on`] and [`Session::place`]; a GPU that could not take its part.
    pub fn ready(
        &mut self,
        setup: &Setup,
        placing: usize,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<&Session, Error> {
        let kept = self.live.take().filter(|live| live.setup == *setup);
        let placing = &setup.placings[placing];
        let mut live = match kept {
            Some(mut live) => {
                let placed = live.place(placing);
                if let Err(error @ Error::Engine(bilayer_engine::Error::Plan(_))) = placed {
                    // Nothing has changed.
                    self.live = Some(live);
                    return Err(error);
                }
                placed?;
                live
            }
            None => Live::new(&self.model, setup, placing, progress)?,
        };
        live.check()?;
        Ok(&self.live.insert(live).session)
    }

    /// The session of the last setup.
    pub fn session(&self) -> Option<&Session> {
        Some(&self.live.as_ref()?.session)
    }

    /// Why the session of the last setup has no GPU although one was requested.
    pub fn without_gpu(&self) -> Option<&str> {
        self.live.as_ref()?.without.as_deref()
    }

    /// Runs a test on the prepared session. `None` if interrupted.
    ///
    /// # Panics
    /// If [`Bench::ready`] has not succeeded before, or with less context.
    ///
    /// # Errors
    /// More sequences that generate than tokens of a step; those of [`Session::step`]; a GPU that failed meanwhile, since
    /// the times then cover two placements.
    pub fn run(
        &mut self,
        test: Test,
        method: &Method,
        told: &mut dyn FnMut(Phase),
        cancel: &Cancel,
    ) -> Result<Option<Measured>, Error> {
        let live = self.live.as_mut().expect("a session was made ready");
        assert!(test.context() <= live.session.context(), "the setup's context holds the test");
        assert!((1..=live.setup.parallel).contains(&test.parallel), "the setup's sequences");
        test.check(live.session.limits().tokens)?;
        let weights = self.model.file().maps().max_by_key(|map| map.len());
        let weights = weights.map_or(&[][..], |map| map);
        let run = Running { live, weights, test, method, cancel };
        let measured = run.run(told);
        if !matches!(measured, Ok(Some(_))) {
            // The sequence's contents are unknown.
            self.live = None;
        }
        measured
    }
}

impl Live {
    fn new(
        model: &Model,
        setup: &Setup,
        placing: &Placing,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Live, Error> {
        let Devices { backends, without } = setup.devices()?;
        let settings = Settings { progress: Some(progress), ..setup.settings() };
        let mut session = Session::on(model, backends, &planner(placing), settings)?;
        let sequences = vec![session.open()?];
        let tokens = tokens(model, session.vocab(), setup.context);
        Ok(Live { setup: setup.clone(), session, sequences, tokens, without })
    }

    fn place(&mut self, placing: &Placing) -> Result<(), Error> {
        Ok(self.session.place(&planner(placing))?)
    }

    /// Closes all but the first sequence, truncated to `tokens` tokens or as near to them as it can return to. Returns its
    /// length.
    fn cut(&mut self, tokens: usize) -> usize {
        self.sequences.drain(1..).for_each(|other| self.session.close(other));
        self.session.truncate(self.sequences[0], tokens)
    }

    /// Refuses a session that differs from its setup.
    fn check(&mut self) -> Result<(), Error> {
        match self.session.take_warnings().pop() {
            Some(warning) => Err(Error::Displaced(Box::new(warning))),
            None => Ok(()),
        }
    }
}

fn planner(
    placing: &Placing,
) -> impl Fn(&Graph, &Machine, &Budget) -> Result<Plan, bilayer_engine::Error> + '_ {
    |graph, machine, budget| placing.plan(graph, machine, budget)
}

/// The token of each position: the first one is the model's begin-of-text token, if it has one.
fn tokens(model: &Model, vocab: usize, count: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::from_seed([0; 32]);
    let mut tokens: Vec<u32> = (0..count).map(|_| (rng.next_u64() % vocab as u64) as u32).collect();
    let tokenizer = model.tokenizer();
    let begins = tokenizer.bos().filter(|&bos| tokenizer.adds_bos() && (bos as usize) < vocab);
    if let (Some(first), Some(bos)) = (tokens.first_mut(), begins) {
        *first = bos;
    }
    tokens
}

/// A running test on its session.
struct Running<'a> {
    live: &'a mut Live,
    /// The model's file, or its largest shard, in memory.
    weights: &'a [u8],
    test: Test,
    method: &'a Method,
    cancel: &'a Cancel,
}

/// An interruption.
struct Interrupted;

impl Running<'_> {
    fn run(mut self, told: &mut dyn FnMut(Phase)) -> Result<Option<Measured>, Error> {
        let measured = self.measure(told)?;
        self.live.check()?;
        Ok(measured.ok())
    }

    fn measure(
        &mut self,
        told: &mut dyn FnMut(Phase),
    ) -> Result<Result<Measured, Interrupted>, Error> {
        let Test { prompt, generate, depth, .. } = self.test;
        if self.live.session.len(self.live.sequences[0]) != depth {
            told(Phase::Depth);
        }
        if self.reach(depth)?.is_err() {
            return Ok(Err(Interrupted));
        }
        let before = self.probe(told);
        let counts_memory = host::restart_peak();
        if self.method.warm_up {
            told(Phase::WarmUp);
            self.begin()?;
            if self.prompts(prompt)?.is_err() {
                return Ok(Err(Interrupted));
            }
            self.begin()?;
            if self.generate(generate.min(1))?.is_err() {
                return Ok(Err(Interrupted));
            }
        }
        self.live.session.take_spent();
        let mut samples_ns = Vec::with_capacity(self.method.repetitions);
        for repetition in 0..self.method.repetitions {
            self.begin()?;
            told(Phase::Repetition(repetition));
            let began = self.live.session.clock().now();
            let done = match self.prompts(prompt)? {
                Ok(()) => self.generate(generate)?,
                interrupted => interrupted,
            };
            let took = self.live.session.clock().since(began);
            if done.is_err() {
                return Ok(Err(Interrupted));
            }
            samples_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        self.live.cut(depth);
        let spent = self.live.session.take_spent();
        let peak_resident_bytes = host::peak_resident_bytes().filter(|_| counts_memory);
        let probe_gbps = before.zip(self.probe(told)).map(|(before, after)| [before, after]);
        let step_bytes = self.step_bytes();
        Ok(Ok(Measured {
            test: self.test,
            samples_ns,
            spent,
            step_bytes,
            probe_gbps,
            peak_resident_bytes,
        }))
    }

    /// Bytes of weights that a step of the test reads on each device.
    fn step_bytes(&self) -> Vec<u64> {
        self.live.session.step_bytes(self.test.parallel)
    }

    /// Extends the sequence to the depth; existing tokens are the right ones.
    fn reach(&mut self, depth: usize) -> Result<Result<(), Interrupted>, Error> {
        let first = self.live.sequences[0];
        let len = self.live.session.len(first);
        let len = self.live.cut(len.min(depth));
        self.prompt(first, depth.saturating_sub(len))
    }

    /// Extends all sequences to the depth, the others as forks of the first.
    fn begin(&mut self) -> Result<(), Error> {
        let (len, depth) = (self.live.cut(self.test.depth), self.test.depth);
        let Live { session, sequences, tokens, .. } = self.live;
        if len < depth {
            session.prefill(sequences[0], &tokens[len..depth], &mut |_| true)?;
        }
        for _ in 1..self.test.parallel {
            sequences.push(session.fork(sequences[0])?);
        }
        Ok(())
    }

    /// Runs a prompt for each sequence: those of a decoder one after the other, those of an encoder together.
    fn prompts(&mut self, tokens: usize) -> Result<Result<(), Interrupted>, Error> {
        if self.live.session.model().config().encoder.is_some() {
            return self.texts(tokens);
        }
        for number in 0..self.live.sequences.len() {
            if self.prompt(self.live.sequences[number], tokens)?.is_err() {
                return Ok(Err(Interrupted));
            }
        }
        Ok(Ok(()))
    }

    /// Runs a text for each sequence of an encoder, in as few steps as possible.
    fn texts(&mut self, tokens: usize) -> Result<Result<(), Interrupted>, Error> {
        let Live { session, sequences, tokens: all, .. } = &mut *self.live;
        if tokens == 0 {
            return Ok(Ok(()));
        }
        let of_step = (session.limits().tokens / tokens).max(1);
        for sequences in sequences.chunks(of_step) {
            if self.cancel.is_cancelled() {
                return Ok(Err(Interrupted));
            }
            let run = |&sequence| {
                let start = session.len(sequence);
                let tokens = &all[start..start + tokens];
                Run { sequence, tokens, wanted: Wanted::Last }
            };
            let runs: Vec<Run<'_>> = sequences.iter().map(run).collect();
            session.step(&runs)?;
        }
        Ok(Ok(()))
    }

    /// Appends tokens to a sequence in batches.
    fn prompt(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<Result<(), Interrupted>, Error> {
        let Running { live, method, cancel, .. } = self;
        let Live { session, tokens: all, .. } = &mut **live;
        let start = session.len(sequence);
        for batch in all[start..start + tokens].chunks(method.batch_size.max(1)) {
            let goes_on = &mut |_| !cancel.is_cancelled();
            // A batch of one step is checked only when it is done.
            if !goes_on(0) {
                return Ok(Err(Interrupted));
            }
            if session.prefill(sequence, batch, goes_on)?.is_none() {
                return Ok(Err(Interrupted));
            }
        }
        Ok(Ok(()))
    }

    /// Appends tokens one by one, in each step one to each sequence or to each of a group: different ones, so that they
    /// use different experts.
    fn generate(&mut self, tokens: usize) -> Result<Result<(), Interrupted>, Error> {
        let Live { session, sequences, tokens: all, .. } = self.live;
        let start = session.len(sequences[0]);
        let rows = sequences.len();
        let groups = session.groups(Demand { rows, step_rows: session.limits().tokens });
        let of_step = rows.div_ceil(groups);
        let groups = rows.div_ceil(of_step);
        let mut runs = Vec::with_capacity(rows);
        for position in start..start + tokens {
            if self.cancel.is_cancelled() {
                while session.begun() > 0 {
                    session.finish()?;
                }
                return Ok(Err(Interrupted));
            }
            for (group, members) in sequences.chunks(of_step).enumerate() {
                runs.clear();
                runs.extend(members.iter().enumerate().map(|(member, &sequence)| {
                    let number = group * of_step + member;
                    let at = (position + number * APART) % all.len();
                    Run { sequence, tokens: &all[at..=at], wanted: Wanted::Last }
                }));
                if groups == 1 {
                    session.step(&runs)?;
                    continue;
                }
                if session.begun() == groups {
                    session.finish()?;
                }
                session.begin(&runs)?;
            }
        }
        while session.begun() > 0 {
            session.finish()?;
        }
        Ok(Ok(()))
    }

    /// Read bandwidth of the model's file with the threads of the session's CPU.
    fn probe(&self, told: &mut dyn FnMut(Phase)) -> Option<f64> {
        // A prompt is compute-bound: there is nothing to compare.
        if !self.method.probe || self.test.prompt > 0 {
            return None;
        }
        told(Phase::Probe);
        let facts = self.live.session.backends().next()?.facts();
        let measured = || probe::stream_gbps(facts.threads, self.weights);
        Some(facts.read_gbps.unwrap_or_else(measured)).filter(|&gbps| gbps > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Test;

    #[test]
    fn a_step_has_a_token_of_each_sequence_that_generates() {
        let of = |prompt, generate, parallel| Test { prompt, generate, depth: 0, parallel };
        assert!(of(0, 2, 16).check(16).is_ok());
        assert!(of(4, 0, 64).check(16).is_ok(), "prompts run one after the other");
        let error = of(0, 2, 17).check(16).expect_err("too many");
        let text = error.to_string();
        assert!(
            text.contains("-np) is 17; it must be at most the 16 tokens of a step (-ub)"),
            "{text}"
        );
        let text = format!("{error:#}");
        assert!(text.starts_with("`parallel` is 17; it must be at most"), "{text}");
        assert!(text.ends_with("use a smaller `parallel` or a larger `ubatch_size`"), "{text}");
        assert_eq!(error.exit_code(), bilayer_engine::Exit::Usage);
    }

    #[test]
    fn tests_are_called_as_llama_bench_calls_them() {
        let cases = [
            ((512, 0, 0, 1), "pp512", 512),
            ((0, 128, 0, 1), "tg128", 128),
            ((512, 128, 0, 1), "pp512+tg128", 640),
            ((512, 0, 1024, 1), "pp512 @ d1024", 1536),
            ((0, 1, 7, 1), "tg1 @ d7", 8),
            ((0, 64, 0, 4), "tg64 x4", 64),
            ((0, 64, 8, 2), "tg64 x2 @ d8", 72),
        ];
        for ((prompt, generate, depth, parallel), name, context) in cases {
            let test = Test { prompt, generate, depth, parallel };
            assert_eq!((test.to_string().as_str(), test.context()), (name, context));
            assert_eq!(test.tokens(), parallel * (prompt + generate));
        }
    }
}
