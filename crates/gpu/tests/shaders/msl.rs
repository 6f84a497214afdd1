//! Rules of Metal that a translation has to keep, checked on its text: there is no Metal compiler for Linux.

use std::collections::BTreeSet;

use bilayer_gpu::kernel::Source;

/// Slots for buffers of a kernel.
const SLOTS: u32 = 31;

/// Threads of a threadgroup, on every GPU with Metal.
const THREADS: u32 = 1024;

/// Threads of a SIMD group on Apple's GPUs.
const SIMD_THREADS: u32 = 32;

/// SIMD-group functions of GPUs of family Apple 7 (M1) and later.
const SIMD_FUNCTIONS: [&str; 17] = [
    "simd_active_threads_mask",
    "simd_all",
    "simd_and",
    "simd_any",
    "simd_ballot",
    "simd_broadcast",
    "simd_broadcast_first",
    "simd_max",
    "simd_min",
    "simd_or",
    "simd_prefix_exclusive_sum",
    "simd_prefix_inclusive_sum",
    "simd_shuffle",
    "simd_shuffle_down",
    "simd_shuffle_up",
    "simd_shuffle_xor",
    "simd_sum",
];

/// Types that Metal lacks, or that no Apple GPU computes with at full rate.
const ABSENT: [&str; 3] = ["double", "int64_t", "uint64_t"];

/// Address spaces, one of which every pointer and reference names.
const SPACES: [&str; 4] = ["device", "constant", "thread", "threadgroup"];

/// Checks the translation of a kernel.
pub fn check(msl: &str, source: &Source) -> Result<(), String> {
    let threads: u32 = source.workgroup.iter().product();
    if threads > THREADS {
        return Err(format!("{threads} threads in a threadgroup"));
    }
    let mut uses_simd = false;
    for word in words(msl) {
        if ABSENT.contains(&word) {
            return Err(format!("uses {word}"));
        }
        if word.starts_with("simd_") {
            uses_simd = true;
            if !SIMD_FUNCTIONS.contains(&word) {
                return Err(format!("calls {word}"));
            }
        }
    }
    if uses_simd && !threads.is_multiple_of(SIMD_THREADS) {
        return Err(format!("{threads} threads leave a SIMD group incomplete"));
    }
    let mut slots = BTreeSet::new();
    for number in between(msl, "[[buffer(", ")]]") {
        let number: u32 = number.parse().map_err(|_| format!("buffer({number})"))?;
        if number >= SLOTS || !slots.insert(number) {
            return Err(format!("buffer({number}) is out of range or used twice"));
        }
    }
    parameters(msl).try_for_each(|parameter| {
        let is_indirect = parameter.contains(['&', '*']);
        let has_space = words(parameter).any(|word| SPACES.contains(&word));
        match is_indirect && !has_space {
            true => Err(format!("`{}` has no address space", parameter.trim())),
            false => Ok(()),
        }
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(from).skip(1).filter_map(move |rest| Some(rest.split_once(to)?.0))
}

/// The parameters of every function: lines such as `float name(`, up to a line with `) {`.
fn parameters(msl: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    msl.lines().filter(move |line| {
        let opens = !line.starts_with([' ', '#', '/', ',', ')']) && line.ends_with('(');
        let closes = line.starts_with(") {");
        let was_inside = inside;
        inside = (inside || opens) && !closes;
        was_inside && !closes
    })
}
