//! A session: a model placed on devices, with its KV cache. `step` walks what was prepared.

use std::time::{Duration, Instant};

use bilayer_graph::{Backend, Kernel, Limits, PageCopy, Rows, SegmentId, Span, Step, Value};
use bilayer_scheduler::Plan;

use crate::cache::{Pages, SequenceId};
use crate::{Error, Model};

mod load;
mod prepare;
mod settings;

pub use prepare::Planner;
pub use settings::{Progress, Settings, kv_types};

/// Some tokens of one sequence, to be run in a step.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The sequence they are appended to.
    pub sequence: SequenceId,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Which of their logits are wanted.
    pub wanted: Wanted,
}

/// Which logits of a run are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens only enter the cache.
    None,
    /// Those after the last token.
    Last,
    /// Those after each token.
    All,
}

/// Time spent in steps since the session began or was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In steps, all together.
    pub total: Duration,
    /// Waiting for the processor's segments.
    pub cpu: Duration,
    /// Waiting for the adapter's segments.
    pub gpu: Duration,
    /// Copying hidden states between devices.
    pub crossing: Duration,
}

/// A segment as it was compiled, with what crosses its borders.
struct Compiled {
    device: usize,
    id: SegmentId,
    /// Places in `Session::carried`.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// A value that crosses between segments, `[rows, width]` f32.
struct Carried {
    value: Value,
    rows: Rows,
    width: usize,
    data: Vec<f32>,
}

impl Carried {
    /// Elements of the value in a step.
    fn len(&self, step: &Step<'_>) -> usize {
        let rows = match self.rows {
            Rows::Tokens => step.tokens.len(),
            Rows::Outputs => step.outputs.len(),
        };
        rows * self.width
    }
}

/// The arrays of a step, kept between steps so that none is allocated.
#[derive(Default)]
struct Batch {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
    /// Copies no step has made yet: those of a step that failed stay for the next one.
    copies: Vec<PageCopy>,
}

impl Batch {
    fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.pages.clear();
        self.outputs.clear();
    }

    fn step(&self) -> Step<'_> {
        Step {
            tokens: &self.tokens,
            spans: &self.spans,
            pages: &self.pages,
            outputs: &self.outputs,
            copies: &self.copies,
        }
    }
}

/// A model on its devices. Nothing is allocated on the token path after [`Session::new`].
pub struct Session {
    graph: bilayer_graph::Graph,
    plan: Plan,
    backends: Vec<Box<dyn Backend>>,
    segments: Vec<Compiled>,
    carried: Vec<Carried>,
    limits: Limits,
    cache: Pages,
    batch: Batch,
    /// `[limits.outputs, vocab]`, the wanted rows of the last step first.
    logits: Vec<f32>,
    vocab: usize,
    spent: Spent,
    load: Duration,
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

    /// The same on given devices, with a plan made by `planner` from the graph, the devices and the budget.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn on(
        model: &Model,
        backends: Vec<Box<dyn Backend>>,
        planner: &Planner<'_>,
        mut settings: Settings<'_>,
    ) -> Result<Session, Error> {
        settings.check()?;
        prepare::on(model, backends, planner, &mut settings, Instant::now())
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn open(&mut self) -> Result<SequenceId, Error> {
        Ok(self.cache.open()?)
    }

    /// Opens a sequence that begins as `from` does now; the common pages are shared.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn fork(&mut self, from: SequenceId) -> Result<SequenceId, Error> {
        Ok(self.cache.fork(from)?)
    }

    /// Keeps the first `tokens` tokens of a sequence.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: usize) {
        self.cache.truncate(sequence, tokens);
    }

    /// Ends a sequence.
    pub fn close(&mut self, sequence: SequenceId) {
        self.cache.close(sequence);
    }

    /// Tokens of a sequence.
    pub fn len(&self, sequence: SequenceId) -> usize {
        self.cache.len(sequence)
    }

    /// Tokens of the vocabulary: the width of a row of logits.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Tokens a sequence may have.
    pub fn context(&self) -> usize {
        self.cache.context()
    }

    /// Where everything lies.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The bounds the session was prepared for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The devices, in the plan's order.
    pub fn backends(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(Box::as_ref)
    }

    /// The kernels chosen, segment by segment.
    pub fn kernels(&self) -> Vec<Kernel> {
        self.segments.iter().flat_map(|s| self.backends[s.device].kernels(s.id)).collect()
    }

    /// How long [`Session::new`] took.
    pub fn load_time(&self) -> Duration {
        self.load
    }

    /// Time spent in steps since the last call.
    pub fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }

    /// Runs tokens of one or several sequences in one step. Returns the wanted rows of logits `[rows, vocab]`,
    /// in the order of the runs.
    ///
    /// After an error the sequences hold what they held before; tokens shared with another sequence included.
    ///
    /// # Errors
    /// More tokens, rows or runs than the limits, a full cache, a device error, logits that are not finite.
    pub fn step(&mut self, runs: &[Run<'_>]) -> Result<&[f32], Error> {
        let began = Instant::now();
        if let Err(error) = self.gather(runs) {
            self.undo(runs);
            return Err(error);
        }
        let ran = self.walk();
        if ran.is_ok() {
            self.batch.copies.clear();
        }
        self.spent.total += began.elapsed();
        let rows = self.batch.outputs.len();
        let checked = ran.and_then(|()| {
            if self.logits[..rows * self.vocab].iter().all(|x| x.is_finite()) {
                return Ok(());
            }
            Err(self.name_the_culprit())
        });
        if let Err(error) = checked {
            self.undo(runs);
            return Err(error);
        }
        Ok(&self.logits[..rows * self.vocab])
    }

    /// Appends `tokens` to a sequence in chunks of the physical batch and returns the logits `[vocab]` after the
    /// last. `each` is told how many tokens are done after every chunk and stops the work by returning false.
    ///
    /// # Errors
    /// As [`Session::step`]; no token is lost that was appended before.
    pub fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<&[f32]>, Error> {
        let needed = self.len(sequence) + tokens.len();
        if needed > self.context() {
            let context = self.context();
            return Err(crate::cache::Error::Context { needed, context }.into());
        }
        let chunk = self.limits.tokens;
        let chunks = tokens.len().div_ceil(chunk);
        for (i, part) in tokens.chunks(chunk).enumerate() {
            let wanted = if i + 1 == chunks { Wanted::Last } else { Wanted::None };
            self.step(&[Run { sequence, tokens: part, wanted }])?;
            if !each(i * chunk + part.len()) && i + 1 < chunks {
                return Ok(None);
            }
        }
        Ok(Some(&self.logits[..self.vocab]))
    }

    /// Fills the batch from the runs and makes room in the cache.
    fn gather(&mut self, runs: &[Run<'_>]) -> Result<(), Error> {
        let Session { batch, cache, limits, vocab, .. } = self;
        batch.clear();
        let total: usize = runs.iter().map(|run| run.tokens.len()).sum();
        within("tokens", total, limits.tokens)?;
        within("sequences", runs.len(), limits.sequences)?;
        for run in runs {
            if let Some(&token) = run.tokens.iter().find(|&&token| token as usize >= *vocab) {
                return Err(Error::Token { token, vocab: *vocab });
            }
            let first_row = batch.tokens.len() as u32;
            let rows = run.tokens.len() as u32;
            let first_position =
                cache.append(run.sequence, run.tokens.len(), &mut batch.copies)? as u32;
            let first_page = batch.pages.len() as u32;
            batch.tokens.extend_from_slice(run.tokens);
            batch.pages.extend_from_slice(cache.table(run.sequence));
            batch.spans.push(Span { first_row, rows, first_position, first_page });
            let end = first_row + rows;
            let outputs = match run.wanted {
                Wanted::None => end..end,
                Wanted::Last => end.saturating_sub(1).max(first_row)..end,
                Wanted::All => first_row..end,
            };
            within("outputs", batch.outputs.len() + outputs.len(), limits.outputs)?;
            batch.outputs.extend(outputs);
        }
        Ok(())
    }

    /// Takes back what `gather` appended, whether it got to the end or not.
    fn undo(&mut self, runs: &[Run<'_>]) {
        for (span, run) in self.batch.spans.iter().zip(runs) {
            self.cache.truncate(run.sequence, span.first_position as usize);
        }
    }

    /// Runs the segments in order, carrying hidden states from each to those that read them.
    fn walk(&mut self) -> Result<(), Error> {
        let Session { backends, segments, carried, batch, logits, spent, plan, vocab, .. } = self;
        let step = batch.step();
        let last = segments.len() - 1;
        for (i, segment) in segments.iter().enumerate() {
            let backend = &mut backends[segment.device];
            let began = Instant::now();
            for &input in &segment.inputs {
                let carried = &carried[input];
                backend.write(carried.value, &carried.data[..carried.len(&step)])?;
            }
            let written = Instant::now();
            backend.submit(segment.id, &step)?;
            let mut waited = Instant::now();
            for (n, &output) in segment.outputs.iter().enumerate() {
                let carried = &mut carried[output];
                let len = carried.len(&step);
                backend.read(carried.value, &mut carried.data[..len])?;
                if n == 0 {
                    waited = Instant::now();
                }
            }
            if i == last {
                backend.read(plan.logits, &mut logits[..step.outputs.len() * *vocab])?;
                waited = Instant::now();
            }
            let read = Instant::now();
            let busy = waited - written;
            match backend.facts().kind {
                bilayer_graph::Kind::Gpu => spent.gpu += busy,
                _ => spent.cpu += busy,
            }
            spent.crossing += (written - began) + (read - waited);
        }
        Ok(())
    }

    /// Compiles every segment again with checks after each op and runs the same step: the first op whose result
    /// is not finite is the answer. Slow, and only walked on the way to an error.
    fn name_the_culprit(&mut self) -> Error {
        let checked = Limits { check: true, fuse: false, ..self.limits };
        let usual = self.compile_all(checked);
        let found = usual.and_then(|usual| {
            let found = self.walk();
            self.segments = usual;
            found
        });
        found.err().unwrap_or(Error::LogitsNotFinite)
    }

    /// Compiles all segments with other limits and puts them in place; the ones before are returned.
    fn compile_all(&mut self, limits: Limits) -> Result<Vec<Compiled>, Error> {
        let segments =
            prepare::compile(&self.graph, &self.plan, &mut self.backends, &self.carried, limits)?;
        Ok(std::mem::replace(&mut self.segments, segments))
    }
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit {
        return Err(bilayer_graph::Error::Limit { what, limit, found }.into());
    }
    Ok(())
}
