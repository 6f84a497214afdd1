//! Gated linear unit (Shazeer 2020): the activation of one branch times the other, or the activation alone.

use crate::Activation;

/// `gate` and `up`, `[rows, width]` each, to `out`: the activation of `gate`, times the factor of `up` if present.
pub(super) fn gate(activation: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    for i in 0..out.len() {
        let x = f64::from(gate[i]);
        let active = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Identity => x,
            // Written to preserve NaN.
            Activation::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::SquaredRelu => {
                if x < 0.0 {
                    0.0
                } else {
                    x * x
                }
            }
            Activation::ClampedSwiglu => {
                // Written to preserve NaN.
                let limit = f64::from(Activation::SWIGLU_LIMIT);
                let y = if x > limit { limit } else { x };
                y / (1.0 + (f64::from(-Activation::SWIGLU_SLOPE) * y).exp())
            }
        };
        out[i] = (active * up.map_or(1.0, |up| factor(activation, up[i]))) as f32;
    }
}

/// The activation's factor for an element of `up`.
fn factor(activation: Activation, up: f32) -> f64 {
    let limit = Activation::SWIGLU_LIMIT;
    match activation {
        Activation::ClampedSwiglu => f64::from(up.clamp(-limit, limit)) + 1.0,
        Activation::Silu
        | Activation::GeluTanh
        | Activation::Gelu
        | Activation::Sigmoid
        | Activation::Identity
        | Activation::Relu
        | Activation::SquaredRelu => f64::from(up),
    }
}

/// The error function by its series of positive terms (Abramowitz and Stegun 7.1.6); from 6 on it is 1 in f64.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
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
    fn the_sigmoid_weighs_the_other_branch() {
        let ln3 = 3f32.ln();
        let mut out = [0.0; 4];
        gate(
            Activation::Sigmoid,
            &[0.0, ln3, -ln3, -1000.0],
            Some(&[5.0, 2.0, 4.0, 9.0]),
            &mut out,
        );
        assert_near(&out, &[2.5, 1.5, 1.0, 0.0], 1e-6);
    }

    #[test]
    fn the_exact_gelu_has_the_values_of_the_normal_distribution() {
        // Φ(1) = 0.841344746, Φ(-1) = 0.158655254, Φ(2) = 0.977249868, Φ(-5) = 2.866516e-7.
        let mut out = [0.0; 6];
        gate(Activation::Gelu, &[0.0, 1.0, -1.0, 2.0, -5.0, 40.0], None, &mut out);
        let expected = [0.0, 0.841_344_8, -0.158_655_25, 1.954_499_7, -1.433_258e-6, 40.0];
        assert_near(&out, &expected, 1e-6);
        assert!((out[4] / expected[4] - 1.0).abs() < 1e-4, "{}", out[4]);
    }

    #[test]
    fn the_clamped_swiglu_stops_at_seven_on_one_side_of_the_gate_and_both_of_the_factor() {
        // The logistic function of 0, ln 3, -ln 3 is 1/2, 3/4, 1/4; of 1.702 * 7 = 11.914 it is 1 - 6.696e-6.
        let turn = 3f32.ln() / Activation::SWIGLU_SLOPE;
        let gates = [0.0, turn, -turn, 7.0, 8.0, 1e30, -1e30, 1.0];
        let ups = [9.0, 1.0, 3.0, 0.0, 0.0, 100.0, 5.0, -100.0];
        let mut out = [f32::NAN; 8];
        gate(Activation::ClampedSwiglu, &gates, Some(&ups), &mut out);
        let top = 7.0 * (1.0 - 6.696e-6);
        // 1 / (1 + exp(-1.702)) = 0.845796.
        let expected = [0.0, 1.5 * turn, -turn, top, top, 8.0 * top, 0.0, -6.0 * 0.845_796];
        assert_near(&out, &expected, 1e-5);
        gate(Activation::ClampedSwiglu, &gates, None, &mut out);
        assert_near(&out[..4], &[0.0, 0.75 * turn, -0.25 * turn, top], 1e-5);
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
