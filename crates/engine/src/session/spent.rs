//! Where the time of steps went.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::trace::{Trace, What};

/// Time spent in steps since the session began or since the last call. If devices work at the same time, their times add
/// up to more than the total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Total time of steps.
    pub total: Duration,
    /// Time in which each of the plan's devices had segments to run, as recorded by [`Lane`](super::Lane): the host first, then the
    /// other devices, then lost ones.
    pub devices: Vec<Duration>,
    /// Time spent copying hidden states, pages of caches and streamed weights between devices.
    pub crossing: Duration,
}

impl Spent {
    pub(super) fn of(devices: usize) -> Spent {
        Spent { devices: vec![Duration::ZERO; devices], ..Spent::default() }
    }

    pub(super) fn clear(&mut self) {
        (self.total, self.crossing) = Default::default();
        self.devices.fill(Duration::ZERO);
    }

    /// Adds the time of a transfer to or from a device, and records it. Segments without inputs or outputs transfer nothing.
    pub(super) fn transferred(
        &mut self,
        trace: &mut Option<Trace>,
        what: What,
        device: usize,
        bytes: u64,
        time: Range<Instant>,
    ) {
        if bytes == 0 {
            return;
        }
        self.crossing += time.end - time.start;
        if let Some(trace) = trace {
            trace.call(what, device, bytes, time);
        }
    }

    /// Time in which the host had segments to run.
    pub fn host(&self) -> Duration {
        self.devices.first().copied().unwrap_or_default()
    }

    /// The sum over the other devices of the time in which they had segments to run.
    pub fn offload(&self) -> Duration {
        self.devices.iter().skip(1).sum()
    }

    /// Adds another record, device by device.
    pub fn add(&mut self, other: &Spent) {
        self.total += other.total;
        self.crossing += other.crossing;
        let len = self.devices.len().max(other.devices.len());
        self.devices.resize(len, Duration::ZERO);
        self.devices.iter_mut().zip(&other.devices).for_each(|(all, more)| *all += *more);
    }
}
