//! Counts on the device the command buffers of steps that it completes.
//!
//! wgpu 30 treats a command buffer that Metal gave up, after a fault or a time-out, as one that completed
//! (<https://github.com/gfx-rs/wgpu/issues/9545>): what its kernels should have written is then what earlier steps wrote. So
//! the last dispatch of each command buffer adds 1 to a number, which is read with a step's results and compared with the number
//! of command buffers that were submitted. Vulkan and DX12 report such a device as lost themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bilayer_graph::Error as GraphError;
use minijinja::context;

use super::{Device, Pipeline};
use crate::kernel::{Access, Source};
use crate::render::render;

/// Bytes of the number.
pub(crate) const BYTES: u64 = 4;

/// The number on a device, and what it is when all submitted work is done.
pub(crate) struct Counter {
    number: wgpu::Buffer,
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    /// Command buffers submitted; wraps.
    submitted: Mutex<u32>,
    /// Whether the next command buffer is not executed; to test what comes of it.
    fails_next: AtomicBool,
}

/// The kernel that counts.
pub(crate) fn source() -> Source {
    Source {
        name: "count".to_owned(),
        wgsl: render("parts/count", context! {}),
        bindings: vec![Access::Write],
        workgroup: [1; 3],
    }
}

impl Counter {
    /// A number that is zero.
    ///
    /// # Errors
    /// Out of memory, a rejected kernel, or a lost device.
    pub fn new(device: &Device) -> Result<Counter, GraphError> {
        use wgpu::BufferUsages as Use;
        let number = device.buffer("count", BYTES, Use::STORAGE | Use::COPY_SRC)?;
        let params = device.filled("params", &[0; 16], Use::UNIFORM)?;
        let pipeline = device.pipeline(&source())?;
        let bound = [params.as_entire_binding(), number.as_entire_binding()];
        let group = device.bind_group(&pipeline, &bound);
        let (submitted, fails_next) = (Mutex::new(0), AtomicBool::new(false));
        Ok(Counter { number, pipeline, group, submitted, fails_next })
    }

    /// Records, as the last dispatch of a command buffer's last pass, that it is counted. Metal runs the dispatches of a pass
    /// in order, but passes that share no memory at the same time.
    pub fn count(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }

    /// Submits a command buffer that counts itself. Returns the submission, and the number after it.
    pub fn submit(
        &self,
        device: &Device,
        commands: wgpu::CommandBuffer,
    ) -> (wgpu::SubmissionIndex, u32) {
        // Held while submitting: the numbers are in the order of the queue.
        let mut submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = self.fails_next.swap(false, Ordering::AcqRel);
        let submission = device.submit((!fails).then_some(commands));
        *submitted = submitted.wrapping_add(1);
        (submission, *submitted)
    }

    /// Submits a command buffer that is not counted, but may read the number. Returns the submission, and what it reads.
    pub fn submit_beside(
        &self,
        device: &Device,
        commands: wgpu::CommandBuffer,
    ) -> (wgpu::SubmissionIndex, u32) {
        let submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        (device.submit(Some(commands)), *submitted)
    }

    /// Compares the number that the device has with the one that it must have.
    ///
    /// # Errors
    /// The device did not complete a command buffer; it counts as lost.
    pub fn compare(device: &Device, found: &[u8], expected: u32) -> Result<(), GraphError> {
        let missing = expected.wrapping_sub(bytemuck::pod_read_unaligned(found));
        match missing {
            0 => Ok(()),
            _ => Err(device
                .lost(format!("it did not complete {missing} of the submitted command buffers"))),
        }
    }

    /// The number on the device.
    pub fn number(&self) -> &wgpu::Buffer {
        &self.number
    }

    /// From now on the next command buffer is not executed.
    pub fn fail_next(&self) {
        self.fails_next.store(true, Ordering::Release);
    }
}

/// The number as it was after the commands of a step, read with its outputs.
pub(crate) struct Completion {
    mapped: wgpu::Buffer,
    is_mapped: Arc<AtomicBool>,
    /// What it must be; `None` if the last step has no outputs.
    expected: Option<u32>,
}

impl Completion {
    /// The memory to read it from; none on a device without the number.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device) -> Result<Option<Completion>, GraphError> {
        if device.counter().is_none() {
            return Ok(None);
        }
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let mapped = device.buffer("completion", BYTES, usage)?;
        Ok(Some(Completion { mapped, is_mapped: Arc::default(), expected: None }))
    }

    /// Records that the number is read, in the last command buffer of a step.
    pub fn fetch(&self, counter: &Counter, encoder: &mut wgpu::CommandEncoder) {
        encoder.copy_buffer_to_buffer(&counter.number, 0, &self.mapped, 0, BYTES);
        let is_mapped = self.is_mapped.clone();
        encoder.map_buffer_on_submit(&self.mapped, wgpu::MapMode::Read, 0..BYTES, move |_| {
            is_mapped.store(true, Ordering::Release);
        });
    }

    /// A step that reads the number is about to be submitted.
    pub fn begin(&mut self) {
        self.is_mapped.store(false, Ordering::Release);
    }

    /// It was submitted; the number must be this one after it.
    pub fn expect(&mut self, number: u32) {
        self.expected = Some(number);
    }

    /// Waits for the number of the last step.
    ///
    /// # Errors
    /// The device did not complete a command buffer; it counts as lost. Those of [`Device::wait`].
    pub fn check(&self, device: &Device) -> Result<(), GraphError> {
        let Some(expected) = self.expected else { return Ok(()) };
        device.wait(&self.is_mapped)?;
        let mapped = self.mapped.slice(0..BYTES).get_mapped_range();
        let mapped = mapped.map_err(|error| device.lost(error.to_string()))?;
        Counter::compare(device, &mapped, expected)
    }

    /// Unmaps the memory, whether it was read or not.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub fn release(&mut self, device: &Device) -> Result<(), GraphError> {
        if self.expected.take().is_some() {
            device.wait(&self.is_mapped)?;
            self.mapped.unmap();
        }
        Ok(())
    }
}
