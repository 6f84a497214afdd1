//! The median.

/// The median of the values; NaN if empty.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.get(values.len() / 2)) {
        (0, _) | (_, None) => f64::NAN,
        (n, Some(&upper)) if n % 2 == 0 => (values[n / 2 - 1] + upper) / 2.0,
        (_, Some(&middle)) => middle,
    }
}
