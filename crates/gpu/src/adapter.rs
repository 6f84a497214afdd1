//! Enumerates the adapters and describes each.

use std::sync::OnceLock;

use crate::Error;
use crate::caps::{Api, Caps, EMIT_BUFFERS, Few, Input, Tile, Vendor};

/// Maximum size of buffers and bindings to request. Beyond 2 GiB, drivers and wgpu itself miscount.
const BUFFER_MAX: u64 = (2 << 30) - 256;

/// The kind of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A discrete card with its own memory.
    Discrete,
    /// Integrated in the CPU, sharing its memory.
    Integrated,
    /// Provided by a hypervisor.
    Virtual,
    /// Unknown to the driver.
    Other,
    /// A software implementation on the host's cores; used only if named.
    Software,
}

impl AdapterKind {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Other => "other",
            AdapterKind::Software => "software",
        }
    }
}

/// Properties of an adapter before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFacts {
    /// The driver's name for it.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub api: &'static str,
    /// Its kind.
    pub kind: AdapterKind,
    /// The driver with its version.
    pub driver: String,
    /// Where it is plugged in, such as `0000:01:00.0`; empty where the driver does not tell.
    pub bus: String,
    /// Bytes of memory it reports.
    pub memory_bytes: u64,
    /// Free bytes, if the driver reports them.
    pub free_bytes: Option<u64>,
    /// Whether it shares the host's memory.
    pub unified: bool,
    /// The optional features in use that it supports.
    pub features: Vec<String>,
}

impl AdapterFacts {
    /// Whether most of the memory of an adapter that shares it is the host's. Much of an AMD GPU's may be set aside for it when
    /// the machine starts: Linux tells how much.
    pub(crate) fn is_of_host(&self, vendor: Vendor) -> bool {
        if vendor != Vendor::Amd {
            return true;
        }
        let path = format!("/sys/bus/pci/devices/{}/mem_info_vram_total", self.bus);
        std::fs::read_to_string(path).is_ok_and(|text| is_mostly_shared(&text, self.memory_bytes))
    }
}

/// Whether less than half of a GPU's memory is set aside, by the text of Linux's file; not if that is no number.
fn is_mostly_shared(set_aside: &str, memory_bytes: u64) -> bool {
    set_aside.trim().parse().is_ok_and(|bytes: u64| bytes < memory_bytes / 2)
}

/// An adapter that can be opened.
pub struct Adapter {
    raw: wgpu::Adapter,
    facts: AdapterFacts,
}

/// All adapters, best first: discrete, integrated, virtual, other, software; Vulkan before DX12.
pub fn adapters() -> Vec<AdapterFacts> {
    enumerate().into_iter().map(|adapter| adapter.facts).collect()
}

/// Finds an adapter by its index in the order of [`adapters`], `software`, or a part of its name (case-insensitive); a
/// number is always an index. Without a name, the best one that is not a software adapter.
///
/// # Errors
/// No adapter matches.
pub fn find(wanted: Option<&str>) -> Result<Adapter, Error> {
    let mut found = enumerate();
    let names: Vec<String> = found.iter().map(|adapter| adapter.facts.name.clone()).collect();
    let kinds = found.iter().map(|adapter| adapter.facts.kind);
    let adapters: Vec<(&str, AdapterKind)> = names.iter().map(String::as_str).zip(kinds).collect();
    match index(&adapters, wanted) {
        Some(index) => Ok(found.swap_remove(index)),
        None => Err(Error::NoAdapter { wanted: wanted.map(str::to_owned), found: names }),
    }
}

/// The index of the wanted adapter among some with these names.
fn index(adapters: &[(&str, AdapterKind)], wanted: Option<&str>) -> Option<usize> {
    let is_software = |&(_, kind): &(&str, AdapterKind)| kind == AdapterKind::Software;
    let Some(wanted) = wanted else {
        return adapters.iter().position(|adapter| !is_software(adapter));
    };
    if wanted == "software" {
        return adapters.iter().position(is_software);
    }
    match wanted.parse() {
        Ok(index) => (0..adapters.len()).contains(&index).then_some(index),
        Err(_) => {
            let part = wanted.to_lowercase();
            adapters.iter().position(|(name, _)| name.to_lowercase().contains(&part))
        }
    }
}

const APIS: wgpu::Backends =
    wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// The process's one instance: making it loads every driver, and several GPUs are looked up one by one.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: APIS,
            flags: wgpu::InstanceFlags::empty(),
            // wgpu would apply it to its own staging buffers, too, of a few kilobytes for each write, and a device is lost
            // with one that it refuses. `Device::buffer` compares the budget itself.
            memory_budget_thresholds: wgpu::MemoryBudgetThresholds {
                for_resource_creation: None,
                for_device_loss: None,
            },
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        })
    })
}

fn enumerate() -> Vec<Adapter> {
    let raw = pollster::block_on(instance().enumerate_adapters(APIS));
    let mut found: Vec<Adapter> = raw.into_iter().filter_map(Adapter::new).collect();
    found.sort_by_key(|adapter| (adapter.facts.kind, adapter.facts.api == "dx12"));
    found
}

impl Adapter {
    fn new(raw: wgpu::Adapter) -> Option<Adapter> {
        let info = raw.get_info();
        let api = api(info.backend)?;
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        };
        let memory = crate::memory::of(&raw);
        let unified = matches!(kind, AdapterKind::Integrated | AdapterKind::Software);
        let features = USED.iter().filter(|(feature, _)| raw.features().contains(*feature));
        let facts = AdapterFacts {
            name: info.name,
            api: api.name(),
            kind,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            bus: info.device_pci_bus_id,
            memory_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            unified,
            features: features.map(|(_, name)| (*name).to_owned()).collect(),
        };
        Some(Adapter { raw, facts })
    }

    /// Its properties.
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    pub(crate) fn raw(&self) -> &wgpu::Adapter {
        &self.raw
    }

    /// Capabilities for kernels, except subgroups and cooperative matrices, which must be probed.
    pub fn caps(&self) -> Caps {
        let (info, features, limits) =
            (self.raw.get_info(), self.raw.features(), self.raw.limits());
        let api = api(info.backend).unwrap_or(Api::Vulkan);
        let software = self.facts.kind == AdapterKind::Software;
        Caps {
            api,
            vendor: match api {
                Api::Metal => Vendor::Apple,
                _ => Vendor::from_pci(info.vendor),
            },
            subgroup: None,
            subgroup_varies: false,
            // Metal has no such instruction, naga emits four multiplications. On DX12 every device with subgroups has it,
            // but not every version of the HLSL compiler that a user may have takes it: it is tried once the device is
            // open. Software adapters have a path of their own.
            dot4: match api {
                Api::Vulkan => software || crate::vulkan::has_dot4(&self.raw),
                Api::Dx12 => features.contains(wgpu::Features::SUBGROUP),
                Api::Metal => false,
            },
            f16: features.contains(wgpu::Features::SHADER_F16),
            coop: None,
            coop_attends: true,
            tile: Tile { input: Input::Quantized, rows: 64, columns: 64 },
            few: Few {
                emits: limits.max_storage_buffers_per_shader_stage >= EMIT_BUFFERS,
                ..Few::PRESUMED
            },
            software,
            unified: self.facts.unified,
            timestamps: features.contains(TIMESTAMPS),
            max_binding: limits.max_storage_buffer_binding_size.min(BUFFER_MAX),
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            offset_alignment: limits.min_storage_buffer_offset_alignment,
        }
    }

    /// Rows and columns of the largest square matrices of halves whose products it adds up in f32.
    pub(crate) fn coop_edge(&self) -> Option<u32> {
        let needed = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | COOPERATIVE;
        if !self.raw.features().contains(needed) {
            return None;
        }
        let known = self.raw.cooperative_matrix_properties();
        let fits = known.iter().filter(|one| {
            one.m_size == one.n_size
                && one.n_size == one.k_size
                && one.ab_type == wgpu::CooperativeScalarType::F16
                && one.cr_type == wgpu::CooperativeScalarType::F32
        });
        fits.map(|one| one.m_size).max()
    }

    pub(crate) fn wanted_features(&self) -> wgpu::Features {
        let all = USED.iter().fold(wgpu::Features::empty(), |all, (feature, _)| all | *feature);
        self.raw.features() & all
    }

    pub(crate) fn wanted_limits(&self) -> wgpu::Limits {
        let mut limits = self.raw.limits();
        limits.max_buffer_size = limits.max_buffer_size.min(BUFFER_MAX);
        let binding = limits.max_storage_buffer_binding_size.min(BUFFER_MAX);
        limits.max_storage_buffer_binding_size = binding;
        limits
    }
}

/// Timestamps at the start and end of a pass, and inside it.
const TIMESTAMPS: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);

/// Cooperative matrices.
const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;

/// Optional features; none is required.
const USED: &[(wgpu::Features, &str)] = &[
    (wgpu::Features::SUBGROUP, "subgroup"),
    (wgpu::Features::SHADER_F16, "f16"),
    (COOPERATIVE, "cooperative-matrix"),
    (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
    (wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES, "timestamps-inside-passes"),
    (wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, "mappable-primary-buffers"),
    (wgpu::Features::PIPELINE_CACHE, "pipeline-cache"),
];

fn api(backend: wgpu::Backend) -> Option<Api> {
    match backend {
        wgpu::Backend::Vulkan => Some(Api::Vulkan),
        wgpu::Backend::Metal => Some(Api::Metal),
        wgpu::Backend::Dx12 => Some(Api::Dx12),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{AdapterKind, index, is_mostly_shared};

    #[test]
    fn memory_is_the_hosts_unless_half_of_it_is_set_aside() {
        let gib = 1u64 << 30;
        assert!(is_mostly_shared("536870912\n", 6 * gib), "a laptop's");
        let most = format!("{}\n", 96 * gib);
        assert!(!is_mostly_shared(&most, 106 * gib) && !is_mostly_shared("", gib));
    }

    #[test]
    fn numbers_are_indices_and_other_names_parts_of_names() {
        let adapters = [
            ("GeForce RTX 5090", AdapterKind::Discrete),
            ("llvmpipe (LLVM 20.1.2, 256 bits)", AdapterKind::Software),
        ];
        let cases = [
            (None, Some(0)),
            (Some("0"), Some(0)),
            (Some("1"), Some(1)),
            (Some("2"), None),
            (Some("5"), None),
            (Some("5090"), None),
            (Some("rtx 5090"), Some(0)),
            (Some("LLVM"), Some(1)),
            (Some("software"), Some(1)),
            (Some("radeon"), None),
        ];
        for (wanted, expected) in cases {
            assert_eq!(index(&adapters, wanted), expected, "{wanted:?}");
        }
        assert_eq!(index(&adapters[1..], None), None);
    }
}
