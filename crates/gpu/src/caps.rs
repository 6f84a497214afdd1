//! Capabilities of a GPU: plain data, so that selecting kernels is a pure function.

/// The graphics API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

impl Api {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Dx12 => "dx12",
        }
    }
}

/// The GPU's vendor, where that decides a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Apple.
    Apple,
    /// Any other.
    Other,
}

impl Vendor {
    /// The vendor of a PCI vendor id.
    pub fn from_pci(number: u32) -> Vendor {
        match number {
            0x10de => Vendor::Nvidia,
            0x1002 | 0x1022 => Vendor::Amd,
            0x8086 => Vendor::Intel,
            0x106b => Vendor::Apple,
            _ => Vendor::Other,
        }
    }
}

/// Capabilities that kernels may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// The driver's interface.
    pub api: Api,
    /// The vendor.
    pub vendor: Vendor,
    /// Subgroup size: a workgroup of that many threads is one subgroup. `None` without subgroups or if their size is not
    /// known; then no subgroup operation is used.
    pub subgroup: Option<u32>,
    /// Whether larger workgroups may have larger subgroups, as drivers choose on RDNA; then only workgroups of one
    /// subgroup use subgroup operations.
    pub subgroup_varies: bool,
    /// Whether the hardware has four byte products as one instruction.
    pub dot4: bool,
    /// Whether shaders have 16-bit floats.
    pub f16: bool,
    /// Whether the GPU is a software adapter on the CPU: barriers are expensive, workgroup memory is useless.
    pub software: bool,
    /// Whether GPU and host share memory.
    pub unified: bool,
    /// Whether there are timestamps inside passes.
    pub timestamps: bool,
    /// Maximum bytes per binding.
    pub max_binding: u64,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Alignment of a binding's offset, bytes.
    pub offset_alignment: u32,
}

impl Caps {
    /// Threads of a workgroup that is one subgroup, or that reduces through workgroup memory.
    pub fn lanes(&self) -> u32 {
        self.subgroup.unwrap_or(32)
    }
}
