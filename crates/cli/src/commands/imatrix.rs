//! `bilayer imatrix`: computes an importance matrix from a calibration text.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bilayer_convert::imatrix::{self, Collection};
use bilayer_engine::{Encode, Exit};
use bilayer_files::is_same_file;
use bilayer_measure::imatrix::{Moment, Scope};
use bilayer_measure::perplexity::Windows;
use serde_json::json;

use super::perplexity::{open, session, shorten, text};
use crate::args::Imatrix;
use crate::commands::run;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::new_file::NewFile;
use crate::{output, progress};

/// The file of the windows run so far is at most so old, but for a window.
const PARTIAL_SECONDS: Duration = Duration::from_secs(60);

/// Loads the model, runs the text, adds other files, writes.
pub fn execute(args: &Imatrix) -> Result<u8, Failure> {
    interrupt::catch();
    let began = Instant::now();
    // An unwritable path is reported at once.
    NewFile::create(&args.output).map_err(|error| Failure::output(&args.output, &error))?;
    let mut earlier = imatrix::Imatrix::default();
    // Of files that count windows instead of tokens.
    let window = args.model.ctx_size.filter(|tokens| *tokens > 0);
    let window = window.unwrap_or(imatrix::WINDOW_TOKENS);
    for path in &args.in_file {
        earlier.add(imatrix::Imatrix::open(path)?.with_window(window))?;
    }
    let mut partial = Partial::new(args);
    partial.check(args)?;
    let matrix = match args.file {
        None => earlier,
        Some(_) => match collect(args, earlier, &mut partial)? {
            Some(matrix) => matrix,
            None => return Ok(INTERRUPTED),
        },
    };
    let unused = matrix.entries().map(|(_, entry)| entry.unused()).sum::<usize>();
    matrix.write(&args.output)?;
    partial.remove();
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
        let unused = output::counted(unused, ["expert was", "experts were"]);
        output::note(&format!("note: {unused} never used; give a longer text"));
    }
    let (path, size) = (args.output.display(), matrix.chunk_size);
    let tensors = output::counted(tensors, ["tensor", "tensors"]);
    let windows = output::counted(chunks, ["window", "windows"]);
    output::line(&format!("{path}: {tensors} over {windows} of {size} tokens"))?;
    Ok(0)
}

/// Those sums and the text's; `None` if interrupted.
fn collect(
    args: &Imatrix,
    earlier: imatrix::Imatrix,
    partial: &mut Partial,
) -> Result<Option<imatrix::Imatrix>, Failure> {
    let model = open(&args.model)?;
    let encode = Encode { parse_special: args.parse_special, ..Windows::ENCODE };
    let mut windows = text(&model, args.file.as_deref(), &args.model, encode)?;
    let count = windows.count();
    if args.from_chunk >= count {
        let skipped = args.from_chunk;
        return Err(Failure::usage(format!(
            "--from-chunk is {skipped}, but the text has only {count} windows; give a smaller number"
        )));
    }
    same_windows(args, &earlier, windows.window_len())?;
    windows.skip(args.from_chunk);
    shorten(&mut windows, args.chunks);
    let count = windows.count();
    let scope = if args.process_output { Scope::LayersAndHead } else { Scope::Layers };
    let dataset = args.file.as_deref().map_or(String::new(), |path| path.display().to_string());
    let collection = Collection::new(&model, scope, &windows, dataset);
    let settings = run::settings::model(&args.model)?;
    if !args.in_file.is_empty() {
        // Sums of another model are refused before the work.
        earlier.clone().add(collection.empty())?;
    }
    let mut session = session(&model, collection.settings(settings))?;
    let bar = progress::tokens("calibrating", windows.tokens().len());
    interrupt::answering();
    let collected = collection.run(&mut session, &mut |moment| match moment {
        Moment::Tokens(tokens) => {
            bar.inc(tokens as u64);
            Ok(!interrupt::is_set())
        }
        Moment::Windows(window, sums) if partial.is_due(window) && window < count => {
            partial.write(&earlier, sums(), window).map(|()| true).map_err(Ended::Failed)
        }
        Moment::Windows(..) => Ok(true),
    });
    bar.finish_and_clear();
    match collected {
        Ok(Some(sums)) => {
            run::warn(&mut session);
            let mut summed = earlier;
            summed.add(sums)?;
            Ok(Some(summed))
        }
        Ok(None) => {
            partial.advise(args, count);
            Ok(None)
        }
        Err(Ended::Collecting(error)) => {
            partial.advise(args, count);
            // Values that are not finite come of the model's weights.
            Err(match error.exit_code() {
                Exit::BadModel => args.model.source().path.iter().fold(error.into(), of_file),
                _ => error.into(),
            })
        }
        Err(Ended::Failed(failure)) => Err(failure),
    }
}

/// Why a collection ended early.
enum Ended {
    Collecting(bilayer_measure::Error),
    Failed(Failure),
}

impl From<bilayer_measure::Error> for Ended {
    fn from(error: bilayer_measure::Error) -> Ended {
        Ended::Collecting(error)
    }
}

/// The failure of a file.
fn of_file(failure: Failure, path: &&Path) -> Failure {
    failure.in_file(path)
}

/// Refuses windows of another length than those of the files that a run goes on from: --from-chunk counts them.
fn same_windows(args: &Imatrix, earlier: &imatrix::Imatrix, tokens: usize) -> Result<(), Failure> {
    let before = earlier.chunk_size as usize;
    if args.from_chunk == 0 || args.in_file.is_empty() || [0, tokens].contains(&before) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--from-chunk counts windows of {tokens} tokens, and those of --in-file have {before}; give -c {before}"
    )))
}

/// The file of the windows run so far, beside the output.
struct Partial {
    path: PathBuf,
    /// Windows after which it is written; 0 is never.
    every: usize,
    /// Windows of this run that it has.
    windows: usize,
    /// Whether this run goes on from it.
    is_given: bool,
    written: Instant,
}

impl Partial {
    fn new(args: &Imatrix) -> Partial {
        let path = args.output.with_extension("partial.gguf");
        let is_given =
            args.file.is_some() && args.in_file.iter().any(|given| is_same_file(given, &path));
        let (every, written) = (args.output_frequency, Instant::now());
        Partial { path, every, windows: 0, is_given, written }
    }

    /// Refuses to replace what an interrupted run has left, unless this run goes on from it.
    fn check(&self, args: &Imatrix) -> Result<(), Failure> {
        if self.every == 0 || args.file.is_none() || self.is_given || !self.path.exists() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{0} has the sums of an interrupted run; go on from it with --in-file {0} and --from-chunk, or delete it",
            self.path.display()
        )))
    }

    /// Whether to write it after so many windows.
    fn is_due(&self, windows: usize) -> bool {
        let is_late = self.written.elapsed() >= PARTIAL_SECONDS;
        self.every > 0 && (windows.is_multiple_of(self.every) || is_late)
    }

    fn write(
        &mut self,
        earlier: &imatrix::Imatrix,
        sums: imatrix::Imatrix,
        windows: usize,
    ) -> Result<(), Failure> {
        let mut summed = earlier.clone();
        summed.add(sums)?;
        summed.write(&self.path)?;
        (self.windows, self.written) = (windows, Instant::now());
        Ok(())
    }

    /// Removes it, as the output has its sums.
    fn remove(&self) {
        if self.windows > 0 || self.is_given {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Says how to go on from it.
    fn advise(&self, args: &Imatrix, count: usize) {
        if self.windows == 0 {
            return;
        }
        let (path, next) = (self.path.display(), args.from_chunk + self.windows);
        let place = if args.in_file.is_empty() { "" } else { " in place of the others" };
        let rest = match args.chunks {
            Some(chunks) if chunks > 0 => format!(" --chunks {}", count - self.windows),
            _ => String::new(),
        };
        output::note(&format!(
            "{path} has the sums of {} of {count} windows; to go on, give --in-file {path}{place}, and \
             --from-chunk {next}{rest}",
            self.windows
        ));
    }
}
