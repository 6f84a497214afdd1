//! Instruction levels: detected once, or forced by an option.

use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are written for, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX2 with 256-bit integer dot products (AVX-VNNI).
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL, VNNI and VBMI, and GFNI: 512-bit integer dot products.
    Avx512Vnni,
    /// [`Level::Avx512Vnni`] with AVX-512 BF16 and AMX-BF16 tiles for matrix products of many tokens.
    Amx,
    /// NEON, which every 64-bit Arm CPU has.
    Neon,
    /// NEON with integer dot products.
    NeonDotprod,
    /// [`Level::NeonDotprod`] with 2 x 8 by 8 x 2 integer matrix products for many tokens.
    NeonI8mm,
}

impl Level {
    /// All levels in rising order: plain Rust, then those of x86-64, then those of Arm.
    pub const ALL: [Level; 8] = [
        Level::Scalar,
        Level::Avx2,
        Level::AvxVnni,
        Level::Avx512Vnni,
        Level::Amx,
        Level::Neon,
        Level::NeonDotprod,
        Level::NeonI8mm,
    ];

    /// The name used by `--cpu-level` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::AvxVnni => "avxvnni",
            Level::Avx512Vnni => "avx512vnni",
            Level::Amx => "amx",
            Level::Neon => "neon",
            Level::NeonDotprod => "neon-dotprod",
            Level::NeonI8mm => "neon-i8mm",
        }
    }

    /// Whether this CPU supports the level.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            _ => x86::is_available(self),
            #[cfg(target_arch = "aarch64")]
            _ => arm::is_available(self),
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => false,
        }
    }

    /// The highest level this CPU supports.
    pub fn detect() -> Level {
        *Level::ALL.iter().rev().find(|level| level.is_available()).expect("scalar always runs")
    }

    /// All levels this CPU supports, in rising order.
    pub fn available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| level.is_available())
    }
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Detection on x86-64.

    use std::arch::x86_64::{__cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    use super::Level;

    pub fn is_available(level: Level) -> bool {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        match level {
            Level::Scalar => true,
            Level::Avx2 => avx2,
            Level::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            Level::Avx512Vnni => avx2 && avx512(),
            Level::Amx => avx2 && avx512() && is_x86_feature_detected!("avx512bf16") && amx(),
            Level::Neon | Level::NeonDotprod | Level::NeonI8mm => false,
        }
    }

    fn avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("gfni")
    }

    /// AMX requires CPU support (CPUID 7.0, EDX bits 22 and 24: bf16 products and tiles), tile state saved by the
    /// kernel (XCR0 bits 17 and 18), and permission for this process, which Linux grants on request. Intel 64 manual,
    /// volume 1, chapter 18.
    fn amx() -> bool {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        *PERMITTED.get_or_init(|| {
            let edx = __cpuid_count(7, 0).edx;
            if edx >> 22 & 0b101 != 0b101 {
                return false;
            }
            // SAFETY: avx512 is detected before this runs, so XSAVE and XGETBV are enabled.
            let saved = unsafe { xcr0() };
            saved >> 17 & 0b11 == 0b11 && request_tiles()
        })
    }

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: register 0 is XCR0, present wherever XSAVE is.
        unsafe { _xgetbv(0) }
    }

    #[cfg(target_os = "linux")]
    fn request_tiles() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: the call takes two integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn request_tiles() -> bool {
        false
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! Detection on 64-bit Arm.

    use std::arch::is_aarch64_feature_detected;

    use super::Level;

    pub fn is_available(level: Level) -> bool {
        let dotprod = is_aarch64_feature_detected!("dotprod");
        match level {
            Level::Scalar | Level::Neon => true,
            Level::NeonDotprod => dotprod,
            Level::NeonI8mm => dotprod && is_aarch64_feature_detected!("i8mm"),
            Level::Avx2 | Level::AvxVnni | Level::Avx512Vnni | Level::Amx => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for level in Level::available() {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert_eq!("sse9".parse::<Level>(), Err(LevelError::Unknown("sse9".to_owned())));
        assert!(Level::detect().is_available());
    }
}
