//! Prometheus metrics: llama-server's names, and the gauges and histograms that gateways read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bilayer_engine::requests::{Event, Served, StepReport};
use bilayer_engine::session::ExpertHits;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Bounds of the histograms of times, seconds.
const TIMES: [f64; 14] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 20.0, 60.0];

/// Steps after which samples are added to their histograms.
const STEPS_OF_SAMPLES: usize = 256;

const BUSY_SECONDS: &str = "bilayer:device_busy_seconds_total";

const METADATA: Metadata<'static> = Metadata::new("bilayer", Level::INFO, None);

/// The metrics of one server.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    prompt_tokens: Counter,
    prompt_cached: Counter,
    prompt_seconds: Gauge,
    predicted_tokens: Counter,
    predicted_seconds: Gauge,
    decodes: Counter,
    tokens_max: Gauge,
    longest: AtomicUsize,
    prompt_rate: Gauge,
    predicted_rate: Gauge,
    /// Requests whose client left or that were cancelled.
    pub cancelled: Counter,
    /// Requests that were refused for lack of capacity.
    pub refused: Counter,
    finished: Counter,
    failed: Counter,
    warnings: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    queue: Histogram,
    drafted: Counter,
    accepted: Counter,
    drafts: Counter,
    experts_routed: Counter,
    experts_resident: Counter,
    /// The devices that have a gauge of their memory.
    devices: Mutex<BTreeSet<String>>,
    /// Steps since samples were last added to their histograms.
    steps: AtomicUsize,
    /// When the process started, seconds since 1970.
    pub started: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// Metrics at zero.
    pub fn new() -> Metrics {
        let builder = PrometheusBuilder::new().set_buckets(&TIMES);
        let recorder = builder.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder();
        let r = &recorder;
        let drafts =
            |name: &str, what| counter(r, &format!("llamacpp:spec_decode_num_{name}_total"), what);
        Metrics {
            handle: recorder.handle(),
            prompt_tokens: counter(r, "llamacpp:prompt_tokens_total", "Prompt tokens computed"),
            prompt_cached: counter(
                r,
                "llamacpp:prompt_tokens_cached_total",
                "Prompt tokens taken from the KV cache",
            ),
            prompt_seconds: seconds(r, "llamacpp:prompt_seconds_total", "Time of prompts"),
            predicted_tokens: counter(r, "llamacpp:tokens_predicted_total", "Tokens generated"),
            predicted_seconds: seconds(
                r,
                "llamacpp:tokens_predicted_seconds_total",
                "Time of generation",
            ),
            decodes: counter(r, "llamacpp:n_decode_total", "Steps computed"),
            tokens_max: seconds(r, "llamacpp:n_tokens_max", "Longest sequence so far, tokens"),
            longest: AtomicUsize::new(0),
            prompt_rate: gauge(
                r,
                "llamacpp:prompt_tokens_seconds",
                "Prompt tokens a second of the last request",
            ),
            predicted_rate: gauge(
                r,
                "llamacpp:predicted_tokens_seconds",
                "Generated tokens a second of the last request",
            ),
            cancelled: counter(r, "bilayer:requests_cancelled_total", "Requests cancelled"),
            refused: counter(r, "bilayer:requests_refused_total", "Requests refused"),
            finished: counter(r, "bilayer:requests_finished_total", "Requests answered"),
            failed: counter(r, "bilayer:requests_failed_total", "Requests that failed"),
            warnings: counter(r, "bilayer:warnings_total", "Warnings, such as a lost device"),
            first_token: histogram(
                r,
                "bilayer:time_to_first_token_seconds",
                "From arrival to the first token",
            ),
            between_tokens: histogram(
                r,
                "bilayer:time_per_output_token_seconds",
                "Time between the tokens of an answer",
            ),
            whole: histogram(r, "bilayer:e2e_request_latency_seconds", "From arrival to the end"),
            queue: histogram(r, "bilayer:request_queue_time_seconds", "Time in the queue"),
            drafted: drafts("draft_tokens", "Draft tokens that were verified"),
            accepted: drafts("accepted_tokens", "Draft tokens that were accepted"),
            drafts: drafts("drafts", "Steps that verified draft tokens of a request"),
            experts_routed: counter(
                r,
                "bilayer:experts_routed_total",
                "Experts that routers selected in layers with resident experts",
            ),
            experts_resident: counter(
                r,
                "bilayer:experts_resident_total",
                "Of these, the experts that were resident on a GPU",
            ),
            devices: Mutex::default(),
            steps: AtomicUsize::new(0),
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            recorder,
        }
    }

    /// Counts a step.
    pub fn step(&self, _: &StepReport) {
        self.computed();
    }

    /// Counts the experts of a step.
    pub fn experts(&self, hits: ExpertHits) {
        self.experts_routed.increment(hits.routed);
        self.experts_resident.increment(hits.resident);
    }

    /// Counts tokens that an encoder has run.
    pub fn encoded(&self, tokens: usize) {
        self.prompt_tokens.increment(tokens as u64);
        self.computed();
    }

    /// Counts a step of any model. A histogram keeps each sample until it is read or asked to add them up: without the
    /// latter, memory would grow for as long as nobody reads the metrics.
    fn computed(&self) {
        self.decodes.increment(1);
        if self.steps.fetch_add(1, Ordering::Relaxed) == STEPS_OF_SAMPLES {
            self.steps.store(0, Ordering::Relaxed);
            self.handle.run_upkeep();
        }
    }

    /// Counts what happened to a request.
    pub fn event(&self, event: &Event) {
        match event {
            Event::Ended { served, .. } => self.finished(served),
            Event::Failed(_) => self.failed.increment(1),
            Event::Token(delta) => {
                if let Some(gap) = delta.served.gap {
                    self.between_tokens.record(gap.as_secs_f64());
                }
            }
            _ => {}
        }
    }

    fn finished(&self, served: &Served) {
        self.finished.increment(1);
        self.computed_for(served);
        let computed = served.processed.saturating_sub(served.cached);
        let (prefill, decode) = (served.prefill.as_secs_f64(), served.decode.as_secs_f64());
        if prefill > 0.0 {
            self.prompt_rate.set(computed as f64 / prefill);
        }
        let steps = served.generated.saturating_sub(1);
        if steps > 0 && decode > 0.0 {
            self.predicted_rate.set(steps as f64 / decode);
        }
        let queued = served.queued.as_secs_f64();
        self.queue.record(queued);
        self.first_token.record(queued + prefill);
        self.whole.record(queued + prefill + decode);
        let tokens = served.prompt + served.generated;
        let longest = self.longest.fetch_max(tokens, Ordering::Relaxed).max(tokens);
        self.tokens_max.set(longest as f64);
    }

    /// Counts what was computed for a request that ends, also one that failed or was cancelled.
    pub fn computed_for(&self, served: &Served) {
        let computed = served.processed.saturating_sub(served.cached);
        self.prompt_tokens.increment(computed as u64);
        self.prompt_cached.increment(served.cached as u64);
        self.predicted_tokens.increment(served.generated as u64);
        self.drafted.increment(served.drafted as u64);
        self.accepted.increment(served.accepted as u64);
        self.drafts.increment(served.drafts as u64);
        self.prompt_seconds.increment(served.prefill.as_secs_f64());
        self.predicted_seconds.increment(served.decode.as_secs_f64());
    }

    /// Counts a warning and writes it to stderr.
    pub fn warn(&self, message: &str) {
        self.warnings.increment(1);
        crate::log::warning(message);
    }

    /// Counts a warning and writes it to stderr, unless there was one with this text.
    pub fn warn_once(&self, message: &str) {
        if crate::log::is_new(message) {
            self.warn(message);
        }
    }

    /// Sets a gauge.
    pub fn set(&self, name: &'static str, help: &'static str, value: f64) {
        gauge(&self.recorder, name, help).set(value);
    }

    /// The sum of the busy time of a device, seconds, which the steps of all models add to.
    pub fn busy(&self, device: &str) -> Gauge {
        let busy = self.of_device(BUSY_SECONDS, "Time that the device was busy", device);
        busy.increment(0.0);
        busy
    }

    /// Sets the bytes that models take on each device; they take none on devices that are left out.
    pub fn set_memory(&self, used: &BTreeMap<String, u64>) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.extend(used.keys().cloned());
        for device in devices.iter() {
            let help = "Memory that models take on the device";
            let gauge = self.of_device("bilayer:device_memory_bytes", help, device);
            gauge.set(used.get(device).copied().unwrap_or(0) as f64);
        }
    }

    fn of_device(&self, name: &'static str, help: &'static str, device: &str) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        let key = Key::from_parts(name, vec![Label::new("device", device.to_owned())]);
        self.recorder.register_gauge(&key, &METADATA)
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        // The exporter knows gauges and counters of whole numbers; llama-server has counters of seconds.
        let text = self.handle.render();
        let names = [
            "llamacpp:prompt_seconds_total",
            "llamacpp:tokens_predicted_seconds_total",
            "llamacpp:n_tokens_max",
            BUSY_SECONDS,
        ];
        names.iter().fold(text, |text, name| {
            text.replace(&format!("# TYPE {name} gauge"), &format!("# TYPE {name} counter"))
        })
    }
}

fn counter(recorder: &PrometheusRecorder, name: &str, help: &'static str) -> Counter {
    let name = name.to_owned();
    recorder.describe_counter(name.clone().into(), None, help.into());
    let counter = recorder.register_counter(&Key::from_name(name), &METADATA);
    // Counters are shown from the start.
    counter.increment(0);
    counter
}

fn gauge(recorder: &PrometheusRecorder, name: &'static str, help: &'static str) -> Gauge {
    recorder.describe_gauge(name.into(), None, help.into());
    let gauge = recorder.register_gauge(&Key::from_name(name), &METADATA);
    gauge.increment(0.0);
    gauge
}

/// A sum that the exporter keeps as a gauge.
fn seconds(recorder: &PrometheusRecorder, name: &'static str, help: &'static str) -> Gauge {
    gauge(recorder, name, help)
}

fn histogram(recorder: &PrometheusRecorder, name: &'static str, help: &'static str) -> Histogram {
    recorder.describe_histogram(name.into(), Some(Unit::Seconds), help.into());
    recorder.register_histogram(&Key::from_name(name), &METADATA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(metrics: &Metrics, line: &str) {
        let text = metrics.render();
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }

    #[test]
    fn devices_sum_their_models_and_busy_time_never_falls() {
        let metrics = Metrics::new();
        let memory = |used: &[(&str, u64)]| {
            let used = used.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
            metrics.set_memory(&used.collect());
        };
        memory(&[("cpu", 5), ("gpu", 7)]);
        memory(&[("cpu", 3)]);
        has(&metrics, "bilayer:device_memory_bytes{device=\"cpu\"} 3");
        has(&metrics, "bilayer:device_memory_bytes{device=\"gpu\"} 0");
        // A model, another one, and the first loaded again.
        for seconds in [2.0, 3.0, 0.5] {
            metrics.busy("cpu").increment(seconds);
        }
        has(&metrics, "bilayer:device_busy_seconds_total{device=\"cpu\"} 5.5");
        has(&metrics, "# TYPE bilayer:device_busy_seconds_total counter");
    }
}
