//! A model in a thread of its own, which takes jobs one after the other.
//!
//! **The idea.** The thread never touches Python, so it computes without the interpreter's lock, whichever Python threads
//! call. They wait on channels and look for signals in between: Ctrl-C, a thread that goes away and the end of the
//! interpreter only cancel the job. The price is one change of threads per call, and one wake per token at most.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bilayer::{Cancel, Model, Plan};
use pyo3::prelude::*;

use crate::error::{INTERNAL, INTERRUPTED, raised, usage};

/// How long a wait lasts before it looks for signals.
const TICK: Duration = Duration::from_millis(50);

/// How long the end of the interpreter waits for threads that are in a call.
const LEAVING: Duration = Duration::from_secs(5);

/// All workers, for the end of the interpreter.
static WORKERS: Mutex<Vec<Weak<Worker>>> = Mutex::new(Vec::new());

/// Threads of dropped workers that may still end a job, with the process that has them.
static ENDING: Mutex<Vec<(u32, JoinHandle<()>)>> = Mutex::new(Vec::new());

/// Set when the interpreter ends.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Threads that the end of the interpreter waits for, and the process that has them.
static WAITING: Mutex<(u32, usize)> = Mutex::new((0, 0));

/// Work for a model.
struct Job {
    number: u64,
    run: Box<dyn FnOnce(&mut Model) + Send>,
    /// Keeps the channel of the job's messages connected until the message of a panic is stored.
    sender: Box<dyn Send>,
}

/// A model's plan and warnings after its last job, which are read while the next one runs.
pub struct Status {
    pub plan: Plan,
    /// Those that were not taken.
    pub warnings: Vec<String>,
}

impl Status {
    fn of(model: &mut Model) -> Status {
        let warnings = model.take_warnings().iter().map(ToString::to_string).collect();
        Status { plan: model.plan().clone(), warnings }
    }

    /// Adds the warnings of a job. A plan only changes with a warning.
    fn update(&mut self, model: &mut Model) {
        let warnings = model.take_warnings();
        if !warnings.is_empty() {
            self.plan = model.plan().clone();
            self.warnings.extend(warnings.iter().map(ToString::to_string));
        }
    }
}

/// The thread of a model.
pub struct Worker {
    jobs: Mutex<Option<Sender<Job>>>,
    state: Arc<Mutex<State>>,
    status: Arc<Mutex<Status>>,
    cancel: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnects when the thread has freed the model.
    freed: Mutex<Receiver<()>>,
    /// The process that has the thread: one that forks from it has not.
    process: u32,
}

/// Which job runs.
#[derive(Default)]
struct State {
    running: Option<u64>,
    /// The first job that has not begun.
    waiting: u64,
    /// Jobs that were cancelled before they began.
    cancelled: Vec<u64>,
    next: u64,
    /// Jobs that have not begun are dropped.
    is_closing: bool,
    /// The message of a panic, after which the model is not used.
    fault: Option<String>,
}

/// A job that was handed in; dropping it cancels the job.
pub struct Ticket {
    number: u64,
    worker: Weak<Worker>,
}

impl Ticket {
    /// Ends the job before its next token. One that has not begun never begins and sends nothing: then the result is true.
    pub fn cancel(&self) -> bool {
        // In a process that forked, a thread that it lacks may hold the lock.
        let Some(worker) = self.worker.upgrade().filter(|worker| worker.is_here()) else {
            return false;
        };
        let mut state = locked(&worker.state);
        if state.running == Some(self.number) {
            // The state stays locked, so that the next job cannot have begun.
            worker.cancel.cancel();
        }
        let waits = self.number >= state.waiting;
        if waits && !state.cancelled.contains(&self.number) {
            state.cancelled.push(self.number);
        }
        waits
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Worker {
    /// Starts the thread of an open model, whose answers end by `cancel`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(mut model: Model, cancel: Cancel) -> PyResult<Arc<Worker>> {
        let (sender, jobs) = mpsc::channel();
        let (holder, freed) = mpsc::channel();
        let state = Arc::new(Mutex::new(State::default()));
        let status = Arc::new(Mutex::new(Status::of(&mut model)));
        let run = {
            let (state, cancel) = (state.clone(), cancel.clone());
            move || {
                // Dropped last, even after a panic.
                let _holder = holder;
                serve(model, &jobs, &state, &cancel);
            }
        };
        let thread = std::thread::Builder::new().name("bilayer".to_owned()).spawn(run)?;
        let (jobs, thread) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
        let (freed, process) = (Mutex::new(freed), std::process::id());
        let worker = Arc::new(Worker { jobs, state, status, cancel, thread, freed, process });
        let mut workers = locked(&WORKERS);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        Ok(worker)
    }

    /// Whether this process has the thread.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Checks that this process has the thread.
    ///
    /// # Errors
    /// The model was opened by another process.
    pub fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(usage(py, "the model was opened before this process forked; open it here"))
    }

    /// The plan, and the warnings, which may be taken.
    ///
    /// # Errors
    /// Those of [`post`](Worker::post).
    pub fn status(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Status>> {
        self.check(py)?;
        Ok(locked(&self.status))
    }

    /// Checks that jobs can be handed in.
    ///
    /// # Errors
    /// Those of [`post`](Worker::post).
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        // No lock is held while Python runs: another thread may hold its lock and wait for ours.
        let fault = locked(&self.state).fault.clone();
        if let Some(fault) = fault {
            return Err(raised(py, &fault, INTERNAL));
        }
        if self.is_open() && !is_over() { Ok(()) } else { Err(usage(py, "the model is closed")) }
    }

    /// Hands in a job, which may send messages; the last one is what it returns.
    ///
    /// # Errors
    /// The model is closed, or was opened by another process, or a job panicked.
    pub fn post<T: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        sender: Sender<T>,
        job: impl FnOnce(&mut Model, &Sender<T>) -> T + Send + 'static,
    ) -> PyResult<Ticket> {
        self.check(py)?;
        let (held, status) = (Box::new(sender.clone()), self.status.clone());
        let run = move |model: &mut Model| {
            let last = job(model, &sender);
            // Before the message, whose receiver may ask for it.
            locked(&status).update(model);
            // The receiver is gone if its thread was interrupted.
            let _ = sender.send(last);
        };
        let number = self.send(Box::new(run), held);
        let number = number.ok_or_else(|| usage(py, "the model is closed"))?;
        Ok(Ticket { number, worker: Arc::downgrade(self) })
    }

    /// Sends a job to the thread; its number, or `None` if the thread takes no more.
    fn send(&self, run: Box<dyn FnOnce(&mut Model) + Send>, sender: Box<dyn Send>) -> Option<u64> {
        let mut state = locked(&self.state);
        let number = state.next;
        locked(&self.jobs).as_ref()?.send(Job { number, run, sender }).ok()?;
        state.next += 1;
        Some(number)
    }

    /// Runs a job and waits for its result.
    ///
    /// # Errors
    /// Those of [`post`](Worker::post), a signal, or a panic of the job.
    pub fn call<T: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        job: impl FnOnce(&mut Model) -> T + Send + 'static,
    ) -> PyResult<T> {
        let (sender, result) = mpsc::channel();
        let _ticket = self.post(py, sender, |model, _| job(model))?;
        wait(py, &Mutex::new(result), || false)?.ok_or_else(|| self.fault(py))
    }

    /// The error for a job that ended without a result.
    pub fn fault(&self, py: Python<'_>) -> PyErr {
        let fault = locked(&self.state).fault.clone();
        match fault {
            Some(fault) => raised(py, &fault, INTERNAL),
            None => usage(py, "the model was closed during the call"),
        }
    }

    /// Cancels all jobs, frees the model and waits for its thread.
    ///
    /// # Errors
    /// A signal handler raised an exception: the thread then ends in the background.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_here() {
            return Ok(());
        }
        self.stop();
        // Until the interpreter's lock is back after the join.
        let _waiting = Waiting::new();
        wait(py, &self.freed, || false)?;
        py.detach(|| self.join());
        Ok(())
    }

    /// Cancels all jobs and waits for the thread.
    fn end(&self) {
        if self.is_here() {
            self.stop();
            self.join();
        }
    }

    fn join(&self) {
        // The lock is free again before the thread is waited for.
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            // A panic is in `fault`.
            let _ = thread.join();
        }
    }

    /// Takes no more jobs and ends the one that runs.
    fn stop(&self) {
        let mut state = locked(&self.state);
        state.is_closing = true;
        locked(&self.jobs).take();
        if state.running.is_some() {
            self.cancel.cancel();
        }
    }

    /// Whether it takes jobs.
    pub fn is_open(&self) -> bool {
        locked(&self.jobs).is_some()
    }
}

impl Drop for Worker {
    /// The thread ends by itself, since nobody can hand in jobs; only the end of the interpreter waits for it.
    fn drop(&mut self) {
        // Without a lock, which a thread may have held that a forked process lacks.
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            // It cannot be detached where it does not exist.
            std::mem::forget(thread);
            return;
        }
        self.stop();
        let mut ending = locked(&ENDING);
        ending.retain(|(process, thread)| *process != self.process || !thread.is_finished());
        ending.extend(thread.map(|thread| (self.process, thread)));
    }
}

/// Runs jobs until nobody can hand in more.
fn serve(mut model: Model, jobs: &Receiver<Job>, state: &Mutex<State>, cancel: &Cancel) {
    while let Ok(Job { number, run, sender }) = jobs.recv() {
        {
            let mut state = locked(state);
            if state.is_closing {
                return;
            }
            state.waiting = number + 1;
            let is_cancelled = state.cancelled.contains(&number);
            state.cancelled.retain(|&cancelled| cancelled > number);
            if is_cancelled {
                continue;
            }
            cancel.reset();
            state.running = Some(number);
        }
        let done = catch_unwind(AssertUnwindSafe(|| run(&mut model)));
        let mut state = locked(state);
        state.running = None;
        if let Err(fault) = done {
            state.fault = Some(said(fault.as_ref()));
            return;
        }
        drop(state);
        // The channel may disconnect once the state says how the job ended.
        drop(sender);
    }
}

/// The message of a panic.
fn said(fault: &(dyn Any + Send)) -> String {
    format!("internal error: {}; please report it", bilayer::panic_text(fault))
}

/// Runs work that needs no model beside the interpreter and waits for it. After a signal it goes on in the background to its end.
///
/// # Errors
/// A signal, a panic of the work, or no thread can be started.
pub fn beside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    reporting(py, |_, _: Sender<()>| work(), |()| Ok(()))
}

/// As [`beside`], with work that a signal cancels.
///
/// # Errors
/// Those of [`beside`].
pub fn cancellable<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> PyResult<T> {
    reporting(py, |cancel, _: Sender<()>| work(cancel), |()| Ok(()))
}

/// As [`cancellable`], with work whose messages are given to `told` in this thread; an error of that cancels it, too.
///
/// # Errors
/// Those of [`beside`], or of `told`.
pub fn reporting<T: Send + 'static, M: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel, Sender<M>) -> T + Send + 'static,
    told: impl Fn(M) -> PyResult<()>,
) -> PyResult<T> {
    // As long as `told` may run: an interpreter that has ended ends the thread there, through these frames, which aborts.
    let _waiting = Waiting::new();
    let interrupted = || raised(py, "interrupted", INTERRUPTED);
    if is_over() {
        return Err(interrupted());
    }
    let (sender, messages) = mpsc::channel();
    let messages = Mutex::new(messages);
    let cancel = Cancel::new();
    let done = beginning(sender, cancel.clone(), work)?;
    let waited = || {
        while let Some(message) = wait(py, &messages, || false)? {
            // `told` may run nothing that would look for signals.
            py.check_signals()?;
            if is_over() {
                return Ok(None);
            }
            told(message)?;
        }
        wait(py, &done, || false)
    };
    let waited = waited();
    if !matches!(waited, Ok(Some(_))) {
        cancel.cancel();
    }
    match waited? {
        Some(Ok(done)) => Ok(done),
        Some(Err(fault)) => Err(raised(py, &said(fault.as_ref()), INTERNAL)),
        None if is_over() => Err(interrupted()),
        None => Err(raised(py, "the thread ended without a result", INTERNAL)),
    }
}

/// Begins work in a thread; its result, or its panic, comes from the channel.
fn beginning<T: Send + 'static, M: Send + 'static>(
    messages: Sender<M>,
    cancel: Cancel,
    work: impl FnOnce(&Cancel, Sender<M>) -> T + Send + 'static,
) -> PyResult<Mutex<Receiver<std::thread::Result<T>>>> {
    let (sender, result) = mpsc::channel();
    // The interpreter must not end before: the thread may be in a driver of a GPU.
    let working = Waiting::new();
    let run = move || {
        let _working = working;
        let done = catch_unwind(AssertUnwindSafe(|| work(&cancel, messages)));
        // The receiver is gone if its thread was interrupted.
        let _ = sender.send(done);
    };
    std::thread::Builder::new().name("bilayer".to_owned()).spawn(run)?;
    Ok(Mutex::new(result))
}

/// As [`cancellable`], with work that ends soon then: that is waited for.
///
/// # Errors
/// Those of [`beside`].
pub fn stoppable<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let done = cancellable(py, move |cancel| {
        let done = work(cancel);
        drop(sender);
        done
    });
    // It ends without a message.
    done.inspect_err(|_| py.detach(|| locked(&ended).recv()).unwrap_or_default())
}

/// Counts a thread that waits for work of this module, or does it beside a model, and remembers its process.
struct Waiting(u32);

impl Waiting {
    fn new() -> Waiting {
        let process = std::process::id();
        let mut waiting = locked(&WAITING);
        // A process that forks inherits the count, but not the threads.
        let others = if waiting.0 == process { waiting.1 } else { 0 };
        *waiting = (process, others + 1);
        Waiting(process)
    }

    /// How many wait in this process.
    fn count() -> usize {
        let waiting = locked(&WAITING);
        if waiting.0 == std::process::id() { waiting.1 } else { 0 }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = locked(&WAITING);
        // A signal handler may have forked in between.
        if waiting.0 == self.0 && self.0 == std::process::id() {
            waiting.1 -= 1;
        }
    }
}

/// The next message, or `None` if no more can come or are wanted. The interpreter's lock is free while it waits.
///
/// # Errors
/// A signal handler raised an exception: KeyboardInterrupt, usually.
pub fn wait<T: Send>(
    py: Python<'_>,
    messages: &Mutex<Receiver<T>>,
    is_unwanted: impl Fn() -> bool,
) -> PyResult<Option<T>> {
    // Until the lock is back: the interpreter must not end before.
    let _waiting = Waiting::new();
    loop {
        match py.detach(|| locked(messages).recv_timeout(TICK)) {
            Ok(message) => return Ok(Some(message)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if is_over() || is_unwanted() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}

/// Whether the interpreter ends.
pub fn is_over() -> bool {
    IS_OVER.load(Ordering::SeqCst)
}

/// Ends all jobs, frees all models, and gives the threads that wait the time to leave.
pub fn shut_down() {
    IS_OVER.store(true, Ordering::SeqCst);
    let workers = std::mem::take(&mut *locked(&WORKERS));
    workers.iter().filter_map(Weak::upgrade).for_each(|worker| worker.end());
    for (process, thread) in std::mem::take(&mut *locked(&ENDING)) {
        match process == std::process::id() {
            // A panic concerns nobody any more.
            true => drop(thread.join()),
            // It cannot be joined or detached where it does not exist.
            false => std::mem::forget(thread),
        }
    }
    let began = Instant::now();
    while Waiting::count() > 0 && began.elapsed() < LEAVING {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A lock; what a panicking thread left is used, since no job leaves it half done.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
