//! `bilayer batch`: answers a file of requests.

use std::path::Path;

use bilayer_engine::open_file;
use bilayer_server::batch::{self, Audit, Batch, Error, Progress};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::{inspect, serve};
use crate::args;
use crate::demo;
use crate::failure::{BAD_MODEL, DIFFERENT, Failure, INTERRUPTED, IO, NO_FILE, NO_OUTPUT, USAGE};
use crate::{interrupt, output, progress, version};

mod identity;

/// Answers the requests that have no answer yet.
pub fn execute(args: &args::Batch) -> Result<u8, Failure> {
    if args.input == Path::new("-") {
        let line = "requests are read more than once, so IN cannot be standard input; give a file";
        return Err(Failure::usage(line));
    }
    let config = serve::config(&args.serving, None)?;
    let mut identity = identity::settings(args, &config)?;
    let audit = match &args.audit {
        Some(path) => {
            let facts = facts(args, identity.clone())?;
            Some(Audit { path: path.to_path_buf(), facts })
        }
        None => None,
    };
    identity.insert("models".to_owned(), identity::models(args)?);
    let batch = Batch {
        input: args.input.clone(),
        output: args.output.to_path_buf(),
        overwrite: args.overwrite,
        identity,
        audit,
    };
    let bar = progress::requests();
    interrupt::begin();
    let result = batch::run(config, &batch, &mut |at| {
        show(&bar, at);
        interrupt::flow()
    });
    bar.finish_and_clear();
    let summary = result.map_err(failure)?;
    let Progress { done, earlier, failed, requests, tokens, .. } = summary.progress;
    if let Some(head) = &summary.head {
        output::note(&format!("last line of the log: {head}"));
    }
    if !summary.is_complete {
        let line =
            format!("{done} of {requests} requests are answered; run the same command to go on");
        return Err(Failure::Line(INTERRUPTED, line));
    }
    let before = if earlier > 0 { format!(", {earlier} of them before") } else { String::new() };
    output::note(&format!(
        "{} done{before}: {} answered with {}, {failed} failed",
        output::counted(requests, ["request", "requests"]),
        requests - failed,
        output::counted(tokens, output::TOKENS)
    ));
    if failed > 0 {
        output::note(&format!("the reasons are in {}", args.output.display()));
    }
    Ok(if failed > 0 { DIFFERENT } else { 0 })
}

/// Shows the progress; the time left follows from bytes, because the longest requests come first.
fn show(bar: &ProgressBar, at: Progress) {
    progress::set(bar, at.done_bytes, at.bytes);
    let rate = at.tokens as f64 / bar.elapsed().as_secs_f64().max(1e-3);
    bar.set_message(format!("{}/{} requests, {rate:.0} tok/s", at.done, at.requests));
}

/// What the log says about a run: the program, each model with its hash, the adapters and the settings.
fn facts(
    args: &args::Batch,
    mut settings: Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    let mut models = Vec::new();
    for (name, path) in serve::models(&args.serving)? {
        let sha256 = match &path {
            Some(path) => Some(inspect::hash(&open_file(path)?)?),
            None => None,
        };
        models.push(json!({ "name": name, "bytes": size(path.as_deref()), "sha256": sha256 }));
    }
    let program = version::text();
    Ok(Map::from_iter([
        ("program".to_owned(), json!(program.lines().next())),
        ("models".to_owned(), Value::Array(models)),
        ("adapters".to_owned(), settings.remove("adapters").unwrap_or_default()),
        ("settings".to_owned(), Value::Object(settings)),
    ]))
}

fn size(path: Option<&Path>) -> u64 {
    let found = path.and_then(|path| std::fs::metadata(path).ok());
    found.map_or_else(demo::len_bytes, |found| found.len())
}

/// The exit code and the line of an error.
pub fn failure(error: Error) -> Failure {
    use std::io::ErrorKind;
    let code = match &error {
        Error::Server(_) => {
            let Error::Server(error) = error else { unreachable!("just matched") };
            return serve::failure(error);
        }
        Error::Failed { source } => {
            let advice = source.advice();
            let line = format!("{source}{advice}; run the same command to go on");
            return Failure::Line(source.exit_code() as u8, line);
        }
        Error::Input { .. } => BAD_MODEL,
        Error::Changed { .. } => IO,
        Error::Exists { .. } => NO_OUTPUT,
        Error::Record { .. } => USAGE,
        Error::Io { action: "be written", source, .. } => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => IO,
            _ => NO_OUTPUT,
        },
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => NO_FILE,
        Error::Io { .. } => IO,
    };
    Failure::Line(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn codes_tell_files_to_read_from_files_to_write() {
        let cases = [
            ("be read", io::ErrorKind::NotFound, NO_FILE),
            ("be read", io::ErrorKind::PermissionDenied, IO),
            ("be written", io::ErrorKind::NotFound, NO_OUTPUT),
            ("be written", io::ErrorKind::PermissionDenied, NO_OUTPUT),
            ("be written", io::ErrorKind::StorageFull, IO),
        ];
        for (action, kind, code) in cases {
            let error = Error::Io { path: "x".into(), action, source: kind.into() };
            assert!(matches!(failure(error), Failure::Line(c, _) if c == code), "{action} {kind}");
        }
    }
}
