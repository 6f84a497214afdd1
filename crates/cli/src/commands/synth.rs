//! `bilayer synth`: a model of a given shape with random weights.

use std::time::Instant;

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Made, Shape, Sizes, Synth};
use serde_json::json;

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::{output, progress};

/// Writes the file and reports on it.
pub fn execute(args: &args::Synth) -> Result<u8, Failure> {
    let synth = asked(args)?;
    let bar = progress::bytes("writing");
    let began = Instant::now();
    let made = progress::interruptible(&bar, |told| synth.write(&args.out, told))?;
    let Some(made) = made else { return Ok(INTERRUPTED) };
    report(args, &synth, made, began.elapsed().as_secs_f64())?;
    Ok(0)
}

fn asked(args: &args::Synth) -> Result<Synth, Failure> {
    let sizes = Sizes {
        layers: args.layers,
        width: args.width,
        heads: args.heads,
        kv_heads: args.kv_heads,
        head_dim: args.head_dim,
        ffn: args.ffn,
        vocab: args.vocab,
        context: args.context,
    };
    let shape = Shape::find(&args.shape)?.with(sizes)?;
    let mix = Mix::find(&args.r#type)?;
    if mix.copies {
        let ty = mix.name;
        return Err(Failure::usage(format!(
            "--type {ty} keeps the types of an existing file, and there is none; give a mix or type such as Q4_K_M"
        )));
    }
    Ok(Synth {
        shape,
        mix: if args.pure { Mix::pure(mix.base)? } else { mix },
        seed: args.seed,
        hollow: args.hollow,
        threads: args::threads(args.threads),
    })
}

fn report(args: &args::Synth, synth: &Synth, made: Made, seconds: f64) -> Result<(), Failure> {
    let Made { tensors, parameters, bytes } = made;
    // The bytes of a hollow file are not written.
    let written = if synth.hollow { 0 } else { bytes };
    let megabytes_per_second = written as f64 / 1e6 / seconds;
    let (shape, mix) = (synth.shape.name, synth.mix.name);
    if args.json {
        return output::json(&json!({
            "path": args.out,
            "shape": shape,
            "type": mix,
            "pure": synth.mix.pure,
            "seed": synth.seed,
            "hollow": synth.hollow,
            "tensors": tensors,
            "parameters": parameters,
            "bytes": bytes,
            "ms": seconds * 1e3,
            "mb_per_s": megabytes_per_second,
        }));
    }
    let pure = if synth.mix.pure { " pure" } else { "" };
    let path = args.out.display();
    output::line(&format!(
        "{path}: {shape} {mix}{pure}, {parameters} parameters in {tensors} tensors, {bytes} bytes"
    ))?;
    let hollow = if synth.hollow { " (hollow)" } else { "" };
    output::note(&format!(
        "written{hollow}: {:.0} MB, {:.0} ms, {megabytes_per_second:.0} MB/s",
        written as f64 / 1e6,
        seconds * 1e3
    ));
    Ok(())
}
