//! What the compiler said of each kernel: reading it, the rules it must keep, and the table.

use std::collections::BTreeMap;
use std::path::Path;

use super::Family;
use super::assembly::{Counts, main_loop, whole};
use super::bounds::{Addresses, Bounds, Product};
use super::token::{self, SHAPES, Shape, Token};

/// What is known of one compiled kernel.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Numbers that the driver tells.
    statistics: BTreeMap<String, f64>,
    error: Option<String>,
    /// What the disassembly has; nothing where the driver cannot disassemble for the GPU.
    code: Option<Code>,
}

/// Counts of a disassembly.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Of the main loop.
    pub main: Counts,
    /// Packed dot products in the whole kernel.
    pub dot4: u32,
}

impl Compiled {
    /// A statistic of the driver; not a number where it does not tell it.
    pub fn of(&self, name: &str) -> f64 {
        self.statistics.get(name).copied().unwrap_or(f64::NAN)
    }

    /// What the disassembly has.
    pub fn code(&self) -> Option<&Code> {
        self.code.as_ref()
    }

    /// Registers that did not fit and go through memory.
    fn spills(&self) -> f64 {
        self.of("Spilled VGPRs") + self.of("Spilled SGPRs")
    }
}

/// Compiled kernels by name.
pub type Kernels = BTreeMap<String, Compiled>;

/// What `offline` printed, by name: values by key.
pub type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads what `offline` printed: `@ name`, then lines `key=value`. Names are those of files.
pub fn sections(said: &str) -> Sections {
    let mut found = Sections::new();
    let mut current = None;
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("@ ") {
            current = Some(found.entry(name.replace(['/', ' '], "_")).or_default());
        } else if let (Some((key, value)), Some(entry)) = (line.split_once('='), &mut current) {
            entry.insert(key.to_owned(), value.to_owned());
        }
    }
    found
}

/// Reads what `offline radv` printed, and the disassemblies in `folder`.
pub fn read(said: &str, folder: &Path) -> Kernels {
    let compiled = |name: &str, values: BTreeMap<String, String>| {
        let mut one = Compiled::default();
        if let Ok(bytes) = std::fs::read(folder.join(format!("{name}.asm"))) {
            let text = String::from_utf8_lossy(&bytes);
            let code = Code { main: main_loop(&text), dot4: whole(&text).dot4 };
            one.code = is_code(&text).then_some(code);
        }
        for (key, value) in values {
            match value.parse() {
                Ok(number) => _ = one.statistics.insert(key, number),
                Err(_) => one.error = Some(value),
            }
        }
        one
    };
    let all = sections(said).into_iter();
    all.map(|(name, values)| (name.clone(), compiled(&name, values))).collect()
}

/// What was found out of all kernels.
pub struct Found<'a> {
    /// What `offline addresses` printed.
    pub addresses: Sections,
    /// Kernels of each family, by name.
    pub families: Vec<(&'a Family, Kernels)>,
}

/// Of what memory gives, products of one column over quantized activations must allow as much by arithmetic and cache on
/// cards of these families.
const DECODE_BUDGET: f64 = 2.0;
const DECODE_FAMILIES: &[&str] = &["navi31", "navi21"];

/// Types whose weights are looked up in a table of sixteen, which is done by arithmetic, and what they must allow.
const TABLE_TYPES: &[&str] = &["_iq4_nl_", "_iq4_xs_", "_mxfp4_"];
const TABLE_BUDGET: f64 = 0.75;

/// Clocks of workgroup memory may be so many times those without conflicts of its banks.
const CONFLICTS_MAX: f64 = 1.1;

impl Found<'_> {
    /// The rules that kernels break, a line each.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (family, kernels) in &self.families {
            if kernels.is_empty() {
                broken.push(format!("{}: the compiler printed no kernel", family.name));
            }
            let tokens = self.tokens(family, kernels);
            let has_budget = DECODE_FAMILIES.contains(&family.name);
            if has_budget && tokens.is_empty() {
                broken
                    .push(format!("{}: no products from which a token is predicted", family.name));
            }
            for (shape, token) in tokens {
                if has_budget && token.share < token::SHARE_MIN {
                    let share = 100.0 * token.share;
                    broken.push(format!(
                        "{}: a token of {} is predicted to read at {share:.0} % of the memory's rate",
                        family.name,
                        shape.name()
                    ));
                }
            }
            for (name, compiled) in kernels {
                let rules = self.rules(family, name, compiled);
                broken.extend(rules.iter().map(|rule| format!("{}: {name}: {rule}", family.name)));
            }
        }
        broken
    }

    /// The rules that a kernel breaks: it compiles, nothing spills, packed dot products are one instruction where it has
    /// them and cooperative matrices matrix instructions in the subgroups they are made for, the main loop of a product loads 16 bytes at once at least somewhere, workgroup memory has hardly any
    /// conflicts of banks, and decode keeps its budget.
    fn rules(&self, family: &Family, name: &str, compiled: &Compiled) -> Vec<String> {
        if let Some(error) = &compiled.error {
            return vec![format!("does not compile ({error})")];
        }
        let mut broken = Vec::new();
        let mut rule = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        rule(compiled.spills() == 0.0, "spills registers".to_owned());
        // A kernel with cooperative matrices is made for subgroups of a size, its last word.
        if let Some((_, size)) = name.rsplit_once('s').filter(|_| name.contains("_coop_")) {
            let found = compiled.of("Subgroup Size");
            rule(size == found.to_string(), format!("is compiled for subgroups of {found}"));
        }
        let is_product = ["matmul_", "experts_pair_", "experts_group_"];
        let is_product = is_product.iter().any(|stem| name.starts_with(stem));
        if let Some(code) = compiled.code().filter(|_| is_product) {
            let is_coop = name.contains("_coop_");
            let packed = name.contains("_q8_") && !name.contains("_f32_") && !is_coop;
            rule(!packed || code.dot4 > 0, "has no packed dot product".to_owned());
            rule(!is_coop || code.main.matrix > 0, "has no matrix instruction".to_owned());
            let wide = code.main.loads.contains_key(&128);
            rule(wide, "loads no 16 bytes at once".to_owned());
        }
        if let Some(addresses) = self.addresses_of(name) {
            let (clocks, least) = (addresses.bank_clocks, addresses.bank_clocks_least);
            let what = format!("{clocks} clocks of workgroup memory where {least} would do");
            rule(clocks <= CONFLICTS_MAX * least, what);
        }
        if let Some(bounds) = self.bounds(family, name, compiled)
            && DECODE_FAMILIES.contains(&family.name)
            && !bounds.tiled
            && compiled.code().is_some_and(|code| code.dot4 > 0)
        {
            let is_table = TABLE_TYPES.iter().any(|ty| name.contains(ty));
            let budget = if is_table { TABLE_BUDGET } else { DECODE_BUDGET };
            let (least, by) = (bounds.least() / family.gbps, bounds.by());
            let what = format!("{by} allows {least:.1} of the memory's rate, not {budget}");
            rule(least >= budget, what);
        }
        broken
    }

    fn addresses_of(&self, name: &str) -> Option<Addresses> {
        Addresses::of(self.addresses.get(name)?)
    }

    /// Rates that the GPU's units allow a product.
    fn bounds(&self, family: &Family, name: &str, one: &Compiled) -> Option<Bounds> {
        Bounds::of(family, name, one, &self.addresses_of(name)?)
    }

    /// What is predicted of a token of whole models, from the products of one column as decode computes them.
    fn tokens(&self, family: &Family, kernels: &Kernels) -> Vec<(&'static Shape, Token)> {
        let bounds = |ty: &str| {
            let of_form = |form: &str| {
                let stem = format!("matmul_{ty}_{form}_");
                let mut found = kernels.iter().filter(|(name, _)| name.starts_with(&stem));
                found.find_map(|(name, one)| self.bounds(family, name, one).filter(|b| !b.tiled))
            };
            of_form("q8").or_else(|| of_form("f32"))
        };
        let Some(bounds) = bounds("q4_k").zip(bounds("q6_k")) else { return Vec::new() };
        SHAPES.iter().map(|shape| (shape, shape.token(family, bounds.into()))).collect()
    }

    /// A Markdown table of each family, of the kernels that `is_shown`.
    pub fn table(&self, is_shown: fn(&str) -> bool) -> String {
        let mut text = String::new();
        for (family, kernels) in &self.families {
            let Family { name, card, gbps, .. } = family;
            text += &format!("**{name}** ({card}, {gbps} GB/s)\n\n");
            text += "| kernel | VGPRs | waves | spills | LDS bytes | VALU | dot4 | matrix | loads | lines a load | LDS \
                     clocks (least) | ALU | cache | LDS | bound |\n\
                     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
            for (name, one) in kernels.iter().filter(|(name, _)| is_shown(name)) {
                text += &self.row(family, name, one);
            }
            text += "\n";
            let tokens = self.tokens(family, kernels);
            if !tokens.is_empty() {
                text += token::HEAD;
                tokens.iter().for_each(|(shape, token)| text += &shape.row(token));
                text += "\n";
            }
        }
        text
    }

    fn row(&self, family: &Family, name: &str, one: &Compiled) -> String {
        let counted = one.code().map_or([const { String::new() }; 4], |code| {
            let main = &code.main;
            let loads = main.loads.iter().rev().map(|(bits, count)| format!("{count} x {bits}"));
            let loads = loads.collect::<Vec<String>>().join(", ");
            [main.valu.to_string(), main.dot4.to_string(), main.matrix.to_string(), loads]
        });
        let addresses = self.addresses_of(name);
        let lines = addresses.map_or(String::new(), |found| format!("{:.1}", found.lines));
        let clocks =
            addresses.filter(|found| found.bank_clocks > 0.0).map_or(String::new(), |found| {
                format!("{} ({})", found.bank_clocks, found.bank_clocks_least)
            });
        let bounds = self.bounds(family, name, one);
        let rates = bounds.map_or([const { String::new() }; 4], |bounds| {
            let rate = |rate: f64| match rate.is_finite() {
                true => format!("{rate:.0}"),
                false => String::new(),
            };
            let share = match bounds.tiled {
                true => format!("{:.0} Top/s by {}", bounds.least(), bounds.by()),
                false => format!("{:.1}x by {}", bounds.least() / family.gbps, bounds.by()),
            };
            [rate(bounds.alu), rate(bounds.cache), rate(bounds.banks), share]
        });
        let [alu, cache, banks, bound] = rates;
        format!(
            "| {} | {} | {} | {} | {} | {} | {lines} | {clocks} | {alu} | {cache} | {banks} | {bound} |\n",
            shown_name(name),
            one.of("VGPRs"),
            one.of("Subgroups per SIMD"),
            one.spills(),
            one.of("LDS size"),
            counted.join(" | "),
        )
    }
}

/// Whether a text is a disassembly, and not the compiler's own form with a message that there is none.
fn is_code(text: &str) -> bool {
    !text.contains("disassembly is not supported")
}

/// A kernel's name with spaces, but for those in names of types.
fn shown_name(name: &str) -> String {
    let words = name.replace('_', " ");
    [
        "q4 0", "q5 0", "q8 0", "q4 1", "q5 1", "q2 k", "q3 k", "q4 k", "q5 k", "q6 k", "iq4 nl",
        "iq4 xs",
    ]
    .iter()
    .fold(words, |words, ty| words.replace(ty, &ty.replace(' ', "_")))
}

/// Whether a kernel is in the table of the page: products of one matrix as decode and prefill use them most, attention to
/// caches of f16, and a norm.
pub fn is_shown(name: &str) -> bool {
    let types = ["q4_k", "q6_k", "q8_0", "q4_0", "f16"];
    if Product::of(name).is_some() {
        let rest = name.trim_start_matches("matmul_").trim_start_matches("tile_");
        return types.iter().any(|ty| rest.starts_with(&format!("{ty}_")));
    }
    let heads = ["split_d80", "split_d96", "split_d128", "split_d192", "split_d256", "coop_d128"];
    let is_kind = |kind: &&str| name.starts_with(&format!("attend_{kind}_"));
    let attention = heads.iter().any(is_kind) && name.contains("_f16_f16");
    attention && !name.contains("both") || name.starts_with("rms_norm_sum_gain_f32_t")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Found, Sections, is_shown, read, shown_name};
    use crate::gpu_offline::FAMILIES;

    /// What is found of kernels of a family without a budget of decode: what the driver printed, their names with
    /// disassemblies, and what `offline addresses` printed.
    fn found(said: &str, code: &[(&str, &str)], addresses: Sections) -> Found<'static> {
        static FOLDERS: AtomicUsize = AtomicUsize::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = format!("xtask-report-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in code {
            std::fs::write(folder.join(format!("{name}.asm")), text).expect("a file");
        }
        let kernels = read(said, &folder);
        std::fs::remove_dir_all(&folder).expect("the folder");
        Found { addresses, families: vec![(&FAMILIES[2], kernels)] }
    }

    /// A kernel that does not spill, with subgroups of 32.
    fn section(name: &str) -> String {
        format!("@ {name}\nSubgroup Size=32\nSpilled VGPRs=0\nSpilled SGPRs=0\n")
    }

    /// Costs of a round: bytes of weights, clocks of the cache, and of workgroup memory with and without conflicts.
    fn costs(name: &str, [bytes, cache, banks, least]: [u32; 4]) -> Sections {
        let lines = format!(
            "@ {name}\nloads=8\nlines=16\nweight bytes={bytes}\ncache clocks={cache}\nbank clocks={banks}\nbank \
             clocks without conflicts={least}\n"
        );
        super::sections(&lines)
    }

    #[test]
    fn rules_are_kept_or_named() {
        let said = "device=x\n@ gate_silu\nSpilled VGPRs=0\nSpilled SGPRs=0\n@ rope\nSpilled VGPRs=2\nSpilled \
                    SGPRs=0\n@ add\nfailed=no memory\n";
        assert_eq!(
            found(said, &[], Sections::new()).broken(),
            ["navi10: add: does not compile (no memory)", "navi10: rope: spills registers"]
        );
        let nothing = found("device=x\n", &[], Sections::new());
        assert_eq!(nothing.broken(), ["navi10: the compiler printed no kernel"]);
    }

    #[test]
    fn conflicts_and_missing_instructions_are_named() {
        let name = "matmul_tile_q8_0_q8_64x64_m1_t256";
        let code = [(name, "BB0:\n\ts_endpgm\n")];
        let found = found(&section(name), &code, costs(name, [4352, 32, 64, 32]));
        assert_eq!(
            found.broken(),
            [
                format!("navi10: {name}: has no packed dot product"),
                format!("navi10: {name}: loads no 16 bytes at once"),
                format!("navi10: {name}: 64 clocks of workgroup memory where 32 would do"),
            ]
        );
        assert!(found.table(is_shown).contains("| matmul tile q8_0 q8 64x64 m1 t256 |"));
    }

    #[test]
    fn matrices_have_instructions_and_subgroups() {
        let name = "matmul_tile_q8_0_coop_128x64_m1_t256s64";
        let code = "BB0:\n\tbuffer_load_b128 v[4:7], v1, s[0:3], 0 offen\n\ts_endpgm\n";
        let found = found(&section(name), &[(name, code)], Sections::new());
        assert_eq!(
            found.broken(),
            [
                format!("navi10: {name}: is compiled for subgroups of 32"),
                format!("navi10: {name}: has no matrix instruction"),
            ]
        );
    }

    /// With so many additions in a round, 530 GB/s at most are read of the card's 960.
    #[test]
    fn decode_keeps_its_budgets() {
        let names = ["matmul_q4_k_q8_raw_4x1_m1_t32s32", "matmul_q6_k_q8_4x1_m1_t32s32"];
        let found = |additions: usize| {
            let load = "\tbuffer_load_b128 v[4:7], v1, s[0:3], 0 offen\n";
            let dot4 = "\tv_dot4_i32_iu8 v0, v4, v5, v0\n";
            let code = load.to_owned() + dot4 + &"\tv_add_f32 v0, v0, v0\n".repeat(additions);
            let costs = names.into_iter().flat_map(|name| costs(name, [4608, 200, 0, 0]));
            let said = names.map(section).concat();
            let code = names.map(|name| (name, code.as_str()));
            let mut found = found(&said, &code, costs.collect());
            found.families[0].0 = &FAMILIES[0];
            found
        };
        assert_eq!(found(300).broken(), [] as [&str; 0]);
        let mut without = found(300);
        without.families[0].1.remove(names[1]);
        let missing = "navi31: no products from which a token is predicted";
        assert_eq!(without.broken(), [missing]);
        assert_eq!(
            found(4000).broken(),
            [
                "navi31: a token of 8B is predicted to read at 50 % of the memory's rate"
                    .to_owned(),
                "navi31: a token of 70B is predicted to read at 54 % of the memory's rate"
                    .to_owned(),
                format!("navi31: {}: ALU allows 0.6 of the memory's rate, not 2", names[0]),
                format!("navi31: {}: ALU allows 0.6 of the memory's rate, not 2", names[1]),
            ]
        );
    }

    #[test]
    fn names_keep_those_of_types() {
        assert_eq!(shown_name("matmul_q4_k_q8_4x1_m1_t32s32"), "matmul q4_k q8 4x1 m1 t32s32");
    }
}
