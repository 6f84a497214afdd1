//! Waiting for what a device does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bilayer_graph::Error as GraphError;

use super::Device;
use crate::patience::Patience;

/// Duration of spinning before sleeping: waking up costs more than small work takes.
const SPIN: Duration = Duration::from_micros(150);

impl Device {
    /// Waits until `done` is set by a callback of the device: spins briefly, then sleeps.
    ///
    /// # Errors
    /// The device was lost, or finishes nothing for as long as the time-out.
    pub fn wait(&self, done: &AtomicBool) -> Result<(), GraphError> {
        self.wait_until(|| done.load(Ordering::Acquire))
    }

    /// [`Device::wait`] for what a callback of that submission sets: what was submitted later need not be done.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub(crate) fn wait_for(
        &self,
        submission: Option<&wgpu::SubmissionIndex>,
        done: &AtomicBool,
    ) -> Result<(), GraphError> {
        self.wait_beyond(submission.cloned(), || done.load(Ordering::Acquire))
    }

    /// Waits until a condition holds that callbacks of the device change.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub fn wait_until(&self, done: impl Fn() -> bool) -> Result<(), GraphError> {
        self.wait_beyond(None, done)
    }

    /// Waits for a submission, or the newest one, and on until `done`.
    fn wait_beyond(
        &self,
        mut submission: Option<wgpu::SubmissionIndex>,
        done: impl Fn() -> bool,
    ) -> Result<(), GraphError> {
        let began = Instant::now();
        let hung = self.hung.get().copied();
        let finished = || if hung.is_some() { 0 } else { self.finished.load(Ordering::Acquire) };
        let done = || hung.is_none() && done();
        let mut patience = Patience::new(hung.or(self.timeout), finished());
        let mut looked = began;
        while !done() {
            self.check()?;
            let polled = if began.elapsed() < SPIN {
                self.device.poll(wgpu::PollType::Poll)
            } else {
                let (submission_index, timeout) = (submission.clone(), Some(patience.next()));
                let polled = self.device.poll(wgpu::PollType::Wait { submission_index, timeout });
                // If it is done and its callback was not what is waited for, all else is.
                submission = submission.filter(|_| polled.is_err());
                polled
            };
            match polled {
                Ok(_) | Err(wgpu::PollError::Timeout) => {}
                Err(error) => return Err(self.lost(format!("it cannot be waited for: {error}"))),
            }
            let now = Instant::now();
            let idle = patience.look(now - looked, finished());
            looked = now;
            if let Some(idle) = idle.filter(|_| !done()) {
                self.abandon();
                return Err(self.lost(format!("it finished nothing in {idle:?}")));
            }
        }
        self.check()
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub fn finish(&self) -> Result<(), GraphError> {
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        self.queue.on_submitted_work_done(move || set.store(true, Ordering::Release));
        self.wait(&done)
    }
}
