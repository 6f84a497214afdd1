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
cargo xtask gpu-offline [--write] [--main] [--families A,B]
                              compile every kernel for AMD GPUs that are not here (Mesa's RADV) and for DX12 (DXC), check
                              spills, packed dot products, load widths, addresses and budgets; the whole table goes to
                              target/gpu-offline/table.md, --write puts its main rows into docs/internals/gpu-offline.md,
                              --main compiles the kernels of these rows alone";

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
        name: "vega20",
        card: "Radeon VII",
        profile: "amd",
        units: 60.0,
        issue: 1.0,
        clock_ghz: 1.75,
        gbps: 1024.0,
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

/// What is asked for.
struct Asked {
    /// The table is written to the page.
    write: bool,
    /// The kernels that are compiled, by name.
    kernels: fn(&str) -> bool,
    families: Vec<&'static Family>,
}

impl Asked {
    fn parse(args: &[String]) -> Result<Asked> {
        let all = FAMILIES.iter().collect();
        let mut asked = Asked { write: false, kernels: |_| true, families: all };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            match arg.as_str() {
                "--write" => asked.write = true,
                "--main" => asked.kernels = report::is_shown,
                "--families" => {
                    asked.families = families(rest.next().context("--families takes names")?)?;
                }
                other => bail!("gpu-offline does not know `{other}`\n{USAGE}"),
            }
        }
        let part = args.iter().find(|arg| ["--main", "--families"].contains(&arg.as_str()));
        if let Some(part) = part.filter(|_| asked.write) {
            bail!("--write takes the whole table, so it does not go with {part}");
        }
        Ok(asked)
    }
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<()> {
    let Asked { write, kernels, families } = Asked::parse(args)?;
    let target = target_folder()?;
    let folder = target.join("gpu-offline");
    let packages = match Packages::ready(&folder)? {
        Ok(packages) => packages,
        Err(reason) if write => bail!("--write needs every compiler: {reason}"),
        Err(reason) => return crate::say(&format!("gpu-offline: skipped: {reason}")),
    };
    let task = Task { offline: Offline::build(&target)?, packages, folder };
    task.write_kernels(&families, kernels)?;
    let (found, dxc) = task.compile(&families)?;
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
    /// Builds it with the features that dependencies have in the tests, so that none of them is compiled once more.
    fn build(target: &Path) -> Result<Offline> {
        status(cargo().args(["build", "--quiet", "--workspace", "--example", "offline"]))?;
        Ok(Offline { program: target.join("debug/examples/offline") })
    }

    /// Runs a part of it; returns what it printed.
    fn run(&self, args: &[&str], prepare: impl Fn(&mut Command)) -> Result<String> {
        let mut command = Command::new(&self.program);
        prepare(command.args(args));
        let said = command.output().with_context(|| self.program.display().to_string())?;
        if !said.status.success() {
            let reason = String::from_utf8_lossy(&said.stderr);
            bail!("offline {}: {}: {}", args.join(" "), said.status, reason.trim_end());
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }
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
    /// The file of the names of the kernels that are compiled.
    fn names(&self) -> String {
        self.folder.join("names").display().to_string()
    }

    /// Writes what drivers get of the kernels that are compiled, and their names.
    fn write_kernels(&self, families: &[&Family], is_wanted: fn(&str) -> bool) -> Result<()> {
        let folder = self.folder.join("kernels");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let profiles: BTreeSet<&str> = families.iter().map(|one| one.profile).chain(DX12).collect();
        let profiles: Vec<&str> = profiles.into_iter().collect();
        let all = self.offline.run(&[&["names"][..], &profiles[..]].concat(), |_| {})?;
        let names: Vec<&str> = all.lines().filter(|name| is_wanted(name)).collect();
        let file = self.names();
        std::fs::write(&file, names.join("\n"))?;
        let folder = folder.display().to_string();
        let args = [&["kernels", &folder, &file][..], &profiles[..]].concat();
        self.offline.run(&args, |_| {}).map(|_| ())
    }

    /// Runs all compilers at once, each of them a process of one thread.
    fn compile(&self, families: &[&'static Family]) -> Result<(Found<'static>, Dxc)> {
        std::thread::scope(|scope| {
            let dxc = scope.spawn(|| self.dxc());
            let radv: Vec<_> =
                families.iter().map(|&family| scope.spawn(move || self.radv(family))).collect();
            let names = self.names();
            let mut args = vec!["addresses", names.as_str()];
            args.extend(families.iter().map(|family| family.profile));
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
                let reason = packages::last_line(&error);
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
        let [first, second] = std::thread::scope(|scope| {
            DX12.map(|profile| scope.spawn(move || compile(profile)))
                .map(|one| one.join().expect("a thread that does not panic"))
        });
        let ((plain, mut broken), (packed, refused)) = (first?, second?);
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

#[cfg(test)]
mod tests {
    use super::{Asked, FAMILIES};

    #[test]
    fn parts_of_the_table_are_not_written() {
        let parse =
            |args: &str| Asked::parse(&args.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("--write").map(|asked| asked.families.len()).ok(), Some(FAMILIES.len()));
        let asked = parse("--main --families raven,vega20").unwrap();
        assert_eq!(
            asked.families.iter().map(|one| one.name).collect::<Vec<_>>(),
            ["raven", "vega20"]
        );
        assert!((asked.kernels)("matmul_q4_k_q8_raw_4x1_m1_t64s64") && !(asked.kernels)("rope"));
        for (args, error) in [
            ("--main --write", "--write takes the whole table, so it does not go with --main"),
            ("--write --families raven", "does not go with --families"),
            ("--families navi99", "no GPU family `navi99`; there are navi31, "),
            ("--families", "--families takes names"),
            ("--all", "gpu-offline does not know `--all`"),
        ] {
            let found = parse(args).err().unwrap().to_string();
            assert!(found.contains(error), "{args}: {found}");
        }
    }
}
