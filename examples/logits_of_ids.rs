//! Logits for other programs: `cargo run --release --example logits_of_ids -- model.gguf 1,2,3 rows.f32` writes `[tokens,
//! vocab]` little-endian f32. The KV cache is F32, so that only weights and arithmetic can differ from a reference.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::{CacheType, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, ids, rows] = &args[..] else {
        return Err("usage: logits_of_ids MODEL.gguf ID,ID,... ROWS.f32".into());
    };
    let ids = ids.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let exact = CacheType::by_name("f32")?;
    let mut model = Model::builder(path).gpu_layers(0).cache_type(exact).open()?;
    let logits = model.logits(ids)?;
    let bytes: Vec<u8> = logits.as_slice().iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(rows, bytes)?;
    println!("[{}, {}]", logits.rows(), logits.vocab());
    Ok(())
}
