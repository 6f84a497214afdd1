//! Handlers and a worker under a model checker: the queue of commands, [`Admission`] and the scheduler of requests, whose
//! threads take turns at every lock and message, in thousands of random schedules.
//!
//! The worker here does with the scheduler what `worker.rs` does, without a model: a step computes nothing. What is checked
//! in every schedule: each request that was admitted ends once, whether it is answered, refused by the scheduler or
//! cancelled before, while or after it runs; what waits is counted until it runs; and at the end nobody waits, no request
//! runs and no page is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bilayer_engine::requests::{Arrival, KeyId, Policy, Refused, RequestId, Scheduler};
use bilayer_engine::session::Pages;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use admission::Admission;

#[path = "admission.rs"]
#[allow(clippy::duplicate_mod, reason = "once with the system's locks, once with the checker's")]
mod admission;

/// As the module of this name in the crate, with locks of the checker.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use shuttle::sync::Mutex;
}

const HANDLERS: usize = 3;
const WAITING: usize = 2;
const WAITING_PER_KEY: usize = 1;
const PAGES: usize = 6;
const CONTEXT: usize = 64;
const ANSWER: usize = 2;

type Ticket = usize;

enum Command {
    Ask { ticket: Ticket, key: KeyId },
    Cancel(Ticket),
}

/// How requests ended.
#[derive(Default)]
struct Ends {
    refused: AtomicUsize,
    answered: AtomicUsize,
    cancelled: AtomicUsize,
}

struct Open {
    ticket: Ticket,
    key: KeyId,
    waits: bool,
    left: usize,
}

struct Worker {
    commands: Receiver<Command>,
    admission: Arc<Admission>,
    ends: Arc<Ends>,
    scheduler: Scheduler,
    cache: Pages,
    open: HashMap<RequestId, Open>,
    tickets: HashMap<Ticket, RequestId>,
    steps: u32,
}

impl Worker {
    fn new(commands: Receiver<Command>, admission: Arc<Admission>, ends: Arc<Ends>) -> Worker {
        let policy = Policy {
            rows: 8,
            outputs: 8,
            sequences: 2,
            waiting: usize::MAX,
            waiting_per_key: usize::MAX,
            step: Duration::from_secs(1),
            deterministic: None,
        };
        Worker {
            commands,
            admission,
            ends,
            scheduler: Scheduler::new(policy),
            cache: Pages::new(PAGES, 4, CONTEXT),
            open: HashMap::new(),
            tickets: HashMap::new(),
            steps: 0,
        }
    }

    /// Until all handlers have left and nothing is open.
    fn run(mut self) {
        loop {
            let command = match self.open.is_empty() {
                true => match self.commands.recv() {
                    Ok(command) => Some(command),
                    Err(_) => return self.check(),
                },
                false => self.commands.try_recv().ok(),
            };
            match command {
                Some(Command::Ask { ticket, key }) => self.admit(ticket, key),
                Some(Command::Cancel(ticket)) => {
                    if let Some(id) = self.tickets.get(&ticket).copied() {
                        self.scheduler.end(id, &mut self.cache);
                        self.close(id);
                        self.ends.cancelled.fetch_add(1, Ordering::SeqCst);
                    }
                }
                None => self.step(),
            }
        }
    }

    fn admit(&mut self, ticket: Ticket, key: KeyId) {
        let arrival = Arrival {
            key,
            prompt: vec![1, 2, 3, ticket as u32],
            reuse: true,
            ..Arrival::default()
        };
        match self.scheduler.submit(Duration::ZERO, arrival) {
            Ok(id) => {
                self.open.insert(id, Open { ticket, key, waits: true, left: ANSWER });
                self.tickets.insert(ticket, id);
            }
            Err(_) => panic!("a request that was admitted is refused by the scheduler"),
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        let items = self.scheduler.next_step(Duration::from_millis(10), &mut self.cache);
        assert!(!items.is_empty(), "requests are open and none runs");
        for item in &items {
            let open = self.open.get_mut(&item.request).expect("what runs is open");
            if std::mem::take(&mut open.waits) {
                self.admission.leave(open.key);
            }
            let tokens = &self.scheduler.tokens(item.request)[item.start..item.end];
            let appended = self.cache.append(item.sequence, tokens, &mut Vec::new());
            assert_eq!(appended, Ok(item.start));
        }
        self.scheduler.finish_step(&items, Duration::from_millis(1), &mut self.cache);
        for item in items.iter().filter(|item| item.selects) {
            let open = self.open.get_mut(&item.request).expect("what runs is open");
            open.left -= 1;
            let is_last = open.left == 0;
            let token = 100 + open.ticket as u32;
            self.scheduler.push(item.request, &[token], &mut self.cache);
            if is_last {
                self.scheduler.end(item.request, &mut self.cache);
                self.close(item.request);
                self.ends.answered.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn close(&mut self, id: RequestId) {
        let open = self.open.remove(&id).expect("it ends once");
        self.tickets.remove(&open.ticket);
        if open.waits {
            self.admission.leave(open.key);
        }
    }

    fn check(mut self) {
        assert_eq!((self.scheduler.waiting(), self.scheduler.running().count()), (0, 0));
        for key in 0..WAITING as KeyId {
            assert_eq!(self.admission.enter(key, 1), Ok(()), "nobody is counted as waiting");
        }
        // All pages can be had: what finished requests left is given up.
        self.scheduler.clear_cache(None, &mut self.cache);
        assert_eq!(self.cache.free_pages(), PAGES);
    }
}

/// Two requests, of which the second is cancelled at some time.
fn handle(number: usize, commands: &Sender<Command>, admission: &Admission, ends: &Ends) {
    for turn in 0..2 {
        let (ticket, key) = (2 * number + turn, (number % 2) as KeyId);
        if admission.enter(key, 1).is_err() {
            ends.refused.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        assert!(commands.send(Command::Ask { ticket, key }).is_ok());
        if turn == 1 {
            thread::yield_now();
            assert!(commands.send(Command::Cancel(ticket)).is_ok());
        }
    }
}

fn handlers_and_a_worker() {
    let admission = Arc::new(Admission::new(WAITING, WAITING_PER_KEY));
    let ends = Arc::new(Ends::default());
    let (sender, commands) = channel();
    let worker = Worker::new(commands, admission.clone(), ends.clone());
    let worker = thread::spawn(move || worker.run());
    let handlers: Vec<_> = (0..HANDLERS)
        .map(|number| {
            let (sender, admission, ends) = (sender.clone(), admission.clone(), ends.clone());
            thread::spawn(move || handle(number, &sender, &admission, &ends))
        })
        .collect();
    drop(sender);
    for handler in handlers {
        handler.join().expect("a handler ends");
    }
    worker.join().expect("the worker ends");
    let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
    let sum = count(&ends.refused) + count(&ends.answered) + count(&ends.cancelled);
    assert_eq!(sum, 2 * HANDLERS, "each request ends once");
}

#[test]
fn no_schedule_loses_a_request() {
    shuttle::check_random(handlers_and_a_worker, 1000);
    // Schedules with few changes of threads, which some rare orders need.
    shuttle::check_pct(handlers_and_a_worker, 1000, 3);
}

#[test]
fn too_many_are_refused_until_one_leaves() {
    let in_turn = || {
        let admission = Admission::new(3, 2);
        assert_eq!((admission.enter(1, 1), admission.enter(1, 1)), (Ok(()), Ok(())));
        assert_eq!(admission.enter(1, 1), Err(Refused::Key { waiting: 2 }));
        assert_eq!(admission.enter(2, 1), Ok(()));
        assert_eq!(admission.enter(3, 1), Err(Refused::Full { waiting: 3 }));
        admission.leave(1);
        assert_eq!(admission.enter(3, 1), Ok(()));
        admission.leave(9);
        assert_eq!(admission.enter(3, 1), Err(Refused::Full { waiting: 3 }));
    };
    shuttle::check_random(in_turn, 1);
}

#[test]
fn a_request_of_many_answers_is_admitted_or_refused_as_one() {
    let in_turn = || {
        let admission = Admission::new(3, 2);
        assert_eq!(admission.enter(1, 8), Ok(()));
        assert_eq!(admission.enter(2, 8), Err(Refused::Full { waiting: 8 }));
        (0..6).for_each(|_| admission.leave(1));
        assert_eq!(admission.enter(1, 8), Err(Refused::Key { waiting: 2 }));
        assert_eq!(admission.enter(2, 8), Ok(()));
    };
    shuttle::check_random(in_turn, 1);
}
