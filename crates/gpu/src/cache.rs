//! Device memory of a layer's paged KV cache.

use bilayer_graph::{
    CacheInfo, CachePages, Error as GraphError, Limits, OpKind, PAGE_TOKENS, host_zeros,
};
use bilayer_quant::Type;
use rayon::prelude::*;

use crate::device::Device;
use crate::kernels::cache::{CacheLayout, CacheType, Half};

/// Maximum pages in a transfer.
const PAGES_AT_ONCE: usize = 64;

/// One layer's KV cache.
#[derive(Clone)]
pub struct Cache {
    /// Keys.
    pub keys: Side,
    /// Values, unless they are in the keys.
    pub values: Option<Side>,
    /// Whether keys are stored after the Hadamard transform.
    pub hadamard_keys: bool,
    /// Pages.
    pub pages: usize,
    /// Bytes of both sides.
    pub bytes: u64,
}

/// A cache's keys or its values.
#[derive(Clone)]
pub struct Side {
    /// Their memory.
    pub buffer: wgpu::Buffer,
    /// Their layout.
    pub layout: CacheLayout,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// The type does not fit the head dimension, keys are to be transformed and cannot be, or out of memory.
    pub fn new(device: &Device, info: &CacheInfo, limits: &Limits) -> Result<Cache, GraphError> {
        let hadamard_keys = limits.transforms(info, device.name())?;
        let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let usage = wgpu::BufferUsages::STORAGE | copied;
        let side = |what, ty| -> Result<Side, GraphError> {
            let layout = layout(device, info, limits, ty)?;
            Ok(Side { buffer: device.buffer(what, layout.bytes(), usage)?, layout })
        };
        let keys = side("keys", limits.key_type)?;
        if hadamard_keys && !keys.layout.ty.is_in_blocks() {
            let what = format!("a Hadamard transform of {} keys", limits.key_type);
            return Err(unsupported(device, what));
        }
        let values = match info.values_in_keys {
            None => Some(side("values", limits.value_type)?),
            Some(_) => None,
        };
        let bytes = keys.layout.bytes() + values.as_ref().map_or(0, |side| side.layout.bytes());
        Ok(Cache { keys, values, hadamard_keys, pages: limits.pages, bytes })
    }

    /// Copies pages to the host; waits for all submitted work.
    ///
    /// # Errors
    /// No such page, out of memory, or the device was lost.
    pub fn save(&self, device: &Device, pages: &[u32]) -> Result<CachePages, GraphError> {
        self.check(pages)?;
        let of = |half: Half, Side { layout, buffer }: &Side| {
            let page_elements = PAGE_TOKENS * layout.kv_heads * layout.head_dim;
            let mut out = host_zeros("saved pages", pages.len() * page_elements)?;
            for (pages, out) in
                pages.chunks(PAGES_AT_ONCE).zip(out.chunks_mut(PAGES_AT_ONCE * page_elements))
            {
                let ranges =
                    pages.iter().flat_map(|&p| [layout.page_range(p), layout.scales_range(p)]);
                let ranges: Vec<_> = ranges.collect();
                let bytes = device.download_ranges(buffer, &ranges)?;
                let page_bytes = bytes.len() / pages.len();
                bytes
                    .par_chunks_exact(page_bytes)
                    .zip(out.par_chunks_exact_mut(page_elements))
                    .for_each(|(bytes, out)| layout.decode(half, bytes, out));
            }
            Ok::<_, GraphError>(out)
        };
        let keys = of(Half::Keys, &self.keys)?;
        let values = self.values.as_ref().map(|side| of(Half::Values, side)).transpose()?;
        Ok(CachePages { keys, values: values.unwrap_or_default() })
    }

    /// Fills pages with data saved by another device, in order with submitted work.
    ///
    /// # Errors
    /// No such page, or another shape.
    pub fn restore(
        &self,
        device: &Device,
        pages: &[u32],
        data: &CachePages,
    ) -> Result<(), GraphError> {
        self.check(pages)?;
        let halves = [
            (Half::Keys, Some(&self.keys), &data.keys),
            (Half::Values, self.values.as_ref(), &data.values),
        ];
        for (half, side, data) in halves {
            let Some(Side { layout, buffer }) = side else { continue };
            let page_elements = PAGE_TOKENS * layout.kv_heads * layout.head_dim;
            if data.len() != pages.len() * page_elements {
                let what = "elements of saved pages";
                let limit = pages.len() * page_elements;
                return Err(GraphError::Limit { what, limit, found: data.len() });
            }
            let mut rest = &data[..];
            for run in pages.chunk_by(|page, next| page + 1 == *next) {
                for pages in run.chunks(PAGES_AT_ONCE) {
                    let (data, more) = rest.split_at(pages.len() * page_elements);
                    rest = more;
                    let data = data.par_chunks_exact(page_elements);
                    let encoded: Vec<Vec<u8>> =
                        data.map(|values| layout.encode(half, values)).collect();
                    write(device, (buffer, layout), pages[0], &encoded);
                }
            }
        }
        Ok(())
    }

    fn check(&self, pages: &[u32]) -> Result<(), GraphError> {
        match pages.iter().max() {
            Some(&page) if page as usize >= self.pages => Err(GraphError::Limit {
                what: "pages",
                limit: self.pages,
                found: page as usize + 1,
            }),
            _ => Ok(()),
        }
    }

    /// Whether the cache matches a segment's requirements.
    pub fn fits(&self, info: &CacheInfo, limits: &Limits) -> bool {
        let same = |layout: &CacheLayout, ty| {
            CacheType::of(ty, info.head_dim) == Some(layout.ty)
                && layout.kv_heads == info.kv_heads
                && layout.head_dim == info.head_dim
        };
        let values = match (&self.values, info.values_in_keys) {
            (Some(side), None) => same(&side.layout, limits.value_type),
            (values, in_keys) => values.is_none() && in_keys.is_some(),
        };
        let keys =
            same(&self.keys.layout, limits.key_type) && self.hadamard_keys == limits.hadamard_keys;
        keys && values && self.pages == limits.pages
    }
}

/// Writes consecutive pages from `first` on, their chunks in one piece and their scales in another.
fn write(
    device: &Device,
    (buffer, layout): (&wgpu::Buffer, &CacheLayout),
    first: u32,
    pages: &[Vec<u8>],
) {
    let (chunks, scales) = (layout.page_range(first), layout.scales_range(first));
    let split = (chunks.end - chunks.start) as usize;
    let of = |part: fn(&[u8], usize) -> &[u8]| -> Vec<u8> {
        pages.iter().flat_map(|page| part(page, split)).copied().collect()
    };
    device.queue.write_buffer(buffer, chunks.start, &of(|page, split| &page[..split]));
    if !scales.is_empty() {
        device.queue.write_buffer(buffer, scales.start, &of(|page, split| &page[split..]));
    }
}

fn unsupported(device: &Device, what: String) -> GraphError {
    GraphError::Unsupported { device: device.name().to_owned(), op: OpKind::Attend, what }
}

fn layout(
    device: &Device,
    info: &CacheInfo,
    limits: &Limits,
    ty: Type,
) -> Result<CacheLayout, GraphError> {
    let Some(known) = CacheType::of(ty, info.head_dim) else {
        return Err(unsupported(
            device,
            format!("a {ty} cache of heads of {} elements", info.head_dim),
        ));
    };
    let layout = CacheLayout {
        ty: known,
        kv_heads: info.kv_heads,
        head_dim: info.head_dim,
        pages: limits.pages,
    };
    if layout.bytes() > device.caps().max_binding {
        let most = device.caps().max_binding;
        // Layers on other devices may have it.
        return Err(GraphError::OutOfMemory {
            device: device.name().to_owned(),
            what: format!(
                "the keys or values of a layer, of which it binds {most} at once (a shorter context fits)"
            ),
            bytes: layout.bytes() as usize,
        });
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::StateInfo;

    use super::*;
    use crate::device::DeviceOptions;
    use crate::slots::Slots;

    /// Then a session places the layer elsewhere, as for any other lack of memory.
    #[test]
    fn what_exceeds_a_binding_does_not_fit() {
        let Ok(adapter) = crate::find(Some("software")) else {
            return crate::required::skip("no software adapter");
        };
        let device = Device::open(&adapter, DeviceOptions::default(), None).expect("opens");
        let limits = Limits { states: 1 << 24, ..Limits::new(1, 1 << 24) };
        let cache =
            CacheInfo { layer: 0, kv_heads: 8, head_dim: 128, values_in_keys: None, window: None };
        let state = StateInfo { layer: 0, elements: 1 << 10 };
        let errors = [
            Cache::new(&device, &cache, &limits).map(|_| ()),
            Slots::new(&device, &state, &limits).map(|_| ()),
        ];
        for error in errors {
            assert!(matches!(error, Err(GraphError::OutOfMemory { .. })), "{error:?}");
        }
    }
}
