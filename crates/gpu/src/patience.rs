//! Decides when a GPU that is waited for counts as lost: by a lack of progress, never by slowness.

use std::time::Duration;

/// The longest wait between two looks at the device. More than this is never held against it at once: a process that was
/// stopped, or found no free core, did not see what the device did meanwhile.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// A wait for a device that is never held to be lost. wgpu-core 30.0.2 panics if a wait ends by its time-out just when
/// another thread finds the queue empty (repaired by https://github.com/gfx-rs/wgpu/pull/9958), so none ends by it here.
const WITHOUT_END: Duration = Duration::from_secs(24 * 3600);

/// How long one wait has seen nothing get done.
#[derive(Debug)]
pub(crate) struct Patience {
    /// `None`: without end.
    timeout: Option<Duration>,
    /// Submissions that the device had finished at the last look.
    finished: u64,
    /// Waited since something was finished.
    idle: Duration,
}

impl Patience {
    /// For a wait that begins when the device has finished `finished` submissions. Without a time-out the device is never
    /// lost: a software adapter computes on the CPU, which may be busy with other work for as long as it likes.
    pub fn new(timeout: Option<Duration>, finished: u64) -> Patience {
        Patience { timeout, finished, idle: Duration::ZERO }
    }

    /// Counts `waited` of looking at a device that has by now finished `finished` submissions. Returns how long nothing was
    /// finished, once that is the time-out.
    pub fn look(&mut self, waited: Duration, finished: u64) -> Option<Duration> {
        if finished != self.finished {
            self.finished = finished;
            self.idle = Duration::ZERO;
            return None;
        }
        self.idle += waited.min(LOOK);
        (self.idle >= self.timeout?).then_some(self.idle)
    }

    /// How long to wait until the next look.
    pub fn next(&self) -> Duration {
        let Some(timeout) = self.timeout else { return WITHOUT_END };
        timeout.saturating_sub(self.idle).clamp(Duration::from_millis(1), LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Looks once a second for `seconds`, at a device that finishes a submission every `every` seconds; returns when it
    /// counts as lost.
    fn lost_after(timeout: Option<Duration>, seconds: u64, every: Option<u64>) -> Option<u64> {
        let mut patience = Patience::new(timeout, 7);
        (1..=seconds).find(|second| {
            let finished = 7 + every.map_or(0, |every| second / every);
            patience.look(LOOK, finished).is_some()
        })
    }

    #[test]
    fn a_device_that_gets_things_done_is_not_lost() {
        for every in [1, 10, 29] {
            assert_eq!(lost_after(Some(TIMEOUT), 3600, Some(every)), None, "every {every} s");
        }
    }

    #[test]
    fn a_device_that_gets_nothing_done_is_lost_after_the_timeout() {
        assert_eq!(lost_after(Some(TIMEOUT), 3600, None), Some(30));
        assert_eq!(lost_after(Some(TIMEOUT), 3600, Some(31)), Some(30));
        // What was finished before the wait is no progress.
        let mut patience = Patience::new(Some(LOOK), 7);
        assert_eq!(patience.look(LOOK, 7), Some(LOOK));
    }

    #[test]
    fn a_software_adapter_is_never_lost_by_time() {
        assert_eq!(lost_after(None, 1_000_000, None), None);
    }

    /// A laptop that slept, or a process that was stopped: one look, however late, is one look.
    #[test]
    fn time_that_nobody_watched_does_not_count() {
        let mut patience = Patience::new(Some(TIMEOUT), 0);
        assert_eq!(patience.look(Duration::from_secs(3600), 0), None);
        assert_eq!(patience.idle, LOOK);
    }

    #[test]
    fn looks_at_a_gpu_are_short_and_none_is_longer_than_what_is_left() {
        assert_eq!(Patience::new(None, 0).next(), WITHOUT_END);
        assert_eq!(Patience::new(Some(TIMEOUT), 0).next(), LOOK);
        let mut patience = Patience::new(Some(Duration::from_millis(1200)), 0);
        assert_eq!(patience.look(LOOK, 0), None);
        assert_eq!(patience.next(), Duration::from_millis(200));
    }
}
