//! Measurements of a model in the placement that a [`Builder`] describes. [`Builder::cancel`] ends each.

use std::ops::ControlFlow;

use bilayer_convert::imatrix::{Collection, Imatrix};
use bilayer_engine::session::Session;
use bilayer_engine::{Error as Engine, Model as Opened};
use bilayer_measure::bench::{Bench, Measured, Method, Setup, Test};
use bilayer_measure::imatrix::Scope;
use bilayer_measure::perplexity::{self, Logits, Report, Windows};
use bilayer_measure::verify::{Side, Sides, Verified};
use bilayer_measure::{BATCH_SIZE, profile};

use crate::{Builder, Error, Plan, Profile, ProfileOptions};

/// The speed of a model.
#[derive(Clone, Debug)]
pub struct Benched {
    /// What ran where.
    pub plan: Plan,
    /// Why there was no GPU, if layers were asked for on one.
    pub without_gpu: Option<String>,
    /// The tests that have tokens, in their order.
    pub measured: Vec<Measured>,
}

impl Builder<'_> {
    /// Runs the model at every number of layers on the GPU and measures each. `None` where
    /// [`Cancel`](crate::Cancel) ended it.
    ///
    /// # Errors
    /// As [`Builder::open`]; a device that fails.
    pub fn profile(mut self, options: ProfileOptions) -> Result<Option<Profile>, Error> {
        let (model, cancel) = (self.loaded()?, self.handle());
        let goes_on = &mut |_, _| !cancel.is_cancelled();
        let taken = profile::take(&model, self.settings(&model), options, goes_on)?;
        Ok(taken.map(|taken| taken.profile))
    }

    /// How fast the model is, test by test, as the command `bench` measures it. The context is that of the longest test; an
    /// encoder with a head runs with it. `None` where [`Cancel`](crate::Cancel) ended it.
    ///
    /// ```
    /// use bilayer::Model;
    /// use bilayer::bench::{Method, Summary, Test};
    ///
    /// # let path = "crates/cli/assets/demo.gguf";
    /// let tests = [Test { prompt: 64, ..Test::default() }, Test { generate: 16, ..Test::default() }];
    /// let method = Method { repetitions: 2, ..Method::default() };
    /// if let Some(benched) = Model::builder(path).bench(&tests, &method)? {
    ///     println!("{}", benched.plan.map);
    ///     for measured in &benched.measured {
    ///         println!("{}: {:.1} tok/s", measured.test, Summary::of(&measured.samples_ts()).mean);
    ///     }
    /// }
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]; a test without tokens, or that does not fit the model; a device that fails.
    pub fn bench(mut self, tests: &[Test], method: &Method) -> Result<Option<Benched>, Error> {
        let tests = tests.iter().map(|test| Test { parallel: test.parallel.max(1), ..*test });
        let tests: Vec<Test> = tests.collect();
        if tests.iter().all(|test| test.tokens() == 0) {
            return Err(Engine::setting("tests", "none", "at least one with tokens").into());
        }
        let (model, cancel) = (self.loaded()?, self.handle());
        let settings = self.settings(&model);
        let setup = Setup::new(&settings, &tests);
        let mut told = settings.progress;
        let mut bench = Bench::new(&model);
        let session = bench.ready(&setup, 0, &mut |done| {
            told.as_mut().map_or(ControlFlow::Continue(()), |told| told(done))
        })?;
        let plan = session.plan().clone();
        let without_gpu = bench.without_gpu().map(str::to_owned);
        let mut measured = Vec::with_capacity(tests.len());
        for test in tests.into_iter().filter(|test| test.tokens() > 0) {
            let done = bench.run(test, method, &mut |_| (), &cancel)?;
            let Some(done) = done else { return Ok(None) };
            measured.push(done);
        }
        Ok(Some(Benched { plan, without_gpu, measured }))
    }

    /// How well the model predicts a text, as llama.cpp's tool and the command `perplexity` measure it: over windows of
    /// [`Builder::context`] tokens, by default 512, of which the second halves are scored. Drafts and a chat template have no
    /// effect. `None` where [`Cancel`](crate::Cancel) ended it.
    ///
    /// ```
    /// use bilayer::Model;
    ///
    /// # let path = "crates/cli/assets/demo.gguf";
    /// # let text = include_str!("../../../README.md");
    /// if let Some(report) = Model::builder(path).context(64).perplexity(text)? {
    ///     let perplexity = report.estimate.perplexity();
    ///     println!("{:.2} +/- {:.2}", perplexity.value, perplexity.error);
    /// }
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]; an encoder; a text with less than two windows; a device that fails.
    pub fn perplexity(mut self, text: &str) -> Result<Option<Report>, Error> {
        let (model, cancel) = (self.decoder()?, self.handle());
        let windows = self.windows(&model, text)?;
        let given = self.settings(&model);
        let settings = perplexity::settings(&windows, model.config().vocab, BATCH_SIZE, given);
        let mut session = Session::new(&model, settings)?;
        perplexity::score(&mut session, &windows, Logits::Scored, &mut |_| !cancel.is_cancelled())
    }

    /// Which columns of the layers' matrices matter on a text, for [`quantize`](mod@crate::quantize), as the command `imatrix`
    /// measures it; `dataset` is the text's name. The windows are those of [`Builder::perplexity`]. `None` where
    /// [`Cancel`](crate::Cancel) ended it.
    ///
    /// # Errors
    /// Those of [`Builder::perplexity`]; an activation that is not finite.
    pub fn imatrix(mut self, text: &str, dataset: &str) -> Result<Option<Imatrix>, Error> {
        let (model, cancel) = (self.decoder()?, self.handle());
        let windows = self.windows(&model, text)?;
        let collection = Collection::new(&model, Scope::Layers, &windows, dataset.to_owned());
        let settings = collection.settings(self.settings(&model));
        let mut session = Session::new(&model, settings)?;
        collection.run(&mut session, &mut |_| Ok(!cancel.is_cancelled()))
    }

    /// Compares two backends on a text, op by op and end to end, as the command `verify` does; the second is a GPU by default,
    /// or the reference without one.
    ///
    /// ```
    /// use bilayer::Model;
    /// use bilayer::verify::Side;
    ///
    /// # let path = "crates/cli/assets/demo.gguf";
    /// let verified = Model::builder(path).verify("ROMEO:", Side::Reference, Some(Side::Cpu(None)))?;
    /// assert!(verified.report.is_good());
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]; the CPU lacks a level, or there is no GPU; a text of more than 512 tokens; a device that fails;
    /// [`Cancel`](crate::Cancel) ended it.
    pub fn verify(mut self, text: &str, a: Side, b: Option<Side>) -> Result<Verified, Error> {
        let (model, cancel) = (self.loaded()?, self.handle());
        let tokens = model.prompt_tokens(text)?;
        let settings = self.settings(&model);
        let goes_on = &mut |_, _| !cancel.is_cancelled();
        Sides::open((a, b), &settings)?.verify(&model, &tokens, &settings, goes_on)
    }

    /// Opens the model, which must predict tokens.
    fn decoder(&mut self) -> Result<Opened, Error> {
        let model = self.loaded()?;
        match model.config().encoder {
            Some(_) => Err(Engine::NoDecoder { name: model.name() }.into()),
            None => Ok(model),
        }
    }

    /// The windows of a text.
    fn windows(&self, model: &Opened, text: &str) -> Result<Windows, Error> {
        let len = Windows::len_of(model, self.asked_context());
        Windows::of_text(model, text, len, Windows::ENCODE)
    }
}
