//! How wide the CPU's vector units are.

use std::arch::x86_64::__cpuid;

/// Whether this CPU computes vectors of 512 bits in two halves, so that 256 bits per instruction are as fast.
///
/// By model, because hypervisors hide the bit that says it (FP512, CPUID 8000_001A, EAX bit 3), and because a
/// measurement could turn out differently in another run, which then would sum in another order.
pub(crate) fn halves_512() -> bool {
    // The three registers spell the name of the manufacturer.
    let name = __cpuid(0);
    let is_amd = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
    is_amd && of_amd(__cpuid(1).eax)
}

/// [`halves_512`] of a CPU of AMD, from EAX of CPUID 1.
fn of_amd(signature: u32) -> bool {
    let family = (signature >> 8 & 15) + (signature >> 20 & 255);
    let model = signature >> 4 & 15 | signature >> 12 & 0xf0;
    match family {
        // Zen 4, the only one of this family with AVX-512.
        0x19 => true,
        // Zen 5: Strix Point and Krackan Point.
        0x1a => matches!(model, 0x20..=0x2f | 0x60..=0x6f),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::of_amd;

    #[test]
    fn models_are_told_apart() {
        let [genoa, phoenix, turin, granite_ridge] =
            [0x00a1_0f11, 0x00a7_0f41, 0x00b0_0f21, 0x00b4_0f40];
        let strix_point = 0x00b2_0f40;
        assert!([genoa, phoenix, strix_point].into_iter().all(of_amd));
        assert!(![turin, granite_ridge].into_iter().any(of_amd));
    }
}
