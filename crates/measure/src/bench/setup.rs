//! The session that tests run on.

use bilayer_cpu::level::Level;
use bilayer_cpu::numa::Numa;
use bilayer_engine::placement::{self, Placing};
use bilayer_engine::session::{Overlap, Settings};
use bilayer_graph::Backend;
use bilayer_quant::Type;

use super::Test;
use crate::{Error, timing};
/// The setup of a session, which serves all tests and placements of an equal setup.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Worker threads; `None` is one per physical core allowed to the process.
    pub threads: Option<usize>,
    /// Instruction level; `None` is the highest available.
    pub cpu_level: Option<Level>,
    /// Whether the CPU may round weights in prompts.
    pub fast_prefill: bool,
    /// How the CPU's threads and weights are divided among its NUMA nodes.
    pub numa: Numa,
    /// Tokens per sequence of the longest test.
    pub context: usize,
    /// Maximum sequences of a test.
    pub parallel: usize,
    /// Tokens per step.
    pub ubatch_size: usize,
    /// Type of stored keys.
    pub cache_type_k: Type,
    /// Type of stored values.
    pub cache_type_v: Type,
    /// Whether keys are stored after the Hadamard transform.
    pub hadamard_keys: bool,
    /// Whether backends may fuse ops.
    pub fuse: bool,
    /// When two devices work at the same time.
    pub overlap: Overlap,
    /// Capacity of the trace in events.
    pub trace_events: Option<usize>,
    /// The placements of the session, one at a time. All name the same GPUs, which are opened if any placement uses
    /// them.
    pub placings: Vec<Placing>,
}

impl Setup {
    /// The setup of `tests` in the one placement of `settings`.
    pub fn new(settings: &Settings<'_>, tests: &[Test]) -> Setup {
        Setup {
            threads: settings.threads,
            cpu_level: settings.cpu_level,
            fast_prefill: settings.fast_prefill,
            numa: settings.numa,
            context: tests.iter().map(Test::context).max().unwrap_or(0).max(1),
            parallel: tests.iter().map(|test| test.parallel).max().unwrap_or(0).max(1),
            ubatch_size: settings.ubatch_size,
            cache_type_k: settings.cache_type_k,
            cache_type_v: settings.cache_type_v,
            hadamard_keys: settings.hadamard_keys,
            fuse: settings.fuse,
            overlap: settings.overlap,
            trace_events: settings.trace_events,
            placings: vec![settings.placing.clone()],
        }
    }

    /// The settings of the session.
    pub(super) fn settings(&self) -> Settings<'static> {
        // Whatever is offloaded is planned by the devices' times.
        let offloading = self.placings.iter().find(|placing| placing.offloads());
        Settings {
            placing: offloading.cloned().unwrap_or_else(Placing::cpu),
            trace_events: self.trace_events,
            time_device: Some(timing::device),
            threads: self.threads,
            cpu_level: self.cpu_level,
            fast_prefill: self.fast_prefill,
            numa: self.numa,
            ctx_size: Some(self.context),
            sequences: self.parallel,
            ubatch_size: self.ubatch_size,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            hadamard_keys: self.hadamard_keys,
            fuse: self.fuse,
            overlap: self.overlap,
            ..Settings::default()
        }
    }

    /// The host and, if any placement uses them, the GPUs.
    pub(super) fn devices(&self) -> Result<Devices, Error> {
        let options = self.settings().cpu_options();
        let first = self.placings.first().cloned().unwrap_or_default();
        let host = placement::host(&first, options)?;
        let mut all = Devices { backends: vec![host], without: None };
        for placing in &self.placings {
            let found = placement::open(placing, options)?;
            let notes = found.notes();
            let is_asked = !(found.devices.is_empty() && notes.is_empty());
            all.backends.extend(found.devices);
            all.without = notes.into_iter().next();
            if is_asked {
                break;
            }
        }
        Ok(all)
    }
}

/// The devices of a session.
pub(super) struct Devices {
    pub backends: Vec<Box<dyn Backend>>,
    /// Why there is no GPU although one was requested.
    pub without: Option<String>,
}
