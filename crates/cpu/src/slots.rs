//! The states of one layer, one slot of f32 elements for each sequence or checkpoint.

use bilayer_graph::{Error, Limits, StateInfo, host_zeros};

use crate::memory::{Memory, lines};

/// `[slots, elements]`, each slot in cache lines of its own.
pub(crate) struct Slots {
    elements: usize,
    slots: usize,
    memory: Memory,
}

impl Slots {
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(info: &StateInfo, limits: &Limits) -> Result<Slots, Error> {
        let bytes = slot_bytes(info.elements).saturating_mul(limits.states);
        let memory = Memory::new(bytes, "states of sequences")?;
        Ok(Slots { elements: info.elements, slots: limits.states, memory })
    }

    /// Size of its slots in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots
    }

    /// Elements `first..first + len` of a slot, for reading.
    ///
    /// # Safety
    /// No thread writes to them while the slice is alive.
    pub(crate) unsafe fn get(&self, slot: u32, first: usize, len: usize) -> &[f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.memory.get(self.start(slot, first, len), len) }
    }

    /// Elements `first..first + len` of a slot, for writing.
    ///
    /// # Safety
    /// No other thread accesses them while the slice is alive.
    #[expect(clippy::mut_from_ref, reason = "the threads of a stage write disjoint parts")]
    pub(crate) unsafe fn get_mut(&self, slot: u32, first: usize, len: usize) -> &mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.memory.get_mut(self.start(slot, first, len), len) }
    }

    /// Reads whole slots.
    ///
    /// # Errors
    /// No such slot, or out of memory.
    ///
    /// # Safety
    /// No thread writes to the slots meanwhile.
    pub(crate) unsafe fn save(&self, slots: &[u32]) -> Result<Vec<f32>, Error> {
        self.check(slots)?;
        let mut data = host_zeros("saved states", slots.len() * self.elements)?;
        for (&slot, data) in slots.iter().zip(data.chunks_exact_mut(self.elements)) {
            // SAFETY: guaranteed by the caller.
            data.copy_from_slice(unsafe { self.get(slot, 0, self.elements) });
        }
        Ok(data)
    }

    /// Fills whole slots.
    ///
    /// # Errors
    /// No such slot, or another number of elements.
    ///
    /// # Safety
    /// No other thread accesses the slots meanwhile.
    pub(crate) unsafe fn restore(&self, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        self.check(slots)?;
        let limit = slots.len() * self.elements;
        if data.len() != limit {
            return Err(Error::Limit { what: "elements of a state", limit, found: data.len() });
        }
        for (&slot, data) in slots.iter().zip(data.chunks_exact(self.elements)) {
            // SAFETY: guaranteed by the caller.
            unsafe { self.get_mut(slot, 0, self.elements) }.copy_from_slice(data);
        }
        Ok(())
    }

    fn check(&self, slots: &[u32]) -> Result<(), Error> {
        match slots.iter().max() {
            Some(&slot) if slot as usize >= self.slots => {
                let (what, found) = ("slots of state", slot as usize + 1);
                Err(Error::Limit { what, limit: self.slots, found })
            }
            _ => Ok(()),
        }
    }

    fn start(&self, slot: u32, first: usize, len: usize) -> usize {
        assert!((slot as usize) < self.slots && first + len <= self.elements, "within a slot");
        slot as usize * slot_bytes(self.elements) + first * size_of::<f32>()
    }
}

fn slot_bytes(elements: usize) -> usize {
    lines(elements.saturating_mul(size_of::<f32>()))
}
