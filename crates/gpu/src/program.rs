//! A compiled segment: its dispatches with bind groups, and the buffers for a step's input and output.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_graph::{Error as GraphError, Kernel, Limits, OpTime, Rows, Step, Value};

use crate::device::counter::Completion;
use crate::device::{Device, Pipeline};

pub mod build;
pub mod draft;
pub mod lower;
pub mod step;
pub mod timer;

use draft::{Counts, Grid};
use step::Words;
use timer::Timer;

/// Duration of the work of one submit at the device's speed, short enough for watchdogs and the desktop: a submit ends with the
/// dispatch that reaches it, which is the only one that may exceed it.
const SUBMIT_SECONDS: f64 = 0.05;

/// Stages of a step's first submit; each further one has twice as many. So the device begins after little has been
/// recorded, and is never out of work while the rest is.
const FIRST_STAGES: usize = 20;

/// One dispatch of a kernel.
pub struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) grid: Grid,
}

/// A way to run a stage, and its condition.
pub struct Choice {
    pub(crate) when: fn(&Counts, u32) -> bool,
    /// The argument of `when`.
    pub(crate) bound: u32,
    pub(crate) dispatches: Vec<Dispatch>,
}

/// One or a few kernels that compute the values of an item.
pub struct Stage {
    pub(crate) choices: Vec<Choice>,
    /// The value it computes, for checking.
    pub(crate) makes: Option<Access>,
}

/// A value in device memory, `[rows, width]` with rows `stride` floats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub(crate) value: Value,
    /// Index of the program's buffer.
    pub(crate) buffer: usize,
    /// Offset of the first row, floats.
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

    /// Floats from the start of the first row to the end of the last one.
    fn span(&self, rows: u32) -> u64 {
        u64::from(rows.saturating_sub(1)) * u64::from(self.stride) + u64::from(self.width)
    }
}

/// An output during transfer to the host.
pub(crate) struct Output {
    pub(crate) access: Access,
    /// The buffer that the host maps: a copy, or the value itself in shared memory.
    mapped: wgpu::Buffer,
    /// Offset of the value in it, bytes.
    at: u64,
    is_copy: bool,
    state: Arc<AtomicBool>,
    /// Rows of the last submit for which mapping was requested; 0 if the buffer is not mapped.
    rows: u32,
}

/// A dispatch among those of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    stage: usize,
    /// Among those of the stage's choice.
    dispatch: usize,
}

/// A step's commands, not submitted.
pub(crate) struct Recorded {
    /// The counts that they are for.
    counts: Counts,
    commands: Vec<wgpu::CommandBuffer>,
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
    /// Scratch for rows of an input, padded to its stride.
    padded: Vec<f32>,
    pub(crate) kernels: Vec<Kernel>,
    limits: Limits,
    /// Maximum operations per submit.
    slice: u64,
    timer: Option<Timer>,
    /// Whether the device completed the last step, where it does not tell by itself.
    completion: Option<Completion>,
    /// What the step before makes likely, recorded while the device computed.
    ahead: Option<Recorded>,
    /// Steps that were submitted so.
    pub(crate) recorded_ahead: usize,
    /// The last submission of the last step, by which its outputs are there.
    submission: Option<wgpu::SubmissionIndex>,
    /// The counts of the last step.
    last: Counts,
    /// Whether its buffers are those of other programs, too.
    pub(crate) is_pooled: bool,
    /// The buffers to clear before a step, with the number of bytes: rows of other programs may lie in their padding.
    cleared: Vec<(usize, u64)>,
    pub(crate) bytes: u64,
}

impl Program {
    /// Writes an input, in order with the submits.
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
        self.last = counts;
        for output in &mut self.outputs {
            output.expect(&counts);
        }
        let has_rows = self.has_rows(&counts);
        if let Some(completion) = self.completion.as_mut().filter(|_| has_rows) {
            completion.begin();
        }
        let (device, mut completed, mut submission) = (self.device.clone(), 0, None);
        let mut hand_over = |commands| {
            let submitted = match device.counter() {
                Some(counter) => {
                    let (submitted, number) = counter.submit(&device, commands);
                    completed = number;
                    submitted
                }
                None => device.submit(Some(commands)),
            };
            submission = Some(submitted);
        };
        if let Some(recorded) = self.ahead.take_if(|recorded| recorded.counts == counts) {
            self.recorded_ahead += 1;
            recorded.commands.into_iter().for_each(hand_over);
        } else {
            self.ahead = None;
            self.record(&counts, FIRST_STAGES, &mut hand_over);
        }
        self.submission = submission;
        if let Some(completion) = self.completion.as_mut().filter(|_| has_rows) {
            completion.expect(completed);
        }
        Ok(())
    }

    /// Whether a step has results to read.
    fn has_rows(&self, counts: &Counts) -> bool {
        self.outputs.iter().any(|output| output.access.rows(counts) > 0)
    }

    /// Records a step and hands over its commands, of `most` stages at first, then twice as many each time.
    fn record(
        &mut self,
        counts: &Counts,
        mut most: usize,
        mut take: impl FnMut(wgpu::CommandBuffer),
    ) {
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        self.clear(&mut encoder);
        let (mut place, all) = (Place::default(), self.stages.len());
        while place.stage < all {
            let end = all.min(place.stage.saturating_add(most));
            place = self.encode(&mut encoder, place, end, counts);
            most = most.saturating_mul(2);
            if place.stage < all {
                let next = self.device.device.create_command_encoder(&Default::default());
                take(std::mem::replace(&mut encoder, next).finish());
            }
        }
        if let Some(counter) = self.device.counter() {
            let completion = self.completion.as_ref().filter(|_| self.has_rows(counts));
            completion.inspect(|completion| completion.fetch(counter, &mut encoder));
        }
        for output in &self.outputs {
            output.fetch(&mut encoder, &self.buffers, counts);
        }
        if let Some(timer) = &mut self.timer {
            timer.fetch(&mut encoder);
        }
        take(encoder.finish());
    }

    /// Records that padding is zero before a step.
    fn clear(&self, encoder: &mut wgpu::CommandEncoder) {
        for &(buffer, bytes) in &self.cleared {
            encoder.clear_buffer(&self.buffers[buffer], 0, Some(bytes));
        }
    }

    /// Records the step that probably follows: one more token of each sequence. It takes about as long as the device takes
    /// for a small model, which computes meanwhile.
    fn record_next(&mut self) {
        if self.ahead.is_some() || self.timer.is_some() || self.is_pooled {
            return;
        }
        let Some(counts) = self.words.following(&self.last) else { return };
        let mut commands = Vec::new();
        self.record(&counts, self.stages.len().max(1), |some| commands.push(some));
        self.ahead = Some(Recorded { counts, commands });
    }

    /// Records as many dispatches as one submit may run, of stages before `end`; returns the next.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        mut place: Place,
        end: usize,
        counts: &Counts,
    ) -> Place {
        let mut done = 0;
        let timer = self.timer.as_ref();
        let splits = timer.is_some_and(Timer::splits);
        while place.stage < end && done < self.slice {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: timer.and_then(|timer| timer.of_pass(place.stage)),
            });
            loop {
                let Place { stage, dispatch } = place;
                if dispatch == 0 {
                    timer.inspect(|timer| timer.stamp(&mut pass, stage, 0));
                }
                // The times of a pass are those of a stage, which then is in one submit.
                let most = if splits { u64::MAX } else { self.slice - done };
                let (operations, next) =
                    self.stages[stage].encode(&mut pass, counts, dispatch, most);
                done += operations;
                if let Some(dispatch) = next {
                    place.dispatch = dispatch;
                    break;
                }
                timer.inspect(|timer| timer.stamp(&mut pass, stage, 1));
                place = Place { stage: stage + 1, dispatch: 0 };
                if splits || place.stage == end || done >= self.slice {
                    break;
                }
            }
            let is_last = place.stage == end || done >= self.slice;
            self.device.counter().filter(|_| is_last).inspect(|counter| counter.count(&mut pass));
        }
        place
    }

    /// Runs the stages one by one and checks every value; the first that is not finite is reported. Slow.
    ///
    /// # Errors
    /// Those of [`Program::submit`]; a value that is not finite.
    pub(crate) fn submit_checked(
        &mut self,
        step: &Step<'_>,
        label: impl Fn(Value) -> GraphError,
    ) -> Result<(), GraphError> {
        self.device.check()?;
        self.release()?;
        let counts = self.words.fill(step, &self.limits)?;
        self.device.queue.write_buffer(&self.step, 0, bytemuck::cast_slice(self.words.words()));
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        self.clear(&mut encoder);
        self.device.submit(Some(encoder.finish()));
        for stage in &self.stages {
            let mut encoder = self.device.device.create_command_encoder(&Default::default());
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                stage.encode(&mut pass, &counts, 0, u64::MAX);
            }
            self.device.submit(Some(encoder.finish()));
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
            output.expect(&counts);
            output.fetch(&mut encoder, &self.buffers, &counts);
        }
        self.submission = Some(self.device.submit(Some(encoder.finish())));
        Ok(())
    }

    /// Unmaps staging buffers that were not read.
    pub(crate) fn release(&mut self) -> Result<(), GraphError> {
        for output in &mut self.outputs {
            if output.rows > 0 {
                self.device.wait_for(self.submission.as_ref(), &output.state)?;
                output.mapped.unmap();
                output.rows = 0;
            }
        }
        if let Some(completion) = &mut self.completion {
            completion.release(&self.device)?;
        }
        match &mut self.timer {
            Some(timer) => timer.release(&self.device),
            None => Ok(()),
        }
    }

    /// Waits for the last submit and copies an output.
    ///
    /// # Errors
    /// No such output, a wrong number of elements, a lost device.
    pub(crate) fn read(&mut self, value: Value, data: &mut [f32]) -> Result<bool, GraphError> {
        let Some(place) = self.outputs.iter().position(|output| output.access.value == value)
        else {
            return Ok(false);
        };
        let output = &self.outputs[place];
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
        let is_there = output.state.load(Ordering::Acquire);
        if !is_there {
            self.record_next();
        }
        let output = &mut self.outputs[place];
        self.device.wait_for(self.submission.as_ref(), &output.state)?;
        if let Some(completion) = &self.completion {
            completion.check(&self.device)?;
        }
        let bytes = access.span(output.rows) * 4;
        {
            let mapped = output.mapped.slice(output.at..output.at + bytes).get_mapped_range();
            let mapped = mapped.map_err(|error| self.device.lost(error.to_string()))?;
            let floats: &[f32] = bytemuck::cast_slice(&mapped);
            for (to, from) in data.chunks_exact_mut(width).zip(floats.chunks(stride)) {
                to.copy_from_slice(&from[..width]);
            }
        }
        if self.is_pooled {
            // Other programs copy to this buffer.
            output.mapped.unmap();
            output.rows = 0;
        }
        Ok(true)
    }

    /// Times of the stages of the last submit, which must have finished; empty unless requested.
    ///
    /// # Errors
    /// The device was lost.
    pub(crate) fn timings(&self, into: &mut Vec<OpTime>) -> Result<(), GraphError> {
        match &self.timer {
            Some(timer) => timer.read(&self.device, into),
            None => {
                into.clear();
                Ok(())
            }
        }
    }

    /// Number of dispatches of the last step.
    pub(crate) fn dispatches(&self) -> usize {
        let all = self.stages.iter().flat_map(|stage| stage.dispatches(&self.last));
        all.filter(|dispatch| !dispatch.grid.groups(&self.last).contains(&0)).count()
    }

    /// Whether a value can be read from this program.
    pub(crate) fn makes(&self, value: Value) -> bool {
        self.outputs.iter().any(|output| output.access.value == value)
    }
}

impl Dispatch {
    /// Records it; returns its operations.
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, counts: &Counts) -> u64 {
        let groups @ [x, y, z] = self.grid.groups(counts);
        if groups.contains(&0) {
            return 0;
        }
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(x, y, z);
        self.grid.operations(counts, groups)
    }
}

/// Takes numbers of operations until their sum is `most`; returns how many, and the sum.
fn take(operations: impl Iterator<Item = u64>, most: u64) -> (usize, u64) {
    let (mut count, mut sum) = (0, 0u64);
    for operations in operations {
        (count, sum) = (count + 1, sum.saturating_add(operations));
        if sum >= most {
            break;
        }
    }
    (count, sum)
}

impl Stage {
    /// The dispatches for a step, of which some may have no workgroups.
    fn dispatches(&self, counts: &Counts) -> &[Dispatch] {
        let taken = self.choices.iter().find(|choice| (choice.when)(counts, choice.bound));
        taken.map_or(&[], |choice| &choice.dispatches)
    }

    /// Records the stage's dispatches from one on, until they have `most` operations; returns the operations, and the next
    /// dispatch unless it was the last.
    fn encode(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        counts: &Counts,
        from: usize,
        most: u64,
    ) -> (u64, Option<usize>) {
        let dispatches = self.dispatches(counts);
        let encoded = dispatches[from..].iter().map(|dispatch| dispatch.encode(pass, counts));
        let (count, operations) = take(encoded, most);
        let next = from + count;
        (operations, (next < dispatches.len()).then_some(next))
    }
}

impl Output {
    /// From now on the rows of a step are waited for.
    fn expect(&mut self, counts: &Counts) {
        self.rows = self.access.rows(counts);
        if self.rows > 0 {
            self.state.store(false, Ordering::Release);
        }
    }

    /// Requests a step's rows, copied to mappable memory if the value itself cannot be mapped.
    fn fetch(&self, encoder: &mut wgpu::CommandEncoder, buffers: &[wgpu::Buffer], counts: &Counts) {
        let rows = self.access.rows(counts);
        if rows == 0 {
            return;
        }
        let bytes = self.access.span(rows) * 4;
        if self.is_copy {
            let (from, at) = (&buffers[self.access.buffer], u64::from(self.access.offset) * 4);
            encoder.copy_buffer_to_buffer(from, at, &self.mapped, 0, bytes);
        }
        let (state, range) = (self.state.clone(), self.at..self.at + bytes);
        encoder.map_buffer_on_submit(&self.mapped, wgpu::MapMode::Read, range, move |_| {
            state.store(true, Ordering::Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::take;

    /// Submits of at most `slice` operations, but for the last dispatch of each.
    fn submits(operations: &[u64], slice: u64) -> Vec<u64> {
        let (mut from, mut submits) = (0, Vec::new());
        while from < operations.len() {
            let (count, sum) = take(operations[from..].iter().copied(), slice);
            from += count;
            submits.push(sum);
        }
        submits
    }

    #[test]
    fn many_dispatches_of_a_stage_are_several_submits() {
        assert_eq!(submits(&[40; 10], 100), [120, 120, 120, 40]);
        assert_eq!(
            submits(&[100; 3], 100),
            [100; 3],
            "attention at the length that one dispatch takes"
        );
        assert_eq!(submits(&[1; 100], 100), [100]);
        assert_eq!(submits(&[500, 0, 0, 1], 100), [500, 1], "a dispatch is not divided");
        assert_eq!(submits(&[u64::MAX, 7], u64::MAX), [u64::MAX, 7]);
        assert_eq!(submits(&[], 100), [0; 0]);
    }
}
