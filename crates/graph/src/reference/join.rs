//! Two values, group by group.

/// Groups of `widths[0]` elements of the first input, then `widths[1]` of the second, to `out`: in memory, groups of a row
/// are simply more rows.
pub(super) fn join(inputs: [&[f32]; 2], widths: [usize; 2], out: &mut [f32]) {
    let [a, b] = [0, 1].map(|side| inputs[side].chunks_exact(widths[side]));
    for (out, (a, b)) in out.chunks_exact_mut(widths[0] + widths[1]).zip(a.zip(b)) {
        out[..widths[0]].copy_from_slice(a);
        out[widths[0]..].copy_from_slice(b);
    }
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn each_group_takes_from_both() {
        let mut out = [0.0; 6];
        join([&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0]], [2, 1], &mut out);
        assert_eq!(out, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
    }
}
