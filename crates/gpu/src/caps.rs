//! What kernels may use on an adapter: plain data, so that choosing them is a pure function.

/// The interface wgpu speaks to the driver.
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

/// Who made an adapter, where that decides a variant.
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
    /// From a PCI vendor number.
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

/// What kernels may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// The driver's interface.
    pub api: Api,
    /// The maker.
    pub vendor: Vendor,
    /// Threads of a subgroup where every shader gets the same number: a workgroup of so many is one subgroup.
    /// `None` where there are none or their size varies; no subgroup operation is used then.
    pub subgroup: Option<u32>,
    /// Whether four products of bytes are one instruction.
    pub dot4: bool,
    /// Whether shaders have 16-bit floats.
    pub f16: bool,
    /// Whether the adapter is the host's processor: barriers are dear, workgroup memory gains nothing.
    pub software: bool,
    /// Whether adapter and host share memory.
    pub unified: bool,
    /// Whether there are timestamps inside passes.
    pub timestamps: bool,
    /// Bytes that one binding may cover.
    pub max_binding: u64,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// What a binding's offset must be a multiple of, bytes.
    pub offset_alignment: u32,
}

impl Caps {
    /// Threads of a workgroup that is one subgroup, or that reduces through workgroup memory.
    pub fn lanes(&self) -> u32 {
        self.subgroup.unwrap_or(32)
    }
}
