//! What wgpu does not tell of a Vulkan device.

/// Whether the hardware multiplies four signed bytes by four and adds the products in one instruction. Drivers of other
/// hardware emulate it, more slowly than f32 arithmetic.
#[cfg(not(target_vendor = "apple"))]
pub fn has_dot4(adapter: &wgpu::Adapter) -> bool {
    use ash::vk;

    // SAFETY: the handles are used only while the guard lives, and nothing is destroyed.
    let Some(hal) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return false };
    let capabilities = hal.physical_device_capabilities();
    let instance = hal.shared_instance().raw_instance();
    let known = capabilities.supports_extension(ash::khr::shader_integer_dot_product::NAME)
        || capabilities.properties().api_version >= vk::API_VERSION_1_3;
    if !known {
        return false;
    }
    let mut dot = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut asked = vk::PhysicalDeviceProperties2::default().push_next(&mut dot);
    // SAFETY: the physical device belongs to this instance; the chain holds a structure that it knows.
    unsafe { instance.get_physical_device_properties2(hal.raw_physical_device(), &mut asked) };
    dot.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE
}

/// There is no Vulkan.
#[cfg(target_vendor = "apple")]
pub fn has_dot4(_: &wgpu::Adapter) -> bool {
    false
}
