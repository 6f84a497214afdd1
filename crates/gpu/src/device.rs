//! The wgpu device and its queue: creation, memory, pipelines, waiting, and errors.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bilayer_graph::Error as GraphError;

use crate::Error;
use crate::adapter::Adapter;
use crate::caps::{Api, Caps, Coop, Input, Subgroup, Tile};
use crate::kernel::{Access, Source};
use crate::memory;
use crate::pipeline_cache::{Keep, PipelineCache};
use crate::unified;

pub(crate) mod counter;
mod transfer;
mod wait;

use counter::Counter;

/// How long a wait goes on while the device finishes nothing, before it counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Buffers of fewer bytes are made without asking for free memory: a driver takes a while to tell.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// A compiled kernel.
pub struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// A pipeline under construction; other users wait for it.
type Making = OnceLock<Result<Arc<Pipeline>, GraphError>>;

/// Objects created on a device since it was opened; none of these numbers may grow on the token path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Created {
    /// Buffers.
    pub buffers: usize,
    /// Pipelines.
    pub pipelines: usize,
    /// Bind groups.
    pub bind_groups: usize,
}

/// An open device.
pub struct Device {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    adapter: wgpu::Adapter,
    caps: Caps,
    name: String,
    /// The reason why the device can no longer be used.
    failure: Arc<Mutex<Option<String>>>,
    pipelines: Mutex<HashMap<String, Arc<Making>>>,
    /// Texts of kernels that are rejected, to test it.
    rejected: Mutex<Vec<&'static str>>,
    cache: Option<PipelineCache>,
    buffers: AtomicUsize,
    bind_groups: AtomicUsize,
    /// `None` for a software adapter, which is never lost by time.
    timeout: Option<Duration>,
    /// The time-out since [`Device::hang`].
    hung: OnceLock<Duration>,
    /// Counts completed command buffers where their failures are not reported.
    counter: Option<Counter>,
    /// Submissions that are done: a device under which this grows is slow, not lost.
    finished: Arc<AtomicU64>,
    block_bytes: u64,
    margin_bytes: Option<u64>,
    /// Whether shaders check accesses for bounds.
    checked: bool,
}

/// Options for opening a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Bytes per block of weights, below the GPU's own limit; to test the splitting of matrices.
    pub block_bytes: Option<u64>,
    /// Bytes that a kernel binds at once, below the GPU's own limit; to test what exceeds it.
    pub binding_bytes: Option<u64>,
    /// Whether subgroup operations may be used.
    pub subgroups: bool,
    /// Whether a software adapter is treated like hardware; to test its kernels.
    pub as_hardware: bool,
    /// Whether shaders check every access; slower.
    pub checked: bool,
    /// The only form of input that products of many columns may have; to test it. Otherwise the fastest is measured.
    pub tile: Option<Input>,
    /// Rows and columns of cooperative matrices in place of the largest that an adapter with them lists; to test the kernels
    /// of others. Mesa's software adapter computes sizes that it does not list.
    pub coop_edge: Option<u32>,
    /// How long a wait goes on while the device finishes nothing, before it counts as lost. A software adapter never does.
    pub timeout: Duration,
    /// Operations per second by which work is cut into dispatches; measured if `None`.
    pub rate: Option<u64>,
    /// Bytes of its memory that plans leave free, if not their default.
    pub margin_bytes: Option<u64>,
}

impl Default for DeviceOptions {
    /// The fastest options.
    fn default() -> Self {
        DeviceOptions {
            block_bytes: None,
            binding_bytes: None,
            subgroups: true,
            as_hardware: false,
            checked: false,
            tile: None,
            coop_edge: None,
            timeout: TIMEOUT,
            rate: None,
            margin_bytes: None,
        }
    }
}

impl Device {
    /// Opens an adapter's device. Its subgroup size is not known yet: a probe sets it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open(
        adapter: &Adapter,
        options: DeviceOptions,
        keeper: Option<Arc<dyn Keep>>,
    ) -> Result<Device, Error> {
        let mut caps = adapter.caps();
        let timeout = (!caps.software).then_some(options.timeout);
        caps.software &= !options.as_hardware;
        // A workgroup of several subgroups with barriers costs a software adapter more than a dispatch.
        caps.few.emits &= !caps.software;
        caps.max_binding = caps.max_binding.min(options.binding_bytes.unwrap_or(u64::MAX));
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("bilayer"),
            required_features: adapter.wanted_features(),
            required_limits: adapter.wanted_limits(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            // SAFETY: of the experimental features only cooperative matrices are used, in kernels of our own that a device
            // runs after a self-check.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..Default::default()
        };
        let opened = match unified::open(adapter, &caps, &descriptor) {
            Some(opened) => Ok(opened),
            None => pollster::block_on(adapter.raw().request_device(&descriptor)),
        };
        let (device, queue) = opened.map_err(|error| Error::Open {
            adapter: adapter.facts().name.clone(),
            reason: error.to_string(),
        })?;
        let failure = Arc::new(Mutex::new(None));
        let told = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            note(&told, format!("{reason:?}: {message}"));
        });
        let told = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&told, first_lines(&error.to_string()));
        }));
        let cache = keeper.and_then(|keeper| PipelineCache::open(&device, adapter.raw(), keeper));
        Ok(Device {
            cache,
            device,
            queue,
            caps,
            name: adapter.facts().name.clone(),
            failure,
            pipelines: Mutex::new(HashMap::new()),
            rejected: Mutex::default(),
            buffers: AtomicUsize::new(0),
            bind_groups: AtomicUsize::new(0),
            timeout,
            hung: OnceLock::new(),
            counter: None,
            adapter: adapter.raw().clone(),
            finished: Arc::default(),
            block_bytes: options.block_bytes.unwrap_or(u64::MAX),
            margin_bytes: options.margin_bytes,
            checked: options.checked,
        })
    }

    /// Sets the result of the probe.
    #[must_use]
    pub(crate) fn with_subgroup(mut self, subgroup: Option<Subgroup>) -> Device {
        self.caps.subgroup = subgroup.map(|subgroup| subgroup.threads);
        self.caps.subgroup_varies = subgroup.is_some_and(|subgroup| subgroup.varies);
        self
    }

    /// Counts completed command buffers on Metal, where a failed one looks like a completed one; on a software adapter to
    /// test it.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub(crate) fn with_counter(mut self) -> Result<Device, GraphError> {
        if !self.is_hardware() || self.caps.api == Api::Metal {
            self.counter = Some(Counter::new(&self)?);
        }
        Ok(self)
    }

    /// Does without packed dot products.
    #[must_use]
    pub(crate) fn without_dot4(mut self) -> Device {
        self.caps.dot4 = false;
        self
    }

    /// Sets the cooperative matrices that were seen to work.
    #[must_use]
    pub(crate) fn with_coop(mut self, coop: Option<Coop>) -> Device {
        self.caps.coop = coop;
        self
    }

    /// Computes attention without cooperative matrices.
    #[must_use]
    pub(crate) fn without_coop_attention(mut self) -> Device {
        self.caps.coop_attends = false;
        self
    }

    /// Sets how products of many columns are computed.
    #[must_use]
    pub(crate) fn with_tile(mut self, tile: Tile) -> Device {
        self.caps.tile = tile;
        self
    }

    /// Capabilities for kernels.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Maximum bytes per block of weights.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.min(self.caps.max_binding)
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is not a software adapter, whatever the options say.
    pub fn is_hardware(&self) -> bool {
        self.timeout.is_some()
    }

    /// Number of objects created so far.
    pub fn created(&self) -> Created {
        Created {
            buffers: self.buffers.load(Ordering::Relaxed),
            pipelines: lock(&self.pipelines).values().filter(|p| p.get().is_some()).count(),
            bind_groups: self.bind_groups.load(Ordering::Relaxed),
        }
    }

    /// Whether the device still works.
    ///
    /// # Errors
    /// It was lost, or a call failed.
    pub fn check(&self) -> Result<(), GraphError> {
        match &*lock(&self.failure) {
            None => Ok(()),
            Some(reason) => {
                Err(GraphError::DeviceLost { device: self.name.clone(), reason: reason.clone() })
            }
        }
    }

    /// Marks the device as unusable, and returns the corresponding error.
    pub fn lost(&self, reason: String) -> GraphError {
        note(&self.failure, reason);
        match self.check() {
            Err(error) => error,
            Ok(()) => unreachable!("a reason was just noted"),
        }
    }

    /// Destroys the device as if the driver had lost it.
    pub fn destroy(&self) {
        self.device.destroy();
        let _ = self.device.poll(wgpu::PollType::Poll);
        note(&self.failure, "destroyed".to_owned());
    }

    /// Creates a zeroed buffer.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, GraphError> {
        self.check()?;
        let out_of_memory = || GraphError::OutOfMemory {
            device: self.name.clone(),
            what: what.to_owned(),
            bytes: bytes as usize,
        };
        let host = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        if bytes >= BUDGET_BYTES_MIN && (usage & host).is_empty() {
            let memory = memory::of(&self.adapter);
            if !memory.fits(bytes, self.margin_bytes) {
                return Err(out_of_memory());
            }
        }
        let full = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let wrong = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes.max(16).next_multiple_of(16),
            usage,
            mapped_at_creation: false,
        };
        let buffer = self.device.create_buffer(&descriptor);
        let refused = pollster::block_on(wrong.pop());
        let refused = pollster::block_on(full.pop()).or(refused);
        if refused.is_some() {
            self.check()?;
            return Err(out_of_memory());
        }
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(buffer)
    }

    /// The pipeline of a kernel, created at its first use.
    ///
    /// # Errors
    /// The driver refuses the kernel.
    pub fn pipeline(&self, source: &Source) -> Result<Arc<Pipeline>, GraphError> {
        let making = lock(&self.pipelines).entry(source.name.clone()).or_default().clone();
        making.get_or_init(|| self.make(source)).clone()
    }

    /// Whether an error of [`Device::pipeline`] is that of a kernel alone: the device goes on.
    pub fn is_rejection(&self, error: &GraphError) -> bool {
        matches!(error, GraphError::DeviceLost { .. }) && self.check().is_ok()
    }

    /// From now on kernels with this text are rejected, as by a driver's compiler. To test what comes of it.
    #[doc(hidden)]
    pub fn reject(&self, text: &'static str) {
        lock(&self.rejected).push(text);
    }

    fn make(&self, source: &Source) -> Result<Arc<Pipeline>, GraphError> {
        let rejected = |reason: &str| GraphError::DeviceLost {
            device: self.name.clone(),
            reason: format!("kernel {}: {reason}", source.name),
        };
        if let Some(text) = lock(&self.rejected).iter().find(|text| source.wgsl.contains(**text)) {
            return Err(rejected(text));
        }
        let wrong = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let inside = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let pipeline = Arc::new(self.compile(source));
        let refused = pollster::block_on(inside.pop());
        let refused = pollster::block_on(wrong.pop()).or(refused);
        match refused {
            None => Ok(pipeline),
            Some(error) => Err(rejected(&first_lines(&error.to_string()))),
        }
    }

    /// Stores the driver's compiled pipelines, if there are new ones and a storage.
    pub fn keep_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.store(self.created().pipelines);
        }
    }

    /// Whether the host can map buffers that shaders use, and benefits from it.
    pub fn maps_primary_buffers(&self) -> bool {
        self.caps.unified
            && self.device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
    }

    fn compile(&self, source: &Source) -> Pipeline {
        let checks = match self.checked {
            true => wgpu::ShaderRuntimeChecks::checked(),
            false => wgpu::ShaderRuntimeChecks::unchecked(),
        };
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&source.name),
            source: wgpu::ShaderSource::Wgsl(source.wgsl.as_str().into()),
        };
        // SAFETY: the text is one of our own kernels, which index their bindings only within the sizes set by
        // `Program`; the tests run them checked and unchecked.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&source.name),
            entries: &entries(&source.bindings),
        });
        let over = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&source.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let descriptor = wgpu::ComputePipelineDescriptor {
            label: Some(&source.name),
            layout: Some(&over),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.cache.as_ref().map(PipelineCache::raw),
        };
        Pipeline { pipeline: self.device.create_compute_pipeline(&descriptor), layout }
    }

    /// Creates a bind group of a kernel: its uniform, then its storage bindings in order.
    pub fn bind_group(
        &self,
        pipeline: &Pipeline,
        resources: &[wgpu::BindingResource<'_>],
    ) -> wgpu::BindGroup {
        self.bind_groups.fetch_add(1, Ordering::Relaxed);
        let numbered = resources.iter().enumerate();
        let entries: Vec<_> = numbered
            .map(|(i, resource)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: resource.clone(),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        })
    }

    /// Keeps the queue of a device that hangs until the process ends. wgpu-core's queue waits for its work when it is dropped
    /// (`vkQueueWaitIdle`), without a limit, and would block the thread that drops the last backend on this device.
    fn abandon(&self) {
        std::mem::forget(self.queue.clone());
    }

    /// From now on nothing is seen to be done, as after a kernel that does not end; a wait gives up after `timeout`. To test
    /// what comes of it.
    #[doc(hidden)]
    pub fn hang(&self, timeout: Duration) {
        // The first one counts.
        let _ = self.hung.set(timeout);
    }

    /// Does not execute the next command buffer of a step, as if the driver gave it up without a report; only on devices that
    /// count them. To test what comes of it.
    #[doc(hidden)]
    pub fn fail_next(&self) -> bool {
        self.counter.as_ref().inspect(|counter| counter.fail_next()).is_some()
    }

    pub(crate) fn counter(&self) -> Option<&Counter> {
        self.counter.as_ref()
    }

    /// Hands commands to the device, and counts them when they are done.
    pub(crate) fn submit(&self, commands: Option<wgpu::CommandBuffer>) -> wgpu::SubmissionIndex {
        let submission = self.queue.submit(commands);
        let finished = self.finished.clone();
        self.queue.on_submitted_work_done(move || {
            finished.fetch_add(1, Ordering::AcqRel);
        });
        submission
    }
}

/// The layout entries of a kernel: the uniform, then its storage bindings.
fn entries(bindings: &[Access]) -> Vec<wgpu::BindGroupLayoutEntry> {
    let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = |(i, access): (usize, &Access)| {
        let read_only = *access == Access::Read;
        entry(i + 1, wgpu::BufferBindingType::Storage { read_only })
    };
    let uniform = entry(0, wgpu::BufferBindingType::Uniform);
    std::iter::once(uniform).chain(bindings.iter().enumerate().map(storage)).collect()
}

/// Keeps only the first reason: later ones are its consequences.
fn note(failure: &Mutex<Option<String>>, reason: String) {
    lock(failure).get_or_insert(reason);
}

/// The first lines of a message.
fn first_lines(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[..lines.len().min(8)].join("; ")
}

/// Locks even after a panic elsewhere: the guarded data is only ever replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether wgpu still has a device after its last user has dropped it, who did this before.
    fn is_kept(before: impl Fn(&Device)) -> Option<bool> {
        let adapter = crate::find(Some("software")).ok()?;
        let device = Device::open(&adapter, DeviceOptions::default(), None).expect("opens");
        // wgpu's device holds one for its callbacks.
        let failure = Arc::downgrade(&device.failure);
        device.finish().expect("it has nothing to do");
        before(&device);
        drop(device);
        Some(failure.upgrade().is_some())
    }

    #[test]
    fn a_device_that_hangs_is_not_waited_for_when_it_is_dropped() {
        let Some(kept) = is_kept(|_| ()) else {
            return crate::required::skip("no software adapter");
        };
        assert!(!kept, "a device that works is given back");
        let hang = |device: &Device| {
            device.hang(Duration::from_millis(1));
            device.finish().expect_err("it finishes nothing");
        };
        assert_eq!(is_kept(hang), Some(true));
    }
}
