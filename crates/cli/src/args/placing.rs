//! Flags that say what runs on which processor.

use bilayer_engine::placement::Placing;
use bilayer_engine::session::Overlap;
use bilayer_scheduler::{Offload, Side};
use clap::Args;

use super::switch;
use crate::folders;

/// What goes to the adapter.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct PlacingArgs {
    /// Parts on the adapter: the output head first, then the last layers; auto, all, a number or a percentage; short form
    /// -ngl
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", default_value = "auto")]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS", value_parser = offload)]
    pub gpu_layers: Offload,
    /// Keep the expert tensors of the first N layers on the CPU; short form -ncmoe
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_CPU_MOE", default_value_t = 0)]
    #[arg(hide_default_value = true)]
    pub n_cpu_moe: u32,
    /// Keep the KV cache, and attention with it, on the CPU; short form -nkvo
    #[arg(long, env = "LLAMA_ARG_NO_KV_OFFLOAD", value_parser = switch())]
    pub no_kv_offload: bool,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

/// Which adapter, and what of it: what does not change within a command, even one that tries several placements.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Placement")]
pub struct AdapterArgs {
    /// Tensors whose names match run on cpu or gpu, whatever their layer does; repeatable; short form -ot
    #[arg(long, value_name = "REGEX=cpu|gpu", value_parser = pin)]
    pub override_tensor: Vec<(String, Side)>,
    /// Keep all expert tensors on the CPU; short form -cmoe
    #[arg(long, env = "LLAMA_ARG_CPU_MOE", value_parser = switch())]
    pub cpu_moe: bool,
    /// Which adapter: its number in `bilayer devices`, part of its name, `software`, or none; short form -dev
    #[arg(long, value_name = "NAME", env = "LLAMA_ARG_DEVICE")]
    pub device: Option<String>,
    /// Pretend that the adapter has so much free memory, such as 24GiB [default: ask the driver]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub vram: Option<u64>,
    /// Memory left free on the adapter; a bare number is MiB; short form -fitt [default: 1GiB, less on small ones]
    #[arg(long, value_name = "SIZE", env = "LLAMA_ARG_FIT_TARGET", value_parser = mebibytes)]
    pub fit_target: Option<u64>,
    /// When two devices work at the same time: on, off, auto (prompts, and many sequences at once)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = overlap)]
    pub overlap: Overlap,
    /// Measure anew how long the model's layers take on each device; else it is done once and kept
    #[arg(long)]
    pub remeasure: bool,
    /// List the adapters and end
    #[arg(long)]
    pub list_devices: bool,
}

impl PlacingArgs {
    /// What the engine is asked.
    pub fn placing(&self) -> Placing {
        self.adapter.placing(self.gpu_layers, self.n_cpu_moe, self.no_kv_offload.into())
    }
}

/// Where caches and attention lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// With their layers.
    WithLayers,
    /// On the processor.
    OnProcessor,
}

impl From<bool> for Caches {
    /// From the switch --no-kv-offload.
    fn from(is_set: bool) -> Caches {
        if is_set { Caches::OnProcessor } else { Caches::WithLayers }
    }
}

impl AdapterArgs {
    /// What the engine is asked: so many parts on the adapter, with the experts of the first layers on the processor.
    pub fn placing(&self, gpu_layers: Offload, n_cpu_moe: u32, caches: Caches) -> Placing {
        let none = self.device.as_deref() == Some("none");
        Placing {
            gpu_layers: if none { Offload::Count(0) } else { gpu_layers },
            overrides: self.override_tensor.clone(),
            cpu_moe_layers: if self.cpu_moe { u32::MAX } else { n_cpu_moe },
            cache_on_cpu: caches == Caches::OnProcessor,
            device: self.device.clone().filter(|_| !none),
            vram_bytes: self.vram,
            margin_bytes: self.fit_target,
            taken_bytes: [0; 2],
            kept: folders::kept(),
            remeasure: self.remeasure,
        }
    }
}

impl PlacingArgs {
    /// The flags that ask for `count` parts outright and for the rest as given.
    pub fn explicit(&self, count: u32) -> String {
        let mut flags = format!("-ngl {count}");
        for (pattern, side) in &self.adapter.override_tensor {
            let side = if *side == Side::Host { "cpu" } else { "gpu" };
            flags += &format!(" -ot '{pattern}={side}'");
        }
        flags += &match (self.adapter.cpu_moe, self.n_cpu_moe) {
            (true, _) => " -cmoe".to_owned(),
            (false, 0) => String::new(),
            (false, layers) => format!(" -ncmoe {layers}"),
        };
        flags + if self.no_kv_offload { " -nkvo" } else { "" }
    }
}

fn overlap(given: &str) -> Result<Overlap, String> {
    match given {
        "on" => Ok(Overlap::Always),
        "off" => Ok(Overlap::Off),
        "auto" => Ok(Overlap::Auto),
        _ => Err("it must be on, off or auto".to_owned()),
    }
}

pub(super) fn offload(given: &str) -> Result<Offload, String> {
    let wrong = || "it must be auto, all, a number of parts or a percentage".to_owned();
    match given {
        "auto" => return Ok(Offload::Auto),
        // llama.cpp takes -1 for all.
        "all" | "-1" => return Ok(Offload::All),
        _ => {}
    }
    match given.strip_suffix('%') {
        Some(number) => {
            let percent = number.parse::<u8>().ok().filter(|percent| *percent <= 100);
            percent.map(Offload::Percent).ok_or_else(wrong)
        }
        None => given.parse().map(Offload::Count).map_err(|_| wrong()),
    }
}

fn pin(given: &str) -> Result<(String, Side), String> {
    let split = given.rsplit_once('=').and_then(|(pattern, side)| {
        let side = match side.to_ascii_lowercase().as_str() {
            "cpu" => Side::Host,
            "gpu" => Side::Device,
            // llama.cpp names its buffers: CUDA0, Vulkan0, Metal.
            name if ["cuda", "vulkan", "metal", "rocm"].iter().any(|b| name.starts_with(b)) => {
                Side::Device
            }
            _ => return None,
        };
        Some((pattern.to_owned(), side))
    });
    split.ok_or_else(|| "it must be like blk.1.*ffn=cpu".to_owned())
}

/// Bytes of `24GiB`, `512MiB`, `1.5G`, `800000`.
pub(crate) fn size(given: &str) -> Result<u64, String> {
    sized(given, 0)
}

fn mebibytes(given: &str) -> Result<u64, String> {
    sized(given, 20)
}

/// A number with a unit; without one it is multiplied by two to the power of `bare`.
fn sized(given: &str, bare: u32) -> Result<u64, String> {
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = given.split_at(end);
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" => bare,
        "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("it must be like 24GiB, 512MiB or a number of bytes".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "it must begin with a number".to_owned())?;
    Ok((number * f64::from(power).exp2()) as u64)
}

#[cfg(test)]
mod tests {
    use bilayer_scheduler::{Offload, Side};

    use super::{offload, pin, size, sized};

    #[test]
    fn parts_are_words_numbers_and_percentages() {
        let cases = [
            ("auto", Offload::Auto),
            ("all", Offload::All),
            ("-1", Offload::All),
            ("12", Offload::Count(12)),
            ("50%", Offload::Percent(50)),
        ];
        for (given, expected) in cases {
            assert_eq!(offload(given), Ok(expected), "{given}");
        }
        for given in ["", "many", "101%", "-2", "1.5"] {
            assert!(offload(given).is_err(), "{given}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let cases = [("24GiB", 24 << 30), ("1.5G", 3 << 29), ("512mb", 512 << 20), ("100", 100)];
        for (given, expected) in cases {
            assert_eq!(size(given), Ok(expected), "{given}");
        }
        assert_eq!(sized("1024", 20), Ok(1 << 30));
        assert!(size("lots").is_err() && size("1 parsec").is_err());
    }

    #[test]
    fn pins_name_a_side() {
        assert_eq!(pin("ffn_(up|down)=cpu"), Ok(("ffn_(up|down)".to_owned(), Side::Host)));
        assert_eq!(pin("a=b=Vulkan0"), Ok(("a=b".to_owned(), Side::Device)));
        assert!(pin("ffn").is_err() && pin("ffn=disk").is_err());
    }
}
