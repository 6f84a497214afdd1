//! Embedding: one table row per token.

/// `table [vocab, width]` and `tokens [T]` to `out [T, width]`.
pub(super) fn embed(table: &[f32], tokens: &[u32], width: usize, out: &mut [f32]) {
    for (t, &token) in tokens.iter().enumerate() {
        let first = token as usize * width;
        assert!(first < table.len(), "token {token} is outside the vocabulary");
        out[t * width..][..width].copy_from_slice(&table[first..][..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::embed;

    #[test]
    fn picks_rows_in_the_order_of_the_tokens() {
        let table = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]; // [3, 2]
        let mut out = [f32::NAN; 8];
        embed(&table, &[2, 0, 2, 1], 2, &mut out);
        assert_eq!(out, [20.0, 21.0, 0.0, 1.0, 20.0, 21.0, 10.0, 11.0]);
    }

    #[test]
    #[should_panic(expected = "token 3 is outside the vocabulary")]
    fn a_token_outside_the_table_is_our_own_mistake() {
        embed(&[0.0; 6], &[3], 2, &mut [0.0; 2]);
    }
}
