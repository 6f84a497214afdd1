//! What a driver has compiled, kept from run to run where it can be.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keeps bytes from run to run. A byte that comes back differently must make the whole be lost: drivers trust them.
pub trait Keep: Debug + Send + Sync {
    /// What was stored under a name.
    fn load(&self, name: &str) -> Option<Vec<u8>>;
    /// Stores under a name; where that fails nothing is kept.
    fn store(&self, name: &str, bytes: &[u8]);
}

/// The cache of one adapter and driver.
pub struct PipelineCache {
    raw: wgpu::PipelineCache,
    keeper: Arc<dyn Keep>,
    name: String,
    /// How many pipelines there were when it was last stored.
    stored: AtomicUsize,
}

impl PipelineCache {
    /// The cache of a device; `None` where the driver has no such thing.
    pub fn open(
        device: &wgpu::Device,
        adapter: &wgpu::Adapter,
        keeper: Arc<dyn Keep>,
    ) -> Option<PipelineCache> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let name = wgpu::util::pipeline_cache_key(&adapter.get_info())?;
        let data = keeper.load(&name);
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("bilayer"),
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the bytes are what such a driver gave, whole, by the contract of `Keep`; wgpu checks in their header
        // that it was this one.
        let raw = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(PipelineCache { raw, keeper, name, stored: AtomicUsize::new(0) })
    }

    /// What pipelines are made with.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Stores what the driver has compiled, if there are other pipelines than last time.
    pub fn store(&self, pipelines: usize) {
        if self.stored.swap(pipelines, Ordering::Relaxed) != pipelines
            && let Some(data) = self.raw.get_data()
        {
            self.keeper.store(&self.name, &data);
        }
    }
}
