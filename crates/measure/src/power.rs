//! Energy that the CPU and its memory take, as the system counts it.
//!
//! Linux shows Intel's and AMD's counters (RAPL) as files, one folder per domain, in microjoules; they begin again at a
//! maximum that another file states. Most systems let only root read them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Where Linux has the counters.
pub const POWERCAP: &str = "/sys/class/powercap";

/// How often counters are read while work is in progress: the counter of a busy machine begins again after about a minute.
const READ_EVERY: Duration = Duration::from_secs(10);

/// Why energy cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system shows no counter.
    #[error("{}: no energy counters", folder.display())]
    Missing {
        /// Where they would be.
        folder: PathBuf,
    },
    /// A counter cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The counter.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A counter has something else than a number.
    #[error("{}: `{found}` is no number of microjoules", path.display())]
    NoNumber {
        /// The counter.
        path: PathBuf,
        /// What it has.
        found: String,
    },
    /// A counter has fallen by more than its range.
    #[error(
        "{}: the counter fell from {before} to {now} microjoules, and its range is {max_uj}",
        path.display()
    )]
    Fallen {
        /// The counter.
        path: PathBuf,
        /// At the reading before.
        before: u64,
        /// Now.
        now: u64,
        /// Where it is said to begin again.
        max_uj: u64,
    },
    /// The thread that reads the counters cannot be started.
    #[error("the counters cannot be read during the work: {0}")]
    Thread(std::io::Error),
}

/// Energy of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// The energy, joules.
    pub joules: f64,
    /// Wall-clock time in which it was counted, seconds.
    pub seconds: f64,
}

impl Energy {
    /// Mean power, watts.
    pub fn watts(&self) -> f64 {
        self.joules / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Energy of both.
    #[must_use]
    pub fn and(self, more: Energy) -> Energy {
        Energy { joules: self.joules + more.joules, seconds: self.seconds + more.seconds }
    }
}

/// Counters of energy, read once.
#[derive(Clone, Debug)]
pub struct Meter {
    domains: Vec<Domain>,
}

/// A counter that is not part of another one.
#[derive(Clone, Debug)]
struct Domain {
    path: PathBuf,
    /// Value after which it begins at 0 again, microjoules.
    max_uj: u64,
    /// At the last reading.
    uj: u64,
}

impl Meter {
    /// Starts counting with the counters below `folder`, usually [`POWERCAP`]: packages, and memory that is counted apart.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn start(folder: &Path) -> Result<Meter, Error> {
        let missing = || Error::Missing { folder: folder.to_owned() };
        let entries = fs::read_dir(folder).map_err(|_| missing())?;
        let mut found: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.sort();
        let is_counted = |path: &PathBuf| {
            // intel-rapl-mmio lists the packages once more.
            let folder = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let name = fs::read_to_string(path.join("name")).unwrap_or_default();
            let is_whole = name.starts_with("package") || name.trim() == "dram";
            folder.starts_with("intel-rapl:") && is_whole
        };
        found.retain(is_counted);
        let domain = |path: PathBuf| {
            let uj = number(&path.join("energy_uj"))?;
            Ok(Domain { max_uj: number(&path.join("max_energy_range_uj"))?, uj, path })
        };
        let domains = found.into_iter().map(domain).collect::<Result<Vec<_>, _>>()?;
        if domains.is_empty() { Err(missing()) } else { Ok(Meter { domains }) }
    }

    /// Joules since the last reading, or the start. It must be read at least once a minute: after more a counter of a busy
    /// machine may have begun again twice.
    ///
    /// # Errors
    /// A counter can no longer be read, or is below the last reading although it has not reached the end of its range.
    pub fn joules(&mut self) -> Result<f64, Error> {
        let mut sum = 0.0;
        for domain in &mut self.domains {
            let path = domain.path.join("energy_uj");
            let now = number(&path)?;
            let before = std::mem::replace(&mut domain.uj, now);
            let fallen = || domain.max_uj.checked_sub(before)?.checked_add(now);
            let uj = now.checked_sub(before).or_else(fallen);
            let max_uj = domain.max_uj;
            sum += uj.ok_or(Error::Fallen { path, before, now, max_uj })? as f64 / 1e6;
        }
        Ok(sum)
    }

    /// Reads the counters without counting what was before.
    fn restart(&mut self) -> Result<(), Error> {
        for domain in &mut self.domains {
            domain.uj = number(&domain.path.join("energy_uj"))?;
        }
        Ok(())
    }

    /// Does some work, and counts its energy: a thread reads the counters often enough.
    ///
    /// # Errors
    /// Beside the result of the work, the first error of a reading, as of [`Meter::joules`].
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> (T, Result<Energy, Error>) {
        self.during_every(READ_EVERY, work)
    }

    fn during_every<T>(
        &mut self,
        every: Duration,
        work: impl FnOnce() -> T,
    ) -> (T, Result<Energy, Error>) {
        thread::scope(|scope| {
            let (working, ended) = mpsc::channel::<()>();
            let mut joules = self.restart().map(|()| 0.0);
            let began = Instant::now();
            let read = move || {
                loop {
                    let ended = ended.recv_timeout(every) != Err(mpsc::RecvTimeoutError::Timeout);
                    joules = joules.and_then(|sum| Ok(sum + self.joules()?));
                    if ended {
                        let seconds = began.elapsed().as_secs_f64();
                        return joules.map(|joules| Energy { joules, seconds });
                    }
                }
            };
            let builder = thread::Builder::new().name("bilayer energy".to_owned());
            let reader = builder.spawn_scoped(scope, read);
            let done = work();
            drop(working);
            let energy = reader.map_err(Error::Thread).and_then(|reader| {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            (done, energy)
        })
    }
}

/// Does some work, and counts its energy if there is a meter.
pub fn metered<T>(
    meter: Option<&mut Meter>,
    work: impl FnOnce() -> T,
) -> (T, Option<Result<Energy, Error>>) {
    match meter {
        Some(meter) => {
            let (done, energy) = meter.during(work);
            (done, Some(energy))
        }
        None => (work(), None),
    }
}

fn number(path: &Path) -> Result<u64, Error> {
    let text = fs::read_to_string(path)
        .map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
    let found = text.trim();
    found.parse().map_err(|_| Error::NoNumber { path: path.to_owned(), found: found.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(folder: &Path, name: &str, what: &str, uj: &str) {
        let path = folder.join(name);
        fs::create_dir_all(&path).expect("a folder");
        for (file, text) in [("name", what), ("energy_uj", uj), ("max_energy_range_uj", "1000000")]
        {
            fs::write(path.join(file), text).expect("a file");
        }
    }

    #[test]
    fn counters_that_begin_again_during_the_work_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        domain(folder, "intel-rapl:0", "package-0\n", "900000\n");
        let mut meter = Meter::start(folder).expect("a meter");
        let counter = folder.join("intel-rapl:0/energy_uj");
        let become_next = |uj: &str| {
            // A reader sees the one text or the other.
            fs::write(folder.join("next"), uj).expect("a file");
            fs::rename(folder.join("next"), &counter).expect("a file");
            thread::sleep(Duration::from_millis(400));
        };
        // 0.9 J to 0.4 J and to 0.1 J are two turns of 1 J.
        let (done, energy) = meter.during_every(Duration::from_millis(2), || {
            ["400000", "100000"].into_iter().for_each(become_next);
            "done"
        });
        let energy = energy.expect("energy");
        assert!(done == "done" && (energy.joules - 1.2).abs() < 1e-9, "{energy:?}");
        // All of the work's time counts.
        assert!(energy.seconds >= 0.8, "{energy:?}");
        assert!((energy.watts() * energy.seconds - 1.2).abs() < 1e-9, "{energy:?}");
        let twice = energy.and(energy);
        assert!((twice.joules - 2.4).abs() < 1e-9);
        assert!((twice.watts() / energy.watts() - 1.0).abs() < 1e-9);
        // What was before the work is not counted, and a fall before it is no error.
        become_next("5000000");
        become_next("300000");
        assert_eq!(meter.during(|| ()).1.expect("energy").joules, 0.0);
        // Without a counter nothing is known.
        let (_, lost) = meter.during(|| fs::remove_file(&counter).expect("removed"));
        assert!(matches!(lost, Err(Error::Unreadable { .. })), "{lost:?}");
        let (done, lost) = meter.during(|| 7);
        assert!(done == 7 && matches!(lost, Err(Error::Unreadable { .. })), "{lost:?}");
        assert!(matches!(metered(None, || 7), (7, None)));
    }

    #[test]
    fn a_counter_that_falls_during_the_work_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let become_next = |uj: &str| domain(folder.path(), "intel-rapl:0", "package-0\n", uj);
        become_next("5000000\n");
        let mut meter = Meter::start(folder.path()).expect("a meter");
        let (done, fallen) = metered(Some(&mut meter), || {
            become_next("4000000\n");
            7
        });
        let fallen = fallen.expect("metered");
        assert!(done == 7 && matches!(fallen, Err(Error::Fallen { .. })), "{fallen:?}");
        // The next work is counted.
        let (_, energy) = meter.during(|| become_next("4500000\n"));
        assert!((energy.expect("energy").joules - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_counter_that_falls_within_its_range_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        domain(folder.path(), "intel-rapl:0", "package-0\n", "5000000\n");
        let mut meter = Meter::start(folder.path()).expect("a meter");
        domain(folder.path(), "intel-rapl:0", "package-0\n", "4000000\n");
        let error = meter.joules().expect_err("above its range").to_string();
        assert!(
            error.contains("fell from 5000000 to 4000000 microjoules, and its range is 1000000"),
            "{error}"
        );
        domain(folder.path(), "intel-rapl:0", "package-0\n", "4500000\n");
        assert!((meter.joules().expect("energy") - 0.5).abs() < 1e-9, "it goes on from there");
    }

    #[test]
    fn packages_and_memory_are_counted_once_and_counters_begin_again() {
        let folder = std::env::temp_dir().join(format!("bilayer-power-{}", std::process::id()));
        assert!(matches!(Meter::start(&folder), Err(Error::Missing { .. })));
        domain(&folder, "intel-rapl:0", "package-0\n", "900000\n");
        domain(&folder, "intel-rapl:0:0", "core\n", "5\n");
        domain(&folder, "intel-rapl:0:1", "dram\n", "100\n");
        domain(&folder, "intel-rapl-mmio:0", "package-0\n", "7\n");
        let mut meter = Meter::start(&folder).expect("a meter");
        domain(&folder, "intel-rapl:0", "package-0\n", "400000\n");
        domain(&folder, "intel-rapl:0:1", "dram\n", "250100\n");
        let joules = meter.joules().expect("energy");
        assert!((joules - 0.75).abs() < 1e-9, "{joules}");
        assert_eq!(meter.joules().expect("energy"), 0.0);
        // A value that is as it was is no turn; one below it is, and after it counting goes on.
        domain(&folder, "intel-rapl:0:1", "dram\n", "100\n");
        assert!((meter.joules().expect("energy") - 0.75).abs() < 1e-9);
        domain(&folder, "intel-rapl:0:1", "dram\n", "1000000\n");
        assert!((meter.joules().expect("energy") - 0.9999).abs() < 1e-9);
        fs::remove_file(folder.join("intel-rapl:0:1/energy_uj")).expect("removed");
        assert!(matches!(meter.joules(), Err(Error::Unreadable { .. })));
        domain(&folder, "intel-rapl:0:1", "dram\n", "0\n");
        domain(&folder, "intel-rapl:0", "package-0\n", "much\n");
        let error = meter.joules().expect_err("no number").to_string();
        assert!(error.contains("energy_uj") && error.contains("much"), "{error}");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
