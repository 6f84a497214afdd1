//! Generates text with the engine: `cargo run --release --example generate -- model.gguf "Once upon a time"`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::io::Write;
use std::path::Path;

use bilayer_engine::generate::{Generation, Request};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Model, OpenOptions};
use bilayer_text::Encode;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };
    let model = Model::open(Path::new(&path), OpenOptions::default())?;
    let mut session = Session::new(&model, Settings::default())?;
    let encode = Encode { add_special: true, parse_special: false };
    let prompt = model.tokenizer().encode(&prompt, encode)?;

    let sequence = session.open()?;
    let options = Options { seed: 42, ..Options::default() };
    let sampler = Sampler::new(options, session.vocab(), session.context(), Vec::new())?;
    let request = Request { predict: Some(128), ..Request::new(&prompt) };
    let mut answer = Generation::new(&model, &mut session, sequence, sampler, request)?;
    while let Some(token) = answer.next()? {
        print!("{}", token.text);
        std::io::stdout().flush()?;
    }
    println!("{}", answer.finish());
    Ok(())
}
