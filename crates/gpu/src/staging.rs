//! Memory through which the host's bytes reach buffers of the device: mapped once, filled by all threads, used again when the
//! device has copied it. Memory for each write is costly, for drivers pin its pages, and one thread copies at a fraction of a
//! link's speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_graph::Error as GraphError;
use rayon::prelude::*;
use wgpu::WriteOnly;

use crate::device::Device;

/// Bytes of a chunk, unless a write needs more.
pub const CHUNK_BYTES: usize = 8 << 20;

/// Writes of fewer bytes go through the queue's own memory, which joins them.
const SMALL_BYTES: usize = 64 << 10;

/// Bytes that a thread fills at once.
const PIECE_BYTES: usize = 128 << 10;

/// How many chunks there may be before a write waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A few: loading a model takes little memory of the host.
    Bounded,
    /// Many: writes are queued behind work submitted before, and go on while it is computed. 256 MiB are as much as a link
    /// takes in some 10 ms; more would keep the host's memory and gain nothing.
    Queued,
}

impl Pace {
    fn chunks(self) -> usize {
        match self {
            Pace::Bounded => 4,
            Pace::Queued => 32,
        }
    }
}

struct Chunk {
    buffer: wgpu::Buffer,
    bytes: usize,
    /// Whether it is mapped.
    ready: Arc<AtomicBool>,
    /// The submission that last read it, after which it is mapped.
    read_by: Option<wgpu::SubmissionIndex>,
}

/// The chunks of a device.
#[derive(Default)]
pub struct Staging {
    chunks: Vec<Chunk>,
    /// The chunk used the longest ago.
    next: usize,
}

impl Staging {
    /// Writes `bytes` bytes to a buffer from `at` on, in order with what is submitted. `fill` writes some of them, from the given
    /// one on.
    ///
    /// # Errors
    /// Out of memory, or a lost device.
    pub fn write(
        &mut self,
        device: &Device,
        (to, at): (&wgpu::Buffer, u64),
        bytes: usize,
        pace: Pace,
        fill: impl Fn(usize, WriteOnly<'_, [u8]>) + Sync,
    ) -> Result<(), GraphError> {
        let copied = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT as usize);
        if copied < SMALL_BYTES {
            let mut small = vec![0u8; copied];
            fill(0, (&mut small[..bytes]).into());
            device.queue.write_buffer(to, at, &small);
            return Ok(());
        }
        let chunk = self.free(device, copied, pace)?;
        {
            let view = chunk.buffer.get_mapped_range_mut(0..copied as u64);
            let mut view = view.map_err(|error| device.lost(error.to_string()))?;
            view.slice(bytes..).fill(0);
            let (pieces, rest) = view.slice(..bytes).into_chunks::<PIECE_BYTES>();
            let whole = pieces.len();
            let pieces: Vec<WriteOnly<'_, [u8; PIECE_BYTES]>> = pieces.into_iter().collect();
            pieces.into_par_iter().enumerate().for_each(|(i, piece)| {
                fill(PIECE_BYTES * i, piece.into());
            });
            fill(PIECE_BYTES * whole, rest);
        }
        chunk.buffer.unmap();
        chunk.ready.store(false, Ordering::Release);
        let mut encoder = device.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&chunk.buffer, 0, to, at, copied as u64);
        map(&mut encoder, chunk);
        chunk.read_by = Some(device.submit(Some(encoder.finish())));
        device.check()
    }

    /// A mapped chunk of at least so many bytes.
    fn free(
        &mut self,
        device: &Device,
        bytes: usize,
        pace: Pace,
    ) -> Result<&mut Chunk, GraphError> {
        let count = self.chunks.len();
        // Whatever is wrong with the device is reported by what waits for it.
        let _ = device.device.poll(wgpu::PollType::Poll);
        let is_free = |chunk: &Chunk| chunk.ready.load(Ordering::Acquire) && chunk.bytes >= bytes;
        let found = (self.next..count).chain(0..self.next).find(|&at| is_free(&self.chunks[at]));
        let at = match found {
            Some(at) => at,
            None if count < pace.chunks() => {
                self.chunks.push(make(device, bytes)?);
                count
            }
            None => {
                let at = self.next;
                let Chunk { ready, read_by, .. } = &self.chunks[at];
                device.wait_for(read_by.as_ref(), ready)?;
                if self.chunks[at].bytes < bytes {
                    self.chunks[at] = make(device, bytes)?;
                }
                at
            }
        };
        self.next = (at + 1) % self.chunks.len();
        Ok(&mut self.chunks[at])
    }
}

fn make(device: &Device, bytes: usize) -> Result<Chunk, GraphError> {
    let bytes = bytes.max(CHUNK_BYTES);
    let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
    let buffer = device.buffer("staging", bytes as u64, usage)?;
    let chunk = Chunk { buffer, bytes, ready: Arc::default(), read_by: None };
    let mut encoder = device.device.create_command_encoder(&Default::default());
    map(&mut encoder, &chunk);
    device.submit(Some(encoder.finish()));
    device.wait(&chunk.ready)?;
    Ok(chunk)
}

/// Maps a chunk again once what is submitted is done.
fn map(encoder: &mut wgpu::CommandEncoder, chunk: &Chunk) {
    let ready = chunk.ready.clone();
    let all = 0..chunk.buffer.size();
    encoder.map_buffer_on_submit(&chunk.buffer, wgpu::MapMode::Write, all, move |_| {
        ready.store(true, Ordering::Release);
    });
}
