//! The states of one layer on the device, one slot of f32 elements for each sequence or checkpoint.

use std::ops::Range;

use bilayer_graph::{Error as GraphError, Limits, StateInfo, host_zeros};

use crate::device::Device;

/// `[slots, elements]`.
pub struct Slots {
    /// The elements.
    pub buffer: wgpu::Buffer,
    elements: usize,
    slots: usize,
}

impl Slots {
    /// Slots without contents.
    ///
    /// # Errors
    /// They exceed what a kernel can bind, or out of memory.
    pub fn new(device: &Device, info: &StateInfo, limits: &Limits) -> Result<Slots, GraphError> {
        let (elements, slots) = (info.elements, limits.states);
        let bytes = bytes(elements).saturating_mul(slots as u64);
        if bytes > device.caps().max_binding {
            let most = device.caps().max_binding;
            // Layers on other devices may have it.
            return Err(GraphError::OutOfMemory {
                device: device.name().to_owned(),
                what: format!(
                    "the states of a layer, of which it binds {most} at once (fewer sequences or checkpoints fit)"
                ),
                bytes: bytes as usize,
            });
        }
        let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = device.buffer("states", bytes, wgpu::BufferUsages::STORAGE | copied)?;
        Ok(Slots { buffer, elements, slots })
    }

    /// Floats from one slot to the next.
    pub fn stride(&self) -> u32 {
        self.elements as u32
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        bytes(self.elements) * self.slots as u64
    }

    /// Copies slots to the host; waits for all submitted work.
    ///
    /// # Errors
    /// No such slot, out of memory, or the device was lost.
    pub fn save(&self, device: &Device, slots: &[u32]) -> Result<Vec<f32>, GraphError> {
        self.check(slots)?;
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let ranges: Vec<_> = slots.iter().map(|&slot| self.range(slot)).collect();
        let bytes = device.download_ranges(&self.buffer, &ranges)?;
        let mut data = host_zeros("saved states", slots.len() * self.elements)?;
        bytemuck::cast_slice_mut(&mut data).copy_from_slice(&bytes);
        Ok(data)
    }

    /// Fills slots with data saved by another device, in order with submitted work.
    ///
    /// # Errors
    /// No such slot, or another number of elements.
    pub fn restore(&self, device: &Device, slots: &[u32], data: &[f32]) -> Result<(), GraphError> {
        self.check(slots)?;
        let limit = slots.len() * self.elements;
        if data.len() != limit {
            let (what, found) = ("elements of a state", data.len());
            return Err(GraphError::Limit { what, limit, found });
        }
        for (&slot, data) in slots.iter().zip(data.chunks_exact(self.elements)) {
            let start = self.range(slot).start;
            device.queue.write_buffer(&self.buffer, start, bytemuck::cast_slice(data));
        }
        Ok(())
    }

    fn range(&self, slot: u32) -> Range<u64> {
        let bytes = bytes(self.elements);
        u64::from(slot) * bytes..u64::from(slot + 1) * bytes
    }

    fn check(&self, slots: &[u32]) -> Result<(), GraphError> {
        match slots.iter().max() {
            Some(&slot) if slot as usize >= self.slots => Err(GraphError::Limit {
                what: "slots of state",
                limit: self.slots,
                found: slot as usize + 1,
            }),
            _ => Ok(()),
        }
    }
}

/// Bytes of a slot.
fn bytes(elements: usize) -> u64 {
    (elements as u64).saturating_mul(size_of::<f32>() as u64)
}
