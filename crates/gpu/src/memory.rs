//! Queries the GPU's memory and free memory from each driver, since wgpu has no call for it.

/// Maximum bytes left to other programs: half of the margin of plans by default.
const LEFT_BYTES: u64 = 512 << 20;

/// Memory of a GPU, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Total memory.
    pub total_bytes: u64,
    /// Free memory, if the driver reports it.
    pub free_bytes: Option<u64>,
}

impl Memory {
    /// Whether a buffer of the GPU's own memory leaves a fiftieth of it to other programs, or half of the `margin` that a plan
    /// leaves, as far as the driver tells.
    pub fn fits(&self, bytes: u64, margin: Option<u64>) -> bool {
        let most = margin.map_or(LEFT_BYTES, |margin| LEFT_BYTES.min(margin / 2));
        let left = (self.total_bytes / 50).min(most);
        self.free_bytes.is_none_or(|free| bytes.saturating_add(left) <= free)
    }

    /// As drivers report it: some have a budget above the size of the heap, which counts the host's memory.
    fn new(total_bytes: u64, free_bytes: Option<u64>) -> Memory {
        Memory { total_bytes, free_bytes: free_bytes.map(|free| free.min(total_bytes)) }
    }
}

/// The memory of an adapter: its largest device-local heap. Zero if no driver reports it.
pub fn of(adapter: &wgpu::Adapter) -> Memory {
    #[cfg(not(target_vendor = "apple"))]
    if let Some(memory) = vulkan(adapter) {
        return memory;
    }
    #[cfg(windows)]
    if let Some(memory) = dx12(adapter) {
        return memory;
    }
    #[cfg(target_vendor = "apple")]
    if let Some(memory) = metal(adapter) {
        return memory;
    }
    let _ = adapter;
    Memory::default()
}

/// The device-local heaps, and their budget if `VK_EXT_memory_budget` reports it.
#[cfg(not(target_vendor = "apple"))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<Memory> {
    use ash::vk;

    // SAFETY: the handles are used only while the guard is alive, and nothing is destroyed.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    // The driver is asked itself: wgpu hides the extension of Mesa's RADV.
    // SAFETY: the physical device belongs to this instance.
    let known =
        unsafe { instance.enumerate_device_extension_properties(hal.raw_physical_device()) };
    let is_budget = |one: &vk::ExtensionProperties| {
        one.extension_name_as_c_str().is_ok_and(|name| name == ash::ext::memory_budget::NAME)
    };
    let budget = known.is_ok_and(|known| known.iter().any(is_budget));
    let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut asked = vk::PhysicalDeviceMemoryProperties2::default();
    if budget {
        asked = asked.push_next(&mut budgets);
    }
    // SAFETY: the physical device belongs to this instance; the chain contains only structures that it supports.
    unsafe {
        instance.get_physical_device_memory_properties2(hal.raw_physical_device(), &mut asked);
    }
    let heaps = asked.memory_properties;
    let own = (0..heaps.memory_heap_count as usize)
        .filter(|&heap| heaps.memory_heaps[heap].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    // Only the largest: a small second heap is the host's window onto the first.
    let heap = own.max_by_key(|&heap| heaps.memory_heaps[heap].size)?;
    let free = budgets.heap_budget[heap].saturating_sub(budgets.heap_usage[heap]);
    // Drivers that do not fill the structure leave zeros.
    let free = (budget && budgets.heap_budget[heap] > 0).then_some(free);
    Some(Memory::new(heaps.memory_heaps[heap].size, free))
}

/// The local memory segment of the adapter.
#[cfg(windows)]
fn dx12(adapter: &wgpu::Adapter) -> Option<Memory> {
    use windows::Win32::Graphics::Dxgi::DXGI_MEMORY_SEGMENT_GROUP_LOCAL;

    // SAFETY: the handle is used only while the guard is alive.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let info = hal.raw_adapter().query_video_memory_info(DXGI_MEMORY_SEGMENT_GROUP_LOCAL).ok()?;
    Some(Memory::new(info.Budget, Some(info.Budget.saturating_sub(info.CurrentUsage))))
}

/// Metal's recommended working set minus current allocations.
#[cfg(target_vendor = "apple")]
fn metal(adapter: &wgpu::Adapter) -> Option<Memory> {
    use objc2_metal::MTLDevice;

    // SAFETY: the handle is used only while the guard is alive.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = hal.raw_device();
    let total = device.recommendedMaxWorkingSetSize();
    let used = device.currentAllocatedSize() as u64;
    Some(Memory::new(total, Some(total.saturating_sub(used))))
}

#[cfg(test)]
mod tests {
    use super::Memory;

    #[test]
    fn no_more_is_free_than_there_is() {
        assert_eq!(Memory::new(36, Some(46)).free_bytes, Some(36));
        assert_eq!(Memory::new(36, Some(30)).free_bytes, Some(30));
        assert_eq!(Memory::new(36, None).free_bytes, None);
    }

    #[test]
    fn a_buffer_fits_what_is_free_but_a_fiftieth() {
        let memory = Memory::new(1000, Some(500));
        assert!(memory.fits(480, None));
        assert!(!memory.fits(481, None));
        assert!(!memory.fits(u64::MAX, None));
        assert!(Memory::new(1000, None).fits(u64::MAX, None), "the driver does not tell");
    }

    #[test]
    fn no_more_is_left_than_half_of_the_margin() {
        let memory = Memory::new(1000, Some(500));
        for (margin, most) in [(0, 500), (1, 500), (10, 495), (40, 480), (1000, 480)] {
            assert!(memory.fits(most, Some(margin)), "{margin}");
            assert!(!memory.fits(most + 1, Some(margin)), "{margin}");
        }
    }
}
