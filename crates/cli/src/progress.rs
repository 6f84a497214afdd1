//! Progress bars on stderr, silent if that is not a terminal.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::time::Duration;

use bilayer_convert::Error;
use bilayer_convert::Progress as Told;
use bilayer_engine::session::{Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::interrupt;
use crate::messages::{self, Level};

/// The form of a bar over bytes.
const BYTES: &str = "{prefix} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
/// The form of a bar over things that are counted.
const COUNT: &str = "{msg} {bar:32} {pos}/{len} {eta} left";
/// The message while the machine is measured; there is no telling how long that takes.
const MEASURING: &str = "measuring this machine, once for this kind of model";
/// How often a bar without a length moves.
const TICK: Duration = Duration::from_millis(200);

/// A bar over bytes; it appears with the first [`set`].
pub fn bytes(verb: &'static str) -> ProgressBar {
    styled(verb, BYTES)
}

/// A bar over tokens.
pub fn tokens(verb: &'static str, total: usize) -> ProgressBar {
    let bar = styled(verb, "{msg} {bar:32} {pos}/{len} tokens {rate} {eta} left");
    bar.set_length(total as u64);
    bar
}

/// A bar over the bytes of requests; its message counts them.
pub fn requests() -> ProgressBar {
    styled("", "answering {bar:32} {msg} {eta} left")
}

/// A bar over things that are counted; it appears with the first [`set`].
pub fn steps(verb: &'static str) -> ProgressBar {
    styled(verb, COUNT)
}

/// Prepares a session, with a bar over the bytes that are loaded: `work` passes on what it is given as
/// [`Settings::progress`](bilayer_engine::session::Settings).
pub fn loading<T>(work: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> T) -> T {
    loading_as("loading", work)
}

/// As [`loading`], with another name of the bar.
pub fn loading_as<T>(
    verb: &'static str,
    work: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> T,
) -> T {
    let bar = bytes(verb);
    let made = work(&mut |progress| prepare(&bar, progress));
    bar.finish_and_clear();
    made
}

/// Updates a bar with the progress of preparing a session, which goes on.
pub fn prepare(bar: &ProgressBar, progress: Progress) -> ControlFlow<()> {
    match progress.stage {
        Stage::Measuring if bar.message() != MEASURING => {
            let plain = |_| ProgressStyle::default_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
            bar.set_style(style.unwrap_or_else(plain));
            bar.reset_elapsed();
            bar.set_message(MEASURING);
            bar.enable_steady_tick(TICK);
        }
        Stage::Measuring => {}
        Stage::Loading if bar.message() == MEASURING => {
            bar.disable_steady_tick();
            bar.set_style(style(BYTES));
            // The time of the measurements is not that of loading.
            bar.reset_eta();
            bar.reset_elapsed();
            set(bar, progress.done_bytes, progress.total_bytes);
            bar.set_message("");
        }
        Stage::Loading => set(bar, progress.done_bytes, progress.total_bytes),
    }
    ControlFlow::Continue(())
}

/// Runs `work` while updating a bar; `None` if Ctrl-C ended it.
///
/// # Errors
/// Those of `work`.
pub fn interruptible<T>(
    bar: &ProgressBar,
    work: impl FnOnce(Told<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    interrupt::begin();
    let done = work(&mut |done, total| {
        set(bar, done, total);
        interrupt::flow()
    });
    bar.finish_and_clear();
    match done {
        Ok(made) => Ok(Some(made)),
        Err(Error::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One bar after the other, for the steps of a job.
pub struct Bars<S, F> {
    made: F,
    shown: Option<(S, ProgressBar)>,
}

impl<S: PartialEq, F: Fn(&S) -> ProgressBar> Bars<S, F> {
    /// `made` makes the bar of a step.
    pub fn new(made: F) -> Bars<S, F> {
        Bars { made, shown: None }
    }

    /// Updates the bar of a step, in place of that of another one.
    pub fn set(&mut self, step: S, done: u64, total: u64) {
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != step) {
            self.clear();
            let bar = (self.made)(&step);
            self.shown = Some((step, bar));
        }
        if let Some((_, bar)) = &self.shown {
            set(bar, done, total);
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some((_, bar)) = self.shown.take() {
            bar.finish_and_clear();
        }
    }
}

/// Updates a bar, if there is anything to do.
pub fn set(bar: &ProgressBar, done: u64, total: u64) {
    if total > 0 {
        bar.set_length(total);
        bar.set_position(done);
    }
}

fn styled(verb: &'static str, template: &str) -> ProgressBar {
    let target = match messages::shows(Level::Usual) {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    // Nothing is drawn before the length is known.
    let bar = ProgressBar::with_draw_target(None, target).with_style(style(template));
    bar.with_prefix(verb).with_message(verb)
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key(
        "rate",
        |state: &ProgressState, out: &mut dyn Write| {
            // A bar that cannot be drawn is no failure.
            let _ = write!(out, "{:.0} tok/s", state.per_sec());
        },
    )
}
