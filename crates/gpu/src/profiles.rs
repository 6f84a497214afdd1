//! Kinds of adapters that kernels are checked for without having them.

use crate::caps::{Api, Caps, Coop, Few, Input, Tile, Vendor};

/// A kind of adapter.
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What its kernels may use.
    pub caps: Caps,
}

/// A card with everything that kernels can use.
pub const CARD: Caps = Caps {
    api: Api::Vulkan,
    vendor: Vendor::Nvidia,
    subgroup: Some(32),
    subgroup_varies: false,
    dot4: true,
    f16: true,
    coop: None,
    coop_attends: true,
    tile: Tile { input: Input::Quantized, rows: 64, columns: 64 },
    few: Few::PRESUMED,
    software: false,
    unified: false,
    timestamps: true,
    max_binding: 1 << 30,
    workgroup_bytes: 32 << 10,
    offset_alignment: 32,
};

/// Every kind.
pub fn all() -> Vec<Profile> {
    let profile = |name, caps| Profile { name, caps };
    let amd = Caps { vendor: Vendor::Amd, subgroup: Some(64), ..CARD };
    let rdna = Caps { vendor: Vendor::Amd, subgroup_varies: true, ..CARD };
    let intel = Caps { vendor: Vendor::Intel, subgroup: None, unified: true, ..CARD };
    let rdna3 = Caps { workgroup_bytes: 64 << 10, ..rdna.clone() };
    let rdna3 = Caps { coop: Some(Coop { edge: 16, subgroup: 64 }), ..rdna3 };
    let nvidia = Caps { workgroup_bytes: 48 << 10, ..CARD };
    let nvidia = Caps { coop: Some(Coop { edge: 16, subgroup: 32 }), ..nvidia };
    let apple = Caps { api: Api::Metal, vendor: Vendor::Apple, dot4: false, unified: true, ..CARD };
    let apple = Caps { coop: Some(Coop { edge: 8, subgroup: 32 }), ..apple };
    let software = Caps { vendor: Vendor::Other, subgroup: Some(8), ..CARD };
    let few = Few { emits: false, ..Few::PRESUMED };
    let software = Caps { few, software: true, ..software };
    vec![
        profile("nvidia", nvidia),
        profile("amd", amd.clone()),
        profile("vega", Caps { dot4: false, ..amd }),
        profile("rdna", rdna.clone()),
        // Compilers for RDNA 3 take 64 threads for cooperative matrices and let other kernels vary.
        profile("rdna3", rdna3),
        profile("rdna without dot4", Caps { dot4: false, ..rdna }),
        profile("intel", intel),
        profile("apple", apple),
        profile("dx12", Caps { api: Api::Dx12, ..CARD }),
        profile("dx12 without dot4", Caps { api: Api::Dx12, dot4: false, ..CARD }),
        profile("software", software),
        profile("no subgroups", Caps { subgroup: None, dot4: false, f16: false, ..CARD }),
    ]
}
