//! Hashes and their spelling: SHA-256, FNV-1a, and hexadecimal digits.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;

use sha2::Digest;

/// Bytes that are read and hashed at a time.
const STEP_BYTES: usize = 1 << 20;

/// SHA-256 of data that comes in parts.
#[derive(Clone, Debug, Default)]
pub struct Sha256(sha2::Sha256);

impl Sha256 {
    /// The hash of nothing yet.
    #[must_use]
    pub fn new() -> Sha256 {
        Sha256::default()
    }

    /// Continues with more data.
    pub fn update(&mut self, data: impl AsRef<[u8]>) {
        self.0.update(data);
    }

    /// Continues with all that `from` has. `tell` hears after each MiB or less how many bytes of it are hashed, and may break.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn update_from<B>(
        &mut self,
        mut from: impl BufRead,
        mut tell: impl FnMut(u64) -> ControlFlow<B>,
    ) -> io::Result<ControlFlow<B>> {
        let mut done = 0;
        loop {
            let found = match from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                found => found?,
            };
            let step = &found[..found.len().min(STEP_BYTES)];
            if step.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            self.0.update(step);
            let len = step.len();
            from.consume(len);
            done += len as u64;
            if let ControlFlow::Break(why) = tell(done) {
                return Ok(ControlFlow::Break(why));
            }
        }
    }

    /// The hash.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// SHA-256 of data.
pub fn sha256(data: impl AsRef<[u8]>) -> [u8; 32] {
    sha2::Sha256::digest(data).into()
}

/// SHA-256 of a file, as hexadecimal digits.
///
/// # Errors
/// It cannot be read.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let file = BufReader::with_capacity(STEP_BYTES, File::open(path)?);
    let _ = hash.update_from(file, |_| ControlFlow::<()>::Continue(()))?;
    Ok(hex(hash.finish()))
}

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

    #[test]
    fn sha256_is_that_of_the_standard_in_any_parts() -> io::Result<()> {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(sha256(b"abc")), abc);
        let mut parts = Sha256::new();
        parts.update(b"a");
        let _ = parts.update_from(&b"bc"[..], |_| ControlFlow::<()>::Continue(()))?;
        assert_eq!(hex(parts.finish()), abc);
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), b"abc")?;
        assert_eq!(of_file(file.path())?, abc);
        assert!(of_file(&file.path().join("absent")).is_err());
        Ok(())
    }

    #[test]
    fn progress_is_told_for_each_step_and_may_end_it() -> io::Result<()> {
        let data = vec![7; 2 * STEP_BYTES + 5];
        let (mut told, mut hash) = (Vec::new(), Sha256::new());
        let all = hash.update_from(&data[..], |done| {
            told.push(done);
            ControlFlow::<()>::Continue(())
        })?;
        let step = STEP_BYTES as u64;
        assert_eq!((all, told), (ControlFlow::Continue(()), vec![step, 2 * step, 2 * step + 5]));
        assert_eq!(hash.finish(), sha256(&data));
        let ended = Sha256::new().update_from(&data[..], ControlFlow::Break)?;
        assert_eq!(ended, ControlFlow::Break(step));
        Ok(())
    }
}
