//! Reads what `run --logits` writes.

use std::path::Path;

/// A float32 NumPy file, read by the rules of NEP 1.
pub fn npy(path: &Path) -> ([usize; 2], Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (header, data) = bytes[10..].split_at(length);
    let header = std::str::from_utf8(header).unwrap();
    let pattern = r"^\{'descr': '<f4', 'fortran_order': False, 'shape': \((\d+), (\d+)\), \} *\n$";
    let found = regex::Regex::new(pattern).unwrap().captures(header).expect(header);
    let shape = [found[1].parse().unwrap(), found[2].parse().unwrap()];
    assert_eq!(data.len(), 4 * shape[0] * shape[1]);
    let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    (shape, data.as_chunks().0.iter().map(value).collect())
}
