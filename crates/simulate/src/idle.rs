//! A backend that computes and stores nothing, for simulations of the schedule alone: every value is 0.

use bilayer_graph::{
    Backend, CacheId, CachePages, Error, Facts, Holding, Kernel, Limits, OpTime, Segment,
    SegmentId, SharedBytes, StateId, Step, Value, Weight,
};

/// A device that takes every call and does nothing.
pub struct Idle {
    facts: Facts,
    segments: u32,
}

impl Idle {
    /// A device with these facts.
    pub fn new(facts: Facts) -> Idle {
        Idle { facts, segments: 0 }
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

    fn compile(&mut self, _: &Segment<'_>, _: Limits) -> Result<SegmentId, Error> {
        self.segments += 1;
        Ok(SegmentId(self.segments - 1))
    }

    fn submit(&mut self, _: SegmentId, _: &Step<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn write(&mut self, _: Value, _: &[f32]) -> Result<(), Error> {
        Ok(())
    }

    fn read(&mut self, _: Value, data: &mut [f32]) -> Result<(), Error> {
        data.fill(0.0);
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
