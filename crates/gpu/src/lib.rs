//! The GPU backend: WGSL kernels on Vulkan, Metal and DX12 through wgpu.
