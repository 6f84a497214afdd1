//! A compiled segment: its dispatches with their bind groups, and the buffers a step goes in and out by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_graph::{Error as GraphError, Kernel, Limits, Rows, Step, Value};

use crate::device::{Device, Pipeline};

pub mod build;
pub mod draft;
pub mod lower;
pub mod step;

use draft::{Counts, Grid};
use step::Words;

/// Work of one submit, in operations per second of the device: what it does in about this long, so that neither a
/// watchdog nor the desktop waits for us.
const SUBMIT_SECONDS: f64 = 0.05;

/// One dispatch of a kernel.
pub struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) grid: Grid,
}

/// One way to run a stage, and when it is taken.
pub struct Choice {
    pub(crate) when: fn(&Counts, u32) -> bool,
    /// What `when` is asked with.
    pub(crate) bound: u32,
    pub(crate) dispatches: Vec<Dispatch>,
}

/// One kernel or a few that make the values of an item.
pub struct Stage {
    pub(crate) choices: Vec<Choice>,
    /// The value it makes, for checking.
    pub(crate) makes: Option<Access>,
}

/// A value in device memory, `[rows, width]` with the rows `stride` floats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub(crate) value: Value,
    /// Which of the program's buffers.
    pub(crate) buffer: usize,
    /// Where its first row begins, floats.
    pub(crate) offset: u32,
    pub(crate) stride: u32,
    pub(crate) width: u32,
    pub(crate) rows: Rows,
}

impl Access {
    fn rows(&self, counts: &Counts) -> u32 {
        match self.rows {
            Rows::Tokens => counts.tokens,
            Rows::Outputs => counts.outputs,
        }
    }

    /// Floats from the first of the first row to the last of the last.
    fn span(&self, rows: u32) -> u64 {
        u64::from(rows.saturating_sub(1)) * u64::from(self.stride) + u64::from(self.width)
    }
}

/// An output on its way to the host.
pub(crate) struct Output {
    pub(crate) access: Access,
    staging: wgpu::Buffer,
    state: Arc<AtomicBool>,
    /// Rows of the last submit that were asked to be mapped; 0 when the buffer is not mapped.
    rows: u32,
}

/// A compiled segment.
pub struct Program {
    device: Arc<Device>,
    buffers: Vec<wgpu::Buffer>,
    stages: Vec<Stage>,
    pub(crate) inputs: Vec<Access>,
    pub(crate) outputs: Vec<Output>,
    step: wgpu::Buffer,
    words: Words,
    /// Rows of an input, padded to its stride.
    padded: Vec<f32>,
    pub(crate) kernels: Vec<Kernel>,
    limits: Limits,
    /// Operations of one submit.
    slice: u64,
    pub(crate) bytes: u64,
}

impl Program {
    /// Writes an input; it arrives in order with the submits.
    ///
    /// # Errors
    /// More elements than the limits allow.
    pub(crate) fn write(&mut self, value: Value, data: &[f32]) -> Result<bool, GraphError> {
        let Some(access) = self.inputs.iter().find(|access| access.value == value) else {
            return Ok(false);
        };
        let (width, stride) = (access.width as usize, access.stride as usize);
        let most = match access.rows {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
        };
        if data.len() > most * width {
            let what = "elements of an input";
            return Err(GraphError::Limit { what, limit: most * width, found: data.len() });
        }
        let at = u64::from(access.offset) * 4;
        let buffer = &self.buffers[access.buffer];
        if width == stride {
            self.device.queue.write_buffer(buffer, at, bytemuck::cast_slice(data));
        } else {
            let rows = data.chunks_exact(width);
            let floats = rows.len() * stride;
            for (to, from) in self.padded.chunks_exact_mut(stride).zip(rows) {
                to[..width].copy_from_slice(from);
            }
            let padded = bytemuck::cast_slice(&self.padded[..floats]);
            self.device.queue.write_buffer(buffer, at, padded);
        }
        Ok(true)
    }

    /// Starts a step.
    ///
    /// # Errors
    /// The step exceeds the limits, or the device was lost.
    pub(crate) fn submit(&mut self, step: &Step<'_>) -> Result<(), GraphError> {
        self.device.check()?;
        self.release()?;
        let counts = self.words.fill(step, &self.limits)?;
        self.device.queue.write_buffer(&self.step, 0, bytemuck::cast_slice(self.words.words()));
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        let mut done = 0;
        let mut stage = 0;
        while stage < self.stages.len() {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            while stage < self.stages.len() && done < self.slice {
                done += self.stages[stage].encode(&mut pass, &counts);
                stage += 1;
            }
            drop(pass);
            if stage < self.stages.len() {
                let next = self.device.device.create_command_encoder(&Default::default());
                self.device.queue.submit([std::mem::replace(&mut encoder, next).finish()]);
                done = 0;
            }
        }
        for output in &mut self.outputs {
            output.fetch(&mut encoder, &self.buffers, &counts);
        }
        self.device.queue.submit([encoder.finish()]);
        Ok(())
    }

    /// Runs the stages one by one and looks at every value: the first that is not finite is the answer. Slow.
    ///
    /// # Errors
    /// As [`Program::submit`]; a value that is not finite.
    pub(crate) fn submit_checked(
        &mut self,
        step: &Step<'_>,
        label: impl Fn(Value) -> GraphError,
    ) -> Result<(), GraphError> {
        self.device.check()?;
        self.release()?;
        let counts = self.words.fill(step, &self.limits)?;
        self.device.queue.write_buffer(&self.step, 0, bytemuck::cast_slice(self.words.words()));
        for stage in &self.stages {
            let mut encoder = self.device.device.create_command_encoder(&Default::default());
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                stage.encode(&mut pass, &counts);
            }
            self.device.queue.submit([encoder.finish()]);
            let Some(access) = &stage.makes else { continue };
            let rows = access.rows(&counts);
            if rows == 0 {
                continue;
            }
            let floats = u64::from(access.offset) + access.span(rows);
            let bytes = self.device.download(&self.buffers[access.buffer], floats * 4)?;
            let values: &[f32] = bytemuck::cast_slice(&bytes);
            let rows = values[access.offset as usize..].chunks(access.stride as usize);
            for row in rows {
                let row = &row[..row.len().min(access.width as usize)];
                if row.iter().any(|value| !value.is_finite()) {
                    return Err(label(access.value));
                }
            }
        }
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        for output in &mut self.outputs {
            output.fetch(&mut encoder, &self.buffers, &counts);
        }
        self.device.queue.submit([encoder.finish()]);
        Ok(())
    }

    /// Takes back staging buffers that nobody read.
    fn release(&mut self) -> Result<(), GraphError> {
        for output in &mut self.outputs {
            if output.rows > 0 {
                self.device.wait(&output.state)?;
                output.staging.unmap();
                output.rows = 0;
            }
        }
        Ok(())
    }

    /// Waits for the last submit and copies an output.
    ///
    /// # Errors
    /// No such output, another number of elements, a lost device.
    pub(crate) fn read(&mut self, value: Value, data: &mut [f32]) -> Result<bool, GraphError> {
        let Some(output) = self.outputs.iter_mut().find(|output| output.access.value == value)
        else {
            return Ok(false);
        };
        let access = output.access;
        let (width, stride) = (access.width as usize, access.stride as usize);
        let found = output.rows as usize * width;
        if data.len() != found {
            let what = "elements to read";
            return Err(GraphError::Limit { what, limit: found, found: data.len() });
        }
        if found == 0 {
            return Ok(true);
        }
        self.device.wait(&output.state)?;
        let bytes = access.span(output.rows) * 4;
        {
            let mapped = output.staging.slice(0..bytes).get_mapped_range();
            let mapped = mapped.map_err(|error| self.device.lost(error.to_string()))?;
            let floats: &[f32] = bytemuck::cast_slice(&mapped);
            for (to, from) in data.chunks_exact_mut(width).zip(floats.chunks(stride)) {
                to.copy_from_slice(&from[..width]);
            }
        }
        Ok(true)
    }

    /// Whether a value can be read from this program.
    pub(crate) fn makes(&self, value: Value) -> bool {
        self.outputs.iter().any(|output| output.access.value == value)
    }
}

impl Stage {
    /// Records the stage's dispatches; returns their operations.
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, counts: &Counts) -> u64 {
        let taken = self.choices.iter().find(|choice| (choice.when)(counts, choice.bound));
        let mut operations = 0;
        for dispatch in taken.iter().flat_map(|choice| &choice.dispatches) {
            let [x, y, z] = dispatch.grid.groups(counts);
            if x == 0 || y == 0 || z == 0 {
                continue;
            }
            pass.set_pipeline(&dispatch.pipeline.pipeline);
            pass.set_bind_group(0, &dispatch.group, &[]);
            pass.dispatch_workgroups(x, y, z);
            operations += dispatch.grid.operations(counts);
        }
        operations
    }
}

impl Output {
    /// Copies the rows that there are to staging memory and asks for them.
    fn fetch(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &[wgpu::Buffer],
        counts: &Counts,
    ) {
        self.rows = self.access.rows(counts);
        if self.rows == 0 {
            return;
        }
        let bytes = self.access.span(self.rows) * 4;
        let at = u64::from(self.access.offset) * 4;
        encoder.copy_buffer_to_buffer(&buffers[self.access.buffer], at, &self.staging, 0, bytes);
        self.state.store(false, Ordering::Release);
        let state = self.state.clone();
        encoder.map_buffer_on_submit(&self.staging, wgpu::MapMode::Read, 0..bytes, move |_| {
            state.store(true, Ordering::Release);
        });
    }
}
