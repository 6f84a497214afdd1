//! Capabilities of a GPU: plain data, so that selecting kernels is a pure function.

use std::fmt;

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

/// The threads of a workgroup that is one subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subgroup {
    /// How many they are.
    pub threads: u32,
    /// Whether larger workgroups may have larger subgroups.
    pub varies: bool,
}

/// Multiplication of small matrices that a subgroup holds together: halves, with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coop {
    /// Rows and columns of a matrix: 8 or 16.
    pub edge: u32,
    /// Threads of a subgroup in kernels with such matrices.
    pub subgroup: u32,
}

/// The form in which a product reads its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// As floats.
    Floats,
    /// Quantized to eight bits, for packed dot products.
    Quantized,
    /// As halves, for cooperative matrices.
    Halves,
}

impl Input {
    /// Values in an element of its buffer, which offsets and strides count.
    pub fn element_values(self) -> usize {
        match self {
            Input::Floats => 4,
            Input::Quantized => 16,
            Input::Halves => 8,
        }
    }
}

/// Workgroup memory that a tile of 128 x 128 needs.
const LARGE_TILE_BYTES: u32 = 45 << 10;

/// How products of many columns are computed; of those that are possible, the fastest is found by measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The form of the input, for the types that can be multiplied so; others are multiplied in f32.
    pub input: Input,
    /// Rows of weights that a workgroup computes.
    pub rows: u32,
    /// Columns that a workgroup computes.
    pub columns: u32,
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = match self.input {
            Input::Floats => "f32",
            Input::Quantized => "q8",
            Input::Halves => "coop",
        };
        write!(f, "{input} {}x{}", self.rows, self.columns)
    }
}

/// How products of few columns are computed; of the ways that are possible, the fastest is found by measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Few {
    /// Whether they emit the next product's input ([`crate::kernels::matmul::Emit`]).
    pub emits: bool,
    /// Bytes of weights from which the input of a single row is quantized by a dispatch of its own, if products can read it so.
    pub quantized_bytes: u64,
}

impl Few {
    /// What is presumably the fastest. For less than 8 MiB, the dispatch and its barrier (some 4 us) take longer than packed dot
    /// products save over f32 arithmetic (a third of the time, which is 13 us at 600 GB/s).
    pub const PRESUMED: Few = Few { emits: true, quantized_bytes: 8 << 20 };
}

/// Storage buffers that a product which emits the next one's input binds at most. WebGPU promises eight.
pub const EMIT_BUFFERS: u32 = 11;

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
    /// Cooperative matrices, if the GPU multiplies halves to f32 and was seen to.
    pub coop: Option<Coop>,
    /// Whether attention with them was not seen to be wrong.
    pub coop_attends: bool,
    /// How products of many columns are computed.
    pub tile: Tile,
    /// How products of few columns are computed.
    pub few: Few,
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

    /// The selected kernel family: what of the device its kernels use.
    pub(crate) fn level(&self) -> String {
        let lanes =
            self.subgroup.map_or("no subgroups".to_owned(), |n| format!("subgroups of {n}"));
        let tiles = if self.software { String::new() } else { format!(", tiles {}", self.tile) };
        format!("{} {lanes}{tiles}", self.api.name())
    }

    /// The most columns of products that emit the next product's input; 0 where none do. With more, or with more lanes, the rows
    /// that a team has to compute do not fit into registers.
    pub fn emit_columns(&self) -> u32 {
        match self.few.emits {
            true if self.lanes() <= 32 => 2,
            true => 1,
            false => 0,
        }
    }

    /// Without what a driver may refuse a kernel for: products that emit, if they are used and it is not one with cooperative
    /// matrices, then those, then subgroup operations. `None` if none is used.
    pub(crate) fn reduced(&self, rejected: &str) -> Option<Caps> {
        let is_coop = self.coop.is_some() && rejected.contains("coop");
        if self.few.emits && !is_coop {
            let few = Few { emits: false, ..self.few };
            return Some(Caps { few, ..self.clone() });
        }
        if self.coop.is_some() {
            let mut caps = Caps { coop: None, ..self.clone() };
            if caps.tile.input == Input::Halves {
                caps.tile = caps.tiles()[0];
            }
            return Some(caps);
        }
        self.subgroup?;
        Some(Caps { subgroup: None, subgroup_varies: false, ..self.clone() })
    }

    /// How products of many columns may be computed, the presumably fastest first.
    pub fn tiles(&self) -> Vec<Tile> {
        let tile = |input, [rows, columns]: [u32; 2]| Tile { input, rows, columns };
        let mut tiles = Vec::new();
        if self.coop.is_some() {
            let is_large = self.vendor != Vendor::Amd && self.workgroup_bytes >= LARGE_TILE_BYTES;
            tiles.extend(is_large.then_some(tile(Input::Halves, [128, 128])));
            tiles.extend([[128, 64], [64, 64]].map(|size| tile(Input::Halves, size)));
        }
        tiles.extend(self.dot4.then_some(tile(Input::Quantized, [64, 64])));
        tiles.push(tile(Input::Floats, [64, 64]));
        tiles
    }
}
