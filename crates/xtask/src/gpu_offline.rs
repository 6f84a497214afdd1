//! `cargo xtask gpu-offline`: compiles every kernel for GPUs that are not here, and tables what the compiler made of it.
//!
//! Mesa's RADV compiles for any AMD GPU named by `RADV_FORCE_FAMILY`, without the GPU. It tells registers, spills and
//! occupancy, and shows the machine code, from which instructions in the main loop are counted. What it needs is
//! unpacked below `target/gpu-offline`; nothing is installed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::status;
use packages::Packages;
use report::Compiled;

mod assembly;
mod packages;
mod report;

pub const USAGE: &str = "\
cargo xtask gpu-offline [--write] [--families A,B]
                              compile every kernel for AMD GPUs that are not here (Mesa's RADV), check spills, packed
                              dot products and load widths; --write puts the table into docs/internals/gpu-offline.md";

/// Where the table is written to.
const PAGE: &str = "docs/internals/gpu-offline.md";

/// A GPU that is compiled for. Clocks are boost clocks in games, bandwidths those of the data sheets.
pub struct Family {
    /// RADV's name for it.
    pub name: &'static str,
    /// A product that has it.
    pub card: &'static str,
    /// The folder of kernels that this GPU gets: a profile of `tests/shaders.rs`.
    pub profile: &'static str,
    /// Compute units.
    pub units: f64,
    /// Vector instructions that a compute unit issues in a clock, for whole subgroups.
    pub issue: f64,
    /// GHz.
    pub clock_ghz: f64,
    /// Memory bandwidth, 10^9 bytes a second.
    pub gbps: f64,
}

/// RDNA issues two instructions of 32 lanes in a clock, Vega one of 64.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "navi31",
        card: "RX 7900 XTX",
        profile: "rdna",
        units: 96.0,
        issue: 2.0,
        clock_ghz: 2.4,
        gbps: 960.0,
    },
    Family {
        name: "navi21",
        card: "RX 6800",
        profile: "rdna",
        units: 60.0,
        issue: 2.0,
        clock_ghz: 2.1,
        gbps: 512.0,
    },
    Family {
        name: "navi10",
        card: "RX 5700",
        profile: "rdna without dot4",
        units: 36.0,
        issue: 2.0,
        clock_ghz: 1.7,
        gbps: 448.0,
    },
    Family {
        name: "raven",
        card: "Ryzen 5 2400G",
        profile: "vega",
        units: 11.0,
        issue: 1.0,
        clock_ghz: 1.25,
        gbps: 38.0,
    },
    Family {
        name: "gfx1150",
        card: "Ryzen AI 9 HX 370",
        profile: "rdna",
        units: 16.0,
        issue: 2.0,
        clock_ghz: 2.9,
        gbps: 120.0,
    },
];

/// Runs the task.
pub fn run(args: &[String]) -> Result<()> {
    let mut write = false;
    let mut wanted: Vec<&Family> = FAMILIES.iter().collect();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--write" => write = true,
            "--families" => wanted = families(args.next().context("--families takes names")?)?,
            other => bail!("gpu-offline does not know `{other}`\n{USAGE}"),
        }
    }
    if write && wanted.len() < FAMILIES.len() {
        bail!("--write takes the whole table, so it does not go with --families");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = std::path::absolute(Path::new(&target).join("gpu-offline"))?;
    let packages = match Packages::ready(&folder)? {
        Ok(packages) => packages,
        Err(reason) => {
            return Ok(writeln!(std::io::stdout(), "skipped: {reason}")?);
        }
    };
    let kernels = folder.join("kernels");
    write_kernels(&kernels)?;
    let types = report::types(&kernels)?;
    let mut found = Vec::new();
    for family in wanted {
        let compiled = compile(family, &packages, &kernels, &folder)?;
        found.push((family, compiled));
    }
    let table = report::table(&found, &types);
    write!(std::io::stdout(), "{table}")?;
    let broken = report::broken(&found);
    if !broken.is_empty() {
        bail!("{} kernels break a rule:\n  {}", broken.len(), broken.join("\n  "));
    }
    if write {
        crate::rewrite(Path::new(PAGE), "gpu-offline", |_| table)?;
    }
    Ok(())
}

fn families(names: &str) -> Result<Vec<&'static Family>> {
    let find = |name: &str| {
        let known = || FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        let found = FAMILIES.iter().find(|family| family.name == name);
        found.with_context(|| format!("no GPU family `{name}`; there are {}", known()))
    };
    names.split(',').map(find).collect()
}

/// Has the test of all shaders write what drivers get.
fn write_kernels(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "bilayer", "--test", "shaders"]);
    command.args(["--", "every_kernel_of_every_adapter_translates"]);
    status(command.env("BILAYER_SHADERS_OUT", folder))
}

/// Every kernel of the family's profile, by name.
fn compile(
    family: &Family,
    packages: &Packages,
    kernels: &Path,
    folder: &Path,
) -> Result<BTreeMap<String, Compiled>> {
    eprintln!("xtask: compiling for {} ({})", family.name, family.card);
    let mut files: Vec<PathBuf> = std::fs::read_dir(kernels.join(family.profile))
        .with_context(|| format!("no kernels of the profile `{}`", family.profile))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "spv"));
    files.sort();
    let out = folder.join(family.name);
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "bilayer-gpu", "--example", "offline", "--"]);
    command.arg(&out).args(&files);
    packages.environment(&mut command);
    command.env("RADV_FORCE_FAMILY", family.name);
    let said = command.output().context("cargo could not be started")?;
    if !said.status.success() {
        bail!("offline failed: {}", String::from_utf8_lossy(&said.stderr));
    }
    report::read(&String::from_utf8_lossy(&said.stdout), &out)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
