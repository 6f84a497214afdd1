//! Real models at every split between CPU and GPU give the CPU's results.

use std::path::PathBuf;

use bilayer_graph::{Backend, Limits};
use bilayer_models::Layer;
use bilayer_quant::Type;
use bilayer_scheduler::Placement;

use super::error;
use super::support::checkpoint;
use super::support::data::shared;
use super::support::devices::cpu;
use super::support::logits::argmax;
use super::support::model::{Model, Random};
use super::support::runner::{Chunk, IN_ORDER, LIMITS, Runner};

/// How far a model is tested.
#[derive(Clone, Copy)]
struct Coverage {
    /// Greedy tokens after each prompt.
    steps: usize,
    /// Every split, or both ends and the middle.
    every_split: bool,
}

/// A trained model: the second prompt and its answer fill a page.
const TRAINED: Coverage = Coverage { steps: 14, every_split: true };
/// A trained model's other types, which do not matter to how parts are joined.
const REQUANTIZED: Coverage = Coverage { steps: 4, every_split: false };
/// A model with random weights, whose windows and chunks the longest prompt fills.
const RANDOM: Coverage = Coverage { steps: 6, every_split: true };

/// Checkpoints in the shared data: Llamas, and one of each mechanism that others have.
const CHECKPOINTS: [&str; 15] = [
    "llama",
    "llama-256",
    "llama3-rope",
    "cohere2",
    "deepseek3",
    "gemma4",
    "gemma4-moe",
    "glm4-moe",
    "granite-hybrid",
    "lfm2-moe",
    "llama4",
    "ministral3",
    "muse-glimmer",
    "nemotron-h",
    "qwen35-moe",
];

/// Bound on [`error`] of logits between CPU and GPU: both round quantized weights' activations, in groups of
/// different length, and rounding in the cache amplifies differences (measured: 1.1e-3 with floats).
fn bound(matrices: Type, cache: Type) -> f32 {
    let of_matrices = if matrices.block_weights == 1 { 2e-3 } else { 0.04 };
    of_matrices + if cache == Type::Q8_0 { 0.02 } else { 0.0 }
}

/// Logits of every step of a conversation, and the top tokens of each; `told` replaces these as input.
struct Said {
    logits: Vec<Vec<f32>>,
    tokens: Vec<Vec<u32>>,
}

/// Runs prompts in one step, then one token of each per step, `steps` in all, which follow `told` if there is one. Each
/// sequence has five pages.
fn say(
    runner: &mut Runner<'_>,
    prompts: &[Vec<u32>],
    (steps, told): (usize, Option<&Said>),
) -> Said {
    let vocab = runner.vocab();
    let mut said = Said { logits: Vec::new(), tokens: Vec::new() };
    let mut next: Vec<Vec<u32>> = prompts.to_vec();
    let mut lengths = vec![0; prompts.len()];
    for step in 0..steps {
        let runs: Vec<Chunk<'_>> = next
            .iter()
            .enumerate()
            .map(|(i, tokens)| Chunk {
                tokens,
                first_position: lengths[i],
                pages: &IN_ORDER[5 * i..][..5],
            })
            .collect();
        let ends = next.iter().scan(0, |end, tokens| {
            *end += tokens.len() as u32;
            Some(*end - 1)
        });
        let logits = runner.step(&runs, &ends.collect::<Vec<u32>>(), &[]).unwrap();
        lengths.iter_mut().zip(&next).for_each(|(length, tokens)| *length += tokens.len());
        let tokens: Vec<u32> = logits.chunks_exact(vocab).map(argmax).collect();
        let going_on = told.map_or(&tokens, |told| &told.tokens[step]);
        next = going_on.iter().map(|&token| vec![token]).collect();
        said.tokens.push(tokens);
        said.logits.push(logits);
    }
    said
}

/// Splits of one model, with every cache type its heads support.
fn check(model: &Model, name: &str, Coverage { steps, every_split }: Coverage) {
    if super::support::gpu::gpu().is_none() {
        return;
    }
    let layers = model.config.layers.len() as u32;
    let vocab = model.config.vocab;
    let prompts: Vec<Vec<u32>> =
        [37, 20, 5].map(|len| Random(len as u64).tokens(len, vocab)).to_vec();
    for cache in [Type::F16, Type::Q8_0] {
        let fits = |layer: &Layer| layer.head_dim.is_multiple_of(cache.block_weights);
        if !model.config.layers.iter().all(fits) {
            continue;
        }
        let limits = Limits { key_type: cache, value_type: cache, ..LIMITS };
        let mut alone = Runner::single(model, cpu(2), limits).unwrap();
        let expected: Vec<Said> =
            [1, 3].map(|count| say(&mut alone, &prompts[..count], (steps, None))).into();
        for count in (0..=layers + 1)
            .filter(|count| every_split || [1, layers / 2 + 1, layers + 1].contains(count))
        {
            let gpu: Box<dyn Backend> = Box::new(super::support::gpu::gpu().unwrap());
            let placement = Placement::offload(layers, count, 0, 1);
            let mut cut = Runner::placed(model, vec![cpu(2), gpu], &placement, limits).unwrap();
            for expected in &expected {
                let sequences = expected.tokens[0].len();
                let found = say(&mut cut, &prompts[..sequences], (steps, Some(expected)));
                for (step, (found, expected)) in
                    found.logits.iter().zip(&expected.logits).enumerate()
                {
                    let off = error(found, expected);
                    let most = bound(model.matrix_type(), cache);
                    assert!(
                        off <= most,
                        "{name}, {count} parts, {cache}, {sequences} sequences, token {step}: {off:e} > {most:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn real_models_give_the_same_answers_however_they_are_split() {
    let mut files: Vec<PathBuf> = Vec::new();
    for (folder, kind) in [("stories260k", "stories"), ("quant/llama-256", "")] {
        let Some(folder) = shared(folder) else { continue };
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let wanted = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".gguf") && name.starts_with(kind)
        };
        files.extend(entries.filter(wanted));
    }
    files.sort();
    files.push(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf")));
    for path in files {
        let name = path.display().to_string();
        let trained = ["demo.gguf", "stories260k-f32.gguf"].iter().any(|end| name.ends_with(end));
        let coverage = if trained { TRAINED } else { REQUANTIZED };
        check(&Model::open(&path), &name, coverage);
    }
}

#[test]
fn checkpoints_of_every_mechanism_give_the_same_answers_at_every_split() {
    for name in CHECKPOINTS {
        let Some(folder) = shared(&format!("arch-tiny/{name}")) else { continue };
        check(&Model::new(checkpoint::gguf(&folder)), name, RANDOM);
    }
}
