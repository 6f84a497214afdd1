//! `bilayer imatrix`: computes an importance matrix from a calibration text.

use std::time::Instant;

use bilayer_convert::imatrix::{self, Entry};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_measure::perplexity::Windows;
use serde_json::json;

use super::perplexity::{open, session, shorten, text};
use crate::args::Imatrix;
use crate::commands::run;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::new_file::NewFile;
use crate::{output, progress};

/// Loads the model, runs the text, adds other files, writes.
pub fn execute(args: &Imatrix) -> Result<u8, Failure> {
    if args.model.placing.adapter.list_devices {
        return super::devices::list();
    }
    interrupt::catch();
    let began = Instant::now();
    // An unwritable path is reported at once.
    NewFile::create(&args.output).map_err(|error| Failure::output(&args.output, &error))?;
    let mut earlier = imatrix::Imatrix::default();
    // Of files that count windows instead of tokens.
    let window = args.model.ctx_size.filter(|tokens| *tokens > 0);
    let window = window.unwrap_or(imatrix::WINDOW_TOKENS);
    for path in &args.in_file {
        earlier.add(super::quantize::importance(path)?.with_window(window))?;
    }
    let matrix = match args.file {
        None => earlier,
        Some(_) => match collect(args, &earlier)? {
            Some(matrix) => matrix,
            None => return Ok(INTERRUPTED),
        },
    };
    let unused = matrix.entries().map(|(_, entry)| entry.unused()).sum::<usize>();
    matrix.write(&args.output)?;
    let (tensors, chunks) = (matrix.entries().len(), matrix.chunk_count);
    if args.json {
        return output::json(&json!({
            "path": args.output,
            "tensors": tensors,
            "windows": chunks,
            "window_tokens": matrix.chunk_size,
            "unused_matrices": unused,
            "datasets": matrix.datasets,
            "ms": began.elapsed().as_secs_f64() * 1e3,
        }))
        .map(|()| 0);
    }
    if unused > 0 {
        output::note(&format!("note: {unused} experts were never used; give a longer text"));
    }
    let (path, size) = (args.output.display(), matrix.chunk_size);
    output::line(&format!("{path}: {tensors} tensors over {chunks} windows of {size} tokens"))?;
    Ok(0)
}

/// Those sums and the text's. `None` if interrupted; then the file has what was summed in whole windows.
fn collect(
    args: &Imatrix,
    earlier: &imatrix::Imatrix,
) -> Result<Option<imatrix::Imatrix>, Failure> {
    let model = open(&args.model)?;
    let mut windows = text(&model, args.file.as_deref(), &args.model, args.parse_special)?;
    let count = windows.count();
    if args.from_chunk >= count {
        let skipped = args.from_chunk;
        return Err(Failure::usage(format!(
            "--from-chunk is {skipped}, but the text has only {count} windows; give a smaller number"
        )));
    }
    windows.skip(args.from_chunk);
    shorten(&mut windows, args.chunks);
    let scope = if args.process_output { Scope::LayersAndHead } else { Scope::Layers };
    let mut collector = Collector::new(model.graph(), scope);
    let settings = run::settings::model(&args.model)?;
    let mut session = session(&model, collector.settings(windows.window_len(), settings))?;
    let bar = progress::tokens("calibrating", windows.tokens().len());
    interrupt::answering();
    let mut summed = earlier.clone();
    for window in 0..windows.count() {
        let whole = collector.window(&mut session, &windows.run(window), &mut |tokens| {
            bar.inc(tokens as u64);
            !interrupt::is_set()
        })?;
        if !whole {
            bar.finish_and_clear();
            if window > 0 {
                summed.write(&args.output)?;
                let (path, next) = (args.output.display(), args.from_chunk + window);
                output::note(&format!(
                    "interrupted: {path} has {window} of {} windows; to go on, add --in-file {path} \
                     --from-chunk {next}",
                    windows.count()
                ));
            }
            return Ok(None);
        }
        summed = earlier.clone();
        summed.add(matrix(args, &windows, window + 1, &collector)?)?;
        let is_due = args.output_frequency > 0 && (window + 1) % args.output_frequency == 0;
        if is_due && window + 1 < windows.count() {
            summed.write(&args.output)?;
        }
    }
    bar.finish_and_clear();
    run::warn(&mut session);
    Ok(Some(summed))
}

/// The sums of the first `count` windows.
fn matrix(
    args: &Imatrix,
    windows: &Windows,
    count: usize,
    collector: &Collector,
) -> Result<imatrix::Imatrix, Failure> {
    let dataset = args.file.as_ref().map(|path| path.display().to_string());
    let [chunks, tokens] =
        [count, windows.window_len()].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let mut matrix = imatrix::Imatrix::new(dataset.into_iter().collect(), chunks, tokens);
    for sums in collector.sums() {
        matrix.insert(sums.name, Entry::new(sums.squares.to_vec(), sums.counts.to_vec()))?;
    }
    Ok(matrix)
}
