//! One model at three placements: `cargo run --release --example hybrid_placement -- model.gguf [DEVICE]`.
//!
//! DEVICE is a number or a part of a GPU's name as `bilayer devices` lists them, or `software`. Greedy answers of two
//! placements may differ where two tokens are nearly as likely, since a GPU sums in another order.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::{GpuLayers, Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: hybrid_placement MODEL.gguf [DEVICE]")?;
    let device = args.next();

    for layers in [GpuLayers::Count(0), GpuLayers::Percent(50), GpuLayers::All] {
        let mut builder = Model::builder(&path).gpu_layers(layers).context(512);
        if let Some(device) = &device {
            builder = builder.device(device);
        }
        let mut model = builder.open()?;
        let plan = model.plan();
        println!("{layers:?}: {}", plan.map);
        for device in plan.devices.iter().filter(|device| device.weight_bytes > 0) {
            println!("  {}: {} bytes of weights", device.label, device.weight_bytes);
        }
        let text = model.generate(Request::new("ROMEO:\n").max_tokens(12).greedy())?.text()?;
        println!("  {text:?}");
    }
    Ok(())
}
