//! `cargo xtask gpu-offline`: compiles every kernel for GPUs that are not here, and tables what the compilers made of it.
//!
//! Mesa's RADV compiles for any AMD GPU named by `RADV_FORCE_FAMILY`, without the GPU. It tells registers, spills and
//! occupancy, and shows the machine code, from which instructions in the main loop are counted. Microsoft's DXC compiles
//! the HLSL. Addresses follow from executing the kernels' index arithmetic. What it needs is unpacked below
//! `target/gpu-offline`; nothing is installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, status, target_folder};
use packages::Packages;
use report::{Found, Kernels};

mod assembly;
mod bounds;
mod dispatches;
mod packages;
mod report;
mod token;

pub const USAGE: &str = "\
cargo xtask gpu-offline [--write] [--families A,B]
                              compile every kernel for AMD GPUs that are not here (Mesa's RADV) and for DX12 (DXC), check
                              spills, packed dot products, load widths, addresses and budgets; the whole table goes to
                              target/gpu-offline/table.md, --write puts its main rows into docs/internals/gpu-offline.md";

/// Where the table is written to.
const PAGE: &str = "docs/internals/gpu-offline.md";

/// A GPU that is compiled for. Clocks are boost clocks in games, bandwidths those of the data sheets.
pub struct Family {
    /// RADV's name for it.
    pub name: &'static str,
    /// A product that has it.
    pub card: &'static str,
    /// The folder of kernels that this GPU gets: a profile of `crates/gpu/src/profiles.rs`.
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

/// RDNA issues two instructions of 32 lanes in a clock, Vega one of 64. Each unit has a first cache and workgroup memory.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "navi31",
        card: "RX 7900 XTX",
        profile: "rdna3",
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
        profile: "rdna3",
        units: 16.0,
        issue: 2.0,
        clock_ghz: 2.9,
        gbps: 120.0,
    },
];

/// The profiles whose HLSL is compiled. Kernels of the first must all compile; of the second those with packed dot
/// products may be refused, which the backend finds out at start.
const DX12: [&str; 2] = ["dx12 without dot4", "dx12"];

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
    let target = target_folder()?;
    let folder = target.join("gpu-offline");
    let packages = match Packages::ready(&folder)? {
        Ok(packages) => packages,
        Err(reason) if write => bail!("--write needs every compiler: {reason}"),
        Err(reason) => return crate::say(&format!("skipped: {reason}")),
    };
    let kernels = folder.join("kernels");
    let offline = Offline::build(&target)?;
    write_kernels(&offline, &kernels, &wanted)?;
    let task = Task { offline, packages, folder };
    let (found, dxc) = task.compile(&wanted)?;
    let mut broken = found.broken();
    broken.extend(dxc.broken);
    if let Some(reason) = dxc.skipped.filter(|_| write) {
        broken.push(format!("--write needs every compiler: DXC: {reason}"));
    }
    std::fs::write(task.folder.join("table.md"), found.table(|_| true))?;
    let table = format!("{}\n{}\n", found.table(report::is_shown), dxc.said);
    crate::say(table.trim_end_matches('\n'))?;
    if !broken.is_empty() {
        bail!("{} rules are broken:\n  {}", broken.len(), broken.join("\n  "));
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

/// The backend's example `offline`.
struct Offline {
    program: PathBuf,
}

impl Offline {
    /// Builds it. The root package is named too, so that dependencies have the features that they have in the tests, and
    /// are not compiled once more.
    fn build(target: &Path) -> Result<Offline> {
        let mut command = cargo();
        command.args(["build", "--quiet", "--package", "bilayer", "--package", "bilayer-gpu"]);
        status(command.args(["--example", "offline"]))?;
        Ok(Offline { program: target.join("debug/examples/offline") })
    }

    /// Runs a part of it; returns what it printed.
    fn run(&self, args: &[&str], prepare: impl Fn(&mut Command)) -> Result<String> {
        let mut command = Command::new(&self.program);
        prepare(command.args(args));
        let said = command.output().with_context(|| self.program.display().to_string())?;
        if !said.status.success() {
            bail!("offline {}: {}", args[0], String::from_utf8_lossy(&said.stderr));
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }
}

/// Writes what drivers get.
fn write_kernels(offline: &Offline, folder: &Path, wanted: &[&Family]) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let profiles: BTreeSet<&str> = wanted.iter().map(|family| family.profile).chain(DX12).collect();
    let folder = folder.display().to_string();
    let mut args = vec!["kernels", folder.as_str()];
    args.extend(profiles);
    offline.run(&args, |_| {}).map(|_| ())
}

/// What DXC made of the HLSL.
struct Dxc {
    /// A sentence for the page.
    said: String,
    /// Kernels that must compile and do not, and profiles without kernels.
    broken: Vec<String>,
    /// Why it was not run.
    skipped: Option<String>,
}

/// What the compilers are run with.
struct Task {
    offline: Offline,
    packages: Packages,
    folder: PathBuf,
}

impl Task {
    /// Runs all compilers at once, each of them a process of one thread.
    fn compile(&self, wanted: &[&'static Family]) -> Result<(Found<'static>, Dxc)> {
        std::thread::scope(|scope| {
            let dxc = scope.spawn(|| self.dxc());
            let radv: Vec<_> =
                wanted.iter().map(|&family| scope.spawn(move || self.radv(family))).collect();
            let mut args = vec!["addresses"];
            args.extend(wanted.iter().map(|family| family.profile));
            let addresses = report::sections(&self.offline.run(&args, |_| {})?);
            let join = "a thread that does not panic";
            let families = radv.into_iter().map(|one| one.join().expect(join));
            let families = families.collect::<Result<Vec<_>>>()?;
            Ok((Found { addresses, families }, dxc.join().expect(join)?))
        })
    }

    /// Every kernel of the family's profile, by name.
    fn radv(&self, family: &'static Family) -> Result<(&'static Family, Kernels)> {
        eprintln!("xtask: compiling for {} ({})", family.name, family.card);
        let from = self.folder.join("kernels").join(family.profile).display().to_string();
        let out = self.folder.join(family.name);
        let said = self.offline.run(&["radv", &from, &out.display().to_string()], |command| {
            self.packages.environment(command);
            command.env("RADV_FORCE_FAMILY", family.name);
        })?;
        Ok((family, report::read(&said, &out)))
    }

    /// The HLSL of both profiles.
    fn dxc(&self) -> Result<Dxc> {
        let library = match packages::dxc(&self.folder.join("dxc")) {
            Ok(library) => library.display().to_string(),
            Err(error) => {
                let reason = format!("{error:#}");
                let said = format!("DXC: skipped ({reason}).");
                return Ok(Dxc { said, broken: Vec::new(), skipped: Some(reason) });
            }
        };
        let compile = |profile: &str| {
            eprintln!("xtask: compiling HLSL of the profile `{profile}`");
            let from = self.folder.join("kernels").join(profile).display().to_string();
            let said = self.offline.run(&["dxc", &library, &from], |_| {})?;
            let said = report::sections(&said);
            let failed = said.iter().filter_map(|(name, values)| {
                Some(format!("DXC: {name}: {}", values.get("failed")?))
            });
            Ok::<_, anyhow::Error>((said.len(), failed.collect::<Vec<String>>()))
        };
        let (plain, mut broken) = compile(DX12[0])?;
        let (packed, refused) = compile(DX12[1])?;
        let said = format!(
            "{} compiles {} of the {plain} kernels without packed dot products for shader model 6.5, and {} of the \
             {packed} of a device that has them.",
            packages::DXC,
            plain - broken.len(),
            packed - refused.len()
        );
        for (profile, count) in DX12.iter().zip([plain, packed]) {
            if count == 0 {
                broken.push(format!("DXC: no kernel of the profile `{profile}` was compiled"));
            }
        }
        Ok(Dxc { said, broken, skipped: None })
    }
}
