//! The thread that owns a decoder's session: it takes requests from handlers, steps, and sends back what happens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bilayer_engine::requests::{
    Event, Executor, ExecutorSettings, KeyId, RequestId, Served, Submission,
};
use bilayer_engine::session::{Clock, ExpertHits, SavedSequence, Spent};
use metrics::Gauge;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::admission::Admission;
use crate::config::Opened;
use crate::error::ApiError;
use crate::memory::Place;
use crate::metrics::Metrics;
use crate::thread::{self, FileChanged};

/// Identifies a request between a handler and a worker.
pub type Ticket = u64;

/// A request of a handler.
pub struct Ask {
    /// Its ticket.
    pub ticket: Ticket,
    /// Its number among the answers of one HTTP request.
    pub index: usize,
    /// What is asked; its `after` is filled in from the ticket below, and its `arrived` by [`Worker::ask`].
    pub submission: Submission,
    /// A request with the same prompt.
    pub after: Option<Ticket>,
    /// Where its events go; closed by a handler that lost its client.
    pub updates: UnboundedSender<(usize, Update)>,
}

/// What a handler is told.
#[derive(Debug)]
pub enum Update {
    /// The request runs or waits.
    Accepted,
    /// It was refused, or the worker failed.
    Failed(ApiError),
    /// Something happened to it.
    Event(Event),
}

enum Command {
    Ask(Box<Ask>),
    Cancel(Ticket),
    Slot(u32, SlotAction, oneshot::Sender<Result<SlotOutcome, bilayer_engine::Error>>),
    Stop,
}

/// What to do with a slot.
pub enum SlotAction {
    /// Copy its sequence.
    Save,
    /// Give it contents that requests of the namespace continue.
    Restore(Box<SavedSequence>, u64),
    /// Empty it.
    Erase,
}

/// What came of it.
pub enum SlotOutcome {
    /// A copy of its sequence; `None` if it is empty.
    Saved(Option<Box<SavedSequence>>),
    /// It has the contents.
    Restored,
    /// It had so many tokens.
    Erased(usize),
}

/// What the worker is doing, for `/live`, `/slots` and `/metrics`.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// The devices: their names and, of the last second, the share of time that each was busy.
    pub devices: Vec<LiveDevice>,
    /// Device of the embedding, of each layer and of the output head.
    pub embedding: usize,
    /// Device of each layer.
    pub layers: Vec<usize>,
    /// Device of the output head.
    pub output: usize,
    /// The placement in one line.
    pub map: String,
    /// Time of the last step.
    pub step: Spent,
    /// Decode rows of the last step.
    pub decode_rows: usize,
    /// Prefill rows of the last step.
    pub prefill_rows: usize,
    /// Tokens generated a second, over the last second.
    pub decode_tps: f64,
    /// Prefill rows a second, over the last second.
    pub prefill_tps: f64,
    /// Running requests, each with its tokens in the cache and generated.
    pub slots: Vec<LiveSlot>,
    /// Waiting requests.
    pub waiting: usize,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_used: f64,
    /// Steps so far.
    pub steps: u64,
    /// Rows of all steps that decoded, for the mean of busy slots.
    pub rows_total: u64,
    /// Predicted time of a decode step.
    pub decode_time: Option<Duration>,
}

/// A device in [`Live`].
#[derive(Clone, Debug, Default)]
pub struct LiveDevice {
    /// Its name.
    pub name: String,
    /// Share of the last second in which it was busy, 0 to 1.
    pub busy: f64,
    /// Memory that the plan uses on it.
    pub used_bytes: u64,
    /// Memory that the plan may use.
    pub budget_bytes: u64,
}

/// A running request in [`Live`].
#[derive(Clone, Copy, Debug)]
pub struct LiveSlot {
    /// Its ticket.
    pub ticket: Ticket,
    /// Its slot.
    pub slot: u32,
    /// Tokens in the cache.
    pub cached: usize,
}

/// A handle to the thread, which ends when this is dropped, after its step.
pub struct Worker {
    commands: Mutex<Sender<Command>>,
    admission: Arc<Admission>,
    live: Arc<Mutex<Live>>,
    clock: Clock,
    has_ended: Arc<AtomicBool>,
    /// Whether the thread was told to end.
    is_stopped: AtomicBool,
    file_changed: FileChanged,
}

impl Worker {
    /// Starts a thread that serves an opened model. It holds `place` until the session's memory is free.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        opened: Opened,
        settings: ExecutorSettings,
        metrics: Arc<Metrics>,
        place: Arc<Place>,
    ) -> std::io::Result<Worker> {
        let (sender, commands) = mpsc::channel();
        let live = Arc::new(Mutex::new(Live::default()));
        let shared = live.clone();
        let admission = Arc::new(Admission::new(settings.waiting, settings.waiting_per_key));
        let mut opened = opened;
        let at_end = opened.at_end.take();
        let clock = opened.session.clock().clone();
        let file_changed = FileChanged::default();
        let serving = Serving {
            executor: executor(opened, settings),
            admission: admission.clone(),
            commands,
            live: shared,
            metrics,
            file_changed: file_changed.clone(),
            open: HashMap::new(),
            tickets: HashMap::new(),
            busy: Vec::new(),
            window: Window::new(),
            expert_hits: ExpertHits::default(),
        };
        let run = |serving: &mut Serving| {
            serving.run();
            if let Some(at_end) = at_end {
                at_end(serving.executor.session());
            }
        };
        let has_ended = thread::start("bilayer-worker", serving, place, run, Serving::fail)?;
        let commands = Mutex::new(sender);
        let is_stopped = AtomicBool::new(false);
        Ok(Worker { commands, admission, live, clock, has_ended, is_stopped, file_changed })
    }

    /// Hands over what one request of `key` asks for, so many answers: all of it, or none. `asks` makes it once it is
    /// admitted, since that takes memory.
    ///
    /// # Errors
    /// Too many wait; the thread has ended; those of `asks`.
    pub fn ask(
        &self,
        key: KeyId,
        answers: usize,
        asks: impl FnOnce() -> Result<Vec<Ask>, ApiError>,
    ) -> Result<(), ApiError> {
        if let Err(refused) = self.admission.enter(key, answers) {
            let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(ApiError::refused(refused, retry_after(live.decode_time, live.waiting)));
        }
        let arrived = Some(self.clock.now());
        let asks = asks().inspect_err(|_| (0..answers).for_each(|_| self.admission.leave(key)))?;
        for mut ask in asks {
            ask.submission.arrived = arrived;
            // The admission ends with the thread, so what was counted need not leave.
            if !self.send(Command::Ask(Box::new(ask))) {
                return Err(self.ended());
            }
        }
        Ok(())
    }

    /// Ends a request, if it still runs or waits.
    pub fn cancel(&self, ticket: Ticket) {
        self.send(Command::Cancel(ticket));
    }

    /// Does something with a slot, between two steps.
    ///
    /// # Errors
    /// Those of the session; the thread has ended.
    pub async fn slot(&self, slot: u32, action: SlotAction) -> Result<SlotOutcome, ApiError> {
        let (sender, outcome) = oneshot::channel();
        self.send(Command::Slot(slot, action, sender));
        Ok(outcome.await.map_err(|_| self.ended())??)
    }

    /// What the worker is doing.
    pub fn live(&self) -> Live {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The error of a request that the thread has not answered.
    pub fn ended(&self) -> ApiError {
        match self.is_stopped.load(Ordering::SeqCst) {
            true => ApiError::stopping(),
            false => ApiError::ended(),
        }
    }

    /// Ends the thread after its step; the requests that are left fail.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.send(Command::Stop);
    }

    /// Whether the thread has ended: it was stopped, or it panicked.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Whether the model's file has changed, so that the thread answers no request any more.
    pub fn has_changed_file(&self) -> bool {
        self.file_changed.is_set()
    }

    fn send(&self, command: Command) -> bool {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command).is_ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Steps of about the last second.
struct Window {
    began: Instant,
    spent: Spent,
    tokens: usize,
    prefill_rows: usize,
}

impl Window {
    fn new() -> Window {
        let spent = Spent::default();
        Window { began: Instant::now(), spent, tokens: 0, prefill_rows: 0 }
    }
}

/// The thread's state.
struct Serving {
    executor: Executor,
    admission: Arc<Admission>,
    commands: Receiver<Command>,
    live: Arc<Mutex<Live>>,
    metrics: Arc<Metrics>,
    file_changed: FileChanged,
    open: HashMap<RequestId, OpenRequest>,
    tickets: HashMap<Ticket, RequestId>,
    /// The busy time of each device, of all models.
    busy: Vec<Gauge>,
    window: Window,
    /// The session's hits that were counted.
    expert_hits: ExpertHits,
}

/// What the thread has just done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Nothing: all requests have ended.
    Idle,
    /// A step.
    Step,
}

/// An open request.
struct OpenRequest {
    key: KeyId,
    /// Whether it is counted as waiting.
    waits: bool,
    ticket: Ticket,
    index: usize,
    updates: UnboundedSender<(usize, Update)>,
    /// What was computed for it up to its last event.
    served: Served,
}

/// Seconds after which some of the waiting requests will have been served.
fn retry_after(step: Option<Duration>, waiting: usize) -> u64 {
    let step = step.unwrap_or(Duration::from_millis(50));
    let seconds = step.as_secs_f64() * waiting as f64;
    (seconds.ceil() as u64).clamp(1, 60)
}

fn executor(opened: Opened, settings: ExecutorSettings) -> Executor {
    let Opened { session, drafters, .. } = opened;
    // [`Admission`] limits who waits.
    let settings =
        ExecutorSettings { waiting: usize::MAX, waiting_per_key: usize::MAX, ..settings };
    let executor = Executor::new(session, settings);
    match drafters {
        Some(drafters) => executor.with_drafts(drafters),
        None => executor,
    }
}

impl Serving {
    fn run(&mut self) {
        self.describe();
        loop {
            let is_idle = self.open.is_empty();
            if is_idle {
                self.publish(Activity::Idle);
                match self.commands.recv() {
                    Ok(Command::Stop) | Err(_) => return,
                    Ok(command) => self.obey(command),
                }
                // Rates are those of the time in which there was something to do.
                self.window = Window::new();
            }
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.step();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Ask(ask) => self.admit(*ask),
            Command::Cancel(ticket) => {
                if let Some(id) = self.tickets.remove(&ticket) {
                    self.cancel(id);
                }
            }
            Command::Slot(slot, action, sender) => {
                let outcome = self.act(slot, action);
                // A client that has left needs no answer.
                let _ = sender.send(outcome);
            }
            Command::Stop => {}
        }
    }

    /// Ends a request whose client has left.
    fn cancel(&mut self, id: RequestId) {
        self.executor.cancel(id);
        if let Some(open) = self.close(id) {
            self.metrics.computed_for(&open.served);
        }
        self.metrics.cancelled.increment(1);
    }

    fn act(&mut self, slot: u32, action: SlotAction) -> Result<SlotOutcome, bilayer_engine::Error> {
        let executor = &mut self.executor;
        Ok(match action {
            SlotAction::Save => SlotOutcome::Saved(executor.save_slot(slot)?.map(Box::new)),
            SlotAction::Restore(saved, namespace) => {
                executor.restore_slot(slot, &saved, namespace)?;
                SlotOutcome::Restored
            }
            SlotAction::Erase => SlotOutcome::Erased(executor.erase_slot(slot)),
        })
    }

    fn admit(&mut self, ask: Ask) {
        let Ask { ticket, index, mut submission, after, updates } = ask;
        let key = submission.key;
        submission.after = after.and_then(|ticket| self.tickets.get(&ticket)).copied();
        match self.executor.submit(submission) {
            Ok(id) => {
                // A client that has left is noticed at the first event.
                let _ = updates.send((index, Update::Accepted));
                let served = Served::default();
                let open = OpenRequest { key, waits: true, ticket, index, updates, served };
                self.open.insert(id, open);
                self.tickets.insert(ticket, id);
            }
            Err(error) => {
                self.admission.leave(key);
                let _ = updates.send((index, Update::Failed(error.into())));
            }
        }
    }

    /// Forgets a request that has ended.
    fn close(&mut self, id: RequestId) -> Option<OpenRequest> {
        let open = self.open.remove(&id)?;
        self.tickets.remove(&open.ticket);
        if open.waits {
            self.admission.leave(open.key);
        }
        Some(open)
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        if self.executor.step(&mut events) {
            self.count();
            self.publish(Activity::Step);
        }
        for warning in self.executor.take_warnings() {
            self.metrics.warn(&warning.to_string());
            self.describe();
        }
        for (id, event) in events {
            self.tell(id, event);
        }
    }

    fn tell(&mut self, id: RequestId, event: Event) {
        let ends = matches!(event, Event::Ended { .. } | Event::Failed(_));
        self.metrics.event(&event);
        if let Event::Failed(error) = &event {
            self.file_changed.note(error, &self.metrics);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        // Its first event says that it runs.
        if std::mem::take(&mut open.waits) {
            self.admission.leave(open.key);
        }
        match &event {
            Event::Prefilled(served) => open.served = served.clone(),
            Event::Token(delta) => open.served = delta.served.clone(),
            Event::Failed(_) => self.metrics.computed_for(&open.served),
            _ => {}
        }
        let is_gone = open.updates.send((open.index, Update::Event(event))).is_err();
        if ends {
            self.close(id);
        } else if is_gone {
            self.cancel(id);
        }
    }

    /// Fails all requests after a panic.
    fn fail(&mut self) {
        self.metrics.warn("the model's thread panicked: the next request loads the model again, with the LoRA strengths of the start");
        for (_, open) in self.open.drain() {
            self.metrics.computed_for(&open.served);
            let _ = open.updates.send((open.index, Update::Failed(ApiError::internal())));
        }
    }

    /// Publishes the placement.
    fn describe(&mut self) {
        let plan = self.executor.session().plan();
        self.busy = plan.devices.iter().map(|device| self.metrics.busy(&device.label)).collect();
        let devices = plan.devices.iter().map(|device| LiveDevice {
            name: device.label.clone(),
            used_bytes: device.used_bytes,
            budget_bytes: device.budget_bytes,
            ..LiveDevice::default()
        });
        let live = Live {
            devices: devices.collect(),
            embedding: plan.placement.embedding,
            layers: plan.placement.layers.clone(),
            output: plan.placement.output,
            map: plan.map.clone(),
            ..self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    fn count(&mut self) {
        let report = self.executor.last_step();
        self.window.spent.add(&report.spent);
        self.window.tokens += report.tokens;
        self.window.prefill_rows += report.prefill_rows;
        let busy = self.busy.iter().zip(&report.spent.devices);
        busy.for_each(|(sum, busy)| sum.increment(busy.as_secs_f64()));
        self.metrics.step(report);
        let hits = self.executor.session().expert_hits().unwrap_or_default();
        self.metrics.experts(hits.since(std::mem::replace(&mut self.expert_hits, hits)));
    }

    fn publish(&mut self, activity: Activity) {
        let is_idle = activity == Activity::Idle;
        let slots = self.executor.slots();
        let tickets = slots.iter().filter_map(|running| {
            let ticket = self.open.get(&running.request)?.ticket;
            Some(LiveSlot { ticket, slot: running.slot, cached: running.cached })
        });
        let slots = tickets.collect();
        let report = self.executor.last_step();
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.slots = slots;
        live.waiting = self.executor.waiting();
        live.kv_used = self.executor.kv_used();
        live.decode_time = self.executor.decode_time();
        if !is_idle {
            live.step = report.spent.clone();
            live.decode_rows = report.decode_rows;
            live.prefill_rows = report.prefill_rows;
            live.steps += 1;
            live.rows_total += (report.decode_rows + usize::from(report.prefill_rows > 0)) as u64;
        }
        let passed = self.window.began.elapsed().as_secs_f64();
        if is_idle {
            (live.decode_tps, live.prefill_tps) = (0.0, 0.0);
            live.devices.iter_mut().for_each(|device| device.busy = 0.0);
        } else if passed >= 1.0 {
            live.decode_tps = self.window.tokens as f64 / passed;
            live.prefill_tps = self.window.prefill_rows as f64 / passed;
            for (device, busy) in live.devices.iter_mut().zip(&self.window.spent.devices) {
                device.busy = (busy.as_secs_f64() / passed).min(1.0);
            }
            self.window = Window::new();
        }
    }
}
