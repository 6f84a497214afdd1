//! The thread that owns an encoder: each step has texts of all waiting requests, whose keys take turns.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use bilayer_engine::Error;
use bilayer_engine::encode::Encoder;
use bilayer_engine::requests::KeyId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;
use crate::memory::Place;
use crate::metrics::Metrics;
use crate::thread::{self, FileChanged};
use queue::{InputId, Job, Queue, Waiting};

mod queue;

/// Inputs that may wait, over all requests, unless as many requests may.
pub const WAITING_MAX: usize = 16_384;

/// Rows of each input of a request, `[rows, width]` each.
pub type Outputs = Vec<Vec<f32>>;

/// A handle to the thread, which ends when this is dropped, after its step.
pub struct EncoderWorker {
    commands: Sender<Command>,
    waiting: Arc<Mutex<usize>>,
    waiting_max: usize,
    shall_end: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    file_changed: FileChanged,
}

impl EncoderWorker {
    /// Starts a thread that serves `encoder`, for which so many requests may wait. The thread holds `place` until the
    /// encoder's memory is free.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        encoder: Encoder,
        requests: usize,
        metrics: Arc<Metrics>,
        place: Arc<Place>,
    ) -> std::io::Result<EncoderWorker> {
        let (sender, commands) = mpsc::channel();
        let shall_end = Arc::<AtomicBool>::default();
        let (queue, ends) = (Queue::default(), shall_end.clone());
        let file_changed = FileChanged::default();
        let changed = file_changed.clone();
        let serving =
            Serving { encoder, commands, queue, metrics, shall_end: ends, file_changed: changed };
        let has_ended =
            thread::start("bilayer-encoder", serving, place, Serving::run, Serving::fail)?;
        let waiting_max = requests.max(WAITING_MAX);
        Ok(EncoderWorker {
            commands: sender,
            waiting: Arc::default(),
            waiting_max,
            shall_end,
            has_ended,
            file_changed,
        })
    }

    /// Runs tokenized inputs of a key; the rows come in their order.
    ///
    /// # Errors
    /// Too much is waiting; a device failed; they are not done at the deadline.
    pub async fn run(
        &self,
        key: KeyId,
        inputs: Vec<Vec<u32>>,
        deadline: Instant,
    ) -> Result<Outputs, ApiError> {
        if inputs.is_empty() {
            return Ok(Outputs::new());
        }
        let waiting = Waiting::enter(&self.waiting, inputs.len(), self.waiting_max);
        let waiting = waiting.map_err(|waiting| {
            ApiError::unavailable(format!(
                "the server is at capacity: {waiting} inputs are waiting"
            ))
        })?;
        let (reply, answer) = oneshot::channel();
        let job = Job { key, inputs, reply, waiting };
        self.commands.send(Command::Run(job)).map_err(|_| self.ended())?;
        let answer = timeout_at(deadline, answer).await.map_err(|_| ApiError::late())?;
        answer.map_err(|_| self.ended())?
    }

    /// The error of a request that the thread has not answered.
    fn ended(&self) -> ApiError {
        match self.shall_end.load(Ordering::SeqCst) {
            true => ApiError::stopping(),
            false => ApiError::ended(),
        }
    }

    /// Inputs that wait or run.
    pub fn waiting(&self) -> usize {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread after its step; the requests that are left fail.
    pub fn stop(&self) {
        self.shall_end.store(true, Ordering::SeqCst);
        // A thread that has ended needs no command.
        let _ = self.commands.send(Command::Stop);
    }

    /// Whether the thread has ended: it was stopped, or it panicked.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Whether the model's file has changed, so that the thread answers no request any more.
    pub fn has_changed_file(&self) -> bool {
        self.file_changed.is_set()
    }
}

impl Drop for EncoderWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Command {
    Run(Job),
    Stop,
}

/// The thread's state.
struct Serving {
    encoder: Encoder,
    commands: Receiver<Command>,
    queue: Queue,
    metrics: Arc<Metrics>,
    shall_end: Arc<AtomicBool>,
    file_changed: FileChanged,
}

impl Serving {
    fn run(&mut self) {
        loop {
            if self.queue.is_empty() {
                match self.commands.recv() {
                    Ok(Command::Run(job)) => self.queue.push(job),
                    Ok(Command::Stop) | Err(_) => return,
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Run(job)) => self.queue.push(job),
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.queue.forget_gone();
            self.step();
        }
    }

    /// Fails all requests after a panic.
    fn fail(&mut self) {
        self.metrics.warn("the encoder's thread panicked: the next request loads the model again");
        self.queue.fail_all(&ApiError::internal());
    }

    /// One step; if it fails, the inputs of each request again alone, so that only those fail that fail alone.
    fn step(&mut self) {
        let step = self.queue.step(self.encoder.step_limits());
        match self.compute(&step) {
            // Nobody waits for it any more.
            Ok(()) | Err(Error::Interrupted) => return,
            Err(_) => {}
        }
        let mut requests: BTreeMap<u64, Vec<InputId>> = BTreeMap::new();
        for (number, at) in step {
            requests.entry(number).or_default().push((number, at));
        }
        for (number, inputs) in requests {
            match self.compute(&inputs) {
                Ok(()) | Err(Error::Interrupted) => {}
                Err(error) => {
                    self.file_changed.note(&error, &self.metrics);
                    self.queue.fail(number, error.into());
                }
            }
        }
    }

    /// Computes inputs, which are done if all of them succeed.
    fn compute(&mut self, step: &[InputId]) -> Result<(), Error> {
        let inputs: Vec<Vec<u32>> = step.iter().map(|&id| self.queue.input(id).to_vec()).collect();
        let inputs = inputs.into_iter().map(Ok);
        let mut outputs = Vec::with_capacity(step.len());
        let mut tokens = 0;
        let Serving { encoder, queue, shall_end, .. } = &mut *self;
        let is_wanted = || step.iter().any(|&(number, _)| queue.is_wanted(number));
        encoder.run_while::<Error>(
            inputs,
            &mut |_, input, rows| {
                tokens += input.len();
                outputs.push(rows.to_vec());
                Ok(())
            },
            &mut || !shall_end.load(Ordering::SeqCst) && is_wanted(),
        )?;
        self.metrics.encoded(tokens);
        for (&id, rows) in step.iter().zip(outputs) {
            self.queue.done(id, rows);
        }
        Ok(())
    }
}
