//! The program of the README and of docs/library.md.

pub fn run() -> Result<(), bilayer::Error> {
    let mut model = bilayer::Model::open("model.gguf")?;
    let request = bilayer::Request::new("Once upon a time").max_tokens(64);
    let mut answer = model.generate(request)?;
    for token in &mut answer {
        print!("{}", token?.text);
    }
    println!("\n{} tokens", answer.statistics().generated);
    Ok(())
}
