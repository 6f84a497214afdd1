//! How alike two embeddings are.

/// The cosine of the angle between two vectors of equal length, sums in f64; 0 if one of them is zero.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    if cosine.is_finite() { cosine } else { 0.0 }
}
