//! Stores a driver's compiled pipelines across runs, if it supports that.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Persistent storage. Corrupted data must be reported as absent, since drivers trust it.
pub trait Keep: Debug + Send + Sync {
    /// Loads the bytes stored under a name.
    fn load(&self, name: &str) -> Option<Vec<u8>>;
    /// Stores bytes under a name; a failure is ignored.
    fn store(&self, name: &str, bytes: &[u8]);
}

/// The name under which a choice is stored that was measured on an adapter, by this version of the crate and in this form.
pub(crate) fn name_of(what: &str, form: u32, identity: &str) -> String {
    let identity = identity.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    format!("{what} {form} {} {identity}", env!("CARGO_PKG_VERSION"))
}

/// The cache of one adapter and driver.
pub struct PipelineCache {
    raw: wgpu::PipelineCache,
    keeper: Arc<dyn Keep>,
    name: String,
    /// Number of pipelines when it was last stored.
    stored: AtomicUsize,
}

impl PipelineCache {
    /// The cache of a device; `None` if the driver has none.
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
        // SAFETY: the bytes came from such a driver, complete by the contract of `Keep`; wgpu verifies in their
        // header that it is the same driver.
        let raw = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(PipelineCache { raw, keeper, name, stored: AtomicUsize::new(0) })
    }

    /// The wgpu object for creating pipelines.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Stores the compiled pipelines, if their number has changed.
    pub fn store(&self, pipelines: usize) {
        if self.stored.swap(pipelines, Ordering::Relaxed) != pipelines
            && let Some(data) = self.raw.get_data()
        {
            self.keeper.store(&self.name, &data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn identities_are_names_of_files() {
        let name = name_of("tiles", 3, "AMD (RADV) 26.2/x");
        assert_eq!(name, format!("tiles 3 {} AMD--RADV--26-2-x", env!("CARGO_PKG_VERSION")));
    }
}
