//! Whether AMX may be used: support by the CPU, the kernel and this process.

use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// AMX requires CPU support (CPUID 7.0, EDX bits 22 and 24: bf16 products and tiles), tile state saved by the
/// kernel (XCR0 bits 17 and 18), and permission for this process, which Linux grants on request. Intel 64 manual,
/// volume 1, chapter 18.
pub(super) fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        let edx = __cpuid_count(7, 0).edx;
        if edx >> 22 & 0b101 != 0b101 {
            return false;
        }
        // SAFETY: AVX-512 is detected before this runs, so XSAVE and XGETBV are enabled.
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
