//! Hashes and their spelling: FNV-1a, and the hexadecimal digits of a digest.

/// The FNV-1a hash of nothing.
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of 64 bits (<https://datatracker.ietf.org/doc/html/rfc9923>): the same in every process and on every machine.
pub fn fnv(data: &[u8]) -> u64 {
    fnv_from(FNV_START, data)
}

/// Continues a hash with more data.
pub fn fnv_from(hash: u64, data: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    data.iter().fold(hash, step)
}

/// The bytes of a digest, such as one of SHA-256, as lower-case hexadecimal digits.
pub fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_has_its_authors_values() {
        // Of the authors' own test suite.
        assert_eq!(fnv(b""), FNV_START);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv_from(fnv(b"foo"), b"bar"), fnv(b"foobar"));
    }

    #[test]
    fn digits_are_two_for_each_byte() {
        assert_eq!(hex([0x00, 0x0a, 0xff]), "000aff");
    }
}
