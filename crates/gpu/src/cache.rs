//! Device memory of a layer's paged keys and values.

use bilayer_graph::{CacheInfo, Error as GraphError, Limits, OpKind};
use bilayer_quant::Type;

use crate::device::Device;
use crate::kernels::cache::{CacheLayout, CacheType};

/// One layer's cache.
pub struct Cache {
    /// Keys.
    pub keys: wgpu::Buffer,
    /// Values.
    pub values: wgpu::Buffer,
    /// How keys lie.
    pub key: CacheLayout,
    /// How values lie.
    pub value: CacheLayout,
    /// Pages.
    pub pages: usize,
    /// Bytes of both.
    pub bytes: u64,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// A type that heads of this size cannot have, or no room.
    pub fn new(device: &Device, info: &CacheInfo, limits: &Limits) -> Result<Cache, GraphError> {
        let key = layout(device, info, limits, limits.key_type)?;
        let value = layout(device, info, limits, limits.value_type)?;
        let usage = wgpu::BufferUsages::STORAGE;
        Ok(Cache {
            keys: device.buffer("keys", key.bytes(), usage)?,
            values: device.buffer("values", value.bytes(), usage)?,
            key,
            value,
            pages: limits.pages,
            bytes: key.bytes() + value.bytes(),
        })
    }

    /// Whether the cache is what a segment needs.
    pub fn fits(&self, info: &CacheInfo, limits: &Limits) -> bool {
        let same = |layout: &CacheLayout, ty| {
            CacheType::of(ty, info.head_dim) == Some(layout.ty)
                && layout.kv_heads == info.kv_heads
                && layout.head_dim == info.head_dim
        };
        same(&self.key, limits.key_type)
            && same(&self.value, limits.value_type)
            && self.pages == limits.pages
    }
}

fn layout(
    device: &Device,
    info: &CacheInfo,
    limits: &Limits,
    ty: Type,
) -> Result<CacheLayout, GraphError> {
    let unsupported = |what: String| GraphError::Unsupported {
        device: device.name().to_owned(),
        op: OpKind::Attend,
        what,
    };
    let Some(known) = CacheType::of(ty, info.head_dim) else {
        return Err(unsupported(format!("a {ty} cache of heads of {} elements", info.head_dim)));
    };
    let layout = CacheLayout {
        ty: known,
        kv_heads: info.kv_heads,
        head_dim: info.head_dim,
        pages: limits.pages,
    };
    if layout.bytes() > device.caps().max_binding {
        return Err(unsupported(format!(
            "a cache of {} bytes in a layer (it binds {} at once; a shorter context fits)",
            layout.bytes(),
            device.caps().max_binding
        )));
    }
    Ok(layout)
}
