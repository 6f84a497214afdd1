//! The table of instruction levels: detected once, or forced by an option.
//!
//! A level is a row here: its name, its architecture, the CPU features it is detected by, and its float vectors, which
//! bring their width and the function that compiles a kernel for them. What a level multiplies matrices with is the
//! other half of the row: `Tiled` for its row type, in `tile/<level>.rs`. Whoever needs something of a level's row asks
//! `by_level!`; there is no other `match` on a level. A type may list levels (`SuperBlock::NUMBERS_AT`).

use std::fmt;
use std::str::FromStr;

use crate::lanes::{self, Kernel, Lanes, Returning, Transform};

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod datapath;
#[cfg(target_arch = "x86_64")]
pub(crate) use datapath::halves_512;

/// Whether this CPU computes vectors of 512 bits in two halves.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn halves_512() -> bool {
    false
}

/// A level's name in the table and its float vectors.
pub(crate) trait Vectors {
    /// The level.
    #[cfg(target_arch = "x86_64")]
    const LEVEL: Level;
    /// The vectors, with the compilation of kernels for them.
    type Lanes: Lanes;
}

/// Whether the CPU has a feature.
#[cfg(target_arch = "x86_64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_x86_feature_detected!($feature)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_aarch64_feature_detected!($feature)
    };
}

/// Makes [`Level`], the row types and [`by_level`] of the table.
macro_rules! levels {
    ($d:tt $(
        $(#[$doc:meta])*
        $row:ident $name:literal
            $(on $arch:literal)?
            has [$($feature:tt)*]
            $(and $check:path)?,
            vectors $lanes:ty;
    )+) => {
        /// An instruction set that kernels are written for, in rising order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Level {
            $($(#[$doc])* $row,)+
        }

        impl Level {
            /// All levels in rising order: plain Rust, then those of x86-64, then those of Arm.
            pub const ALL: [Level; [$(Level::$row),+].len()] = [$(Level::$row),+];

            /// The name used by `--cpu-level` and in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Level::$row => $name,)+
                }
            }

            /// Whether this CPU supports the level.
            pub fn is_available(self) -> bool {
                match self {
                    $(
                        $(#[cfg(target_arch = $arch)])?
                        Level::$row => true $(&& detected!($feature))* $(&& $check())?,
                    )+
                    // No architecture has all levels.
                    _ => false,
                }
            }
        }

        /// A type for each level that this architecture may have, to which traits attach parts of its row.
        pub(crate) mod rows {
            $(
                $(#[cfg(target_arch = $arch)])?
                #[doc = concat!("The row of `", $name, "`.")]
                pub(crate) struct $row;
            )+
        }

        $(
            $(#[cfg(target_arch = $arch)])?
            impl Vectors for rows::$row {
                #[cfg(target_arch = "x86_64")]
                const LEVEL: Level = Level::$row;
                type Lanes = $lanes;
            }
        )+

        /// Evaluates an expression with `$row` as the row type of a level that this CPU supports.
        macro_rules! by_level {
            ($d level:expr, $d row:ident => $d body:expr) => {
                match $d level {
                    $(
                        $(#[cfg(target_arch = $arch)])?
                        $crate::level::Level::$row => {
                            type $d row = $crate::level::rows::$row;
                            $d body
                        }
                    )+
                    other => unreachable!("this CPU does not support {other}"),
                }
            };
        }
        pub(crate) use by_level;
    };
}

levels! {
    $
    /// Plain Rust.
    Scalar "scalar" has [], vectors lanes::Portable;
    /// SSSE3, SSE4.1 and SSE4.2.
    Sse42 "sse42" on "x86_64" has ["ssse3" "sse4.1" "sse4.2"], vectors lanes::sse42::Sse42;
    /// AVX2, FMA, F16C.
    Avx2 "avx2" on "x86_64" has ["avx2" "fma" "f16c"], vectors lanes::x86::Avx2;
    /// AVX2 with 256-bit integer dot products (AVX-VNNI).
    AvxVnni "avxvnni" on "x86_64" has ["avx2" "fma" "f16c" "avxvnni"], vectors lanes::x86::Avx2;
    /// AVX-512 F, BW, DQ, VL, VNNI and VBMI, and GFNI: 512-bit integer dot products.
    Avx512Vnni "avx512vnni" on "x86_64"
        has ["avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512vbmi" "gfni"],
        vectors lanes::x86::Avx512;
    /// [`Level::Avx512Vnni`] with AVX-512 BF16: dot products of bf16 for many tokens and weights in BF16.
    Avx512Bf16 "avx512bf16" on "x86_64"
        has ["avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512vbmi" "gfni" "avx512bf16"],
        vectors lanes::x86::Avx512;
    /// [`Level::Avx512Vnni`] with AVX-512 BF16 and AMX-BF16 tiles for matrix products of many tokens.
    Amx "amx" on "x86_64"
        has ["avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512vbmi" "gfni" "avx512bf16"]
        and amx::is_permitted,
        vectors lanes::x86::Avx512;
    /// NEON, which every 64-bit Arm CPU has.
    Neon "neon" on "aarch64" has [], vectors lanes::arm::Neon;
    /// NEON with integer dot products.
    NeonDotprod "neon-dotprod" on "aarch64" has ["dotprod"], vectors lanes::arm::Neon;
    /// [`Level::NeonDotprod`] with 2 x 8 by 8 x 2 integer matrix products for many tokens.
    NeonI8mm "neon-i8mm" on "aarch64" has ["dotprod" "i8mm"], vectors lanes::arm::Neon;
}

impl Level {
    /// The highest level this CPU supports.
    pub fn detect() -> Level {
        *Level::ALL.iter().rev().find(|level| level.is_available()).expect("scalar always runs")
    }

    /// Whether it is in a list.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn is_in(self, list: &[Level]) -> bool {
        let mut at = 0;
        while at < list.len() {
            if list[at] as u8 == self as u8 {
                return true;
            }
            at += 1;
        }
        false
    }

    /// All levels this CPU supports, in rising order.
    pub fn available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| level.is_available())
    }
}

/// Runs a kernel with the instructions of `level`, which this CPU must support.
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: K) -> K::Output {
    let mut output = None;
    transform(level, Returning(kernel), &mut output);
    output.expect("the kernel ran")
}

/// [`dispatch`] of a kernel with one output.
pub(crate) fn transform<T: Transform>(level: Level, kernel: T, out: &mut T::Out) {
    debug_assert!(level.is_available());
    // SAFETY: the backend has checked that the level is available, and so do `dot`, `gemm` and `prepare`.
    by_level!(level, Row => unsafe { <Row as Vectors>::Lanes::enter(kernel, out) })
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown level name, or a level that this CPU does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// The name is unknown.
    #[error("no instruction level `{0}`; known: {known}", known = Level::ALL.map(Level::name).join(", "))]
    Unknown(String),
    /// The CPU does not support it.
    #[error("this CPU does not support level `{0}`; the highest it supports is `{1}`")]
    Unavailable(Level, Level),
}

impl FromStr for Level {
    type Err = LevelError;

    /// Parses the name of a level that this CPU supports.
    fn from_str(name: &str) -> Result<Level, LevelError> {
        let level = Level::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| LevelError::Unknown(name.to_owned()))?;
        if level.is_available() {
            Ok(level)
        } else {
            Err(LevelError::Unavailable(level, Level::detect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_level_is_in_lists_that_name_it() {
        for level in Level::ALL {
            let others: Vec<Level> = Level::ALL.into_iter().filter(|of| *of != level).collect();
            assert!(level.is_in(&Level::ALL) && level.is_in(&[level]) && !level.is_in(&others));
        }
    }

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for level in Level::available() {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert_eq!("sse9".parse::<Level>(), Err(LevelError::Unknown("sse9".to_owned())));
        assert!(Level::detect().is_available());
    }
}
