//! Mean and spread of a few samples.

/// llama-bench's summary of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Arithmetic mean; 0 without samples.
    pub mean: f64,
    /// Standard deviation of the sample (divided by `n - 1`); 0 with fewer than two.
    pub deviation: f64,
}

impl Summary {
    /// Summarizes samples, in f64.
    pub fn of(samples: &[f64]) -> Summary {
        let count = samples.len() as f64;
        if samples.is_empty() {
            return Summary::default();
        }
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if samples.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Summary { mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn a_summary_is_of_the_sample_and_not_of_all_there_is() {
        let cases = [
            (&[][..], 0.0, 0.0),
            (&[3.0], 3.0, 0.0),
            (&[1.0, 3.0], 2.0, 2.0f64.sqrt()),
            (&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], 5.0, (32.0f64 / 7.0).sqrt()),
        ];
        for (samples, mean, deviation) in cases {
            assert_eq!(Summary::of(samples), Summary { mean, deviation }, "{samples:?}");
        }
    }
}
