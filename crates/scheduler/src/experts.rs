//! Experts in hybrid placement: those that tokens use most are resident on an offload device, and the host has all others.
//!
//! **The idea.** A token uses a few of a layer's experts, and not all equally often. With the experts of whole layers on
//! the device, as `-ncmoe` places them, a token finds there the share of its experts that the device has room for. With
//! the most used experts of every layer it finds more, and both devices compute a layer's experts at the same time.
//!
//! A mixture is split in two ([`split_experts`]); which experts are resident is a choice by expected uses, and may change
//! while the model runs.

use std::ops::Range;

use bilayer_graph::Graph;
use serde::Serialize;

use crate::machine::HOST;
use crate::{Bytes, Machine, PlannedSegment};

mod apart;

pub use apart::{Mixture, SplitChoice, mixtures, split_experts};

/// Resident experts, as part of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertPlan {
    /// Index of their device.
    pub device: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The expected share of a token's experts that are resident.
    pub hit_rate: f64,
    /// Where the counts are from by which they were chosen; `None` if nothing is known.
    pub counts: Option<String>,
    /// Each layer with residents.
    pub layers: Vec<ExpertLayer>,
    /// The nodes of the residents in the plan's graph.
    #[serde(skip)]
    pub nodes: Vec<Range<usize>>,
    /// The choice, by which [`split_experts`] makes the plan's graph of the model's.
    #[serde(skip)]
    pub choices: Vec<SplitChoice>,
}

/// A layer's resident experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertLayer {
    /// The layer.
    pub index: u32,
    /// How many are resident.
    pub resident: usize,
    /// Of how many.
    pub experts: usize,
    /// The expected share of a token's experts that are resident.
    pub hit_rate: f64,
}

impl ExpertPlan {
    /// The residents of a graph whose split mixtures are cut into `segments`; `None` if they are on the host.
    pub(crate) fn of(
        graph: &Graph,
        machine: &Machine,
        segments: &[PlannedSegment],
    ) -> Option<ExpertPlan> {
        let first = graph.splits.first()?.resident_nodes.start;
        let device = segments.iter().find(|segment| segment.nodes.contains(&first))?.device;
        let facts = &machine.devices[device];
        if device == HOST || !facts.copies_weights {
            return None;
        }
        let layer = |split: &bilayer_graph::SplitMixture| ExpertLayer {
            index: split.layer.unwrap_or(0),
            resident: split.residents.len(),
            experts: split.uses.len(),
            hit_rate: split.hit_rate(),
        };
        let layers: Vec<ExpertLayer> = graph.splits.iter().map(layer).collect();
        let residents = graph.weights.iter().filter(|weight| weight.is_resident);
        let choice = |split: &bilayer_graph::SplitMixture| SplitChoice {
            route: split.route,
            residents: split.residents.clone(),
            uses: split.uses.clone(),
        };
        // Layers without residents find none of theirs.
        let all = layers.len() + mixtures(graph).len();
        Some(ExpertPlan {
            device,
            bytes: residents.map(|weight| weight.rows as u64 * facts.row_bytes(weight)).sum(),
            hit_rate: layers.iter().map(|layer| layer.hit_rate).sum::<f64>() / all.max(1) as f64,
            counts: None,
            layers,
            nodes: graph.splits.iter().map(|split| split.resident_nodes.clone()).collect(),
            choices: graph.splits.iter().map(choice).collect(),
        })
    }

    /// Lines for the plan of a machine on which its device has a label.
    pub(crate) fn text(&self, label: &str) -> String {
        let counts = |layer: &ExpertLayer| layer.resident;
        let least = self.layers.iter().map(counts).min().unwrap_or(0);
        let most = self.layers.iter().map(counts).max().unwrap_or(0);
        let experts = self.layers.iter().map(|layer| layer.experts).max().unwrap_or(0);
        let each = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        let basis = match &self.counts {
            Some(source) => format!("by {source}"),
            None => "if all were used alike; counts are learned while the model runs".to_owned(),
        };
        format!(
            "experts: {} on {label}, {each} of {experts} in each of {} layers; {:.0} % of a token's experts are \
             expected there ({basis})\n",
            Bytes(self.bytes),
            self.layers.len(),
            100.0 * self.hit_rate
        )
    }
}

/// The offload device that has the residents: the one with most memory.
pub(crate) fn device(machine: &Machine) -> usize {
    let devices = HOST + 1..machine.devices.len();
    let memory = |device: &usize| machine.devices[*device].memory_bytes;
    devices.rev().max_by_key(memory).unwrap_or(HOST)
}
