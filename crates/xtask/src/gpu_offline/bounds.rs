//! What bounds a matrix product on a GPU: arithmetic, the first cache and workgroup memory, from counts of its main loop.

use std::collections::BTreeMap;

use super::Family;
use super::report::Compiled;

/// Columns of a tile, and weights of a row that it takes in a round (`shaders/matmul/tile.wgsl` and `coop.wgsl`).
const TILE: f64 = 64.0;

/// Clocks in which RDNA 3 multiplies two matrices of 16 x 16 halves, during which no other vector instruction is issued:
/// 8192 operations at 512 a clock and compute unit, of two that issue.
const MATRIX_CLOCKS: f64 = 32.0;

/// What a workgroup of a product does in a round of its main loop, as `offline addresses` tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addresses {
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Lines of 128 bytes that a load touches on average.
    pub lines: f64,
    /// Clocks of the first cache.
    pub cache_clocks: f64,
    /// Clocks of workgroup memory.
    pub bank_clocks: f64,
    /// Clocks that workgroup memory would take without conflicts of its banks.
    pub bank_clocks_least: f64,
}

impl Addresses {
    /// From the values of a section; `None` where one is missing.
    pub fn of(values: &BTreeMap<String, String>) -> Option<Addresses> {
        let number = |name: &str| values.get(name)?.parse::<f64>().ok();
        Some(Addresses {
            weight_bytes: number("weight bytes")?,
            lines: number("lines")? / number("loads")?,
            cache_clocks: number("cache clocks")?,
            bank_clocks: number("bank clocks")?,
            bank_clocks_least: number("bank clocks without conflicts")?,
        })
    }
}

/// The shape of a product, from its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    tiled: bool,
    threads: f64,
    rows: f64,
}

impl Product {
    /// Of `matmul_tile_q4_k_q8_64x64_m1_t256` or `matmul_q4_k_q8_4x1_m1_t32s32`; `None` of other kernels, and of those
    /// with several columns or matrices.
    pub fn of(name: &str) -> Option<Product> {
        let rest = name.strip_prefix("matmul_")?;
        let tiled = rest.starts_with("tile_");
        let columns = if tiled { "x64" } else { "x1" };
        let mut words = rest.split('_').rev();
        let threads = words.next()?.strip_prefix('t')?.split('s').next()?.parse().ok()?;
        if words.next()? != "m1" {
            return None;
        }
        let rows = words.next()?.strip_suffix(columns)?.parse().ok()?;
        Some(Product { tiled, threads, rows })
    }

    /// Bytes of weights that a workgroup reads in a round, or thousands of operations of a tile: so bounds are in 10^9
    /// bytes or 10^12 operations a second.
    fn work(&self, addresses: &Addresses) -> f64 {
        match self.tiled {
            true => 2.0 * self.rows * TILE * TILE / 1000.0,
            false => addresses.weight_bytes,
        }
    }
}

/// The rates that single units of the GPU allow, 10^9 bytes of weights a second, or 10^12 operations of a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Whether they are of a tile.
    pub tiled: bool,
    /// By vector arithmetic and products of matrices.
    pub alu: f64,
    /// By the first cache.
    pub cache: f64,
    /// By workgroup memory; infinite without accesses to it.
    pub banks: f64,
}

impl Bounds {
    /// Of a compiled product.
    pub fn of(
        family: &Family,
        name: &str,
        one: &Compiled,
        addresses: &Addresses,
    ) -> Option<Bounds> {
        let product = Product::of(name)?;
        let work = product.work(addresses);
        let subgroup = one.of("Subgroup Size").min(product.threads);
        // RDNA runs a subgroup of 64 as two halves, for two issues.
        let passes =
            if family.issue > 1.0 { (one.of("Subgroup Size") / 32.0).max(1.0) } else { 1.0 };
        let main = &one.code()?.main;
        let issued = f64::from(main.valu) * passes + f64::from(main.matrix) * MATRIX_CLOCKS;
        let issued = issued * product.threads / subgroup;
        let clocks = family.units * family.clock_ghz;
        Some(Bounds {
            tiled: product.tiled,
            alu: clocks * family.issue * work / issued,
            cache: clocks * work / addresses.cache_clocks,
            banks: clocks * work / addresses.bank_clocks,
        })
    }

    /// The lowest.
    pub fn least(&self) -> f64 {
        self.alu.min(self.cache).min(self.banks)
    }

    /// What the lowest is of.
    pub fn by(&self) -> &'static str {
        match self.least() {
            least if least == self.alu => "ALU",
            least if least == self.cache => "cache",
            _ => "LDS",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Addresses, Bounds, Product};
    use crate::gpu_offline::FAMILIES;
    use crate::gpu_offline::report::read;

    #[test]
    fn shapes_are_read_from_names() {
        let product = |tiled, threads, rows| Some(Product { tiled, threads, rows });
        assert_eq!(Product::of("matmul_q4_k_q8_4x1_m1_t32s32"), product(false, 32.0, 4.0));
        assert_eq!(Product::of("matmul_tile_q4_0_q8_64x64_m1_t256"), product(true, 256.0, 64.0));
        let name = "matmul_tile_q4_k_coop_raw_128x64_m1_t256s64";
        assert_eq!(Product::of(name), product(true, 256.0, 128.0));
        assert_eq!(Product::of("matmul_q4_k_q8_4x1_m3_t32s32"), None);
        assert_eq!(Product::of("matmul_q4_k_q8_4x1_m1_add_t32s32"), None);
        assert_eq!(Product::of("matmul_q4_k_q8_2x4_m1_t32s32"), None);
        assert_eq!(Product::of("gate_silu"), None);
    }

    #[test]
    fn bounds_follow_from_bytes_and_clocks() {
        let name = "matmul_q8_0_q8_4x1_m1_t32s32";
        let folder = std::env::temp_dir().join(format!("xtask-bounds-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let code = "\tv_add_f32 v0, v0, v0\n".repeat(100) + "\ts_endpgm\n";
        std::fs::write(folder.join(format!("{name}.asm")), code).expect("a file");
        let found = read(&format!("@ {name}\nSubgroup Size=32\n"), &folder);
        std::fs::remove_dir_all(&folder).expect("the folder");
        let one = &found[name];
        let addresses = Addresses {
            weight_bytes: 4.0 * 32.0 * 68.0,
            lines: 4.0,
            cache_clocks: 200.0,
            bank_clocks: 0.0,
            bank_clocks_least: 0.0,
        };
        let bounds = Bounds::of(&FAMILIES[0], name, one, &addresses).expect("bounds");
        // 4 rows of 32 lanes of 64 weights in 100 instructions, 2 x 96 x 2.4e9 instructions a second.
        assert!((bounds.alu - 460.8 * 4.0 * 32.0 * 68.0 / 100.0).abs() < 1e-6, "{bounds:?}");
        assert!((bounds.cache - 230.4 * 4.0 * 32.0 * 68.0 / 200.0).abs() < 1e-6, "{bounds:?}");
        assert_eq!((bounds.banks, bounds.by()), (f64::INFINITY, "cache"));
    }

    #[test]
    fn matrices_are_bound_by_their_clocks() {
        let name = "matmul_tile_q8_0_coop_128x64_m1_t256s64";
        let folder = std::env::temp_dir().join(format!("xtask-matrices-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let code = "\tv_wmma_f32_16x16x16_f16 v[0:3], v[4:11], v[12:19], v[0:3]\n".repeat(32);
        std::fs::write(folder.join(format!("{name}.asm")), code + "\ts_endpgm\n").expect("a file");
        let found = read(&format!("@ {name}\nSubgroup Size=64\n"), &folder);
        std::fs::remove_dir_all(&folder).expect("the folder");
        let addresses = Addresses {
            weight_bytes: 128.0 * 68.0,
            lines: 4.0,
            cache_clocks: 1.0,
            bank_clocks: 1.0,
            bank_clocks_least: 1.0,
        };
        let bounds = Bounds::of(&FAMILIES[0], name, &found[name], &addresses).expect("bounds");
        // The whole rate of 512 operations a clock and compute unit.
        assert!((bounds.alu - 512.0 * 96.0 * 2.4 / 1000.0).abs() < 1e-9, "{bounds:?}");
    }
}
