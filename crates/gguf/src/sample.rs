//! Parts of tensors that tell models apart without reading them whole.

use crate::{File, Tensor};

/// Places in a file, together. All are read ahead first: 291 tensors of 5 GB take 20 ms with cached pages, and 50 to 120 ms
/// from the disk of a virtual machine, where one after the other would take 1.8 s.
const PLACES: usize = 8192;

/// Places of a tensor, by the number of tensors.
const PLACES_LEAST: usize = 2;
const PLACES_MOST: usize = 16;

/// Bytes of a place.
const PLACE_BYTES: usize = 512;

/// A tensor is read whole if that takes no more pages than places.
const PAGE_BYTES: usize = 4096;

impl File {
    /// Parts of each tensor, in the tensors' order: all of a short one, and of one longer than 64 KiB 16 places of 512 bytes
    /// from its beginning to its end; fewer in a file of more than 512 tensors. Models that differ elsewhere alone, such as in
    /// a few rows of a long tensor, have the same samples.
    pub fn samples(&self) -> impl Iterator<Item = (&Tensor, impl Iterator<Item = &[u8]>)> {
        let places = (PLACES / self.tensors().len().max(1)).clamp(PLACES_LEAST, PLACES_MOST);
        for tensor in self.tensors() {
            parts(tensor.data(), places).for_each(|part| self.prefetch_part(tensor, part));
        }
        self.tensors().iter().map(move |tensor| (tensor, parts(tensor.data(), places)))
    }
}

/// Parts of a tensor.
fn parts(data: &[u8], places: usize) -> impl Iterator<Item = &[u8]> {
    let is_short = data.len() <= places * PAGE_BYTES;
    let (count, len) = if is_short { (1, data.len()) } else { (places, PLACE_BYTES) };
    let last = data.len() - len;
    (0..count).map(move |place| &data[last * place / (count - 1).max(1)..][..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_from_the_beginning_to_the_end() {
        let data: Vec<u8> = (0..200_000_u32).map(|at| (at / 800) as u8).collect();
        let found: Vec<&[u8]> = parts(&data, 16).collect();
        assert_eq!(found.len(), 16);
        assert!(found.iter().all(|part| part.len() == PLACE_BYTES));
        assert_eq!((found[0][0], found[15][PLACE_BYTES - 1]), (0, 249));
        let starts: Vec<usize> =
            found.iter().map(|part| part.as_ptr().addr() - data.as_ptr().addr()).collect();
        let steps: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|step| (13_299..=13_300).contains(step)), "{steps:?}");
        for len in [0, 1, 511, 16 * PAGE_BYTES] {
            assert_eq!(parts(&data[..len], 16).collect::<Vec<_>>(), [&data[..len]]);
        }
        assert_eq!(parts(&data, 2).map(<[u8]>::len).sum::<usize>(), 2 * PLACE_BYTES);
    }
}
