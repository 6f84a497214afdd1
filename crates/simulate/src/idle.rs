//! A backend that computes and stores nothing, for simulations of the schedule alone: every value is 0, but a router spreads
//! its rows evenly over the experts, since what is copied depends on it.

use std::collections::HashMap;

use bilayer_graph::{
    Backend, CacheId, CachePages, Error, Facts, Holding, Kernel, Limits, Op, OpTime, Segment,
    SegmentId, SharedBytes, StateId, Step, Value, Weight,
};

/// A device that takes every call and does nothing.
pub struct Idle {
    facts: Facts,
    segments: u32,
    /// Of each router's result the experts of a row, and of all.
    routes: HashMap<Value, (usize, usize)>,
}

impl Idle {
    /// A device with these facts.
    pub fn new(facts: Facts) -> Idle {
        Idle { facts, segments: 0, routes: HashMap::new() }
    }
}

impl Backend for Idle {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn reserve(&mut self, _: &Holding<'_>) -> Result<(), Error> {
        self.segments = 0;
        Ok(())
    }

    fn load(&mut self, _: &Weight, _: SharedBytes) -> Result<(), Error> {
        Ok(())
    }

    fn exchange(&mut self, _: &Weight, _: usize, _: &SharedBytes) -> Result<(), Error> {
        Ok(())
    }

    fn compile(&mut self, segment: &Segment<'_>, _: Limits) -> Result<SegmentId, Error> {
        for node in &segment.graph.nodes[segment.nodes.clone()] {
            if let Op::Route(op) = &node.op {
                self.routes.insert(op.out, (op.used, segment.graph.width(op.logits)));
            }
        }
        self.segments += 1;
        Ok(SegmentId(self.segments - 1))
    }

    fn next_segment(&self) -> SegmentId {
        SegmentId(self.segments)
    }

    fn free_segments(&mut self, from: SegmentId) {
        self.segments = from.0;
    }

    fn submit(&mut self, _: SegmentId, _: &Step<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn write(&mut self, _: Value, _: &[f32]) -> Result<(), Error> {
        Ok(())
    }

    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error> {
        data.fill(0.0);
        if let Some(&(used, experts)) = self.routes.get(&value) {
            for (row, data) in data.chunks_exact_mut(2 * used).enumerate() {
                let first = scatter(u64::from(value.0) << 32 | row as u64) as usize;
                let numbers = data[used..].iter_mut().enumerate();
                numbers.for_each(|(at, number)| *number = ((first + at) % experts) as f32);
            }
        }
        Ok(())
    }

    fn timings(&self, _: SegmentId) -> &[OpTime] {
        &[]
    }

    fn kernels(&self, _: SegmentId) -> Vec<Kernel> {
        Vec::new()
    }

    fn save(&mut self, _: CacheId, _: &[u32]) -> Result<CachePages, Error> {
        Ok(CachePages::default())
    }

    fn restore(&mut self, _: CacheId, _: &[u32], _: &CachePages) -> Result<(), Error> {
        Ok(())
    }

    fn save_state(&mut self, _: StateId, _: &[u32]) -> Result<Vec<f32>, Error> {
        Ok(Vec::new())
    }

    fn restore_state(&mut self, _: StateId, _: &[u32], _: &[f32]) -> Result<(), Error> {
        Ok(())
    }
}

/// A number without pattern for each number (SplitMix64's last steps), below 2^32.
fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x >> 32
}
