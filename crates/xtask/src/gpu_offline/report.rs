//! What the compiler said of each kernel: reading it, the rules it must keep, and the table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::Family;
use super::assembly::{Counts, main_loop, whole};

/// Weights that a lane unpacks at once (`shaders/matmul/gemv.wgsl`).
const UNIT: f64 = 64.0;

/// What is known of one compiled kernel.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    statistics: BTreeMap<String, f64>,
    error: Option<String>,
    main: Counts,
    dot4: u32,
}

impl Compiled {
    fn of(&self, name: &str) -> f64 {
        self.statistics.get(name).copied().unwrap_or(f64::NAN)
    }

    /// Registers that did not fit and go through memory.
    fn spills(&self) -> f64 {
        self.of("Spilled VGPRs") + self.of("Spilled SGPRs")
    }
}

/// Bytes of a weight, by the type's name in lower case.
pub type Types = BTreeMap<String, f64>;

/// Reads the list of types that the test of all shaders wrote.
pub fn types(kernels: &Path) -> Result<Types> {
    let path = kernels.join("types.tsv");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let line = |line: &str| {
        let mut fields = line.split('\t');
        let name = fields.next().context("no name")?.to_owned();
        let mut number = || Ok::<f64, anyhow::Error>(fields.next().context("no number")?.parse()?);
        let (weights, bytes) = (number()?, number()?);
        Ok((name, bytes / weights))
    };
    text.lines().map(line).collect()
}

/// Reads what `offline` printed, and the disassemblies in `folder`.
pub fn read(said: &str, folder: &Path) -> Result<BTreeMap<String, Compiled>> {
    let mut found: BTreeMap<String, Compiled> = BTreeMap::new();
    let mut current: Option<&mut Compiled> = None;
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("@ ") {
            let entry = found.entry(name.to_owned()).or_default();
            let path = folder.join(format!("{name}.asm"));
            if let Ok(bytes) = std::fs::read(path) {
                let text = String::from_utf8_lossy(&bytes);
                (entry.main, entry.dot4) = (main_loop(&text), whole(&text).dot4);
            }
            current = Some(entry);
        } else if let (Some((key, value)), Some(entry)) = (line.split_once('='), &mut current) {
            match value.parse() {
                Ok(number) => _ = entry.statistics.insert(key.to_owned(), number),
                Err(_) => entry.error = Some(value.to_owned()),
            }
        }
    }
    Ok(found)
}

/// The rules that kernels break, a line each: they compile, nothing spills, packed dot products are one instruction where
/// a kernel has them, and the main loop of a matrix product loads 16 bytes at once at least somewhere.
pub fn broken(found: &[(&Family, BTreeMap<String, Compiled>)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (family, kernels) in found {
        for (name, compiled) in kernels {
            let mut rule = |holds: bool, what: &str| {
                if !holds {
                    broken.push(format!("{}: {name}: {what}", family.name));
                }
            };
            if let Some(error) = &compiled.error {
                rule(false, &format!("does not compile ({error})"));
                continue;
            }
            rule(compiled.spills() == 0.0, "spills registers");
            let product = name.starts_with("matmul") || name.starts_with("experts_");
            if product && name.contains("_q8_") {
                rule(compiled.dot4 > 0, "has no packed dot product");
            }
            if product {
                rule(compiled.main.loads.contains_key(&128), "loads no 16 bytes at once");
            }
        }
    }
    broken
}

/// Whether a kernel is in the table: products as decode and prefill use them most, and attention.
fn is_shown(name: &str) -> bool {
    let types = ["q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "f16"];
    let of_type = |rest: &str| types.iter().any(|ty| rest.starts_with(&format!("{ty}_")));
    let plain = name.contains("_m1_t");
    if let Some(rest) = name.strip_prefix("matmul_tile_") {
        return of_type(rest) && plain;
    }
    if let Some(rest) = name.strip_prefix("matmul_") {
        return of_type(rest) && plain && rest.contains("x1_m1");
    }
    name.starts_with("attend_split") && name.contains("128")
}

/// One Markdown table over all families.
pub fn table(found: &[(&Family, BTreeMap<String, Compiled>)], types: &Types) -> String {
    let mut text = String::from(
        "| GPU | kernel | VGPRs | subgroups a SIMD | spills | LDS bytes | loop: VALU | dot4 | loads (bits x count) | \
         LDS | waits | ALU bound, GB/s (by memory) |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (family, kernels) in found {
        for (name, one) in kernels.iter().filter(|(name, _)| is_shown(name)) {
            let main = &one.main;
            let loads: Vec<String> =
                main.loads.iter().rev().map(|(bits, count)| format!("{bits}x{count}")).collect();
            let bound = alu_gbps(family, name, one, types).map_or_else(
                || "-".to_owned(),
                |gbps| format!("{gbps:.0} ({:.1}x)", gbps / family.gbps),
            );
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {bound} |",
                family.name,
                name.replace('_', " ")
                    .replace("q4 ", "q4_")
                    .replace("q5 ", "q5_")
                    .replace("q6 ", "q6_"),
                one.of("VGPRs"),
                one.of("Subgroups per SIMD"),
                one.spills(),
                one.of("LDS size"),
                main.valu,
                main.dot4,
                loads.join(" "),
                main.lds,
                main.waits,
            )
            .expect("a string takes everything");
        }
    }
    text
}

/// 10^9 bytes of weights a second that a product with one column could read if vector arithmetic alone took time.
/// `None` of other kernels.
fn alu_gbps(family: &Family, name: &str, one: &Compiled, types: &Types) -> Option<f64> {
    let rest = name.strip_prefix("matmul_").filter(|rest| !rest.starts_with("tile"))?;
    let (_, bytes) = types
        .iter()
        .filter(|(ty, _)| rest.starts_with(&format!("{ty}_")))
        .max_by_key(|(ty, _)| ty.len())?;
    let rows: f64 = rest.split('_').find_map(|word| word.strip_suffix("x1"))?.parse().ok()?;
    let threads = rest.rsplit('_').next()?.strip_prefix('t')?;
    let threads: f64 = threads.split('s').next()?.parse().ok()?;
    let subgroup = one.of("Subgroup Size").min(threads);
    // RDNA runs a subgroup of 64 as two halves, for two issues.
    let passes = if family.issue > 1.0 { (one.of("Subgroup Size") / 32.0).max(1.0) } else { 1.0 };
    let issued = family.units * family.issue * family.clock_ghz;
    Some(issued * rows * subgroup * UNIT * bytes / (f64::from(one.main.valu) * passes))
}

#[cfg(test)]
mod tests {
    use super::{Compiled, alu_gbps, broken, read};
    use crate::gpu_offline::FAMILIES;

    fn kernels(text: &str) -> std::collections::BTreeMap<String, Compiled> {
        read(text, std::path::Path::new("/nowhere")).expect("text")
    }

    #[test]
    fn rules_are_kept_or_named() {
        let said = "device=x\n@ gate_silu\nSpilled VGPRs=0\nSpilled SGPRs=0\n@ rope\nSpilled VGPRs=2\nSpilled \
                    SGPRs=0\n@ add\nfailed=no memory\n";
        let found = broken(&[(&FAMILIES[0], kernels(said))]);
        assert_eq!(
            found,
            ["navi31: add: does not compile (no memory)", "navi31: rope: spills registers"]
        );
    }

    #[test]
    fn a_bound_follows_from_bytes_and_instructions() {
        let name = "matmul_q8_0_q8_4x1_m1_t32s32";
        let mut found = kernels(&format!("@ {name}\nSubgroup Size=32\n"));
        let one = found.get_mut(name).expect("read");
        one.main.valu = 100;
        let types = [("q8_0".to_owned(), 34.0 / 32.0)].into();
        let gbps = alu_gbps(&FAMILIES[0], name, one, &types).expect("a product");
        // 4 rows of 32 lanes of 64 weights in 100 instructions, 2 x 96 x 2.4e9 instructions a second.
        assert!((gbps - 460.8 * 4.0 * 32.0 * 68.0 / 100.0).abs() < 1e-6, "{gbps}");
    }
}
