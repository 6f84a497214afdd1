//! The requests that wait for an encoder: keys in turn, of a key its requests in turn, an input at a time.
//!
//! So one text waits for about a step, or for one longer text, whatever another request has left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bilayer_engine::requests::KeyId;
use tokio::sync::oneshot;

use super::Outputs;
use crate::error::ApiError;

/// A request.
pub struct Job {
    /// Whose it is.
    pub key: KeyId,
    /// Its inputs.
    pub inputs: Vec<Vec<u32>>,
    /// Where its outputs go.
    pub reply: oneshot::Sender<Result<Outputs, ApiError>>,
    /// Its place among what waits.
    pub waiting: Waiting,
}

/// Counts inputs that wait or run for as long as it lives.
pub struct Waiting {
    all: Arc<Mutex<usize>>,
    inputs: usize,
}

impl Waiting {
    /// Counts `inputs` more.
    ///
    /// # Errors
    /// With the number of those that wait, if there would be more than `most`.
    pub fn enter(all: &Arc<Mutex<usize>>, inputs: usize, most: usize) -> Result<Waiting, usize> {
        let mut waiting = all.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.saturating_add(inputs) > most {
            return Err(*waiting);
        }
        *waiting += inputs;
        Ok(Waiting { all: all.clone(), inputs })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) -= self.inputs;
    }
}

/// A request of which something is left.
struct Open {
    job: Job,
    /// Inputs that have not been begun, the shortest last.
    left: Vec<usize>,
    outputs: Outputs,
    /// Inputs without outputs.
    open: usize,
}

/// An input: the request's number, and the input's there.
pub type InputId = (u64, usize);

/// The requests that wait.
#[derive(Default)]
pub struct Queue {
    jobs: BTreeMap<u64, Open>,
    /// Of each key the requests with inputs that have not been begun, all in turn.
    turns: VecDeque<(KeyId, VecDeque<u64>)>,
    next: u64,
}

impl Queue {
    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Adds a request with inputs.
    pub fn push(&mut self, job: Job) {
        let number = self.next;
        self.next += 1;
        let open = job.inputs.len();
        let mut left: Vec<usize> = (0..open).collect();
        left.sort_by_key(|&at| std::cmp::Reverse(job.inputs[at].len()));
        self.wait(job.key, number);
        self.jobs.insert(number, Open { job, left, outputs: vec![Vec::new(); open], open });
    }

    /// Drops requests that nobody waits for.
    pub fn forget_gone(&mut self) {
        self.jobs.retain(|_, open| !open.job.reply.is_closed());
        for (_, numbers) in &mut self.turns {
            numbers.retain(|number| self.jobs.contains_key(number));
        }
        self.turns.retain(|(_, numbers)| !numbers.is_empty());
    }

    /// Takes the inputs of a step: at most so many, with so many tokens or one alone.
    pub fn step(&mut self, (inputs_max, tokens_max): (usize, usize)) -> Vec<InputId> {
        let (mut step, mut tokens) = (Vec::new(), 0);
        while step.len() < inputs_max
            && let Some((key, number)) = self.first()
        {
            let next = self.jobs.get_mut(&number).and_then(|open| {
                let &at = open.left.last()?;
                Some((open, at))
            });
            let Some((open, at)) = next else {
                self.take(key, number);
                continue;
            };
            let len = open.job.inputs[at].len();
            if !step.is_empty() && tokens + len > tokens_max {
                break;
            }
            tokens += len;
            open.left.pop();
            let has_more = !open.left.is_empty();
            step.push((number, at));
            self.take(key, number);
            if has_more {
                self.wait(key, number);
            }
        }
        step
    }

    /// Whether somebody waits for a request.
    pub fn is_wanted(&self, number: u64) -> bool {
        self.jobs.get(&number).is_some_and(|open| !open.job.reply.is_closed())
    }

    /// The tokens of an input.
    pub fn input(&self, (number, at): InputId) -> &[u32] {
        self.jobs.get(&number).map_or(&[], |open| &open.job.inputs[at])
    }

    /// An input has these rows; the request's last one sends the reply.
    pub fn done(&mut self, (number, at): InputId, rows: Vec<f32>) {
        let Some(open) = self.jobs.get_mut(&number) else { return };
        open.outputs[at] = rows;
        open.open -= 1;
        if open.open == 0
            && let Some(open) = self.jobs.remove(&number)
        {
            let Open { job: Job { reply, waiting, .. }, outputs, .. } = open;
            drop(waiting);
            // A client that has left needs no answer.
            let _ = reply.send(Ok(outputs));
        }
    }

    /// Ends a request with an error.
    pub fn fail(&mut self, number: u64, error: ApiError) {
        if let Some(Open { job: Job { reply, waiting, .. }, .. }) = self.jobs.remove(&number) {
            drop(waiting);
            let _ = reply.send(Err(error));
        }
    }

    /// Ends all requests with an error.
    pub fn fail_all(&mut self, error: &ApiError) {
        let numbers: Vec<u64> = self.jobs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.fail(number, error.clone()));
    }

    /// The request whose turn it is.
    fn first(&self) -> Option<(KeyId, u64)> {
        let (key, numbers) = self.turns.front()?;
        Some((*key, *numbers.front()?))
    }

    /// Takes the request whose turn it is out; then other keys have theirs.
    fn take(&mut self, key: KeyId, number: u64) {
        let Some((first, mut numbers)) = self.turns.pop_front() else { return };
        debug_assert_eq!((first, numbers.front()), (key, Some(&number)), "its turn");
        numbers.pop_front();
        if !numbers.is_empty() {
            self.turns.push_back((first, numbers));
        }
    }

    /// Puts a request behind the others of its key.
    fn wait(&mut self, key: KeyId, number: u64) {
        match self.turns.iter_mut().find(|(known, _)| *known == key) {
            Some((_, numbers)) => numbers.push_back(number),
            None => self.turns.push_back((key, VecDeque::from([number]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::Receiver;

    use super::*;

    type Reply = Receiver<Result<Outputs, ApiError>>;

    /// A queue, and what waits in it.
    #[derive(Default)]
    struct Desk {
        queue: Queue,
        waiting: Arc<Mutex<usize>>,
    }

    impl Desk {
        /// Adds a request of inputs with so many tokens.
        fn ask(&mut self, key: KeyId, lens: &[usize]) -> Reply {
            let inputs: Vec<Vec<u32>> = lens.iter().map(|&len| vec![0; len]).collect();
            let (reply, answer) = oneshot::channel();
            let waiting = Waiting::enter(&self.waiting, inputs.len(), 100);
            let waiting = waiting.unwrap_or_else(|_| panic!("no room"));
            self.queue.push(Job { key, inputs, reply, waiting });
            answer
        }

        /// Runs a step of at most two inputs and ten tokens; an input's row is its length.
        fn step(&mut self) -> Vec<InputId> {
            let step = self.queue.step((2, 10));
            for &id in &step {
                let rows = vec![self.queue.input(id).len() as f32];
                self.queue.done(id, rows);
            }
            step
        }

        fn waiting(&self) -> usize {
            *self.waiting.lock().unwrap()
        }
    }

    #[test]
    fn a_short_request_is_answered_beside_a_long_one() {
        let mut desk = Desk::default();
        let mut long = desk.ask(0, &[5; 20]);
        assert_eq!(desk.step(), [(0, 19), (0, 18)]);
        let mut short = desk.ask(0, &[3]);
        assert_eq!(desk.step(), [(0, 17), (1, 0)]);
        assert_eq!(short.try_recv().unwrap().unwrap(), [[3.0]]);
        assert!(long.try_recv().is_err());
        assert_eq!(desk.waiting(), 20);
        (0..9).for_each(|_| drop(desk.step()));
        assert_eq!(long.try_recv().unwrap().unwrap(), vec![[5.0]; 20]);
        assert_eq!((desk.waiting(), desk.queue.is_empty()), (0, true));
    }

    #[test]
    fn keys_have_turns_however_many_requests_each_has() {
        let mut desk = Desk::default();
        let _replies: Vec<Reply> = (0..6).map(|_| desk.ask(1, &[1, 1])).collect();
        let _other = desk.ask(2, &[1, 1, 1]);
        let keys = |step: Vec<InputId>| step.iter().filter(|(number, _)| *number == 6).count();
        assert_eq!([(); 4].map(|()| keys(desk.step())), [1, 1, 1, 0]);
    }

    #[test]
    fn a_step_has_at_most_its_tokens_or_one_input() {
        let mut desk = Desk::default();
        let mut reply = desk.ask(0, &[30, 4, 7]);
        assert_eq!(desk.step(), [(0, 1)]);
        assert_eq!(desk.step(), [(0, 2)]);
        assert_eq!(desk.step(), [(0, 0)]);
        assert_eq!(reply.try_recv().unwrap().unwrap(), [[30.0], [4.0], [7.0]]);
    }

    #[test]
    fn requests_that_nobody_waits_for_are_dropped() {
        let mut desk = Desk::default();
        let gone = desk.ask(0, &[1; 9]);
        let _kept = desk.ask(1, &[1]);
        drop(gone);
        desk.queue.forget_gone();
        assert_eq!(desk.waiting(), 1);
        assert_eq!(desk.step(), [(1, 0)]);
        assert!(desk.queue.is_empty());
    }

    #[test]
    fn a_request_too_many_is_refused() {
        let all = Arc::default();
        let first = Waiting::enter(&all, 3, 4);
        assert_eq!(Waiting::enter(&all, 2, 4).err(), Some(3));
        drop(first);
        assert!(Waiting::enter(&all, 2, 4).is_ok());
    }
}
