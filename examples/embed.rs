//! Which texts are alike, by an encoder such as all-MiniLM-L6-v2:
//! `cargo run --release --example embed -- model.gguf "a cat" "a kitten" "a tax return"`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::{Model, Norm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: embed MODEL.gguf TEXT...")?;
    let texts: Vec<String> = args.collect();

    let mut model = Model::builder(path).norm(Norm::P(2)).open()?;
    let vectors = model.embed(&texts)?;

    // With length 1, their dot product is the cosine of the angle between them.
    let similarity = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    for (text, vector) in texts.iter().zip(&vectors) {
        let row: Vec<String> =
            vectors.iter().map(|other| format!("{:6.3}", similarity(vector, other))).collect();
        println!("{} {text}", row.join(" "));
    }
    Ok(())
}
