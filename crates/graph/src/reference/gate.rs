//! Gated linear unit (Shazeer 2020): an activation of one branch times the other, or alone.

use crate::Activation;

/// `gate` and `up`, `[rows, width]` each, to `out = activation(gate) * up`; a missing `up` is all ones.
pub(super) fn gate(activation: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    for i in 0..out.len() {
        let x = f64::from(gate[i]);
        let active = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
        };
        out[i] = (active * up.map_or(1.0, |up| f64::from(up[i]))) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::gate;
    use crate::Activation;
    use crate::reference::tests::assert_near;

    #[test]
    fn silu_is_x_times_the_logistic_function() {
        // The logistic function of 0, ln 3, -ln 3 is 1/2, 3/4, 1/4.
        let ln3 = 3f32.ln();
        let mut out = [0.0; 4];
        let up = [5.0, 2.0, 4.0, 0.5];
        gate(Activation::Silu, &[0.0, ln3, -ln3, 100.0], Some(&up), &mut out);
        assert_near(&out, &[0.0, 1.5 * ln3, -ln3, 50.0], 1e-6);
        gate(Activation::Silu, &[-1000.0; 4], None, &mut out);
        assert_eq!(out, [0.0; 4], "a large negative gate must not become NaN");
    }

    #[test]
    fn gelu_has_its_published_values() {
        // GELU, tanh form: f(1) = 0.841192, f(-1) = -0.158808, f(2) = 1.954598.
        let mut out = [0.0; 4];
        let up = [1.0, 1.0, 10.0, 1.0];
        gate(Activation::GeluTanh, &[0.0, 1.0, -1.0, 2.0], Some(&up), &mut out);
        assert_near(&out, &[0.0, 0.841_192, -1.588_08, 1.954_598], 1e-5);
        gate(Activation::GeluTanh, &[0.0, 1.0, -1.0, 2.0], None, &mut out);
        assert_near(&out, &[0.0, 0.841_192, -0.158_808, 1.954_598], 1e-5);
    }
}
