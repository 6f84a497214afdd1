//! How long a model's layers take on each device: timed on the devices themselves, once for each kind of machine and
//! model, and kept.
//!
//! On each device a stretch of layers is run that is larger than any cache (weights of one layer, read again and again,
//! would come from there), and the head: one token, a small batch, and a piece of a prompt. Layers outside the stretch
//! count by their bytes. What a segment takes beyond its kernels is the cost of handing it over.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bilayer_graph::{
    Backend, Graph, Holding, Kind, Limits, OpTime, PAGE_TOKENS, Rows, SegmentId, Span, Step, Weight,
};
use bilayer_scheduler::{
    BATCH_TOKENS, Basis, Cost, DeviceTimes, Placement, PlannedSegment, Times, cut,
};

use crate::kept::Kept;
use crate::{Error, Model};

/// Bytes of weights in the stretch of layers of a processor, and of an adapter: more than their caches hold.
const STRETCH_BYTES: [u64; 2] = [1536 << 20, 384 << 20];

/// Most tokens of the piece of a prompt: what micro-batches have where devices share a prompt.
const PIECE_TOKENS: usize = 128;

/// Position of the token that decoding is timed at.
const POSITION: usize = 96;

/// How long one kind of step is repeated, and how often at least and at most.
const TIME: Duration = Duration::from_millis(250);
const REPEATS: std::ops::Range<usize> = 4..40;

/// How much longer or shorter than predicted a run may take before its times count as stale.
const STALE: f64 = 1.5;

/// What is timed.
pub struct Subject<'a> {
    pub model: &'a Model,
    pub graph: &'a Graph,
    /// The session's bounds: types of the cache, fusing.
    pub limits: Limits,
}

impl Subject<'_> {
    /// The times of a machine's devices: those that are kept, or measured now and kept. `None` where a device would not
    /// do it; what is wrong shows when the session is made.
    pub fn times(&self, backends: &mut [Box<dyn Backend>], kept: &Kept) -> Option<Times> {
        let name = self.name(backends.iter().map(|backend| backend.facts()));
        if let Some(times) = self.known(backends.len(), &name, kept) {
            return Some(times);
        }
        let mut devices = Vec::with_capacity(backends.len());
        for backend in backends.iter_mut() {
            devices.push(self.device(backend.as_mut()).ok()?);
        }
        let times = Times { basis: Basis::Measured, devices };
        let fits = times.fit(self.graph.layers() as usize, backends.len());
        if fits && let Ok(text) = serde_json::to_vec(&times) {
            kept.store(&name, &text);
        }
        fits.then_some(times)
    }

    /// The times that are kept under a name, if they can be right.
    pub fn known(&self, devices: usize, name: &str, kept: &Kept) -> Option<Times> {
        let times: Times = serde_json::from_slice(&kept.load(name)?).ok()?;
        times.fit(self.graph.layers() as usize, devices).then_some(times)
    }

    /// The name of the file: hardware, drivers, this build, threads, and the model's shapes and types.
    pub fn name<'f>(&self, facts: impl Iterator<Item = &'f bilayer_graph::Facts>) -> String {
        let mut key = format!("{} {}", env!("CARGO_PKG_VERSION"), build());
        for facts in facts {
            let (identity, threads) = (&facts.identity, facts.threads);
            key += &format!("|{identity} {threads} {}", facts.name);
            if facts.kind == Kind::Cpu {
                key += &facts.level;
            }
        }
        let Limits { key_type, value_type, fuse, .. } = self.limits;
        key += &format!("|{key_type} {value_type} {fuse}");
        for Weight { ty, rows, cols, layer, .. } in &self.graph.weights {
            key += &format!("|{ty} {rows} {cols} {layer:?}");
        }
        format!("times-{:016x}.json", crate::kept::fnv(key.as_bytes()))
    }

    /// Times one device.
    fn device(&self, backend: &mut dyn Backend) -> Result<DeviceTimes, Error> {
        let graph = self.graph;
        let is_adapter = backend.facts().kind == Kind::Gpu;
        let placement = self.stretch(is_adapter);
        let planned: Vec<PlannedSegment> =
            cut(graph, &placement).into_iter().filter(|segment| segment.device == 1).collect();
        let most = self.limits.tokens.min(PIECE_TOKENS);
        let pages = (POSITION + most.max(BATCH_TOKENS)).div_ceil(PAGE_TOKENS) + 1;
        let limits = Limits {
            tokens: most.max(BATCH_TOKENS),
            outputs: 1,
            sequences: 1,
            pages,
            page_entries: pages,
            timings: true,
            check: false,
            ..self.limits
        };
        let segments = self.load(backend, &planned, limits)?;
        let mut bench = Bench { graph, backend, segments, values: BTreeMap::new() };
        let decode = bench.repeat(1, TIME)?;
        let batch = bench.repeat(BATCH_TOKENS, TIME / 2)?;
        // As large a piece as takes a few tenths of a second.
        let first = bench.repeat(most.min(32), Duration::ZERO)?;
        let each = first.total() / most.min(32) as f64;
        let fits = |tokens: &usize| each * *tokens as f64 <= TIME.as_secs_f64() * 1e3;
        let piece = [64, PIECE_TOKENS].into_iter().filter(|t| *t <= most).rfind(fits);
        let (prefill, piece) = match piece {
            Some(piece) => (bench.repeat(piece, TIME)?, piece),
            None => (first, most.min(32)),
        };
        let cost = |of: &dyn Fn(&Run) -> f64| Cost {
            decode_ms: of(&decode),
            batch_ms: Some(of(&batch)),
            prefill_ms: Some(of(&prefill) / piece as f64),
        };
        let bytes = layer_bytes(graph);
        let measured: Vec<usize> =
            (0..bytes.len()).filter(|&layer| decode.layers.contains_key(&layer)).collect();
        let measured_bytes: f64 = measured.iter().map(|&layer| bytes[layer]).sum();
        let layer = |run: &Run, layer: usize| match run.layers.get(&layer) {
            Some(ms) => *ms,
            None => run.layers.values().sum::<f64>() * bytes[layer] / measured_bytes.max(1.0),
        };
        Ok(DeviceTimes {
            embedding: cost(&|run| run.embedding),
            layers: (0..bytes.len()).map(|at| cost(&|run| layer(run, at))).collect(),
            output: cost(&|run| run.output),
            segment: cost(&|run| run.rest),
        })
    }

    /// The head and a stretch of layers on device 1: the first ones, after the embedding, on a processor; the last ones
    /// on an adapter.
    fn stretch(&self, is_adapter: bool) -> Placement {
        let bytes = layer_bytes(self.graph);
        let mut placement = Placement::single(self.graph.layers(), 0);
        placement.output = 1;
        placement.embedding = usize::from(!is_adapter);
        let mut left = STRETCH_BYTES[usize::from(is_adapter)] as f64;
        let layers = 0..bytes.len();
        let order: Vec<usize> = if is_adapter { layers.rev().collect() } else { layers.collect() };
        for layer in order {
            placement.layers[layer] = 1;
            left -= bytes[layer];
            if left <= 0.0 {
                break;
            }
        }
        placement
    }

    /// Loads what the segments read and compiles them.
    fn load(
        &self,
        backend: &mut dyn Backend,
        planned: &[PlannedSegment],
        limits: Limits,
    ) -> Result<Vec<(PlannedSegment, SegmentId)>, Error> {
        let nodes = planned.iter().flat_map(|segment| &self.graph.nodes[segment.nodes.clone()]);
        let ids: HashSet<_> = nodes.flat_map(|node| node.op.weights()).collect();
        let weights: Vec<&Weight> =
            self.graph.weights.iter().filter(|weight| ids.contains(&weight.id)).collect();
        let file = self.model.file();
        file.maps().for_each(|map| backend.share(map));
        backend.reserve(&Holding { weights: &weights, caches: &[] })?;
        for segment in planned {
            backend.ready(&segment.segment(self.graph), limits)?;
        }
        for weight in weights {
            let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
            let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
            backend.load(weight, file.bytes(tensor).slice(weight.range_in_tensor()))?;
        }
        let mut segments = Vec::with_capacity(planned.len());
        for segment in planned {
            let id = backend.compile(&segment.segment(self.graph), limits)?;
            segments.push((segment.clone(), id));
        }
        Ok(segments)
    }
}

/// Drops kept times that a run has shown to be wrong, so that the next run measures them anew. Answers whether it did.
pub fn distrust(kept: &Kept, name: &str, predicted_ms: f64, measured_ms: f64) -> bool {
    let ratio = measured_ms / predicted_ms;
    let stale = !(1.0 / STALE..=STALE).contains(&ratio);
    if stale {
        kept.remove(name);
    }
    stale
}

/// The program as it was built: other kernels take other times.
fn build() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let changed = file.as_ref().ok().and_then(|file| file.modified().ok());
    let since = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let nanoseconds = since.map_or(0, |since| since.as_nanos());
    format!("{} {nanoseconds}", file.map_or(0, |file| file.len()))
}

/// Bytes of each layer's matrices that a token reads.
fn layer_bytes(graph: &Graph) -> Vec<f64> {
    let mut bytes = vec![0.0; graph.layers() as usize];
    for (number, node) in graph.nodes.iter().enumerate() {
        if let Some(layer) = node.layer {
            bytes[layer as usize] += graph.matrix_bytes(number, 1);
        }
    }
    bytes
}

/// Milliseconds of one step.
#[derive(Clone, Debug, Default)]
struct Run {
    embedding: f64,
    layers: BTreeMap<usize, f64>,
    output: f64,
    /// Beyond the kernels, for each segment.
    rest: f64,
}

impl Run {
    fn total(&self) -> f64 {
        self.embedding + self.output + self.rest + self.layers.values().sum::<f64>()
    }

    /// Adds a time to the part that a node belongs to.
    fn add(&mut self, graph: &Graph, node: usize, ms: f64) {
        let first = graph.nodes.iter().position(|node| node.layer.is_some()).unwrap_or(0);
        match graph.nodes[node].layer {
            Some(layer) => *self.layers.entry(layer as usize).or_default() += ms,
            None if node < first => self.embedding += ms,
            None => self.output += ms,
        }
    }

    /// The median of each part.
    fn median(runs: &[Run]) -> Run {
        let of = |part: &dyn Fn(&Run) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(part).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Run {
            embedding: of(&|run| run.embedding),
            layers: runs[0].layers.keys().map(|&l| (l, of(&|run| run.layers[&l]))).collect(),
            output: of(&|run| run.output),
            rest: of(&|run| run.rest),
        }
    }
}

/// Segments ready to be timed.
struct Bench<'a> {
    graph: &'a Graph,
    backend: &'a mut dyn Backend,
    segments: Vec<(PlannedSegment, SegmentId)>,
    /// Values by number, `[rows, width]`.
    values: BTreeMap<u32, Vec<f32>>,
}

impl Bench<'_> {
    /// Steps of `tokens` tokens for some time, at least twice; the median without the first.
    fn repeat(&mut self, tokens: usize, time: Duration) -> Result<Run, Error> {
        self.step(tokens)?;
        let began = Instant::now();
        let mut runs = Vec::new();
        while runs.is_empty()
            || (runs.len() < REPEATS.end && began.elapsed() < time)
            || (runs.len() < REPEATS.start && began.elapsed() < 4 * time)
        {
            runs.push(self.step(tokens)?);
        }
        Ok(Run::median(&runs))
    }

    /// One step through all segments.
    fn step(&mut self, tokens: usize) -> Result<Run, Error> {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let rows = tokens as u32;
        let first_position = if tokens == 1 { POSITION as u32 } else { 0 };
        let spans = [Span { first_row: 0, rows, first_position, first_page: 0 }];
        let count = (first_position as usize + tokens).div_ceil(PAGE_TOKENS);
        let pages: Vec<u32> = (0..count as u32).collect();
        let outputs = [rows - 1];
        let step =
            Step { tokens: &ids, spans: &spans, pages: &pages, outputs: &outputs, copies: &[] };
        let mut run = Run::default();
        let segments = self.segments.len() as f64;
        for (segment, id) in self.segments.clone() {
            let began = Instant::now();
            for &input in &segment.inputs {
                let len = self.len(input, tokens);
                let values = self.values.entry(input.0).or_default();
                noise(values, len);
                self.backend.write(input, values)?;
            }
            self.backend.submit(id, &step)?;
            for &output in &segment.outputs {
                let len = self.len(output, tokens);
                let values = self.values.entry(output.0).or_default();
                values.resize(len, 0.0);
                self.backend.read(output, values)?;
            }
            let wall = began.elapsed().as_secs_f64() * 1e3;
            let ops: &[OpTime] = self.backend.timings(id);
            let in_ops: f64 = ops.iter().map(|op| op.ns as f64 / 1e6).sum();
            for op in ops {
                run.add(self.graph, op.node as usize, op.ns as f64 / 1e6);
            }
            if ops.is_empty() {
                self.share(&segment, wall, &mut run);
            } else {
                run.rest += (wall - in_ops).max(0.0) / segments;
            }
        }
        Ok(run)
    }

    /// Shares a segment's time out by the bytes its nodes read, where the device has no clock.
    fn share(&self, segment: &PlannedSegment, wall: f64, run: &mut Run) {
        let bytes = |node: usize| self.graph.matrix_bytes(node, 1);
        let total: f64 = segment.nodes.clone().map(bytes).sum();
        for node in segment.nodes.clone() {
            run.add(self.graph, node, wall * bytes(node) / total.max(1.0));
        }
    }

    fn len(&self, value: bilayer_graph::Value, tokens: usize) -> usize {
        let rows = match self.graph.rows(value) {
            Rows::Tokens => tokens,
            Rows::Outputs => 1,
        };
        rows * self.graph.width(value)
    }
}

/// Values between -1 and 1, the same every time. What is there stays.
fn noise(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.extend((values.len()..len).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0));
    }
    values.truncate(len);
}

#[cfg(test)]
mod tests {
    use super::{Run, distrust};
    use crate::kept::Kept;

    #[test]
    fn the_median_is_taken_of_each_part() {
        let run = |embedding, layer| Run {
            embedding,
            layers: [(3, layer)].into(),
            output: 1.0,
            rest: 0.0,
        };
        let median = Run::median(&[run(1.0, 9.0), run(5.0, 2.0), run(2.0, 4.0)]);
        assert_eq!((median.embedding, median.layers[&3], median.total()), (2.0, 4.0, 7.0));
    }

    #[test]
    fn times_that_are_far_off_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(folder.path());
        for (predicted, measured, gone) in
            [(10.0, 12.0, false), (10.0, 16.0, true), (10.0, 6.0, true)]
        {
            kept.store("times", b"{}");
            assert_eq!(distrust(&kept, "times", predicted, measured), gone);
            assert_eq!(kept.load("times").is_none(), gone, "{predicted} {measured}");
        }
    }
}
