//! Memory shared by GPU and host: shaders read weights directly from the file map, without a copy.
//!
//! Of a map only the pages of weights that are read there are imported, in windows that are cut between tensors ([`cut`]):
//! drivers count imported pages as allocated memory, each window anew.

use std::ops::Range;

use bilayer_graph::SharedBytes;

use crate::adapter::Adapter;
use crate::caps::{Api, Caps, Vendor};

/// Maximum bytes per window, unless the GPU binds less.
const WINDOW_BYTES: usize = 1 << 30;

/// Maximum bytes between two tensors of one window. They are imported although nothing reads them in place: norms, and
/// small matrices of a type that is copied. Matrices of two windows are not read in one dispatch.
const GAP_BYTES: usize = 1 << 20;

/// A window of a file map that shaders can read.
pub struct Window {
    /// The buffer to bind.
    pub buffer: wgpu::Buffer,
    /// Its place in the map.
    pub range: Range<usize>,
    /// Keeps the map alive.
    map: SharedBytes,
}

impl Window {
    /// Offset of some bytes in the window, if it contains them.
    pub fn offset(&self, bytes: &[u8]) -> Option<usize> {
        let start = self.map.as_ptr() as usize + self.range.start;
        let at = (bytes.as_ptr() as usize).checked_sub(start)?;
        (at + bytes.len() <= self.range.len()).then_some(at)
    }
}

/// A weight to be read in a map: its layer and its bytes.
pub type Extent = (Option<u32>, Range<usize>);

/// The windows over weights of one map, in its order. Each begins and ends at a page boundary, has weights of one layer, so
/// that a layer can be released separately, and at most so many bytes as a window may have and the GPU binds; weights that
/// exceed them are in none. No window has bytes of another, except in the page where they meet.
pub fn cut(weights: Vec<Extent>, max_binding: u64) -> Vec<Range<usize>> {
    cut_at(weights, PAGE_BYTES, WINDOW_BYTES.min(max_binding as usize))
}

/// [`cut`], for pages and windows of so many bytes.
fn cut_at(mut weights: Vec<Extent>, page: usize, limit: usize) -> Vec<Range<usize>> {
    let pages = |range: &Range<usize>| range.start / page * page..range.end.next_multiple_of(page);
    weights.retain(|(_, range)| pages(range).len() <= limit);
    weights.sort_by_key(|(_, range)| range.start);
    let mut windows: Vec<Extent> = Vec::new();
    for (layer, range) in weights {
        if let Some((last, window)) = windows.last_mut() {
            let joined = window.start..window.end.max(range.end);
            let is_near = range.start <= window.end.saturating_add(GAP_BYTES);
            if *last == layer && is_near && pages(&joined).len() <= limit {
                *window = joined;
                continue;
            }
        }
        windows.push((layer, range));
    }
    windows.iter().map(|(_, range)| pages(range)).collect()
}

/// Whether a device reads file maps. On Linux Intel's kernel driver i915 pins imported pages for writing, which fails for a
/// read-only map, and only when the first commands are submitted: the device is then lost. Threads of a software adapter block
/// all signals, so a file that is truncated while they read its map would end the process.
pub fn imports(caps: &Caps) -> bool {
    let is_pinned = caps.api == Api::Vulkan && caps.vendor == Vendor::Intel;
    caps.unified && !caps.software && !is_pinned
}

/// Opens a device that can import host memory, if the GPU shares it and its driver supports that.
pub fn open(
    adapter: &Adapter,
    caps: &Caps,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    if !imports(caps) {
        return None;
    }
    #[cfg(not(target_vendor = "apple"))]
    return vulkan::open(adapter.raw(), descriptor);
    // Every Metal device supports it.
    #[cfg(target_vendor = "apple")]
    {
        let _ = (adapter, descriptor);
        None
    }
}

/// Imports a range of a file map, both page-aligned; the map is unchanged while the window is alive. `None` if the driver
/// cannot; then weights are copied.
pub fn import(device: &wgpu::Device, map: &SharedBytes, range: Range<usize>) -> Option<Window> {
    let address = map.as_ptr() as usize;
    let is_aligned = |at: usize| at.is_multiple_of(PAGE_BYTES);
    // The last page of a map is fully mapped.
    let is_inside = range.end <= map.len().next_multiple_of(PAGE_BYTES) && !range.is_empty();
    if ![address, range.start, range.end].into_iter().all(is_aligned) || !is_inside {
        return None;
    }
    let buffer = one(device, address + range.start, range.len())?;
    Some(Window { buffer, range, map: map.clone() })
}

/// Alignment of imported memory: that of the system's pages. Where they are larger, drivers refuse windows and weights are
/// copied.
const PAGE_BYTES: usize = if cfg!(target_vendor = "apple") { 16384 } else { 4096 };

fn descriptor(bytes: usize) -> wgpu::BufferDescriptor<'static> {
    wgpu::BufferDescriptor {
        label: Some("weights in the file map"),
        size: bytes as u64,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    }
}

#[cfg(not(target_vendor = "apple"))]
use vulkan::one;

#[cfg(not(target_vendor = "apple"))]
mod vulkan {
    use ash::vk;

    /// Opens the device with `VK_EXT_external_memory_host`, if the driver supports it.
    pub fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        let opened = {
            // SAFETY: the handle is used only while the guard is alive.
            let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
            let name = ash::ext::external_memory_host::NAME;
            if !hal.physical_device_capabilities().supports_extension(name) {
                return None;
            }
            // SAFETY: the callback adds an extension that the driver lists and removes nothing.
            unsafe {
                hal.open_with_callback(
                    descriptor.required_features,
                    &descriptor.required_limits,
                    &descriptor.memory_hints,
                    Some(Box::new(|arguments| arguments.extensions.push(name))),
                )
            }
            .ok()?
        };
        // SAFETY: the device was just opened from this adapter with the descriptor's features and limits.
        unsafe { adapter.create_device_from_hal(opened, descriptor) }.ok()
    }

    /// A buffer over `bytes` of host memory at `address`, both page-aligned.
    pub fn one(device: &wgpu::Device, address: usize, bytes: usize) -> Option<wgpu::Buffer> {
        let buffer = {
            // SAFETY: the handle is used only while the guard is alive.
            let hal = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
            let name = ash::ext::external_memory_host::NAME;
            if !hal.enabled_device_extensions().contains(&name) {
                return None;
            }
            // SAFETY: `address` is that of a file map of at least `bytes`, which the caller keeps alive for as long
            // as the buffer.
            let (raw, memory) = unsafe { imported(&hal, address, bytes) }.ok()?;
            // SAFETY: buffer and memory were just created, have no other owner, and end with the result.
            unsafe { wgpu::hal::vulkan::Buffer::from_raw_managed(raw, memory, 0, bytes as u64) }
        };
        let descriptor = super::descriptor(bytes);
        // SAFETY: the buffer is of this device, has the descriptor's size and usage, and its contents are there.
        Some(unsafe {
            device.create_buffer_from_hal::<wgpu::hal::api::Vulkan>(buffer, &descriptor)
        })
    }

    /// # Safety
    /// `bytes` at `address`, both aligned for import, stay mapped while the memory is alive.
    unsafe fn imported(
        hal: &wgpu::hal::vulkan::Device,
        address: usize,
        bytes: usize,
    ) -> Result<(vk::Buffer, vk::DeviceMemory), vk::Result> {
        let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let (device, instance) = (hal.raw_device(), hal.shared_instance().raw_instance());
        let host = ash::ext::external_memory_host::Device::new(instance, device);
        let pointer = address as *mut std::ffi::c_void;
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let info = vk::BufferCreateInfo::default()
            .size(bytes as u64)
            .usage(vk::BufferUsageFlags::STORAGE_BUFFER)
            .sharing_mode(vk::SharingMode::EXCLUSIVE)
            .push_next(&mut external);
        // SAFETY: the caller's promise; each handle is used once and given back where a later call fails.
        unsafe {
            let ask = host.fp().get_memory_host_pointer_properties_ext;
            ask(device.handle(), handle, pointer, &mut properties).result()?;
            let buffer = device.create_buffer(&info, None)?;
            let needed = device.get_buffer_memory_requirements(buffer);
            let kinds = properties.memory_type_bits & needed.memory_type_bits;
            let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
                .handle_type(handle)
                .host_pointer(pointer);
            let allocate = vk::MemoryAllocateInfo::default()
                .allocation_size(bytes as u64)
                .memory_type_index(kinds.trailing_zeros())
                .push_next(&mut import);
            let refused = |error, buffer| {
                device.destroy_buffer(buffer, None);
                error
            };
            if kinds == 0 || needed.size > bytes as u64 {
                return Err(refused(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE, buffer));
            }
            let memory =
                device.allocate_memory(&allocate, None).map_err(|error| refused(error, buffer))?;
            if let Err(error) = device.bind_buffer_memory(buffer, memory, 0) {
                device.free_memory(memory, None);
                return Err(refused(error, buffer));
            }
            Ok((buffer, memory))
        }
    }
}

#[cfg(target_vendor = "apple")]
fn one(device: &wgpu::Device, address: usize, bytes: usize) -> Option<wgpu::Buffer> {
    use objc2_metal::{MTLDevice, MTLResourceOptions};

    let buffer = {
        // SAFETY: the handle is used only while the guard is alive.
        let hal = unsafe { device.as_hal::<wgpu::hal::api::Metal>() }?;
        let pointer = std::ptr::NonNull::new(address as *mut std::ffi::c_void)?;
        // SAFETY: `address` is that of a file map of at least `bytes`, both multiples of the page, which the caller
        // keeps alive for as long as the buffer.
        let raw = unsafe {
            hal.raw_device().newBufferWithBytesNoCopy_length_options_deallocator(
                pointer,
                bytes,
                MTLResourceOptions::StorageModeShared,
                None,
            )
        }?;
        // SAFETY: the buffer was just made and has so many bytes.
        unsafe { wgpu::hal::metal::Device::buffer_from_raw(raw, bytes as u64) }
    };
    let descriptor = descriptor(bytes);
    // SAFETY: the buffer is of this device, has the descriptor's size and usage, and its contents are there.
    Some(unsafe { device.create_buffer_from_hal::<wgpu::hal::api::Metal>(buffer, &descriptor) })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::single_range_in_vec_init, reason = "lists of one weight or window")]

    use super::*;

    const PAGE: usize = 4096;
    const LIMIT: usize = 1 << 30;

    /// Windows over weights of one layer.
    fn of_one_layer<const N: usize>(weights: [Range<usize>; N], limit: usize) -> Vec<Range<usize>> {
        cut_at(weights.map(|range| (Some(0), range)).into(), PAGE, limit)
    }

    #[test]
    fn windows_are_the_pages_of_their_weights() {
        assert_eq!(cut_at(Vec::new(), PAGE, LIMIT), []);
        assert_eq!(of_one_layer([5000..5001], LIMIT), [4096..8192]);
        assert_eq!(of_one_layer([4096..8192], LIMIT), [4096..8192]);
        assert_eq!(cut_at(vec![(None, 5000..5001)], 4 * PAGE, LIMIT), [0..4 * PAGE]);
        // Neighbours in any order, and two with the same bytes.
        assert_eq!(of_one_layer([9000..20000, 100..9000, 100..9000], LIMIT), [0..20480]);
    }

    #[test]
    fn windows_end_at_large_gaps() {
        let near = 100 + GAP_BYTES;
        assert_eq!(of_one_layer([0..100, near..near + 8], LIMIT).len(), 1);
        let far = near + PAGE;
        let apart = far / PAGE * PAGE..(far + 8).next_multiple_of(PAGE);
        assert_eq!(of_one_layer([0..100, far..far + 8], LIMIT), [0..PAGE, apart]);
    }

    #[test]
    fn windows_end_at_tensors_within_the_limit() {
        let third = 3 * PAGE..4 * PAGE;
        assert_eq!(of_one_layer([0..PAGE, PAGE..3 * PAGE], 3 * PAGE), [0..3 * PAGE]);
        assert_eq!(
            of_one_layer([0..PAGE, PAGE..3 * PAGE, third.clone()], 3 * PAGE),
            [0..3 * PAGE, third]
        );
        // One that exceeds it is in none, also if it does so only in whole pages.
        assert_eq!(of_one_layer([0..4 * PAGE, 4 * PAGE..5 * PAGE], 3 * PAGE), [4 * PAGE..5 * PAGE]);
        assert_eq!(of_one_layer([1..3 * PAGE + 1], 3 * PAGE), []);
    }

    #[test]
    fn windows_end_at_layers_and_meet_in_a_page_at_most() {
        let layers = (0..4).map(|layer| {
            let start = 1000 + layer * 10_000;
            (Some(layer as u32), start..start + 10_000)
        });
        let windows = cut_at(layers.collect(), PAGE, LIMIT);
        assert_eq!(windows.len(), 4);
        for pair in windows.windows(2) {
            assert!(pair[1].start + PAGE >= pair[0].end, "{pair:?}");
            assert!(pair[0].end <= pair[1].start + PAGE, "{pair:?}");
        }
    }

    /// Llama 3 8B in Q4_K_M on a Mac of 16 GB, whose recommended working set is two thirds of it: the windows and what is
    /// copied take the file once, as the plan counts it.
    #[test]
    fn a_file_is_counted_once() {
        const MIB: f64 = 1048576.0;
        let q4 = |rows: usize, cols: usize| rows * cols / 256 * 144;
        let q6 = |rows: usize, cols: usize| rows * cols / 256 * 210;
        let (mut at, mut mapped, mut copied) = (7 << 20, Vec::new(), q6(128_256, 4096));
        at += q4(128_256, 4096);
        mapped.push((None, 7 << 20..at));
        at += q6(128_256, 4096);
        for layer in 0..32 {
            // Half of the layers have these two in Q6_K.
            let is_large = layer % 2 == 0;
            let mut add = |bytes: usize, is_mapped: bool| {
                match is_mapped {
                    true => mapped.push((Some(layer), at..at + bytes)),
                    false => copied += bytes,
                }
                at += bytes;
            };
            add(4 * 4096, false);
            let size = if is_large { q6 } else { q4 };
            add(size(4096, 14336), !is_large);
            add(q4(14336, 4096), true);
            add(q4(14336, 4096), true);
            add(4 * 4096, false);
            add(q4(1024, 4096), true);
            add(q4(4096, 4096), true);
            add(q4(4096, 4096), true);
            add(size(1024, 4096), !is_large);
        }
        let read: usize = mapped.iter().map(|(_, range)| range.len()).sum();
        let windows = cut_at(mapped, 16384, LIMIT);
        let imported: usize = windows.iter().map(Range::len).sum();
        assert_eq!(windows.len(), 33, "one for each layer, and the embedding");
        let over = (imported - read) as f64 / MIB;
        assert!((0.0..3.0).contains(&over), "{over} MiB are imported and not read");
        let counted = (imported + copied) as f64 / MIB;
        assert!((4600.0..4700.0).contains(&counted), "{counted} MiB");
    }

    #[test]
    fn a_driver_that_pins_for_writing_imports_nothing() {
        for crate::profiles::Profile { name, caps } in crate::profiles::all() {
            let expected = caps.unified && caps.vendor != Vendor::Intel;
            assert_eq!(imports(&caps), expected, "{name}");
        }
    }
}
