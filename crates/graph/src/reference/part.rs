//! A part of every group of elements of a row.

use std::ops::Range;

/// Of every `stride` elements of `input` those of `range`, to `out`: in memory, groups of a row are simply more rows.
pub(super) fn part(input: &[f32], stride: usize, range: Range<usize>, out: &mut [f32]) {
    for (group, out) in input.chunks_exact(stride).zip(out.chunks_exact_mut(range.len())) {
        out.copy_from_slice(&group[range.clone()]);
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn each_group_gives_its_part() {
        let mut out = [0.0; 4];
        part(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 1..3, &mut out);
        assert_eq!(out, [2.0, 3.0, 5.0, 6.0]);
    }
}
