//! Answers a file of requests in OpenAI's batch format, with what answers requests over HTTP, and goes on after an
//! interruption.
//!
//! Requests are given to the model longest first, so that those that run together have similar lengths and the end is not
//! spent waiting for one long answer. Answers go to a journal as they come; the output is written once, in the order of
//! the requests, when all are there.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use bilayer_files::{folder_of, is_same_file, target};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use self::audit::Log;
use self::input::Input;
use self::journal::Journal;
use crate::app::App;
use crate::config::Config;
use crate::endpoints::has_field;
use crate::models::Kind;
use crate::router::router;

pub mod audit;
mod input;
mod journal;
mod line;

/// Requests of an encoder that wait or run: several steps of texts.
const TEXTS: usize = 512;

/// Time between two looks at whether to go on.
const TICK: Duration = Duration::from_millis(100);

/// A file of requests and where the answers go.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The requests, one JSON object per line.
    pub input: PathBuf,
    /// The answers, one JSON object per line, in the order of the requests.
    pub output: PathBuf,
    /// Whether an existing output is replaced.
    pub overwrite: bool,
    /// What the answers depend on beside the requests and the sizes of the models, such as hashes of the models and
    /// settings, by name. A journal with others is one of another batch.
    pub identity: Map<String, Value>,
    /// A log of what was answered.
    pub audit: Option<Audit>,
}

/// A log of what was answered, and what each run of a batch tells it about itself: the program and the models.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The log; runs are appended.
    pub path: PathBuf,
    /// Facts about this run.
    pub facts: Map<String, Value>,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests that have an answer.
    pub done: usize,
    /// Of these, those that were answered in earlier runs.
    pub earlier: usize,
    /// Of all that have an answer, those whose answer is an error.
    pub failed: usize,
    /// Requests in all.
    pub requests: usize,
    /// Bytes of the requests that have an answer.
    pub done_bytes: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// Tokens that this run has read and generated.
    pub tokens: u64,
}

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What was done.
    pub progress: Progress,
    /// Whether all requests are answered and the output is written.
    pub is_complete: bool,
    /// The hash of the log's last line.
    pub head: Option<String>,
}

/// Errors of a batch. Wrong requests are none: their answers say what is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The requests cannot be used.
    #[error("{path}: {problem}")]
    Input {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The requests were changed while the batch ran. The answers before are in the journal.
    #[error(
        "{path}: line {line} was changed while the batch was running; restore the file and run the same command to go on"
    )]
    Changed {
        /// The file.
        path: String,
        /// The first line that was found to be another one.
        line: usize,
    },
    /// The output is there already.
    #[error("{path} exists; remove it, choose another name, or replace it with --overwrite")]
    Exists {
        /// The file.
        path: String,
    },
    /// The journal or the log is that of something else, or damaged.
    #[error("{path}: {problem}")]
    Record {
        /// The file.
        path: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file, a device or memory failed while a request was answered. The answers before it are in the journal.
    #[error("{source}")]
    Failed {
        /// The engine's error.
        source: Arc<bilayer_engine::Error>,
    },
    /// The model cannot be loaded, or the system refuses threads.
    #[error(transparent)]
    Server(#[from] crate::Error),
}

impl Error {
    fn io(path: &Path, action: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::Io { path: path.display().to_string(), action, source }
    }
}

/// Answers all requests that have no answer yet, and writes the output when none is left. `tell` is called often; what it
/// returns decides whether to go on.
///
/// # Errors
/// Files cannot be read or written; a journal or log is not of this batch; the model cannot be loaded, or its file or a
/// device fails while a request is answered. The answers before it are kept for the next run.
pub fn run(
    config: Config,
    batch: &Batch,
    tell: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Summary, Error> {
    let mut input = Input::open(&batch.input)?;
    let place = journal::place(&batch.output);
    check_outputs(batch, &place)?;
    let models: Vec<Value> = config.models.iter().map(|m| json!([m.names, m.bytes])).collect();
    let header = json!({ "requests": input.sha256(), "models": models, "facts": batch.identity });
    let mut journal = Journal::open(&place, &header, input.lines().len())?;
    let mut log = match &batch.audit {
        Some(audit) => Some(Log::open(audit, input.sha256())?),
        None => None,
    };
    let mut progress = Progress {
        requests: input.lines().len(),
        bytes: input.lines().iter().map(|line| line.len).sum(),
        ..Progress::default()
    };
    for at in journal.answered() {
        progress.done += 1;
        progress.earlier += 1;
        progress.done_bytes += input.lines()[at].len;
        let answer = journal.answer(at)?;
        progress.failed += usize::from(line::is_failure(&answer));
        // A run that was killed may have kept an answer that it did not log.
        let number = input.lines()[at].number;
        if let Some(log) = log.as_mut().filter(|log| !log.has(number, &answer)) {
            log.answered(number, &input.read(at)?, &answer)?;
        }
    }
    let mut is_complete = progress.done == progress.requests;
    if !is_complete {
        let mut run = Answering { input, journal, log, progress, tell };
        let ended = run.serve(config);
        Answering { journal, log, progress, .. } = run;
        if progress.done == 0 {
            // An empty journal would only be in the way of other models and settings.
            let removed = journal.remove();
            let summary = finish(log, progress, ended)?;
            return removed.map(|()| summary);
        }
        if ended.is_err() {
            // What is there is kept as well as it can be; the first error counts.
            let _ = journal.sync();
            return finish(log, progress, ended);
        }
        is_complete = ended?;
    }
    if is_complete {
        let written = journal.write_output(&batch.output)?;
        if let Some(log) = &mut log {
            log.ended(&written)?;
        }
        journal.remove()?;
    }
    finish(log, progress, Ok(is_complete))
}

/// Closes the log. An error of the run counts before one of the log.
fn finish(
    log: Option<Log>,
    progress: Progress,
    ended: Result<bool, Error>,
) -> Result<Summary, Error> {
    let head = log.map(Log::close).transpose();
    let is_complete = ended?;
    Ok(Summary { progress, is_complete, head: head? })
}

/// Refuses at the beginning what cannot be written at the end.
fn check_outputs(batch: &Batch, journal: &Path) -> Result<(), Error> {
    target(&batch.output).map_err(Error::io(&batch.output, "be written"))?;
    if let Some(Audit { path, .. }) = &batch.audit {
        check_record(path)?;
        if is_one_file(path, journal) {
            let problem = "is the journal of the batch; choose another name for the log".to_owned();
            return Err(Error::Record { path: path.display().to_string(), problem });
        }
    }
    if batch.output.exists() && !journal.exists() && !batch.overwrite {
        return Err(Error::Exists { path: batch.output.display().to_string() });
    }
    Ok(())
}

/// Whether two paths are or would be one file.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let folder = std::fs::canonicalize(folder_of(path)).ok()?;
        Some(folder.join(path.file_name()?))
    };
    is_same_file(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Refuses a record that is no regular file: a pipe would be waited for, and a device keeps nothing.
fn check_record(path: &Path) -> Result<(), Error> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let problem = "is no regular file; choose another name".to_owned();
        return Err(Error::Record { path: path.display().to_string(), problem });
    }
    Ok(())
}

/// A run of a batch.
struct Answering<'t> {
    input: Input,
    journal: Journal,
    log: Option<Log>,
    progress: Progress,
    tell: &'t mut dyn FnMut(Progress) -> ControlFlow<()>,
}

impl Answering<'_> {
    /// Loads the first model and answers; false if it was ended early.
    fn serve(&mut self, config: Config) -> Result<bool, Error> {
        let refused = |error: io::Error| Error::Server(error.into());
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().map_err(refused)?;
        let app = Arc::new(App::new(config, has_field).map_err(crate::Error::Keys)?);
        let Some(most) = runtime.block_on(self.load(&app))? else {
            // The load goes on, and what it has loaded is dropped at its end.
            runtime.block_on(app.models.end());
            runtime.shutdown_background();
            return Ok(false);
        };
        let result = runtime.block_on(self.answer_all(&app, most));
        runtime.block_on(app.models.end());
        runtime.shutdown_timeout(Duration::from_secs(5));
        result
    }

    /// Loads the first model. Gives how many requests run or wait at once; `None` if it was ended early.
    async fn load(&mut self, app: &Arc<App>) -> Result<Option<usize>, Error> {
        let load = app.models.load_first();
        tokio::pin!(load);
        let mut tick = tokio::time::interval(TICK);
        let loaded = loop {
            tokio::select! {
                loaded = &mut load => break loaded,
                _ = tick.tick() => if (self.tell)(self.progress).is_break() {
                    return Ok(None);
                },
            }
        };
        let loaded = loaded.map_err(|error| crate::Error::Model {
            message: error.message,
            source: error.source,
        })?;
        app.is_ready.store(true, Ordering::Relaxed);
        // The model itself may be unloaded for another one.
        Ok(Some(match loaded.as_ref().map(|loaded| &loaded.kind) {
            Some(Kind::Encoder(_)) => TEXTS,
            Some(Kind::Decoder(_)) | None => 2 * app.config.slots,
        }))
    }

    async fn answer_all(&mut self, app: &Arc<App>, most: usize) -> Result<bool, Error> {
        let router = router(app.clone());
        let mut open = self.order().into_iter();
        let mut running: JoinSet<(usize, Vec<u8>, line::Answer)> = JoinSet::new();
        let mut tick = tokio::time::interval(TICK);
        loop {
            while running.len() < most
                && let Some(at) = open.next()
            {
                running.spawn(self.start(&router, at)?);
            }
            if running.is_empty() {
                return self.journal.sync().map(|()| true);
            }
            tokio::select! {
                Some(ended) = running.join_next() => {
                    // The task neither panics, since its request is a task of its own, nor is it aborted here.
                    if let Ok((at, request, answer)) = ended {
                        self.keep(at, &request, &answer)?;
                    }
                }
                _ = tick.tick() => {}
            }
            if (self.tell)(self.progress).is_break() {
                return self.journal.sync().map(|()| false);
            }
        }
    }

    /// The requests without an answer, longest first.
    fn order(&self) -> Vec<usize> {
        let lines = self.input.lines();
        let mut open: Vec<usize> =
            (0..lines.len()).filter(|&at| !self.journal.has_answer(at)).collect();
        open.sort_by_key(|&at| std::cmp::Reverse(lines[at].len));
        open
    }

    /// The task that answers a request.
    fn start(
        &mut self,
        router: &Router,
        at: usize,
    ) -> Result<impl Future<Output = (usize, Vec<u8>, line::Answer)> + Send + 'static, Error> {
        let request = self.input.read(at)?;
        let place = self.input.lines()[at];
        let router = router.clone();
        Ok(async move {
            let answer = line::answer(router, &request, place).await;
            (at, request, answer)
        })
    }

    /// Writes an answer down. A failure of the machine is none.
    fn keep(&mut self, at: usize, request: &[u8], answer: &line::Answer) -> Result<(), Error> {
        if let Some(source) = &answer.failure {
            return Err(Error::Failed { source: source.clone() });
        }
        self.journal.append(at, &answer.text)?;
        let place = self.input.lines()[at];
        if let Some(log) = &mut self.log {
            log.answered(place.number, request, &answer.text)?;
        }
        self.progress.done += 1;
        self.progress.done_bytes += place.len;
        self.progress.failed += usize::from(answer.failed);
        self.progress.tokens += answer.tokens;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use bilayer_engine::{Model, OpenOptions};

    use super::*;
    use crate::config::Offer;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");

    /// A load that takes as long as the test does.
    #[test]
    fn a_load_does_not_delay_the_end() {
        let folder = tempfile::TempDir::new().unwrap();
        let input = folder.path().join("in");
        std::fs::write(&input, "{}\n").unwrap();
        let (loads, is_loading) = mpsc::channel();
        let (_end, ends) = mpsc::channel::<()>();
        let (loads, ends) = (std::sync::Mutex::new(loads), std::sync::Mutex::new(ends));
        let open = move || {
            loads.lock().unwrap().send(()).unwrap();
            let _ = ends.lock().unwrap().recv();
            Err(bilayer_engine::Error::Interrupted)
        };
        let offer = Offer {
            names: vec!["slow".to_owned()],
            tags: Vec::new(),
            path: DEMO.to_owned(),
            files: Vec::new(),
            bytes: 0,
            chat_template: None,
            is_pooled: false,
            is_of_folder: false,
            is_required: true,
            inspect: Arc::new(|| Model::open(DEMO.as_ref(), OpenOptions::default())),
            open: Arc::new(open),
        };
        let output = folder.path().join("out");
        let (overwrite, identity, audit) = (false, Map::new(), None);
        let batch = Batch { input, output, overwrite, identity, audit };
        let began = Instant::now();
        let ended = run(Config::of(vec![offer]), &batch, &mut |_| match is_loading.try_recv() {
            Ok(()) => ControlFlow::Break(()),
            Err(_) => ControlFlow::Continue(()),
        });
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        let Summary { progress, is_complete, .. } = ended.unwrap();
        assert_eq!((progress.done, progress.requests, is_complete), (0, 1, false));
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "the requests alone");
    }
}
