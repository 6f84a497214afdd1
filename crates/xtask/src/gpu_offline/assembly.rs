//! Counts instructions in RADV's disassembly: of the whole kernel, and of its main loop.

use std::collections::BTreeMap;
use std::ops::Range;

/// How many instructions of each kind there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Vector arithmetic; two in one word count once.
    pub valu: u32,
    /// Packed dot products of four bytes, of `valu`.
    pub dot4: u32,
    /// Matrix instructions.
    pub matrix: u32,
    /// Loads from memory by vector addresses, by their width in bits.
    pub loads: BTreeMap<u32, u32>,
    /// Accesses to workgroup memory.
    pub lds: u32,
    /// Loads by scalar addresses.
    pub scalar_loads: u32,
    /// Waits for loads to arrive.
    pub waits: u32,
}

/// A kernel's instructions, and where its branches go.
struct Listing<'a> {
    instructions: Vec<&'a str>,
    /// The instruction after each label.
    labels: BTreeMap<&'a str, usize>,
}

impl<'a> Listing<'a> {
    fn parse(text: &'a str) -> Listing<'a> {
        let mut listing = Listing { instructions: Vec::new(), labels: BTreeMap::new() };
        for line in text.lines() {
            let line = line.split(';').next().unwrap_or_default().trim();
            match line.strip_suffix(':') {
                Some(label) => {
                    listing.labels.insert(label, listing.instructions.len());
                }
                None if line.starts_with(|c: char| c.is_ascii_lowercase()) => {
                    listing.instructions.push(line);
                }
                None => {}
            }
        }
        listing
    }

    /// The stretches that a branch at their end goes back to the start of.
    fn loops(&self) -> Vec<Range<usize>> {
        let back = self.instructions.iter().enumerate().filter_map(|(at, line)| {
            let (op, target) = line.split_once(' ')?;
            let branch = op.starts_with("s_branch") || op.starts_with("s_cbranch");
            let to = *self.labels.get(target.trim())?;
            (branch && to <= at).then_some(to..at + 1)
        });
        // One for each start: a `continue` goes back, too.
        let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
        for Range { start, end } in back {
            let last = loops.entry(start).or_insert(end);
            *last = end.max(*last);
        }
        loops.into_iter().map(|(start, end)| start..end).collect()
    }

    /// Rounds of a loop: the number that its counter is compared with, by what is added to it in a round; 1 if it is
    /// compared with none.
    fn rounds(&self, of: &Range<usize>) -> u32 {
        let instructions = &self.instructions[of.clone()];
        let compared = instructions.iter().filter_map(|line| {
            let operands = line.strip_prefix("s_cmp_")?.split_once(' ')?.1;
            let (counter, most) = operands.split_once(", ")?;
            let step = instructions.iter().find_map(|line| {
                let (to, sum) = line.strip_prefix("s_add_")?.split_once(' ')?.1.split_once(", ")?;
                let added = sum.strip_prefix(counter)?.strip_prefix(", ")?;
                number(added).filter(|step| to == counter && *step > 0)
            });
            Some(number(most)?.div_ceil(step.unwrap_or(1)))
        });
        compared.max().unwrap_or(1).max(1)
    }

    /// The instructions of the longest loop, with how often each is executed in a round of it: loops within it count as
    /// many times as they have rounds.
    fn main_loop(&self) -> Vec<(&'a str, u32)> {
        let loops = self.loops();
        let Some(main) = loops.iter().max_by_key(|of| of.len()) else { return Vec::new() };
        let inner: Vec<(&Range<usize>, u32)> = loops
            .iter()
            .filter(|of| *of != main && main.start <= of.start && of.end <= main.end)
            .map(|of| (of, self.rounds(of)))
            .collect();
        let times = |at: usize| {
            let around = inner.iter().filter(|(of, _)| of.contains(&at));
            around.map(|(_, rounds)| rounds).product()
        };
        main.clone().map(|at| (self.instructions[at], times(at))).collect()
    }

    /// All instructions, once each.
    fn all(&self) -> Vec<(&'a str, u32)> {
        self.instructions.iter().map(|line| (*line, 1)).collect()
    }
}

/// A number as an operand.
fn number(operand: &str) -> Option<u32> {
    let operand = operand.trim();
    match operand.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => operand.parse().ok(),
    }
}

/// Counts of a round of the main loop, or of all of a kernel without one.
pub fn main_loop(text: &str) -> Counts {
    let listing = Listing::parse(text);
    let found = listing.main_loop();
    count(if found.is_empty() { listing.all() } else { found })
}

/// Counts of the whole kernel.
pub fn whole(text: &str) -> Counts {
    count(Listing::parse(text).all())
}

fn count(instructions: Vec<(&str, u32)>) -> Counts {
    let mut counts = Counts::default();
    for (line, times) in instructions {
        let op = line.split(' ').next().unwrap_or_default();
        if op.starts_with("v_wmma") || op.starts_with("v_mfma") {
            counts.matrix += times;
        } else if op.starts_with("v_") {
            counts.valu += times;
            counts.dot4 += times * u32::from(op.starts_with("v_dot4"));
        } else if op.starts_with("ds_") {
            counts.lds += times;
        } else if op.starts_with("s_load") || op.starts_with("s_buffer_load") {
            counts.scalar_loads += times;
        } else if op.starts_with("s_waitcnt") || op.starts_with("s_wait_") {
            counts.waits += times;
        } else if let Some(bits) = load_bits(op) {
            *counts.loads.entry(bits).or_default() += times;
        }
    }
    counts
}

/// Bits that a load of memory brings to each lane; `None` of anything else.
fn load_bits(op: &str) -> Option<u32> {
    let width = op.strip_prefix("buffer_load_").or_else(|| op.strip_prefix("global_load_"))?;
    let width = width.strip_prefix("format_").unwrap_or(width);
    let bits = match width.split('_').next()? {
        "b32" | "dword" => 32,
        "b64" | "dwordx2" => 64,
        "b96" | "dwordx3" => 96,
        "b128" | "dwordx4" => 128,
        "u16" | "i16" | "d16" | "ushort" | "sshort" | "short" => 16,
        _ => 8,
    };
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::{main_loop, whole};

    const TEXT: &str = "\
BB0:
\ts_load_b128 s[0:3], s[4:5], 0x0 ; f400
\tv_mov_b32_e32 v0, 0             ; 7e00
BB1:
\tbuffer_load_b128 v[4:7], v1, s[0:3], 0 offen ; e05c
\tbuffer_load_dwordx2 v[8:9], v1, s[0:3], 0 offen
\ts_waitcnt vmcnt(0)
\tv_dot4_i32_iu8 v0, v4, v5, v0
\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5
BB2:
\tv_add_f32_e32 v1, v1, v2
\ts_add_u32 s6, s6, 1
\ts_cmp_lg_u32 s6, 4
\ts_cbranch_scc1 BB2
\tds_store_b32 v0, v1
\ts_cbranch_vccnz BB1
BB3:
\tbuffer_store_b32 v0, v1, s[0:3], 0 offen
\ts_endpgm
";

    #[test]
    fn the_longest_loop_is_counted_with_the_rounds_of_loops_in_it() {
        let found = main_loop(TEXT);
        assert_eq!((found.valu, found.dot4, found.lds, found.waits), (6, 1, 1, 1));
        assert_eq!(found.loads.into_iter().collect::<Vec<_>>(), [(64, 1), (128, 1)]);
        assert_eq!((whole(TEXT).valu, whole(TEXT).scalar_loads), (4, 1));
        for (step, expected) in [("2", 4), ("0x3", 4), ("4", 3), ("-1", 6), ("s7", 6)] {
            let text = TEXT.replace("s_add_u32 s6, s6, 1", &format!("s_add_u32 s6, s6, {step}"));
            assert_eq!(main_loop(&text).valu, expected, "{step}");
        }
    }

    #[test]
    fn a_kernel_without_a_loop_counts_as_a_whole() {
        let text = "BB0:\n\tv_add_f32 v0, v1, v2\n\ts_endpgm\n";
        assert_eq!(main_loop(text).valu, 1);
    }
}
