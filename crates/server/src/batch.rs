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
use bilayer_text::hash::hex;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use self::audit::Log;
use self::input::Input;
use self::journal::Journal;
use crate::app::{App, router};
use crate::config::Config;
use crate::models::Kind;

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
/// Files cannot be read or written; a journal or log is not of this batch; the model cannot be loaded.
pub fn run(
    config: Config,
    batch: &Batch,
    tell: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Summary, Error> {
    let mut input = Input::open(&batch.input)?;
    let place = journal::place(&batch.output);
    if batch.output.exists() && !place.exists() && !batch.overwrite {
        return Err(Error::Exists { path: batch.output.display().to_string() });
    }
    let models: Vec<Value> = config.models.iter().map(|m| json!([m.names, m.bytes])).collect();
    let header = json!({ "requests": input.sha256(), "models": models });
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
        is_complete = run.serve(config)?;
        Answering { journal, log, progress, .. } = run;
    }
    if is_complete {
        let written = journal.write_output(&batch.output)?;
        if let Some(log) = &mut log {
            log.ended(&written)?;
        }
        journal.remove()?;
    }
    let head = log.map(Log::close).transpose()?;
    Ok(Summary { progress, is_complete, head })
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
    /// Loads the models and answers; false if it was ended early.
    fn serve(&mut self, config: Config) -> Result<bool, Error> {
        let refused = |error: io::Error| Error::Server(error.into());
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().map_err(refused)?;
        let app = Arc::new(App::new(config).map_err(crate::Error::Keys)?);
        let result = runtime.block_on(self.answer_all(&app));
        runtime.block_on(app.models.end());
        runtime.shutdown_timeout(Duration::from_secs(5));
        result
    }

    async fn answer_all(&mut self, app: &Arc<App>) -> Result<bool, Error> {
        let loaded = app.models.load_first().await;
        let loaded = loaded.map_err(|error| crate::Error::Model {
            message: error.message,
            source: error.source,
        })?;
        app.is_ready.store(true, Ordering::Relaxed);
        let most = match loaded.as_ref().map(|loaded| &loaded.kind) {
            Some(Kind::Encoder(_)) => TEXTS,
            Some(Kind::Decoder(_)) | None => 2 * app.config.slots,
        };
        // It may be unloaded for another one.
        drop(loaded);
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

    /// Writes an answer down.
    fn keep(&mut self, at: usize, request: &[u8], answer: &line::Answer) -> Result<(), Error> {
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
