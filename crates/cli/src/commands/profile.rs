//! `bilayer profile`: measures speed for each number of offloaded layers.

use bilayer_engine::session::{Progress, Settings};
use bilayer_measure::profile::{Options, take};

use crate::args::Profile as Args;
use crate::commands::run::settings;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::{demo, output, progress, trace};

pub(crate) mod charts;
mod columns;
mod files;
mod page;
mod table;

pub(crate) use charts::css;
pub use files::write;
pub use table::text;

/// Measures every number of layers that fits, prints the table and draws the charts.
pub(super) fn execute(args: &Args) -> Result<u8, Failure> {
    interrupt::catch();
    trace::check(args.trace.as_deref())?;
    let model = demo::open(&args.model.source())?;
    let asked = settings::model(&args.model)?;
    let bar = progress::bytes("loading");
    let mut tell = |p: Progress| progress::prepare(&bar, p);
    let options = Options {
        prompt: args.n_prompt.map(|n| n as usize),
        decode: args.n_gen.map(|n| n as usize),
        rounds: args.repetitions as usize,
    };
    let steps = progress::steps("measuring");
    interrupt::answering();
    let taken = take(
        &model,
        Settings { progress: Some(&mut tell), ..asked },
        options,
        &mut |done, total| {
            bar.finish_and_clear();
            progress::set(&steps, done as u64, total as u64);
            !interrupt::is_set()
        },
    );
    bar.finish_and_clear();
    steps.finish_and_clear();
    let Some(mut taken) = taken? else {
        return Err(Failure::Line(INTERRUPTED, "interrupted; nothing was written".to_owned()));
    };
    for warning in taken.session.take_warnings() {
        output::warning(&warning);
    }
    if args.json {
        output::json(&serde_json::to_value(&taken.profile).map_err(|error| {
            Failure::Line(
                crate::failure::INTERNAL,
                format!("the profile cannot be written as JSON: {error}"),
            )
        })?)?;
    } else {
        output::text(&text(&taken.profile))?;
    }
    if let Some(path) = &args.trace {
        trace::write(&taken.session, path)?;
    }
    if args.out.as_os_str() != "none" {
        let written = write(&taken.profile, &args.out)?;
        if let Some(page) = written.last() {
            output::note(&format!("charts: {}", page.display()));
        }
    }
    Ok(0)
}
