//! Several answers in the same steps: `cargo run --release --example batch -- model.gguf "ROMEO:" "JULIET:" "NURSE:"`.
//!
//! A step reads the weights once for all answers, so that several take little more time than one.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::{Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: batch MODEL.gguf PROMPT...")?;
    let prompts: Vec<String> = args.collect();

    // Two at a time; the others begin as those end.
    let mut model = Model::builder(path).parallel(2).context(512).open()?;
    let requests = prompts.iter().map(|text| Request::new(text.as_str()).max_tokens(16).greedy());
    let mut texts = vec![String::new(); prompts.len()];
    let mut order = Vec::new();
    for item in model.batch(requests)? {
        let (number, token) = item?;
        texts[number] += &token.text;
        order.push(number);
    }
    for (prompt, text) in prompts.iter().zip(&texts) {
        println!("{prompt}{text:?}");
    }
    order.dedup();
    println!("tokens came in the order of requests {order:?}");
    Ok(())
}
