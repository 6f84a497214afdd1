//! `bilayer bench`: measures speed with llama-bench's tests.

use std::time::{Duration, Instant};

use bilayer_measure::bench::{Bench as Engine, Measured, Phase, Test};
use indicatif::ProgressBar;

use crate::args::Bench as Args;
use crate::commands::run;
use crate::demo::Source;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::{demo, output, progress, trace};

mod describe;
mod markdown;
mod page;
mod printer;
mod record;
mod settings;
mod work;

use printer::{Printer, Sink};
use record::{Described, Placed, Record};
use work::{Variant, Work};

/// Measures every combination of the lists and prints each result at once.
pub(super) fn execute(args: &Args) -> Result<u8, Failure> {
    interrupt::catch();
    let work = Work::of(args)?;
    trace::check(args.trace.as_deref())?;
    trace::check(args.html.as_deref())?;
    let earlier: Vec<Vec<page::Result>> =
        args.compare.iter().map(|path| page::read(path)).collect::<Result<_, _>>()?;
    let mut printers = vec![Printer::new(args.form(), Sink::Out, markdown::varied(args))];
    printers
        .extend(args.output_err.map(|form| Printer::new(form, Sink::Err, markdown::varied(args))));
    let bar = progress::steps("measuring");
    bar.set_length(work.steps());
    let results = earlier.concat();
    let mut running = Running { args, work: &work, printers: &mut printers, bar: &bar, results };
    let ended = running.all();
    bar.finish_and_clear();
    if let (Some(path), false) = (&args.html, running.results.is_empty()) {
        crate::page::write(path, page::html(&running.results))?;
        output::note(&format!("page: {}", path.display()));
    }
    // The results are a complete document in any case.
    let closed = printers.iter().try_for_each(Printer::finish);
    let code = ended?;
    closed?;
    Ok(code)
}

/// The measurements in progress.
struct Running<'a> {
    args: &'a Args,
    work: &'a Work<'a>,
    printers: &'a mut [Printer],
    bar: &'a ProgressBar,
    /// All results, those of earlier runs first.
    results: Vec<page::Result>,
}

impl Running<'_> {
    /// Runs every model with everything.
    fn all(&mut self) -> Result<u8, Failure> {
        for source in &self.work.sources {
            if self.model(source)? == INTERRUPTED {
                return Ok(INTERRUPTED);
            }
        }
        Ok(0)
    }

    fn model(&mut self, source: &Source<'_>) -> Result<u8, Failure> {
        let model = demo::open(source)?;
        self.work.check(&model)?;
        let described = Described::new(&model, source);
        let mut engine = Engine::new(&model);
        for variant in &self.work.variants {
            for placing in 0..variant.setup.placings.len() {
                let placed = self.place(&mut engine, variant, placing)?;
                if self.tests(&mut engine, &described, &placed)? == INTERRUPTED {
                    return Ok(INTERRUPTED);
                }
            }
        }
        if let (Some(path), Some(session)) = (&self.args.trace, engine.session()) {
            trace::write(session, path)?;
        }
        Ok(0)
    }

    /// Applies a placement to the session of a variant.
    fn place<'v>(
        &mut self,
        engine: &mut Engine,
        variant: &'v Variant,
        placing: usize,
    ) -> Result<Placed<'v>, Failure> {
        // Two bars would draw over each other.
        let made = self
            .bar
            .suspend(|| progress::loading(|tell| engine.ready(&variant.setup, placing, tell)));
        let placed = Placed::new(made?, variant, placing);
        if placing == 0
            && let Some(reason) = engine.without_gpu()
        {
            self.bar.suspend(|| output::note(&format!("note: {reason}")));
        }
        if let Some(session) = engine.session().filter(|_| placing == 0) {
            self.bar.suspend(|| run::details(session));
        }
        interrupt::answering();
        Ok(placed)
    }

    /// Runs every test on the placed session.
    fn tests(
        &mut self,
        engine: &mut Engine,
        described: &Described,
        placed: &Placed<'_>,
    ) -> Result<u8, Failure> {
        for &batch_size in &self.work.batch_sizes {
            for &test in &self.work.tests {
                let began = describe::now();
                let Some(measured) = self.test(engine, test, batch_size)? else {
                    return Ok(INTERRUPTED);
                };
                let decodes = test.prompt == 0 && test.parallel == 1;
                let session = engine.session().filter(|_| decodes);
                let predicted_token_ms =
                    session.and_then(|session| session.predicted_ms(test.depth));
                let record = Record {
                    args: self.args,
                    described,
                    placed,
                    batch_size,
                    began,
                    measured,
                    predicted_token_ms,
                };
                let printers = &mut *self.printers;
                let printed = self
                    .bar
                    .suspend(|| printers.iter_mut().try_for_each(|printer| printer.row(&record)));
                printed?;
                self.results.push(printer::fields(&record));
            }
        }
        Ok(0)
    }

    fn test(
        &mut self,
        engine: &mut Engine,
        test: Test,
        batch_size: usize,
    ) -> Result<Option<Measured>, Failure> {
        let until = Instant::now() + Duration::from_secs(u64::from(self.args.delay));
        while Instant::now() < until && !interrupt::is_set() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let bar = self.bar;
        let mut told = |phase: Phase| {
            bar.set_message(match phase {
                Phase::Depth => format!("{test}: filling the KV cache"),
                Phase::Probe => format!("{test}: measuring read bandwidth"),
                Phase::WarmUp => format!("{test}: warming up"),
                Phase::Repetition(number) => format!("{test}: repetition {}", number + 1),
            });
            if matches!(phase, Phase::Repetition(_)) {
                bar.inc(1);
            }
        };
        let method = self.work.method(batch_size);
        Ok(engine.run(test, &method, &mut told, interrupt::handle())?)
    }
}
