//! The result of a test and derived figures.

use super::{Summary, Test};
use bilayer_engine::session::Spent;

/// The share of a step's bytes from which on the host's reading is judged.
const HOST_SHARE_MIN: f64 = 0.01;

/// The result of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The test.
    pub test: Test,
    /// Time of each repetition, nanoseconds.
    pub samples_ns: Vec<u64>,
    /// Time spent in the steps of all repetitions.
    pub spent: Spent,
    /// Bytes of weights that a step, a token of each sequence, reads on each device, the host first.
    pub step_bytes: Vec<u64>,
    /// Read bandwidth of the model's file by the CPU's threads right before and after, GB/s; if requested and there
    /// is no prompt.
    pub probe_gbps: Option<[f64; 2]>,
    /// Peak memory of the process during the test, warm-up included; `None` if unknown.
    pub peak_resident_bytes: Option<u64>,
}

impl Measured {
    /// Tokens per second of each repetition.
    pub fn samples_ts(&self) -> Vec<f64> {
        let tokens = self.test.tokens() as f64;
        self.samples_ns.iter().map(|&ns| 1e9 * tokens / ns.max(1) as f64).collect()
    }

    /// Weight bandwidth on all devices, GB/s: bytes per step times steps per second. Only if every step generates: a
    /// prompt reads the weights once for many tokens.
    pub fn weight_gbps(&self) -> Option<f64> {
        let bytes = self.step_bytes.iter().sum::<u64>() as f64;
        let steps = Summary::of(&self.samples_ts()).mean / self.test.parallel as f64;
        self.decodes().then(|| bytes * steps / 1e9)
    }

    /// Bytes of weights that a step reads on the host.
    pub fn cpu_step_bytes(&self) -> u64 {
        self.step_bytes.first().copied().unwrap_or(0)
    }

    /// Weights read by the host while it was at work, GB/s.
    pub fn cpu_weight_gbps(&self) -> Option<f64> {
        let steps = (self.test.generate * self.samples_ns.len()) as f64;
        let busy = self.spent.host().as_secs_f64();
        let is_read = self.decodes() && self.cpu_step_bytes() > 0 && busy > 0.0;
        is_read.then(|| self.cpu_step_bytes() as f64 * steps / busy / 1e9)
    }

    /// Read bandwidth of the file around the test, GB/s: the mean of before and after.
    pub fn probe_mean_gbps(&self) -> Option<f64> {
        self.probe_gbps.map(|gbps| Summary::of(&gbps).mean)
    }

    /// [`Measured::cpu_weight_gbps`] as a fraction of the same threads' read bandwidth of the file. Near 1 the test
    /// is memory-bound; above 1 weights were cached. `None` where the host has next to nothing to read, such as the row of a
    /// table: what it does then is not reading.
    pub fn probe_share(&self) -> Option<f64> {
        let all: u64 = self.step_bytes.iter().sum();
        let reads = self.cpu_step_bytes() as f64 >= HOST_SHARE_MIN * all as f64;
        reads.then(|| Some(self.cpu_weight_gbps()? / self.probe_mean_gbps()?)).flatten()
    }

    fn decodes(&self) -> bool {
        self.test.prompt == 0 && self.test.generate > 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn speeds_follow_from_samples_and_bytes() {
        let decode = Measured {
            test: Test { prompt: 0, generate: 10, depth: 5, parallel: 1 },
            samples_ns: vec![1_000_000_000, 500_000_000],
            spent: Spent { devices: vec![Duration::from_secs(1)], ..Spent::default() },
            step_bytes: vec![3_000_000_000, 1_000_000_000],
            probe_gbps: Some([70.0, 80.0]),
            peak_resident_bytes: None,
        };
        assert_eq!(decode.samples_ts(), [10.0, 20.0]);
        assert_eq!(decode.weight_gbps(), Some(4.0 * 15.0));
        // Twenty tokens in one second of CPU time.
        assert_eq!(decode.cpu_weight_gbps(), Some(60.0));
        assert_eq!(decode.probe_share(), Some(0.8));
        assert_eq!(Measured { probe_gbps: None, ..decode.clone() }.probe_share(), None);
        let on_gpu = Measured { step_bytes: vec![30_000_000, 4_000_000_000], ..decode.clone() };
        assert_eq!(on_gpu.probe_share(), None, "the host reads a row of a table");
        assert_eq!(Measured { step_bytes: vec![0, 1], ..decode.clone() }.cpu_weight_gbps(), None);
        let test = Test { prompt: 1, ..decode.test };
        assert_eq!(Measured { test, ..decode }.weight_gbps(), None);
    }
}
