//! The thread that owns an encoder: it collects the texts of all waiting requests and runs them in batches by length.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bilayer_engine::Error;
use bilayer_engine::encode::Encoder;
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::metrics::Metrics;

/// Inputs that may wait, over all requests, unless as many requests may.
const WAITING_MAX: usize = 16_384;

/// Rows of each input of a request, `[rows, width]` each.
pub type Outputs = Vec<Vec<f32>>;

struct Job {
    inputs: Vec<Vec<u32>>,
    reply: oneshot::Sender<Result<Outputs, ApiError>>,
}

/// A handle to the thread.
pub struct EncoderWorker {
    jobs: Mutex<Option<Sender<Job>>>,
    waiting: Arc<Mutex<usize>>,
    waiting_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl EncoderWorker {
    /// Starts a thread that serves `encoder`, for which so many requests may wait.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        encoder: Encoder,
        requests: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<EncoderWorker> {
        let (sender, jobs) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(0));
        let left = waiting.clone();
        let thread = std::thread::Builder::new().name("bilayer-encoder".to_owned());
        let thread = thread.spawn(move || serve(encoder, &jobs, &left, &metrics))?;
        let jobs = Mutex::new(Some(sender));
        let waiting_max = requests.max(WAITING_MAX);
        Ok(EncoderWorker { jobs, waiting, waiting_max, thread: Some(thread) })
    }

    /// Runs tokenized inputs; the rows come in their order.
    ///
    /// # Errors
    /// Too much is waiting; a device failed.
    pub async fn run(&self, inputs: Vec<Vec<u32>>) -> Result<Outputs, ApiError> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if *waiting + inputs.len() > self.waiting_max {
                let message = format!("the server is at capacity: {waiting} inputs are waiting");
                return Err(ApiError::unavailable(message));
            }
            *waiting += inputs.len();
        }
        let (reply, answer) = oneshot::channel();
        let gone = || ApiError::server("the encoder has ended");
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        jobs.ok_or_else(gone)?.send(Job { inputs, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Inputs that wait or run.
    pub fn waiting(&self) -> usize {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EncoderWorker {
    fn drop(&mut self) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut encoder: Encoder, jobs: &Receiver<Job>, waiting: &Mutex<usize>, metrics: &Metrics) {
    while let Ok(first) = jobs.recv() {
        let batch: Vec<Job> = std::iter::once(first).chain(jobs.try_iter()).collect();
        // Clients that have left need no answer.
        let (batch, gone): (Vec<Job>, Vec<Job>) =
            batch.into_iter().partition(|job| !job.reply.is_closed());
        let count: usize = batch.iter().chain(&gone).map(|job| job.inputs.len()).sum();
        let outcome = run(&mut encoder, &batch);
        *waiting.lock().unwrap_or_else(PoisonError::into_inner) -= count;
        let tokens = batch.iter().flat_map(|job| &job.inputs).map(Vec::len).sum::<usize>();
        metrics.encoded(tokens);
        match outcome {
            Ok(outputs) => {
                for (job, outputs) in batch.into_iter().zip(outputs) {
                    let _ = job.reply.send(Ok(outputs));
                }
            }
            // Each request alone, so that only those fail that fail alone.
            Err(_) => {
                for job in batch {
                    let outcome = run(&mut encoder, std::slice::from_ref(&job));
                    let outcome = outcome.map(|mut outputs| outputs.pop().unwrap_or_default());
                    let _ = job.reply.send(outcome.map_err(ApiError::from));
                }
            }
        }
    }
}

/// Runs the inputs of all jobs, similar lengths together.
fn run(encoder: &mut Encoder, jobs: &[Job]) -> Result<Vec<Outputs>, Error> {
    let mut outputs: Vec<Outputs> =
        jobs.iter().map(|job| vec![Vec::new(); job.inputs.len()]).collect();
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        order.extend((0..job.inputs.len()).map(|at| (number, at)));
    }
    order.sort_by_key(|&(number, at)| jobs[number].inputs[at].len());
    let inputs = order.iter().map(|&(number, at)| Ok(jobs[number].inputs[at].clone()));
    encoder.run::<Error>(inputs, &mut |done, _, rows| {
        let (number, at) = order[done];
        outputs[number][at] = rows.to_vec();
        Ok(())
    })?;
    Ok(outputs)
}
