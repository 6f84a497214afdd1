//! A session: a model placed on devices, with its KV cache. `step` only executes what was prepared.

use bilayer_graph::{Backend, Kernel, Limits, PageCopy, Value};
use bilayer_quant::first_not_finite;
use bilayer_scheduler::{Budget, Growth, Plan, Times};

use crate::times::{self, Decoding};
use crate::{Error, Model, devices};
use batch::{Cut, Work};
use failed::{Failed, is_recoverable};
pub(crate) use pipeline::{Calls, Reading};
use pipeline::{Pipeline, Ran};
use prepare::{Best, Read, Timing};
use stream::Stream;
use strengths::Strengths;
use waves::Waves;

mod append;
mod batch;
mod bytes;
pub(crate) mod cache;
mod check;
mod checkpoints;
mod experts;
mod failed;
mod fallback;
mod hidden;
mod lanes;
mod load;
mod pipeline;
mod prepare;
mod reading;
mod reduced;
mod relocate;
mod rows;
mod saved;
mod spent;
mod stream;
mod strengths;
mod top;
mod trace;
mod warning;
mod waves;

pub use crate::purpose::Purpose;
pub use crate::settings::{Overlap, Progress, Settings, Stage, budget_of, kv_types};
pub use crate::times::{Subject, TimeDevice};
pub use bilayer_graph::Clock;
pub use cache::{Error as CacheError, Pages, SequenceId};
pub use checkpoints::Checkpoint;
pub use experts::{EXCHANGES, ExpertHits, REVIEW_STEPS};
pub use lanes::{Lane, Lanes};
pub use prepare::Planner;
pub use relocate::Timed;
pub(crate) use rows::OutputRows;
pub use saved::SavedSequence;
pub use spent::Spent;
pub use stream::Prefill;
pub(crate) use top::Top;
pub use trace::{Event, Trace, What};
pub use warning::Warning;

/// Tokens of one sequence to be run in a step.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The sequence they are appended to.
    pub sequence: SequenceId,
    /// The tokens.
    pub tokens: &'a [u32],
    /// The requested logits.
    pub wanted: Wanted,
}

/// The requested logits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens are only added to the cache.
    None,
    /// Those after the first token.
    First,
    /// Those after the last token.
    Last,
    /// Those after each token.
    All,
    /// Those after each token, each with the bits that it would have if the token ran alone: for draft tokens. The
    /// whole step then runs with [`Exactness::PerRow`](bilayer_graph::Exactness::PerRow), which documents on which
    /// devices and for how many rows that holds.
    Verified,
}

/// A model on its devices. Nothing is allocated on the token path after [`Session::new`].
///
/// When a device fails, the session continues on the others with the same tokens and records a [`Warning`]; see
/// [`Session::take_warnings`].
pub struct Session {
    model: Model,
    purpose: Purpose,
    graph: bilayer_graph::Graph,
    plan: Plan,
    pipeline: Pipeline,
    /// What runs steps with streamed weights, if planned.
    stream: Option<Stream>,
    /// The value that a step reads by default.
    logits: Reading,
    /// Other values that it may read.
    read: Read,
    limits: Limits,
    cache: Pages,
    strengths: Strengths,
    /// Position of the first token of each run of the current step.
    starts: Vec<usize>,
    /// Page copies of the step that is about to run.
    copies: Vec<PageCopy>,
    /// Whether the pages that they read are held.
    are_copies_held: bool,
    /// How prompts run.
    prefill: Prefill,
    /// Whether two of the plan's devices can work at the same time.
    divides: bool,
    overlap: Overlap,
    /// The setting from which `overlap` is derived.
    overlap_wanted: Overlap,
    /// Options of the CPU backend that is created as the fallback if the session has none.
    host: bilayer_cpu::Options,
    warnings: Vec<Warning>,
    /// How often layers moved away from a device that failed.
    moves: u64,
    /// The times on which the plan is based.
    timing: Option<Timing>,
    /// Decode times since the plan was made.
    decoding: Decoding,
    /// A failed device with its error, if no other device could take over.
    lost: Option<(usize, bilayer_graph::Error)>,
    /// Steps in progress.
    waves: Waves,
}

impl Session {
    /// Places `model` by the settings, loads its weights, compiles its segments.
    ///
    /// # Errors
    /// A setting out of range, a plan that does not fit, a device that refuses.
    pub fn new(model: &Model, settings: Settings<'_>) -> Result<Session, Error> {
        settings.check()?;
        prepare::session(model, settings)
    }

    /// Like [`Session::new`] on given devices, with a plan made by `planner` from the graph, the devices (with the
    /// times of the model's parts, if requested by the settings) and the budget.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn on(
        model: &Model,
        backends: Vec<Box<dyn Backend>>,
        planner: &Planner<'_>,
        mut settings: Settings<'_>,
    ) -> Result<Session, Error> {
        settings.check()?;
        let began = prepare::clock(&backends).now();
        prepare::measured(model, backends, planner, &mut settings, began)
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn open(&mut self) -> Result<SequenceId, Error> {
        let sequence = self.cache.open()?;
        self.inherit(sequence, None);
        Ok(sequence)
    }

    /// Opens a sequence that begins with the current contents of `from`; the common pages are shared.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn fork(&mut self, from: SequenceId) -> Result<SequenceId, Error> {
        let sequence = self.cache.fork(from)?;
        self.inherit(sequence, Some(from));
        Ok(sequence)
    }

    /// The longest length, at most `tokens`, that a sequence can return to; `tokens` itself, unless the model has
    /// states of which only some are kept.
    pub fn resumable(&self, sequence: SequenceId, tokens: usize) -> usize {
        self.cache.resumable(sequence, tokens)
    }

    /// Truncates a sequence to its first `tokens` tokens, or to as many fewer as [`Session::resumable`] says. Returns
    /// its length.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: usize) -> usize {
        self.cache.truncate(sequence, tokens)
    }

    /// Keeps the state at the end of every step of a sequence that is often truncated, such as a draft model's: see
    /// [`Pages::keep_all_states`].
    pub fn keep_all_states(&mut self, sequence: SequenceId) {
        self.cache.keep_all_states(sequence);
    }

    /// Closes a sequence.
    pub fn close(&mut self, sequence: SequenceId) {
        self.cache.close(sequence);
    }

    /// Number of tokens of a sequence.
    pub fn len(&self, sequence: SequenceId) -> usize {
        self.cache.len(sequence)
    }

    /// The tokens of a sequence.
    pub fn tokens(&self, sequence: SequenceId) -> &[u32] {
        self.cache.tokens(sequence)
    }

    /// The book-keeping of the KV cache.
    pub fn cache(&self) -> &Pages {
        &self.cache
    }

    /// Size of the vocabulary: the width of a row of a decoder's logits.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// Elements per output row.
    pub fn width(&self) -> usize {
        self.logits.width
    }

    /// Maximum tokens per sequence.
    pub fn context(&self) -> usize {
        self.cache.context()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The placement.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The limits that the session was prepared for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The devices, in the plan's order.
    pub fn backends(&self) -> impl Iterator<Item = &dyn Backend> {
        self.pipeline.backends.iter().map(Box::as_ref)
    }

    /// The clock by which its times are measured: that of its devices.
    pub fn clock(&self) -> &Clock {
        &self.pipeline.clock
    }

    /// Bytes of weights that a step of `tokens` tokens reads, per device.
    pub fn step_bytes(&self, tokens: usize) -> Vec<u64> {
        let facts: Vec<_> = self.backends().map(|backend| backend.facts()).collect();
        bytes::step_bytes(&self.graph, &self.plan, &facts, tokens)
    }

    /// Bytes of weights that some graph nodes read in a step of `tokens` tokens.
    pub fn read_bytes(&self, nodes: &[u32], tokens: usize) -> u64 {
        let bytes = |&node: &u32| {
            let node = node as usize;
            let segment = self.plan.segments.iter().find(|s| s.nodes.contains(&node))?;
            let facts = self.pipeline.backends[segment.device].facts();
            Some(bytes::node_bytes(&self.graph, facts, node, tokens))
        };
        nodes.iter().filter_map(bytes).sum()
    }

    /// Bytes of hidden states that are copied from and to devices for each row of a step.
    pub fn crossing_bytes(&self) -> u64 {
        let Pipeline { segments, carried, .. } = &self.pipeline;
        let values = segments.iter().flat_map(|s| s.inputs.iter().chain(&s.outputs));
        let of_row = values.map(|&value| &carried[value]);
        let of_row = of_row.filter(|value| value.rows == bilayer_graph::Rows::Tokens);
        of_row.map(|value| 4 * value.width as u64).sum()
    }

    /// The selected kernels, segment by segment.
    pub fn kernels(&self) -> Vec<Kernel> {
        let Pipeline { backends, segments, .. } = &self.pipeline;
        segments.iter().flat_map(|s| backends[s.device].kernels(s.id)).collect()
    }

    /// Time spent in steps since the last call.
    pub fn take_spent(&mut self) -> Spent {
        let mut all = Spent::of(self.pipeline.backends.len());
        self.move_spent(&mut all);
        all
    }

    /// Adds the time spent in steps since the last call to `all`.
    pub(crate) fn move_spent(&mut self, all: &mut Spent) {
        all.add(&self.pipeline.spent);
        self.pipeline.spent.clear();
    }

    /// The last segments that ran, on which device and when. Cleared when a device is lost.
    pub fn lanes(&self) -> &Lanes {
        &self.pipeline.lanes
    }

    /// Times of the model's parts on the session's devices, if known.
    pub fn times(&self) -> Option<&Times> {
        self.timing.as_ref().map(|timing| &timing.times)
    }

    /// Predicted milliseconds of a token behind `tokens` others in its sequence; `None` without a prediction.
    pub fn predicted_ms(&self, tokens: usize) -> Option<f64> {
        let machine = devices::machine(&self.pipeline.backends);
        let budget = Budget::of(&self.limits);
        Growth::new(&self.graph, &machine, &budget, &self.plan).decode_ms(tokens)
    }

    /// Compares the measured times of single-token steps with the prediction. If they differ widely, the stored times
    /// are deleted, to be measured again for the next session that has a GPU or is asked to; then this returns true.
    pub fn judge(&self) -> bool {
        let (Some(timing), Some(predicted)) = (&self.timing, &self.plan.predicted) else {
            return false;
        };
        times::distrust(&timing.kept, &timing.name, predicted.decode_ms, &self.decoding)
    }

    /// The label of a graph node: its layer, name and op.
    pub fn label(&self, node: u32) -> String {
        let node = self.graph.nodes.get(node as usize);
        node.map_or(String::new(), |node| format!("{} ({})", node.label(), node.op.kind().stem()))
    }

    /// The trace, if [`Settings::trace_events`] enabled it.
    pub fn trace(&self) -> Option<&Trace> {
        self.pipeline.trace.as_ref()
    }

    /// The trace, for clearing it.
    pub fn trace_mut(&mut self) -> Option<&mut Trace> {
        self.pipeline.trace.as_mut()
    }

    /// Warnings since the last call: events that the user should know about although the session continues.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        for backend in &mut self.pipeline.backends {
            for reason in backend.take_replaced() {
                let device = backend.facts().name.clone();
                self.warnings.push(Warning::Simplified { device, reason });
            }
        }
        std::mem::take(&mut self.warnings)
    }

    /// Adds a warning.
    pub(crate) fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }

    /// How often layers moved away from a device that failed.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Runs tokens of one or several sequences in one step. Returns the requested rows of logits `[rows, vocab]`, in
    /// the order of the runs.
    ///
    /// After an error, all sequences have their previous contents, including tokens shared with other sequences.
    ///
    /// # Errors
    /// More tokens, rows or runs than the limits, a full cache, a device error, logits that are not finite.
    pub fn step(&mut self, runs: &[Run<'_>]) -> Result<&[f32], Error> {
        self.step_reading(runs, self.logits)
    }

    /// Number of best tokens of a row that the head's device can be asked for; `None` if it cannot find them, or
    /// [`Settings::top_k`] did not request them.
    pub fn top_k(&self) -> Option<usize> {
        self.read.best.map(|best| best.k)
    }

    /// A value named in [`Settings::watched`], `[rows, width]` f32 of the last [`Session::step`]; `None` for others.
    pub fn watched(&self, value: Value) -> Option<&[f32]> {
        self.read.watched.contains(&value).then(|| self.pipeline.kept(value)).flatten()
    }

    /// Appends `tokens` to a sequence in micro-batches and returns the logits `[vocab]` after the last one. `each`
    /// receives the number of tokens passed to the last device, and stops the work by returning false: the sequence
    /// then contains the tokens begun so far. After a device failure, counting restarts.
    ///
    /// The split of a prompt depends only on its length and the plan, so the result is identical with overlap on and
    /// off.
    ///
    /// # Errors
    /// Those of [`Session::step`]; the sequence has its previous contents.
    pub fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<&[f32]>, Error> {
        self.prefill_reading(sequence, tokens, each, self.logits)
    }

    /// What a step reads for rows of which so many best tokens suffice; `None` if all logits are needed.
    pub(crate) fn reading(&self, needs: Option<usize>) -> Reading {
        let needs = needs.map(|needs| needs.min(self.vocab()));
        match (self.read.best, needs) {
            (Some(Best { value, k }), Some(needs)) if needs <= k => {
                Reading { value, width: 2 * k, top_k: Some(needs) }
            }
            _ => self.logits,
        }
    }

    /// Runs all rows in micro-batches. If a device fails, runs them again on the others.
    fn run(
        &mut self,
        runs: &[Run<'_>],
        micro_rows: usize,
        calls: &mut Calls<'_>,
    ) -> Result<Ran, Error> {
        self.check_given(batch::rows(runs));
        self.assert_none_begun();
        let began = self.clock().now();
        let ran = loop {
            if let Some((device, error)) = self.lost.take()
                && let Err(error) = self.move_from(device, error)
            {
                break Err(error);
            }
            match self.attempt(runs, micro_rows, calls) {
                Err(Failed::Device { device, error })
                    if is_recoverable(self.pipeline.backends[device].as_ref(), &error) =>
                {
                    self.failed(runs, device, error);
                }
                ran => break ran.map_err(Error::from),
            }
        };
        if ran.is_ok() {
            self.exchange_experts();
        }
        let took = self.clock().since(began);
        self.pipeline.spent.total += took;
        if let [Run { tokens: [_], .. }] = runs {
            self.decoding.add(took);
        }
        ran
    }

    /// Runs all rows; after an error the sequences have their previous contents.
    fn attempt(
        &mut self,
        runs: &[Run<'_>],
        micro_rows: usize,
        calls: &mut Calls<'_>,
    ) -> Result<Ran, Failed> {
        let streams = self.streams(runs);
        let cut = match streams {
            true => self.cut(batch::even(batch::rows(runs), self.limits.tokens)),
            false => self.cut(micro_rows),
        };
        self.regain_states()?;
        if let Err(error) = self.append(runs) {
            self.withdraw(runs);
            return Err(Failed::Other(error));
        }
        let mut run = || {
            let Session { pipeline, stream, starts, cache, copies, strengths, .. } = &mut *self;
            let top_k = pipeline.reading.top_k.unwrap_or(0);
            let work = Work { runs, starts, cache, copies, strengths, cut, top_k };
            let ran = match stream.as_mut().filter(|_| streams) {
                Some(stream) => stream.run(pipeline, &work, calls),
                None => pipeline.run(&work, calls),
            };
            self.check_file()?;
            let ran = ran?;
            self.forget_copies();
            if first_not_finite(&self.pipeline.results[..ran.made]).is_none() {
                return Ok(ran);
            }
            Err(Failed::Other(self.name_the_culprit(runs, micro_rows)))
        };
        let ran = run();
        match &ran {
            Ok(ran) => self.keep(runs, ran.rows),
            Err(_) => self.fail(runs),
        }
        ran
    }

    fn cut(&self, micro_rows: usize) -> Cut {
        Cut { rows: micro_rows.max(1), whole_runs: self.graph.takes_whole_sequences() }
    }
}
