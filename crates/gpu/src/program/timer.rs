//! Times stages on the device's own clock, by timestamp queries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_graph::{Error as GraphError, OpTime};

use crate::device::Device;

/// Maximum queries per set.
const QUERIES_MAX: usize = wgpu::QUERY_SET_MAX_QUERIES as usize;

/// Two queries per stage: before and after it.
pub struct Timer {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    state: Arc<AtomicBool>,
    /// Whether staging is mapped, or will be.
    asked: bool,
    /// Whether stages within one pass can be timed; otherwise each has its own pass.
    inside: bool,
    /// Nanoseconds per tick.
    period: f64,
    /// The first node of each stage; `None` for stages without nodes, such as page copies.
    nodes: Vec<Option<u32>>,
}

impl Timer {
    /// A timer for stages, if the device has a clock and enough queries.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, nodes: Vec<Option<u32>>) -> Result<Option<Timer>, GraphError> {
        let features = device.device.features();
        let count = 2 * nodes.len();
        if !features.contains(wgpu::Features::TIMESTAMP_QUERY) || count > QUERIES_MAX || count == 0
        {
            return Ok(None);
        }
        let set = device.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: count as u32,
        });
        use wgpu::BufferUsages as Use;
        let bytes = 8 * count as u64;
        Ok(Some(Timer {
            set,
            resolved: device.buffer("times", bytes, Use::QUERY_RESOLVE | Use::COPY_SRC)?,
            staging: device.buffer("times", bytes, Use::COPY_DST | Use::MAP_READ)?,
            state: Arc::new(AtomicBool::new(false)),
            asked: false,
            inside: features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            period: f64::from(device.queue.get_timestamp_period()),
            nodes,
        }))
    }

    /// Whether each stage needs a pass of its own.
    pub fn splits(&self) -> bool {
        !self.inside
    }

    /// The timestamp writes of a pass that runs a single stage.
    pub fn of_pass(&self, stage: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let at = 2 * stage as u32;
        (!self.inside).then_some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(at),
            end_of_pass_write_index: Some(at + 1),
        })
    }

    /// Records the time before (`end` 0) or after (1) a stage within a pass.
    pub fn stamp(&self, pass: &mut wgpu::ComputePass<'_>, stage: usize, end: u32) {
        if self.inside {
            pass.write_timestamp(&self.set, 2 * stage as u32 + end);
        }
    }

    /// Requests the times of the encoded stages.
    pub fn fetch(&mut self, encoder: &mut wgpu::CommandEncoder) {
        let (count, bytes) = (2 * self.nodes.len() as u32, 16 * self.nodes.len() as u64);
        encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, bytes);
        self.state.store(false, Ordering::Release);
        self.asked = true;
        let state = self.state.clone();
        encoder.map_buffer_on_submit(&self.staging, wgpu::MapMode::Read, 0..bytes, move |_| {
            state.store(true, Ordering::Release);
        });
    }

    /// Unmaps staging, whether its times were read or not.
    ///
    /// # Errors
    /// The device was lost.
    pub fn release(&mut self, device: &Device) -> Result<(), GraphError> {
        if self.asked {
            device.wait(&self.state)?;
            self.staging.unmap();
            self.asked = false;
        }
        Ok(())
    }

    /// The times of the last submit, which must have finished.
    ///
    /// # Errors
    /// The device was lost.
    pub fn read(&self, device: &Device, into: &mut Vec<OpTime>) -> Result<(), GraphError> {
        into.clear();
        if !self.asked {
            return Ok(());
        }
        device.wait(&self.state)?;
        let mapped = self.staging.slice(..).get_mapped_range();
        let mapped = mapped.map_err(|error| device.lost(error.to_string()))?;
        let ticks: &[u64] = bytemuck::cast_slice(&mapped[..16 * self.nodes.len()]);
        let first = ticks.iter().copied().find(|&tick| tick > 0).unwrap_or(0);
        let ns = |ticks: u64| (ticks as f64 * self.period) as u64;
        for (node, at) in self.nodes.iter().zip(ticks.chunks_exact(2)) {
            if let Some(node) = *node {
                let start_ns = ns(at[0].saturating_sub(first));
                into.push(OpTime { node, start_ns, ns: ns(at[1].saturating_sub(at[0])) });
            }
        }
        Ok(())
    }
}
