//! Collects an importance matrix over the windows of a text.

use bilayer_engine::Model;
use bilayer_engine::session::{Session, Settings};
use bilayer_measure::imatrix::{Collector, Moment, Scope};
use bilayer_measure::perplexity::Windows;

use super::Imatrix;

/// Makes the importance matrix of the windows so far.
pub type SoFar<'s> = &'s dyn Fn() -> Imatrix;

/// The sums of a model's matrices over the windows of a text, to be run.
pub struct Collection<'w> {
    collector: Collector,
    origin: Origin<'w>,
}

/// What an importance matrix is made of.
struct Origin<'w> {
    windows: &'w Windows,
    datasets: Vec<String>,
}

impl Origin<'_> {
    /// The sums of the first `count` windows.
    fn matrix(&self, sums: &Collector, count: usize) -> Imatrix {
        let made =
            Imatrix::collected(sums, self.datasets.clone(), [count, self.windows.window_len()]);
        made.expect("the sums of a collector have the shapes of its matrices")
    }
}

impl<'w> Collection<'w> {
    /// Prepares sums for a model's matrices; `dataset` is the text's name.
    pub fn new(model: &Model, scope: Scope, windows: &'w Windows, dataset: String) -> Self {
        let collector = Collector::new(model.graph(), scope);
        Collection { collector, origin: Origin { windows, datasets: vec![dataset] } }
    }

    /// The sums of no window, in the shapes of those to come.
    pub fn empty(&self) -> Imatrix {
        self.origin.matrix(&self.collector, 0)
    }

    /// The settings of a session for the windows, based on `settings`.
    pub fn settings<'s>(&self, settings: Settings<'s>) -> Settings<'s> {
        self.collector.settings(self.origin.windows.window_len(), settings)
    }

    /// Runs the windows on a session with these [settings](Collection::settings). `each` receives every step, and every
    /// window with what makes the matrix so far; it stops the work by returning false, and then there is no matrix.
    ///
    /// # Errors
    /// A device fails, or an activation is not finite; those of `each`.
    pub fn run<E: From<bilayer_measure::Error>>(
        self,
        session: &mut Session,
        each: &mut dyn FnMut(Moment<SoFar<'_>>) -> Result<bool, E>,
    ) -> Result<Option<Imatrix>, E> {
        let Collection { mut collector, origin } = self;
        let is_whole = collector.run(session, origin.windows, &mut |moment| match moment {
            Moment::Tokens(tokens) => each(Moment::Tokens(tokens)),
            Moment::Windows(count, sums) => {
                each(Moment::Windows(count, &|| origin.matrix(sums, count)))
            }
        })?;
        Ok(is_whole.then(|| origin.matrix(&collector, origin.windows.count())))
    }
}
