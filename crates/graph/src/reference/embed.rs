//! Embedding: one table row per token, chosen by the token or its position.

/// `table [vocab, width]` and `ids [T]` to `out [T, width]`.
pub(super) fn embed(table: &[f32], ids: &[u32], width: usize, out: &mut [f32]) {
    for (t, &id) in ids.iter().enumerate() {
        let first = id as usize * width;
        assert!(first < table.len(), "{id} is outside the table");
        out[t * width..][..width].copy_from_slice(&table[first..][..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::embed;

    #[test]
    fn picks_rows_in_the_order_of_the_ids() {
        let table = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]; // [3, 2]
        let mut out = [f32::NAN; 8];
        embed(&table, &[2, 0, 2, 1], 2, &mut out);
        assert_eq!(out, [20.0, 21.0, 0.0, 1.0, 20.0, 21.0, 10.0, 11.0]);
    }

    #[test]
    #[should_panic(expected = "3 is outside the table")]
    fn an_id_outside_the_table_is_our_own_mistake() {
        embed(&[0.0; 6], &[3], 2, &mut [0.0; 2]);
    }
}
