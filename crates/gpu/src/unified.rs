//! Memory shared by GPU and host: shaders read weights directly from the file map, without a copy.
//!
//! A map is imported in windows of at most 2 GiB that begin and end at page boundaries; they overlap, so that every
//! matrix up to half a window is complete in one.

use bilayer_graph::SharedBytes;

use crate::adapter::Adapter;

/// Bytes per window; a binding cannot be larger.
const WINDOW_BYTES: usize = 1 << 30;

/// Overlap of adjacent windows in bytes.
const OVERLAP_BYTES: usize = WINDOW_BYTES / 2;

/// A window of a file map that shaders can read.
pub struct Window {
    /// The buffer to bind.
    pub buffer: wgpu::Buffer,
    /// Address of its first byte.
    pub address: usize,
    /// Its size.
    pub bytes: usize,
    /// Keeps the map alive.
    _map: SharedBytes,
}

impl Window {
    /// Offset of `bytes` in the window, if contained.
    pub fn offset(&self, bytes: &[u8]) -> Option<usize> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.address)?;
        (at + bytes.len() <= self.bytes).then_some(at)
    }
}

/// Opens a device that can import host memory, if the GPU shares it and its driver supports that.
pub fn open(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    if !adapter.facts().unified {
        return None;
    }
    #[cfg(not(target_vendor = "apple"))]
    return vulkan::open(adapter.raw(), descriptor);
    // Every Metal device supports it.
    #[cfg(target_vendor = "apple")]
    {
        let _ = descriptor;
        None
    }
}

/// Imports a file map, which is page-aligned and unchanged while the windows are alive. `None` if the driver cannot;
/// then weights are copied.
pub fn import(device: &wgpu::Device, map: &SharedBytes, max_binding: u64) -> Option<Vec<Window>> {
    let window = WINDOW_BYTES.min(max_binding as usize) / PAGE_BYTES * PAGE_BYTES;
    let step = window - OVERLAP_BYTES.min(window / 2) / PAGE_BYTES * PAGE_BYTES;
    let address = map.as_ptr() as usize;
    if !address.is_multiple_of(PAGE_BYTES) || map.is_empty() {
        return None;
    }
    // The last page of a map is fully mapped.
    let len = map.len().next_multiple_of(PAGE_BYTES);
    let mut windows = Vec::new();
    let mut at = 0;
    loop {
        let bytes = window.min(len - at);
        let buffer = one(device, address + at, bytes)?;
        windows.push(Window { buffer, address: address + at, bytes, _map: map.clone() });
        if at + bytes == len {
            return Some(windows);
        }
        at += step;
    }
}

/// Alignment of imported memory; no system in use has smaller pages, and those with larger ones map files at them.
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
