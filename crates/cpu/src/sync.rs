//! The threads, locks and atomics of the pool, and how long its threads wait before they park.

use std::time::Duration;

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::{Builder, JoinHandle, yield_now};

/// Looks at a condition between two readings of the clock while spinning.
pub(crate) const LOOKS: usize = 16;

/// Longest spin on an idle machine.
pub(crate) const SPIN: Duration = Duration::from_micros(60);

/// Time a thread yields between spinning and parking.
pub(crate) const YIELD: Duration = Duration::from_micros(100);
