//! Two turns of a conversation: `cargo run --release --example chat -- model.gguf [chatml]`.
//!
//! The second argument names a chat template, for a model without one of its own.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::io::Write;

use bilayer::{Message, Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: chat MODEL.gguf [TEMPLATE]")?;
    let builder = Model::builder(path).context(1024);
    let mut model = match args.next() {
        Some(template) => builder.chat_template(template).open()?,
        None => builder.open()?,
    };

    let mut messages = vec![Message::system("You speak as Shakespeare does.")];
    for question in ["Who is at the door?", "Let him in."] {
        println!("> {question}");
        messages.push(Message::user(question));
        // The whole conversation each time: only what is new in it is computed.
        let request = Request::new(&messages[..]).max_tokens(24).greedy();
        let mut answer = model.chat(request)?;
        let mut text = String::new();
        for token in &mut answer {
            let token = token?;
            print!("{}", token.text);
            std::io::stdout().flush()?;
            text += &token.text;
        }
        println!("\n[{} prompt tokens computed]", answer.statistics().prompt_tokens);
        drop(answer);
        messages.push(Message::assistant(text));
    }
    Ok(())
}
