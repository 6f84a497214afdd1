//! What comes of the last layer's rows: embeddings or scores, of texts or of tokens.

use bilayer_graph::{Error, Recorder, Value};

use super::{Encoder, HEAD, Head, Pooling};
use crate::Config;

/// What comes of the last layer's rows, `[R, width]`, or `[T, width]` if they are pooled.
pub(crate) fn output(
    config: &Config,
    encoder: &Encoder,
    r: &mut Recorder<'_>,
    mut hidden: Value,
) -> Result<Value, Error> {
    if encoder.pools() {
        hidden = r.pool("result_pooled", hidden); // [R, width]
    }
    if encoder.scores {
        return scores(config, &encoder.head, r, hidden);
    }
    if encoder.pooling_recorded() == Pooling::None {
        return Ok(hidden);
    }
    let mut width = config.width;
    for (number, &dense) in (2..).zip(&encoder.dense) {
        let matrix = r.matrix(&format!("dense_{number}.weight"), dense, width)?;
        let bias = r.optional_vector(&format!("dense_{number}.bias"), dense)?;
        hidden = r.matmul("result_dense", hidden, matrix, bias); // [R, dense]
        width = dense;
    }
    Ok(hidden)
}

/// The optional dense layer and norm, then the scores: `[R, width]` to `[R, labels]`, with `R` all tokens if each is scored.
fn scores(
    config: &Config,
    head: &Head,
    r: &mut Recorder<'_>,
    mut hidden: Value,
) -> Result<Value, Error> {
    let width = config.width;
    if head.has_layers() && r.has("cls.weight") {
        let dense = r.matrix("cls.weight", width, width)?;
        let bias = r.optional_vector("cls.bias", width)?;
        hidden = r.matmul("cls", hidden, dense, bias);
        hidden = match head.activation {
            Some(activation) => r.gate("cls_act", hidden, None, activation),
            None => r.soft_cap("cls_act", hidden, 1.0), // tanh
        };
    }
    if head.has_layers() && r.has("cls.norm.weight") {
        let gain = r.vector("cls.norm.weight", width)?;
        hidden = r.layer_norm("cls_norm", hidden, gain, None, config.norm_eps);
    }
    let labels = head.labels.len();
    let output = r.matrix(HEAD, labels, width)?;
    let bias = r.optional_vector("cls.output.bias", labels)?;
    Ok(r.matmul("result_scores", hidden, output, bias)) // [R, labels]
}
