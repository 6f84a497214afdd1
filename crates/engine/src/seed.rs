//! A seed where none is given.

use std::time::{SystemTime, UNIX_EPOCH};

/// A seed of 32 bits from the clock: short enough to be typed again.
pub fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_differ_and_have_32_bits() {
        let first = super::new_seed();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let second = super::new_seed();
        assert!(first != second && first.max(second) <= u64::from(u32::MAX), "{first} {second}");
    }
}
