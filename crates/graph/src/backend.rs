//! The trait between plan and device, and the plain data of its interface.

use std::ops::Range;

use bilayer_quant::Type;

use crate::{
    CacheId, CacheInfo, Clock, Error, Graph, OpKind, SharedBytes, StateId, Step, Value, Weight,
    WeightId,
};

/// A part of the graph that runs on one device without a transfer inside.
#[derive(Clone, Debug)]
pub struct Segment<'g> {
    /// The whole graph.
    pub graph: &'g Graph,
    /// The nodes that belong to this segment.
    pub nodes: Range<usize>,
    /// Values computed before the segment that it reads; written with [`Backend::write`] before each submit.
    pub inputs: Vec<Value>,
    /// Values of the segment that are read with [`Backend::read`].
    pub outputs: Vec<Value>,
}

/// A compiled segment of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentId(pub u32);

/// Limits that `compile` allocates for; no step may exceed them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum tokens per step (the physical batch).
    pub tokens: usize,
    /// Maximum output rows per step.
    pub outputs: usize,
    /// Maximum spans per step.
    pub sequences: usize,
    /// Pages in each layer's cache.
    pub pages: usize,
    /// Maximum entries of [`Step::pages`].
    pub page_entries: usize,
    /// Slots for states of sequences in each layer that has one.
    pub states: usize,
    /// Type of stored keys, one of [`TYPES`](bilayer_quant::cache::TYPES).
    pub key_type: Type,
    /// Type of stored values, one of [`TYPES`](bilayer_quant::cache::TYPES).
    pub value_type: Type,
    /// Whether keys are stored, and queries used, after the Hadamard transform of every 32 elements of a head:
    /// `y[i] = sum_j (-1)^n x[j] / sqrt(32)`, where `n` is the number of bits that are set in both `i` and `j`. The product
    /// of a query and a key remains as it is, and a large element is spread over its block, which is then rounded less.
    /// Saved pages hold the keys as they are stored.
    pub hadamard_keys: bool,
    /// Whether the backend may fuse ops; off for comparison.
    pub fuse: bool,
    /// Whether every op is timed ([`Backend::timings`]).
    pub timings: bool,
    /// Whether every op's result is checked for NaN and infinities; slow, used to find the faulty op.
    pub check: bool,
}

impl Limits {
    /// Limits of `tokens` tokens and as many output rows per step, and of `pages` pages and as many entries: one sequence with
    /// one state, keys and values in F16, fused ops.
    #[must_use]
    pub const fn new(tokens: usize, pages: usize) -> Limits {
        Limits {
            tokens,
            outputs: tokens,
            sequences: 1,
            pages,
            page_entries: pages,
            states: 1,
            key_type: Type::F16,
            value_type: Type::F16,
            hadamard_keys: false,
            fuse: true,
            timings: false,
            check: false,
        }
    }

    /// Whether a segment must allocate the states of a layer, of which other segments have reserved `held` slots.
    ///
    /// # Errors
    /// [`Error::Limit`]: they have reserved another number.
    pub fn must_reserve_states(&self, held: Option<usize>) -> Result<bool, Error> {
        match held {
            Some(slots) if slots != self.states => Err(Error::Limit {
                what: "slots of a state that another segment has reserved",
                limit: slots,
                found: self.states,
            }),
            held => Ok(held.is_none()),
        }
    }

    /// The error for a cache of `held` pages that another segment has reserved with other limits.
    #[must_use]
    pub fn other_cache(&self, held: usize) -> Error {
        Error::Limit {
            what: "pages in a cache that another segment has reserved",
            limit: held,
            found: self.pages,
        }
    }

    /// Whether the keys of a cache are stored after the Hadamard transform.
    ///
    /// # Errors
    /// They should be, and cannot be; it names the device.
    pub fn transforms(&self, info: &CacheInfo, device: &str) -> Result<bool, Error> {
        match info.no_hadamard() {
            Some(what) if self.hadamard_keys => Err(Error::Unsupported {
                device: device.to_owned(),
                op: OpKind::Attend,
                what: format!("a Hadamard transform of {what}"),
            }),
            _ => Ok(self.hadamard_keys),
        }
    }
}

/// The properties and capabilities of a device.
///
/// Nothing above the backends asks which backend a device belongs to: what differs is one of the capabilities here.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Name for messages and plans.
    pub name: String,
    /// The label of devices of its backend in a plan's map: `cpu`, `gpu`. Data for people and JSON; no code branches
    /// on it.
    pub family: &'static str,
    /// The selected kernel family, such as an instruction level.
    pub level: String,
    /// Threads or parallel lanes.
    pub threads: usize,
    /// Available memory, bytes.
    pub memory_bytes: u64,
    /// Whether work goes through a queue that needs no thread of the host: a device that is not asynchronous computes
    /// on the thread that waits for it.
    pub is_async: bool,
    /// Whether weights are copied to memory of its own, so that the file's pages are not needed after loading.
    /// Weights that are read in the file's map may exceed [`Facts::memory_bytes`]: that is slow, but works.
    pub copies_weights: bool,
    /// Whether it may be lost or run out of memory while the process lives on, so that its layers must move to
    /// another device.
    pub can_be_lost: bool,
    /// Whether the host reads results in place, in shared memory.
    pub shares_memory: bool,
    /// Whether its memory is part of the host's: what it holds is missing there.
    pub uses_host_memory: bool,
    /// Op kinds it has kernels for.
    pub ops: Vec<OpKind>,
    /// Supported weight types.
    pub types: Vec<Type>,
    /// Types that it stores as another type.
    pub converted: Vec<(Type, Type)>,
    /// Types of matrices that are multiplied with integer activations, which use device memory in addition to or
    /// instead of the floats: 24 bytes per 16 values.
    pub quantized: Vec<Type>,
    /// What tells it from others and from itself as it was set up otherwise: the CPU's model and instruction level, the
    /// GPU and its driver.
    pub identity: String,
    /// Memory read bandwidth, 10^9 bytes per second, if known.
    pub read_gbps: Option<f64>,
    /// Bandwidths at which its kernels read weights of a type for a single row, 10^9 bytes per second, where that was
    /// measured: less than [`Facts::read_gbps`] where computing takes longer.
    pub kernel_gbps: Vec<(Type, f64)>,
    /// Matrix multiplication speed, 10^12 operations per second, if known.
    pub tops: Option<f64>,
    /// What its use costs besides its kernels, as far as that is known.
    pub link: Link,
}

/// What the use of a device costs besides its kernels; what is not known costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Bandwidth from the host's memory to the device's, 10^9 bytes per second.
    pub upload_gbps: Option<f64>,
    /// Bandwidth from the device's memory to the host's, 10^9 bytes per second.
    pub download_gbps: Option<f64>,
    /// Time of the host for each submit, microseconds.
    pub submit_us: f64,
    /// Time between kernels, microseconds.
    pub kernel_us: f64,
    /// Time from the end of the work that the host waits for until it goes on, microseconds.
    pub wait_us: f64,
}

impl Link {
    /// Seconds that a transfer to the device takes.
    pub fn upload_seconds(&self, bytes: f64) -> f64 {
        self.upload_gbps.map_or(0.0, |gbps| bytes / (gbps * 1e9))
    }

    /// Seconds that a transfer to the host takes.
    pub fn download_seconds(&self, bytes: f64) -> f64 {
        self.download_gbps.map_or(0.0, |gbps| bytes / (gbps * 1e9))
    }
}

impl Facts {
    /// A host that is only described: it reads weights in the file's map, computes on the threads that wait, is never
    /// lost, runs every op and type as they are, and nothing is known of its speed.
    pub fn host(name: impl Into<String>, memory_bytes: u64) -> Facts {
        let name = name.into();
        Facts {
            identity: name.clone(),
            name,
            family: "cpu",
            level: String::new(),
            threads: 1,
            memory_bytes,
            is_async: false,
            copies_weights: false,
            can_be_lost: false,
            shares_memory: false,
            uses_host_memory: false,
            ops: OpKind::ALL.to_vec(),
            types: bilayer_quant::all().to_vec(),
            converted: Vec::new(),
            quantized: Vec::new(),
            read_gbps: None,
            kernel_gbps: Vec::new(),
            tops: None,
            link: Link::default(),
        }
    }

    /// A device beside the host that is only described: it copies weights to memory of its own, works through a queue,
    /// may be lost, and runs every op and type as they are.
    pub fn offload(family: &'static str, name: impl Into<String>, memory_bytes: u64) -> Facts {
        Facts {
            family,
            is_async: true,
            copies_weights: true,
            can_be_lost: true,
            ..Facts::host(name, memory_bytes)
        }
    }

    /// Bytes of a weight's row as stored by the device.
    pub fn row_bytes(&self, weight: &Weight) -> u64 {
        match self.converted.iter().find(|(from, _)| *from == weight.ty) {
            Some((_, to)) => {
                let blocks = weight.cols.div_ceil(to.block_weights) as u64;
                blocks.saturating_mul(to.block_bytes as u64) + to.row_header_bytes as u64
            }
            None => weight.row_bytes() as u64,
        }
    }

    /// The time in which a kernel reads weights of a type, as a multiple of that in which memory is read: at least 1.
    pub fn slowness(&self, ty: Type) -> f64 {
        let kernel = self.kernel_gbps.iter().find(|(known, _)| *known == ty);
        match (self.read_gbps, kernel) {
            (Some(read), Some(&(_, kernel))) if kernel > 0.0 => (read / kernel).max(1.0),
            _ => 1.0,
        }
    }
}

/// The time of one kernel in the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// The first graph node that the kernel covers.
    pub node: u32,
    /// Start time, nanoseconds after the first kernel of its segment, on the device's clock.
    pub start_ns: u64,
    /// Duration, nanoseconds.
    pub ns: u64,
}

/// The contents that a backend shall hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holding<'a> {
    /// Weights, in loading order.
    pub weights: &'a [&'a Weight],
    /// Where those of the weights are that will be loaded from a file's map. A device that shares the host's memory may read
    /// them there instead of copying them.
    pub mapped: &'a [MappedWeight],
    /// Caches to preserve if they exist.
    pub caches: &'a [CacheId],
    /// States to preserve if they exist.
    pub states: &'a [StateId],
    /// Weights that it holds only while they are needed ([`Backend::stream`]).
    pub streamed: &'a [StreamedLayer<'a>],
}

/// A weight in a file's map.
#[derive(Clone, Debug)]
pub struct MappedWeight {
    /// The weight.
    pub id: WeightId,
    /// The whole map: page-aligned, and alive and unchanged as long as its clones.
    pub map: SharedBytes,
    /// The weight's bytes in it.
    pub range: Range<usize>,
}

/// Weights that are in a slot of device memory together. All that share a slot take turns in it.
#[derive(Clone, Debug)]
pub struct StreamedLayer<'a> {
    /// The slot.
    pub slot: usize,
    /// The weights with their bytes, in loading order; none of them is in [`Holding::weights`] or in another slot.
    pub weights: Vec<(&'a Weight, SharedBytes)>,
}

/// Keys and values of some pages of a cache, `[pages, PAGE_TOKENS, kv_heads * head_dim]` each; values that are in the
/// keys are left out. f32 represents every
/// cache type, so nothing is lost between devices that use the same type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CachePages {
    /// Keys.
    pub keys: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
}

/// Zeros in the host's memory, for a copy of what a device holds: `what` of `len` numbers.
///
/// # Errors
/// Those of [`host_room`].
pub fn host_zeros(what: &str, len: usize) -> Result<Vec<f32>, Error> {
    let mut numbers = host_room(what, len)?;
    numbers.resize(len, 0.0);
    Ok(numbers)
}

/// An empty vector with room for `what` of `len` numbers in the host's memory.
///
/// # Errors
/// [`Error::OutOfMemory`], where a vector would end the process.
pub fn host_room(what: &str, len: usize) -> Result<Vec<f32>, Error> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        device: "cpu".to_owned(),
        what: what.to_owned(),
        bytes: len.saturating_mul(size_of::<f32>()),
    })?;
    Ok(numbers)
}

/// A kernel selected by `compile`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The graph nodes it covers; several if ops were fused.
    pub nodes: Vec<u32>,
    /// Its name, such as `matmul q4_k avx512vnni`.
    pub name: String,
}

/// A device that holds weights and runs plan segments. Called a few times per segment and step, so used as `dyn`.
///
/// Order of calls: `reserve`, optionally `ready` for each segment, `load` for each weight, `compile` for each
/// segment, then per step `write` the inputs, `submit`, `read` the outputs. Nothing is allocated after `compile`.
/// When layers move to another device, it starts over at `reserve` with what stays; caches and states that move are
/// transferred by `save` and `restore`, `save_state` and `restore_state`.
///
/// **Several micro-batches at once.** `submit` is asynchronous: while one device runs a segment, another may run
/// another segment of the step before or after. So after `submit` of a segment the caller may, before any `read`,
/// `write` the inputs of other segments of the same backend and `submit` those; the backend queues them in order
/// (a GPU), or finishes what runs first (the CPU). A segment's outputs lie in one place: the caller reads them
/// before it writes that segment's inputs again or submits it again, and before it writes one of these values as
/// the input of another segment. Outputs that nobody wants need not be read; the segment may then be written and
/// submitted again at once.
///
/// **Streaming.** A device with memory of its own can run more layers than it has room for: the weights of a
/// [`StreamedLayer`] are copied to its slot by [`Backend::stream`] and stay until another one of that slot is streamed. Of
/// the matrices of experts only those need to be copied that some row is routed to.
/// Segments that read such weights are compiled as others, before any is streamed; they share one set of activations,
/// and those of one slot share the memory of their caches. So each of them takes its inputs by [`Backend::write_to`]
/// directly before its submit, its outputs are read before another one is submitted, and its caches are filled by
/// `restore` before it runs and fetched by `save` before another one of its slot does.
///
/// **Residents.** Segments that read weights whose matrices or vectors may be exchanged ([`Weight::is_resident`]) share one
/// set of activations, too, by the same rules.
///
/// **Failure.** [`Error::OutOfMemory`] and [`Error::DeviceLost`] of any call mean that the caller moves what was
/// placed here elsewhere and goes on. A device that does not answer in time reports itself as lost.
pub trait Backend: Send {
    /// What the device is and can do.
    fn facts(&self) -> &Facts;

    /// The clock by which its work is timed. All devices of a session have the same one.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Announces everything that the device will hold, so that it can lay out its memory and refuse early. Loaded
    /// weights and caches that are named again are preserved (loading such a weight again has no effect); everything
    /// else is dropped, including all compiled segments.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), Error>;

    /// Lets the device start time-consuming parts of [`Backend::compile`] in the background while weights load.
    ///
    /// # Errors
    /// Those of [`Backend::compile`] that are known by now.
    fn ready(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<(), Error> {
        let _ = (segment, limits);
        Ok(())
    }

    /// Loads a weight's bytes, exactly [`Weight::bytes`] of them. The CPU keeps the map, a GPU uploads.
    ///
    /// # Errors
    /// Wrong length, unsupported type, out of memory.
    fn load(&mut self, weight: &Weight, bytes: SharedBytes) -> Result<(), Error>;

    /// Copies rows of a weight of a [`StreamedLayer`] to its slot, where the others keep what they had. Segments submitted
    /// before read what the slot held before; the call does not wait for them. A backend that reads weights in the file's
    /// map has nothing to do.
    ///
    /// # Errors
    /// Out of memory for staging, or the device was lost.
    fn stream(&mut self, weight: WeightId, rows: Range<usize>) -> Result<(), Error> {
        let _ = (weight, rows);
        Ok(())
    }

    /// Replaces matrix or vector `matrix` of a loaded weight in which they may be exchanged ([`Weight::is_resident`]) by
    /// `bytes`. Segments submitted before read what was there; the call does not wait for them.
    ///
    /// # Errors
    /// The device cannot, the weight is not loaded or has no such matrix, wrong length, out of memory for staging, or the
    /// device was lost.
    fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &SharedBytes,
    ) -> Result<(), Error> {
        let _ = (matrix, bytes);
        let (name, device) = (weight.name.clone(), self.facts().name.clone());
        Err(Error::WeightNotLoaded { name, device })
    }

    /// Prepares a segment: selects kernels, allocates buffers, the caches of its `Attend` ops and the states of its
    /// ops. A cache or state already allocated by an earlier segment is shared.
    ///
    /// # Errors
    /// A weight is not loaded, an op is unsupported, out of memory.
    fn compile(&mut self, segment: &Segment<'_>, limits: Limits) -> Result<SegmentId, Error>;

    /// The id that the next compiled segment gets.
    fn next_segment(&self) -> SegmentId;

    /// Frees the segments from an id on, of which none has a step whose results are still read.
    fn free_segments(&mut self, from: SegmentId);

    /// Starts a segment and returns before the work is done. Segments submitted earlier on this backend finish first.
    ///
    /// # Errors
    /// The step exceeds the limits, or the device was lost.
    fn submit(&mut self, segment: SegmentId, step: &Step<'_>) -> Result<(), Error>;

    /// Sets an input `[rows, width]` f32, row-major, of the next submit.
    ///
    /// # Errors
    /// The device was lost.
    fn write(&mut self, value: Value, data: &[f32]) -> Result<(), Error>;

    /// Like [`Backend::write`], for the inputs of one segment only.
    ///
    /// # Errors
    /// The device was lost.
    fn write_to(&mut self, segment: SegmentId, value: Value, data: &[f32]) -> Result<(), Error> {
        let _ = segment;
        self.write(value, data)
    }

    /// Waits for the segment that computes `value` and copies `[rows, width]` f32, row-major. A value without rows
    /// (no requested outputs) is waited for as well.
    ///
    /// # Errors
    /// An op failed or the device was lost.
    fn read(&mut self, value: Value, data: &mut [f32]) -> Result<(), Error>;

    /// Time per kernel of the last run of a segment from which a value was read; empty unless [`Limits::timings`],
    /// and if the device has no clock.
    fn timings(&self, segment: SegmentId) -> &[OpTime];

    /// Bytes of device memory in use by weights (including those read in a file's map), caches, activations and
    /// staging; `None` if the device does not count them.
    fn held_bytes(&self) -> Option<u64> {
        None
    }

    /// Kernels that the device's compiler rejected since the last call, and why, where simpler and possibly slower ones
    /// replace them.
    fn take_replaced(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The kernels selected for a segment, in execution order.
    fn kernels(&self, segment: SegmentId) -> Vec<Kernel>;

    /// Copies pages of a cache, for transfer to another device. Waits for all submitted work.
    ///
    /// # Errors
    /// No such cache or page, or the device was lost.
    fn save(&mut self, cache: CacheId, pages: &[u32]) -> Result<CachePages, Error>;

    /// Fills pages of a compiled segment's cache with pages saved by another device.
    ///
    /// # Errors
    /// No such cache or page, another shape, or the device was lost.
    fn restore(&mut self, cache: CacheId, pages: &[u32], data: &CachePages) -> Result<(), Error>;

    /// Copies slots of a state, `[slots, elements]`, for transfer to another device. Waits for all submitted work.
    ///
    /// # Errors
    /// No such state or slot, or the device was lost.
    fn save_state(&mut self, state: StateId, slots: &[u32]) -> Result<Vec<f32>, Error> {
        let _ = slots;
        Err(no_state(state))
    }

    /// Fills slots of a compiled segment's state with slots saved by another device.
    ///
    /// # Errors
    /// No such state or slot, another number of elements, or the device was lost.
    fn restore_state(&mut self, state: StateId, slots: &[u32], data: &[f32]) -> Result<(), Error> {
        let _ = (slots, data);
        Err(no_state(state))
    }

    /// Number of submits not yet known to be finished, without waiting; `None` if the backend cannot tell. Only
    /// recorded times depend on it.
    fn outstanding(&mut self) -> Option<usize> {
        None
    }
}

/// The error for a state that no segment has.
pub(crate) fn no_state(state: StateId) -> Error {
    Error::Limit { what: "as a state's number", limit: 0, found: state.0 as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_reserved_once_and_in_one_number() {
        let limits = Limits { states: 3, ..Limits::new(8, 2) };
        assert_eq!(limits.must_reserve_states(None), Ok(true));
        assert_eq!(limits.must_reserve_states(Some(3)), Ok(false));
        let what = "slots of a state that another segment has reserved";
        let refused = Err(Error::Limit { what, limit: 2, found: 3 });
        assert_eq!(limits.must_reserve_states(Some(2)), refused);
    }
}
