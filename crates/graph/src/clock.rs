//! The clock by which work on devices is timed: the system's, or one that simulated devices advance.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock. Clones show the same time.
///
/// Whatever measures a session reads the clock of its devices ([`crate::Backend::clock`]), so that times of simulated
/// devices are those of the simulated hardware, exact and independent of the machine that runs the simulation.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Simulated>>);

/// Time that passes only when it is advanced.
#[derive(Debug)]
struct Simulated {
    epoch: Instant,
    /// Nanoseconds after the epoch.
    ns: AtomicU64,
}

impl Clock {
    /// The system's monotonic clock.
    pub fn system() -> Clock {
        Clock(None)
    }

    /// A clock that stands still until [`Clock::advance_to`].
    pub fn simulated() -> Clock {
        Clock(Some(Arc::new(Simulated { epoch: Instant::now(), ns: AtomicU64::new(0) })))
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(simulated) => {
                simulated.epoch + Duration::from_nanos(simulated.ns.load(Ordering::Acquire))
            }
        }
    }

    /// The time since `then`; zero if that is later.
    pub fn since(&self, then: Instant) -> Duration {
        self.now().saturating_duration_since(then)
    }

    /// Advances a simulated clock to `then`, unless that is past. The system's clock is not affected.
    pub fn advance_to(&self, then: Instant) {
        if let Some(simulated) = &self.0 {
            let ns = then.saturating_duration_since(simulated.epoch).as_nanos();
            simulated.ns.fetch_max(u64::try_from(ns).unwrap_or(u64::MAX), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Clock;

    #[test]
    fn a_simulated_clock_stands_still_until_it_is_advanced() {
        let clock = Clock::simulated();
        let (began, other) = (clock.now(), clock.clone());
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(clock.since(began), Duration::ZERO);
        other.advance_to(began + Duration::from_secs(3));
        clock.advance_to(began + Duration::from_secs(2));
        assert_eq!(clock.since(began), Duration::from_secs(3));
        assert_eq!(clock.since(began + Duration::from_secs(9)), Duration::ZERO);
    }

    #[test]
    fn the_system_clock_runs_by_itself() {
        let clock = Clock::system();
        let began = clock.now();
        clock.advance_to(began + Duration::from_secs(3600));
        std::thread::sleep(Duration::from_millis(1));
        let passed = clock.since(began);
        assert!(passed >= Duration::from_millis(1) && passed < Duration::from_secs(3600));
    }
}
