//! Copies of whole buffers between the host and a device, and single kernels on such buffers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_graph::Error as GraphError;

use super::Device;
use super::counter::{self, Counter};
use crate::kernel::Source;

impl Device {
    /// Reads a buffer with copy usage. Slow: for tests, the probe and the self-check.
    ///
    /// # Errors
    /// Those of [`Device::wait`], or out of memory.
    pub fn download(&self, buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>, GraphError> {
        self.download_ranges(buffer, std::slice::from_ref(&(0..bytes)))
    }

    /// Reads parts of a buffer, concatenated. Slow, like [`Device::download`].
    ///
    /// # Errors
    /// Those of [`Device::download`].
    pub fn download_ranges(
        &self,
        buffer: &wgpu::Buffer,
        ranges: &[Range<u64>],
    ) -> Result<Vec<u8>, GraphError> {
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let wanted: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let bytes = wanted + self.counter().map_or(0, |_| counter::BYTES);
        let staging = self.buffer("download", bytes, usage)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let bytes = range.end - range.start;
            encoder.copy_buffer_to_buffer(buffer, range.start, &staging, at, bytes);
            at += bytes;
        }
        if let Some(counter) = self.counter() {
            encoder.copy_buffer_to_buffer(counter.number(), 0, &staging, at, counter::BYTES);
        }
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, 0..bytes, move |_| {
            set.store(true, Ordering::Release);
        });
        let (submission, expected) = match self.counter() {
            Some(counter) => {
                let (submission, number) = counter.submit_beside(self, encoder.finish());
                (submission, Some(number))
            }
            None => (self.submit(Some(encoder.finish())), None),
        };
        self.wait_for(Some(&submission), &done)?;
        let mapped = staging.slice(0..bytes).get_mapped_range();
        let view = mapped.map_err(|error| self.lost(error.to_string()))?;
        let (view, number) = view.split_at(wanted as usize);
        if let Some(expected) = expected {
            Counter::compare(self, number, expected)?;
        }
        let mut data = Vec::new();
        data.try_reserve_exact(view.len()).map_err(|_| GraphError::OutOfMemory {
            device: "cpu".to_owned(),
            what: "a copy of a buffer".to_owned(),
            bytes: view.len(),
        })?;
        data.extend_from_slice(view);
        Ok(data)
    }

    /// Runs one kernel on new buffers with the contents `data` (in the order of its storage bindings) and returns
    /// their contents afterwards. For tests and the self-check.
    ///
    /// # Errors
    /// Out of memory, a rejected kernel, a lost device.
    pub fn run(
        &self,
        source: &Source,
        params: &[u8],
        data: &[&[u8]],
        groups: [u32; 3],
    ) -> Result<Vec<Vec<u8>>, GraphError> {
        use wgpu::BufferUsages as Use;
        assert_eq!(data.len(), source.bindings.len(), "{}: a buffer a binding", source.name);
        let pipeline = self.pipeline(source)?;
        let mut buffers = vec![self.filled("params", params, Use::UNIFORM)?];
        for bytes in data {
            buffers.push(self.filled("data", bytes, Use::STORAGE | Use::COPY_SRC)?);
        }
        let resources: Vec<_> = buffers.iter().map(|buffer| buffer.as_entire_binding()).collect();
        let group = self.bind_group(&pipeline, &resources);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        }
        self.submit(Some(encoder.finish()));
        let sizes = data.iter().map(|bytes| bytes.len().next_multiple_of(4) as u64);
        let mut results = Vec::new();
        for (buffer, (bytes, size)) in buffers[1..].iter().zip(data.iter().zip(sizes)) {
            let mut read = self.download(buffer, size)?;
            read.truncate(bytes.len());
            results.push(read);
        }
        Ok(results)
    }

    /// Creates a buffer with the contents `data`.
    ///
    /// # Errors
    /// Those of [`Device::buffer`].
    pub fn filled(
        &self,
        what: &str,
        data: &[u8],
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, GraphError> {
        let bytes = data.len() as u64;
        let buffer = self.buffer(what, bytes, usage | wgpu::BufferUsages::COPY_DST)?;
        let (whole, rest) = data.split_at(data.len() / 4 * 4);
        self.queue.write_buffer(&buffer, 0, whole);
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.queue.write_buffer(&buffer, whole.len() as u64, &last);
        }
        Ok(buffer)
    }
}
