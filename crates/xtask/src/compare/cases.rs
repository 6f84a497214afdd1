//! The cases compared with llama.cpp: files, tests, and target ratios.

/// Arguments of `bilayer synth` for a model, which also name its file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub name: &'static str,
    pub synth: &'static [&'static str],
}

const LLAMA_1B: Shape = Shape { name: "llama-1b", synth: &["--shape", "llama-1b"] };
const LLAMA_8B: Shape = Shape { name: "llama-8b", synth: &["--shape", "llama-8b"] };

/// Eight experts of which two are used, 1 billion active parameters per token.
const MOE: Shape = Shape {
    name: "moe-8x2",
    synth: &[
        "--shape",
        "mixtral-8x7b",
        "--layers",
        "16",
        "--width",
        "2048",
        "--heads",
        "32",
        "--kv-heads",
        "8",
        "--ffn",
        "3072",
        "--vocab",
        "128256",
    ],
};

/// Tests of one file, run by one process of each program.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The part of the table for the results.
    pub part: &'static str,
    pub shape: Shape,
    pub ty: &'static str,
    pub threads: usize,
    /// Tokens of the prompt; 0 for none.
    pub prompt: usize,
    /// Generated tokens per sequence; 0 for none.
    pub generate: usize,
    /// Numbers of parallel sequences, one test each.
    pub sequences: Vec<usize>,
    /// Cached tokens before the test.
    pub depth: usize,
    /// Measure only the time from the start to the first token.
    pub first_token: bool,
    /// The target ratios: of the prompt, then of each number of sequences; for a first token, seconds.
    pub targets: &'static [f64],
}

/// The parts of the table with their descriptions.
pub const PARTS: [(&str, &str); 7] = [
    ("types", "prompt and decode of every type, 2 threads"),
    ("one-thread", "decode of every type, 1 thread"),
    ("large", "an 8B model; from the start to its first token"),
    ("experts", "a mixture of experts"),
    ("sequences", "several sequences that decode at once"),
    ("depth", "prompt and decode behind 4096 tokens"),
    ("far-depth", "the same behind 16384, some minutes a round and twenty the first time"),
];

/// A user's file, without a shape or type of ours.
pub fn own() -> Case {
    case("", Shape { name: "", synth: &[] }, "")
}

/// A 1B model in Q4_K_M.
pub fn one_billion() -> Case {
    case("", LLAMA_1B, "Q4_K_M")
}

fn case(part: &'static str, shape: Shape, ty: &'static str) -> Case {
    Case {
        part,
        shape,
        ty,
        threads: 2,
        prompt: 512,
        generate: 64,
        sequences: vec![1],
        depth: 0,
        first_token: false,
        targets: &[],
    }
}

/// The whole table.
pub fn all() -> Vec<Case> {
    let types: [(&str, &[f64]); 10] = [
        ("Q4_K_M", &[1.9, 1.1]),
        ("Q4_0", &[2.2, 1.1]),
        ("Q8_0", &[5.0, 1.1]),
        ("F16", &[1.4, 1.1]),
        ("BF16", &[1.4, 1.0]),
        ("Q5_K_M", &[1.9, 1.4]),
        ("Q6_K", &[2.2, 1.4]),
        ("Q3_K_M", &[2.2, 1.4]),
        ("Q2_K", &[2.2, 1.4]),
        ("IQ4_XS", &[1.9, 1.4]),
    ];
    let mut cases: Vec<Case> = types
        .iter()
        .map(|&(ty, targets)| Case { targets, ..case("types", LLAMA_1B, ty) })
        .collect();
    let quantized = types.iter().filter(|(ty, _)| !ty.ends_with("F16"));
    cases.extend(quantized.map(|&(ty, _)| Case {
        threads: 1,
        prompt: 0,
        generate: 32,
        targets: &[0.0, 1.5],
        ..case("one-thread", LLAMA_1B, ty)
    }));
    let large = case("large", LLAMA_8B, "Q4_K_M");
    cases.push(Case { prompt: 128, generate: 16, targets: &[1.9, 1.1], ..large.clone() });
    cases.push(Case { first_token: true, targets: &[0.6], ..large });
    cases.push(Case { targets: &[1.7, 1.1], ..case("experts", MOE, "Q4_K_M") });
    cases.push(Case {
        prompt: 0,
        generate: 32,
        sequences: vec![2, 4, 8, 16],
        targets: &[0.0, 1.6, 2.2, 3.0, 4.0],
        ..case("sequences", LLAMA_1B, "Q4_K_M")
    });
    let deep = Case {
        generate: 32,
        depth: 4096,
        targets: &[1.8, 1.6],
        ..case("depth", LLAMA_1B, "Q4_K_M")
    };
    cases.push(deep.clone());
    cases.push(Case { generate: 16, depth: 16384, part: "far-depth", ..deep });
    cases
}
