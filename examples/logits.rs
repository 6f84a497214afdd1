//! What the model expects after each token of a text: `cargo run --release --example logits -- model.gguf "To be or not"`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::{Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: logits MODEL.gguf TEXT".into());
    };
    let mut model = Model::open(path)?;

    // Every row is [vocab]: unnormalized log-probabilities of what follows the token.
    let logits = model.logits(text.as_str())?;
    let mut nats = 0.0;
    for row in 0..logits.rows() - 1 {
        let (row, next) = (logits.row(row), logits.tokens()[row + 1]);
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        nats += sum.ln() - f64::from(row[next as usize]);
    }
    let predicted = (logits.rows() - 1).max(1);
    println!("{} tokens, perplexity {:.1}", logits.rows(), (nats / predicted as f64).exp());

    // The most likely next tokens.
    let request = Request::new(text).max_tokens(1).logprobs(3);
    let token = model.generate(request)?.next().ok_or("no token")??;
    let (_, best) = token.logprobs.ok_or("no log-probabilities")?;
    for candidate in best {
        println!("{:?} {:.1} %", model.text(&[candidate.id]), 100.0 * candidate.logprob.exp());
    }
    Ok(())
}
