//! Compares GEMV of the sparse types with Q4_K of the same shape in one run: times, bytes and products per weight.
//!
//! Each round multiplies one matrix of each type in turn, so that all meet the same state of the machine, and eight
//! copies of each matrix take turns, so that none stays in the caches. The table gives the best round, and the median
//! over rounds of the ratio to the Q4_K product of that round. A level is measured at 1 and 2 threads.
//!
//! `cargo bench --bench sparse -- 30` runs 30 rounds.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::hint::black_box;
use std::time::Instant;

use bilayer_cpu::activations::PreparedColumns;
use bilayer_cpu::dot::{Dot, dot};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use half::f16;
use support::together::together;

mod support {
    pub mod together;
}

const ROWS: usize = 4096;
const COLS: usize = 14336;
/// Matrices per type.
const COPIES: usize = 8;

/// The baseline first.
const TYPES: [Type; 7] = [
    Type::Q4_K,
    Type::S4_4_64,
    Type::S4_8_64,
    Type::S4_16_64,
    Type::S8_4_64,
    Type::S8_8_64,
    Type::S8_16_64,
];

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(20);
    let sets: Vec<Vec<u8>> = TYPES.iter().map(|ty| blocks(*ty)).collect();
    println!("[{ROWS}, {COLS}], {rounds} rounds");
    println!(
        "| kernel | threads | ms, best | GB/s | bits per weight | products per weight | Q4_K / this |"
    );
    println!("|---|---|---|---|---|---|---|");
    for level in Level::available().filter(|level| *level != Level::Scalar) {
        let dots = TYPES.map(|ty| dot(ty, COLS, level));
        if dots.iter().all(|dot| !dot.name.ends_with(level.name())) {
            continue;
        }
        for threads in [1, 2] {
            measure(&dots, level, threads, rounds, &sets);
        }
    }
}

fn measure(dots: &[Dot; 7], level: Level, threads: usize, rounds: usize, sets: &[Vec<u8>]) {
    let x: Vec<f32> = (0..COLS).map(|i| (i as f32 * 0.37).sin()).collect();
    let columns = dots.each_ref().map(|dot| PreparedColumns::new(dot.format, level, &x, COLS));
    let mut times = vec![Vec::new(); dots.len()];
    for round in 0..rounds {
        for (index, dot) in dots.iter().enumerate() {
            let bytes = ROWS * dot.row_bytes();
            let matrix = &sets[index][round % COPIES * bytes..][..bytes];
            let share = bytes / threads;
            times[index].push(together(threads, |thread| {
                let mut out = vec![0.0; ROWS / threads];
                let start = Instant::now();
                dot.run(&matrix[thread * share..][..share], columns[index].get(), &mut out);
                black_box(&out);
                start.elapsed()
            }));
        }
    }
    for (index, (ty, dot)) in TYPES.iter().zip(dots).enumerate() {
        let ratios = times[0].iter().zip(&times[index]);
        let mut ratios: Vec<f64> =
            ratios.map(|(base, own)| base.as_secs_f64() / own.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        let best = times[index].iter().min().copied().unwrap_or_default().as_secs_f64();
        println!(
            "| {} | {threads} | {:.3} | {:.1} | {:.2} | {:.3} | {:.2} |",
            dot.name,
            best * 1e3,
            (ROWS * dot.row_bytes()) as f64 / best / 1e9,
            8.0 * ty.block_bytes as f64 / ty.block_weights as f64,
            ty.kept_of_64().unwrap_or(64) as f64 / 64.0,
            ratios[ratios.len() / 2],
        );
    }
}

/// Random blocks with small scales, of all copies.
fn blocks(ty: Type) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = vec![0; COPIES * ROWS * COLS / ty.block_weights * ty.block_bytes];
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes) {
        for plane in ty.planes.iter().filter(|plane| ["d", "dmin"].contains(&plane.name)) {
            block[plane.offset..][..2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
        }
    }
    bytes
}
