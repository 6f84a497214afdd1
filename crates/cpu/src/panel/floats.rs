//! Dequantizes weights to f32: float types with code per level, all others by their scalar dequantizer.

use bilayer_quant::Type;

use crate::level::Level;

/// Dequantizes whole blocks of one type. Unsafe to call on a CPU without the level's features.
pub(crate) type Read = unsafe fn(blocks: &[u8], values: &mut [f32]);

/// The dequantizer of a type at a level.
pub(crate) fn read(ty: Type, level: Level) -> Read {
    let Some((_, widen)) = TABLE.iter().find(|(known, _)| *known == ty) else {
        return ty.dequantize;
    };
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => widen.avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => widen.avx512,
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonDotprod | Level::NeonI8mm => widen.neon,
        _ => ty.dequantize,
    }
}

/// The 16-bit float types.
static TABLE: &[(Type, Widen)] =
    &[(Type::F16, Widen::of::<F16>()), (Type::BF16, Widen::of::<Bf16>())];

struct Widen {
    #[cfg(target_arch = "x86_64")]
    avx2: Read,
    #[cfg(target_arch = "x86_64")]
    avx512: Read,
    #[cfg(target_arch = "aarch64")]
    neon: Read,
}

impl Widen {
    const fn of<T: Half>() -> Widen {
        Widen {
            #[cfg(target_arch = "x86_64")]
            avx2: widen_avx2::<T>,
            #[cfg(target_arch = "x86_64")]
            avx512: widen_avx512::<T>,
            #[cfg(target_arch = "aarch64")]
            neon: widen::<T>,
        }
    }
}

/// A 16-bit float.
trait Half {
    /// # Safety
    /// On x86-64 the CPU supports F16C.
    unsafe fn widen(bits: [u16; 16]) -> [f32; 16];
}

struct F16;

impl Half for F16 {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn widen(bits: [u16; 16]) -> [f32; 16] {
        use std::arch::x86_64::_mm256_cvtph_ps;
        let [low, high]: [[u16; 8]; 2] = bytemuck::cast(bits);
        // SAFETY: guaranteed by the caller.
        bytemuck::cast(unsafe {
            [_mm256_cvtph_ps(bytemuck::cast(low)), _mm256_cvtph_ps(bytemuck::cast(high))]
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn widen(bits: [u16; 16]) -> [f32; 16] {
        crate::panel::f16_values(bits)
    }
}

struct Bf16;

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn widen(bits: [u16; 16]) -> [f32; 16] {
        let mut values = [0.0; 16];
        for (value, bits) in values.iter_mut().zip(&bits) {
            *value = f32::from_bits(u32::from(*bits) << 16);
        }
        values
    }
}

/// # Safety
/// Those of [`Half::widen`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn widen<T: Half>(blocks: &[u8], values: &mut [f32]) {
    let (values, last) = values.as_chunks_mut::<16>();
    let (blocks, rest) = blocks.as_chunks::<32>();
    assert!(values.len() == blocks.len() && rest.len() == 2 * last.len());
    for (values, bytes) in values.iter_mut().zip(blocks) {
        // SAFETY: guaranteed by the caller.
        *values = unsafe { T::widen(bytemuck::cast(*bytes)) };
    }
    let mut bytes = [0; 32];
    bytes[..rest.len()].copy_from_slice(rest);
    // SAFETY: as above.
    let widened = unsafe { T::widen(bytemuck::cast(bytes)) };
    last.copy_from_slice(&widened[..last.len()]);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2<T: Half>(blocks: &[u8], values: &mut [f32]) {
    // SAFETY: the feature is enabled.
    unsafe { widen::<T>(blocks, values) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn widen_avx512<T: Half>(blocks: &[u8], values: &mut [f32]) {
    // SAFETY: the feature is enabled.
    unsafe { widen::<T>(blocks, values) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bits_widen_to_what_the_type_says_at_every_level() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let bytes = &bytes[..bytes.len() - 6];
        for ty in [Type::F16, Type::BF16] {
            let mut expected = vec![0.0; bytes.len() / 2];
            ty.dequantize(bytes, &mut expected).expect("whole blocks");
            for level in Level::available() {
                let mut found = vec![1.0; expected.len()];
                // SAFETY: the level is available.
                unsafe { read(ty, level)(bytes, &mut found) };
                for (bits, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let same = found.to_bits() == expected.to_bits();
                    assert!(same || found.is_nan() && expected.is_nan(), "{ty} {level} {bits:04x}");
                }
            }
        }
    }
}
