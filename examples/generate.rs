//! Continues a prompt: `cargo run --release --example generate -- model.gguf "Once upon a time"`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::io::Write;

use bilayer::{Model, Request, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };
    let mut model = Model::open(path)?;

    let sampling = Sampling { temperature: 0.7, top_p: 0.9, seed: 42, ..Sampling::default() };
    let request = Request::new(prompt).max_tokens(48).sampling(sampling);
    let mut answer = model.generate(request)?;
    for token in &mut answer {
        print!("{}", token?.text);
        std::io::stdout().flush()?;
    }
    println!();

    let (statistics, stop) = (answer.statistics(), answer.stop());
    println!(
        "{} prompt tokens, {} generated, stopped by {}",
        statistics.prompt_tokens,
        statistics.generated,
        stop.map_or("nothing", |stop| stop.name())
    );
    Ok(())
}
