//! Times on which plans are based: requesting, storing and invalidating them.
//!
//! This crate does not measure them. [`Settings::time_device`](crate::session::Settings::time_device) names a
//! function that does, on each device the first time that a model runs on it; `bilayer-measure` has one.

use std::time::Duration;

use bilayer_files::hash::fnv;
use bilayer_graph::{Backend, Error as DeviceError, Graph, Holding, Limits, Weight};
use bilayer_scheduler::{Basis, DeviceTimes, Times, timed_tokens};

use crate::kept::Kept;
use crate::{Error, Model};

/// Factor between predicted and measured time from which stored times are stale.
const STALE: f64 = 1.5;

/// Minimum number of steps for judging a prediction.
const STEPS_TO_JUDGE: u32 = 16;

/// Measures the times of a model's parts on one device.
pub type TimeDevice = fn(&Subject<'_>, &mut dyn Backend) -> Result<DeviceTimes, Error>;

/// The model to be timed.
pub struct Subject<'a> {
    /// The model, with its file.
    pub model: &'a Model,
    /// Its graph.
    pub graph: &'a Graph,
    /// The session's limits: tokens of a step, cache types, fusion.
    pub limits: Limits,
}

impl Subject<'_> {
    /// Measures the times of a machine's devices. One without memory for that gets the times of an equal one, or else those
    /// of the host: a plan gains nothing by placing layers there, and may. `None` if a device fails otherwise. `notes` says
    /// why, and is empty if the times are those of the devices.
    pub(crate) fn measure(
        &self,
        time_device: TimeDevice,
        backends: &mut [Box<dyn Backend>],
        notes: &mut Vec<String>,
    ) -> Option<Times> {
        let mut measured = Vec::with_capacity(backends.len());
        for backend in backends.iter_mut() {
            let timed = match time_device(self, backend.as_mut()) {
                Err(Error::Device(DeviceError::StepTooLarge { most, .. })) => {
                    let limits = Limits { tokens: most, ..self.limits };
                    time_device(&Subject { limits, ..*self }, backend.as_mut())
                }
                timed => timed,
            };
            match timed {
                Ok(times) => measured.push(Ok(times)),
                Err(error @ Error::Device(DeviceError::OutOfMemory { .. })) => {
                    // What it has loaded is given back; if that fails, the session finds it.
                    let _ = backend.reserve(&Holding::default());
                    measured.push(Err(error));
                }
                Err(error) => {
                    notes.push(format!("{error}, so times are not measured"));
                    return None;
                }
            }
        }
        let mut devices = Vec::with_capacity(measured.len());
        for (backend, times) in backends.iter().zip(&measured) {
            let identity = &backend.facts().identity;
            let equal = || {
                let all = backends.iter().zip(&measured);
                let mut equal = all.filter(|(other, _)| other.facts().identity == *identity);
                equal.find_map(|(_, times)| times.as_ref().ok().cloned())
            };
            devices.push(match (times, equal()) {
                (Ok(times), _) => times.clone(),
                (Err(_), Some(equal)) => equal,
                (Err(error), None) => {
                    notes.push(format!("{error}, so this plan gives it the speed of the CPU"));
                    let host = measured.first()?.as_ref().ok()?;
                    DeviceTimes { upload: None, ..host.clone() }
                }
            });
        }
        let times = Times { basis: Basis::Measured, devices };
        times.fit(self.graph.layers() as usize, backends.len()).then_some(times)
    }

    /// The times stored under a name, if they are plausible.
    pub(crate) fn known(&self, devices: usize, name: &str, kept: &Kept) -> Option<Times> {
        let times: Times = serde_json::from_slice(&kept.load(name)?).ok()?;
        times.fit(self.graph.layers() as usize, devices).then_some(times)
    }

    /// The name of the file: hardware, drivers, this build, threads, the size of the largest step that is measured, and the
    /// model's shapes and types. Times of small steps are never those of a session with larger ones.
    pub(crate) fn name<'f>(&self, facts: impl Iterator<Item = &'f bilayer_graph::Facts>) -> String {
        let mut key = format!("{} {}", env!("CARGO_PKG_VERSION"), build());
        for facts in facts {
            let (identity, threads) = (&facts.identity, facts.threads);
            key += &format!("|{identity} {threads} {}", facts.name);
        }
        let Limits { tokens, key_type, value_type, hadamard_keys, fuse, .. } = self.limits;
        let hadamard = if hadamard_keys { " hadamard" } else { "" };
        key += &format!("|{key_type}{hadamard} {value_type} {fuse} {}", timed_tokens(tokens));
        for Weight { ty, rows, cols, layer, .. } in &self.graph.weights {
            key += &format!("|{ty} {rows} {cols} {layer:?}");
        }
        format!("times-{:016x}.json", fnv(key.as_bytes()))
    }
}

/// Single-token steps of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoding {
    pub steps: u32,
    pub total: Duration,
    pub fastest: Duration,
}

impl Decoding {
    pub fn add(&mut self, step: Duration) {
        self.fastest = if self.steps == 0 { step } else { self.fastest.min(step) };
        self.total += step;
        self.steps += 1;
    }

    /// Whether the prediction was much longer than the measurement, or so much shorter that not even the fastest step
    /// came near: other load on the machine lengthens the rest.
    fn contradicts(&self, predicted_ms: f64) -> bool {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        self.steps >= STEPS_TO_JUDGE
            && (predicted_ms > STALE * ms(self.total) / f64::from(self.steps)
                || ms(self.fastest) > STALE * predicted_ms)
    }
}

/// Deletes stored times that a session has disproved, so that the next one measures them again. Returns whether it
/// did.
pub fn distrust(kept: &Kept, name: &str, predicted_ms: f64, decoding: &Decoding) -> bool {
    let stale = decoding.contradicts(predicted_ms);
    if stale {
        kept.remove(name);
    }
    stale
}

/// Identifies the build: other kernels have other times.
fn build() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let changed = file.as_ref().ok().and_then(|file| file.modified().ok());
    let since = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let nanoseconds = since.map_or(0, |since| since.as_nanos());
    format!("{} {nanoseconds}", file.map_or(0, |file| file.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Decoding, distrust};
    use crate::kept::Kept;

    #[test]
    fn times_that_are_far_off_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(folder.path());
        // Milliseconds of the fastest step and of the others.
        for (predicted, fastest, others, gone) in [
            (10.0, 12, 12, false),
            (10.0, 16, 17, true),
            (10.0, 12, 90, false),
            (10.0, 5, 6, true),
            (10.0, 1, 9, false),
        ] {
            let mut decoding = Decoding::default();
            decoding.add(Duration::from_millis(fastest));
            assert!(!decoding.contradicts(predicted), "one step says nothing");
            (0..20).for_each(|_| decoding.add(Duration::from_millis(others)));
            kept.store("times", b"{}").unwrap();
            assert_eq!(distrust(&kept, "times", predicted, &decoding), gone);
            assert_eq!(kept.load("times").is_none(), gone, "{predicted} {decoding:?}");
        }
    }
}
