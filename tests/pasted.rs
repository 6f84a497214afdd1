//! The promise to users of llama.cpp: a pasted command line works, or is refused with advice about the flag that stops it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use bilayer_gguf::{File, NewTensor, to_bytes};
use bilayer_quant::Type;

mod support {
    pub mod data;
    pub mod model;
    pub mod npy;
    pub mod program;
    pub mod required;
    pub mod words;
}

use support::data::shared;
use support::npy::npy;
use support::program::{Place, ran};
use support::required::skip;
use support::words;

/// Our command for each of llama.cpp's programs.
const PROGRAMS: &[(&str, &str)] = &[
    ("llama-cli", "run"),
    ("llama-bench", "bench"),
    ("llama-quantize", "quantize"),
    ("llama-perplexity", "perplexity"),
    ("llama-imatrix", "imatrix"),
    ("llama-tokenize", "tokenize"),
    ("llama-server", "serve"),
    ("llama-embedding", "embed"),
    ("convert_hf_to_gguf.py", "convert"),
];

/// The flags that are refused, by the beginning of the advice. Every other line works.
const REFUSED: &[(&str, &str)] = &[
    (" -i ", "use -cnv to chat"),
    (" -mli ", "use -cnv to chat"),
    (" -if ", "use -cnv to chat"),
    (" --rpc ", "only devices of this machine"),
    (" --mmproj ", "images and audio need"),
    (" -gan ", "self-extend is not"),
    (" -np 2 ", "one prompt is answered at a time"),
    (" -ncffn ", "place tensors by name"),
    (" -ctkd ", "the draft model has the same"),
    (" --numa isolate", "numactl --cpunodebind=0"),
    (" --gpt-oss-20b-default", "name the model with -hf"),
    ("gemma-3-1b-it-GGUF", "downloads are off"),
    (" --prune-layers ", "--drop-layers LIST` removes layers"),
    (" --include-weights ", "the importance matrix is used whole"),
    (" --ppl-stride ", "windows do not overlap"),
    (" --show-statistics", "`bilayer inspect FILE`"),
    (" --vocab-only", "a tokenizer is not written alone"),
    (" --outtype tq1_0", "`bilayer quantize` makes other types"),
];

/// A line as its words, with a shell's quotes.
fn words_of(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A place with the files that the lines name.
fn place() -> Option<Place> {
    let stories = shared("stories260k")?;
    let place = Place::new();
    let copy = |from: &str, to: &str| {
        let to = place.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(stories.join(from), to).unwrap();
    };
    copy("stories260k-q4_0.gguf", "model.gguf");
    copy("stories260k-q4_0.gguf", "draft.gguf");
    copy("stories260k-f16.gguf", "models/7B/ggml-model-f16.gguf");
    for file in std::fs::read_dir(stories.join("hf")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        copy(&format!("hf/{name}"), &format!("checkpoints/stories260k/hf/{name}"));
    }
    for folder in ["prompts", "grammars"] {
        std::fs::create_dir(place.path().join(folder)).unwrap();
    }
    let text = "Once upon a time there was a little girl who loved to play in the park.\n";
    for name in ["prompts/chat-with-bob.txt", "prompt.txt"] {
        place.file(name, text);
    }
    for name in ["wiki.test.raw", "calib.txt"] {
        place.file(name, text.repeat(40));
    }
    place.file("grammars/json.gbnf", "root ::= \"a\" | \"b\"+\n");
    place.file("tmpl.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
    place.file("adapter.gguf", words::adapter(&stories.join("stories260k-q4_0.gguf"), 4));
    place.file("cv.gguf", words::control_vector(64, &[1, 2, 3, 4]));
    place.file("minilm-f16.gguf", words::scorer("bert", &["good", "bad"]));
    place
        .run("perplexity -m model.gguf -f wiki.test.raw -c 128 --chunks 2 --kl-base base.kld")
        .good();
    Some(place)
}

#[test]
fn pasted_command_lines_work_or_get_advice() {
    let Some(place) = place() else { return };
    let lines = std::fs::read_to_string(shared("cli/llama-command-lines.txt").unwrap()).unwrap();
    let (mut worked, mut advised, mut broken) = (0, 0, Vec::new());
    for line in lines.lines() {
        let mut given = words_of(&line.replace("../minilm", "minilm").replace("8080", "0"));
        let (_, command) = PROGRAMS.iter().find(|(program, _)| *program == given[0]).unwrap();
        given[0] = (*command).to_owned();
        let mut program = place.command("");
        program.args(&given).env("HF_HUB_OFFLINE", "1");
        if *command == "serve" && !line.contains("-hf") {
            worked += usize::from(serves(&mut program));
            continue;
        }
        let ran = ran(&mut program);
        let last = ran.err.lines().last().unwrap_or_default();
        let advice =
            REFUSED.iter().find(|(flag, _)| line.contains(flag)).map(|(_, advice)| *advice);
        match (ran.code, advice) {
            (Some(0), None) => worked += 1,
            (Some(2 | 66), Some(advice)) if last.contains(advice) => advised += 1,
            _ => broken.push(format!("{line}\n    {:?}: {last}", ran.code)),
        }
    }
    assert!(broken.is_empty(), "{} lines:\n{}", broken.len(), broken.join("\n"));
    let all = lines.lines().count();
    assert_eq!((worked + advised, all), (all, 114), "{worked} worked, {advised} refused");
}

/// Whether a server starts; it is ended at once.
fn serves(program: &mut std::process::Command) -> bool {
    let mut server = program.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    line.starts_with("listening on http://")
}

#[test]
fn flags_are_read_as_llama_cpp_reads_them() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 1));
    place.file("text.txt", "abc\n");
    let tokens = |line: &str| {
        let document = place.run(&format!("run -m model.gguf -n 2 --temp 0 --json {line}")).json();
        serde_json::from_value::<Vec<u32>>(document["prompt_tokens"].clone()).unwrap()
    };
    let plain = tokens("-p abc");
    // One line break at the end of a file or a pipe is not part of the prompt.
    assert_eq!(tokens("-f text.txt"), plain);
    assert_eq!(tokens("-p abc --ctx_size 64 --top_k=-1 -ngl -1"), plain);
    assert_eq!(tokens("-p x -p abc -n -2 -n 2"), plain);
    let piped = |line: &str, input: &str| {
        let ran = place.run_with_input(&format!("run -m model.gguf -n 2 --json {line}"), input);
        let document = ran.json();
        serde_json::from_value::<Vec<u32>>(document["prompt_tokens"].clone()).unwrap()
    };
    assert_eq!(piped("", "abc\n"), plain);
    // A pipe follows the prompt of -p.
    let both = piped("-p abc", "def\n");
    assert!(both.starts_with(&plain) && both.len() == plain.len() + 4, "{both:?}");
    // The model and the prompt may come without flags.
    let quick = place.run("model.gguf abc -n 2 --json").json();
    assert_eq!(quick["prompt_tokens"], serde_json::json!(plain));
}

#[test]
fn messages_are_as_many_as_asked_for() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 1));
    let run = |more: &str| place.run(&format!("run -m model.gguf -p abc -n 2 {more}")).good();
    assert_eq!(run("-q").err, "");
    let verbose = run("-v --verbose-prompt --no-perf --log-file all.log").err;
    for part in ["weights ", "kernel ", "prompt of 5 tokens:", "     68  \"a\""] {
        assert!(verbose.contains(part), "{part}: {verbose}");
    }
    assert!(!verbose.contains("tok/s"), "{verbose}");
    let log = std::fs::read_to_string(place.path().join("all.log")).unwrap();
    assert_eq!(log, verbose);
    let failed = place.run("run -m model.gguf -p abc --log-file no/folder.log");
    assert_eq!(failed.code, Some(73), "{failed:?}");
    let failed = place.run("run -m model.gguf -p abc -n 9 --trace no/folder.json");
    assert_eq!((failed.code, failed.out.as_str()), (Some(73), ""), "{failed:?}");
}

#[test]
fn models_are_named_with_advice_where_they_cannot_run() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("checkpoint")).unwrap();
    place.file("checkpoint/config.json", "{}");
    let cases = [
        ("run checkpoint hello", 65, "`bilayer convert checkpoint`"),
        ("run -m https://huggingface.co/org/repo -p a", 66, "give -hf org/repo"),
        ("org/repo", 66, "a model on Hugging Face is -hf org/repo"),
        ("run absent.gguf", 66, "absent.gguf"),
        ("run hello there world", 2, "give the prompt in quotes"),
    ];
    for (line, code, part) in cases {
        let ran = place.run(line);
        assert!(ran.code == Some(code) && ran.err.contains(part), "{line}: {ran:?}");
    }
    let help = place.run("help bench").good();
    assert!(help.out.contains("llama-bench"), "{help:?}");
    assert!(place.run("version").good().out.starts_with("bilayer "));
}

/// The logits of a prompt, as bytes.
fn logits_of(place: &Place, more: &str) -> Vec<u8> {
    place.run(&format!("run -m model.gguf -p abcdef -n 0 -ngl 0 --logits l.npy {more}")).good();
    std::fs::read(place.path().join("l.npy")).unwrap()
}

#[test]
fn metadata_is_replaced_by_flags() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 1));
    let before = std::fs::read(place.path().join("model.gguf")).unwrap();
    let logits = |more: &str| logits_of(&place, more);
    let own = logits("");
    assert_eq!(logits("--rope-freq-base 10000"), own);
    let base = logits("--rope-freq-base 50");
    assert_ne!(base, own);
    assert_eq!(logits("--override-kv llama.rope.freq_base=float:50"), base);
    assert_eq!(logits("--override-kv general.name=str:x,llama.rope.freq_base=float:50"), base);
    let scaled = logits("--rope-scale 4");
    assert_ne!(scaled, own);
    assert_eq!(logits("--rope-freq-scale 0.25"), scaled);
    assert_eq!(logits("--rope-scaling linear --rope-scale 4"), scaled);
    assert_eq!(logits("--rope-scaling none --rope-scale 4"), own);
    let yarn = logits("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 16");
    assert_ne!(yarn, scaled);
    assert_ne!(
        logits("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 16 --yarn-attn-factor 2"),
        yarn
    );
    assert_eq!(
        logits("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 16 --yarn-ext-factor 0"),
        scaled
    );
    assert_eq!(std::fs::read(place.path().join("model.gguf")).unwrap(), before);
    for (flags, code, part) in [
        ("--override-kv llama.block_count=str:2", 65, "key llama.block_count cannot become"),
        ("--override-kv llama.block_count=int:-2", 65, "an integer of 32 bits"),
        ("--override-kv llama.block_count", 2, "expected KEY=TYPE:VALUE"),
        ("--rope-scale 0", 2, "a number above 0"),
        ("--yarn-ext-factor=-1", 2, "a number of at least 0"),
        ("--rope-scaling yarn", 65, "rope.scaling.factor"),
        ("--rope-scale 2 --rope-freq-scale 2", 2, "--rope-freq-scale"),
    ] {
        let ran = place.run(&format!("run -m model.gguf -p a -ngl 0 {flags}"));
        assert!(ran.code == Some(code) && ran.err.contains(part), "{flags}: {ran:?}");
    }
}

#[test]
fn a_prompt_cache_spares_the_prompt() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 1));
    place.file("other.gguf", words::tiny(Type::F32, 2));
    let run = |prompt: &str, more: &str| {
        let line = format!("run -m model.gguf -p {prompt} -n 4 --temp 0 -ngl 0 {more}");
        place.run(&line).good()
    };
    let held = |ran: &support::program::Ran| {
        let line = ran.err.lines().find(|line| line.contains("tokens of the prompt are in"));
        line.map(|line| line.split(' ').nth(1).unwrap().parse::<usize>().unwrap())
    };
    let plain = run("abcdef", "");
    let first = run("abcdef", "--prompt-cache p.kv");
    assert_eq!((&first.out, held(&first)), (&plain.out, None));
    let bytes = || std::fs::read(place.path().join("p.kv")).unwrap();
    let prompt_only = bytes();
    // A begin-of-text token, a space and six letters, the last of which runs again.
    let again = run("abcdef", "--prompt-cache p.kv --prompt-cache-ro");
    assert_eq!((&again.out, held(&again)), (&plain.out, Some(7)));
    assert!(bytes() == prompt_only, "the file has changed");
    let longer = run("abcdefgh", "--prompt-cache p.kv --prompt-cache-all");
    assert_eq!((&longer.out, held(&longer)), (&run("abcdefgh", "").out, Some(8)));
    assert!(bytes().len() > prompt_only.len());
    let other = run("xyz", "--prompt-cache p.kv");
    assert_eq!((&other.out, held(&other)), (&run("xyz", "").out, Some(2)));
    let wrong = place.run("run -m other.gguf -p abc -n 1 -ngl 0 --prompt-cache p.kv");
    assert!(wrong.code == Some(74) && wrong.err.contains("p.kv"), "{wrong:?}");
    let mut damaged = bytes();
    damaged[40] ^= 1;
    place.file("p.kv", damaged);
    let wrong = place.run("run -m model.gguf -p abc -n 1 -ngl 0 --prompt-cache p.kv");
    assert!(wrong.code == Some(74) && wrong.err.contains("p.kv"), "{wrong:?}");
    let wrong = place.run("run -m model.gguf -p abc --prompt-cache model.gguf");
    assert!(wrong.code == Some(2) && wrong.err.contains("model.gguf"), "{wrong:?}");

    // A model with states returns to the last one that is kept.
    let shape = "--shape mamba2-1b --type F32 --layers 2 --width 64 --vocab 300";
    place.run(&format!("synth {shape} states.gguf")).good();
    let tokens: Vec<String> = (1..=70).map(|id| id.to_string()).collect();
    let line = format!("run -m states.gguf --tokens {} -n 4 --temp 0 -ngl 0", tokens.join(","));
    let [plain, first, again] = ["", "--prompt-cache s.kv", "--prompt-cache s.kv"]
        .map(|more| place.run(&format!("{line} {more}")).good());
    assert_eq!([&first.out, &again.out], [&plain.out; 2]);
    assert_eq!((held(&first), held(&again)), (None, Some(64)));
    let wrong = place.run("run -m model.gguf -p abc --prompt-cache-all");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    place.file("lora.gguf", words::adapter(&place.path().join("model.gguf"), 4));
    let scaled = |scale: &str| {
        let adapter = format!("--lora-scaled lora.gguf:{scale} --prompt-cache l.kv");
        place.run(&format!("run -m model.gguf -p abcdef -n 4 --temp 0 -ngl 0 {adapter}"))
    };
    scaled("0").good();
    scaled("0").good();
    let wrong = scaled("1");
    assert!(wrong.code == Some(74) && wrong.err.contains("another model"), "{wrong:?}");
}

/// Logits with adapters are those of PEFT, on the CPU and on a GPU.
#[test]
fn adapters_give_the_logits_of_peft() {
    let own = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    let place = Place::new();
    let base = own.join("options-llama").display().to_string();
    place.run(&format!("convert {base} --outtype f32 --no-vocab --outfile base.gguf")).good();
    for name in ["lora", "lora-root"] {
        let adapter = own.join(name).display().to_string();
        place.run(&format!("convert {base} --lora {adapter} --outfile {name}.gguf")).good();
    }
    // Adapters are never quantized, and the report and the name say so.
    let line = format!("convert {base} --lora {} --outtype q8_0", own.join("lora").display());
    let ran = place.run(&format!("{line} --dry-run --json")).good();
    assert!(ran.err.contains("adapters are not written as Q8_0; written as F16"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let report = ran.json();
    assert_eq!(report["type"], "F16");
    assert!(report["path"].as_str().unwrap().ends_with("lora-F16.gguf"), "{report}");
    let reference = std::fs::read_to_string(own.join("lora/reference.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&reference).unwrap();
    let floats = |value: &serde_json::Value| -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    };
    for device in ["-ngl 0", "-dev software -ngl all", "-dev software -ngl 2"] {
        for case in reference["cases"].as_array().unwrap() {
            let ids: Vec<String> = floats(&case["ids"]).iter().map(f32::to_string).collect();
            let line = format!(
                "run -m base.gguf --tokens {} -n 0 --logits l.npy {device} -ctk f32 -ctv f32",
                ids.join(",")
            );
            let ran =
                place.run(&format!("{line} --lora lora.gguf --lora-scaled lora-root.gguf:0.5"));
            if ran.code == Some(69) {
                skip(format_args!("no adapter for {device}"));
                continue;
            }
            ran.good();
            let logits = npy(&place.path().join("l.npy")).1;
            for (found, key) in
                [(&logits[..64], "logits_first"), (&logits[logits.len() - 64..], "logits_last")]
            {
                let expected = floats(&case[key]);
                let most = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                let error =
                    found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(error < 2e-4 * most, "{device} {key}: {error} of {most}");
            }
            if device == "-ngl 0" {
                // Strengths of an adapter that is given again add up.
                let twice = "--lora lora.gguf --lora-scaled lora.gguf:1";
                let [twice, double] = [twice, "--lora-scaled lora.gguf:2"].map(|adapters| {
                    place.run(&format!("{line} {adapters}")).good();
                    npy(&place.path().join("l.npy")).1
                });
                let near = twice.iter().zip(&double).all(|(a, b)| (a - b).abs() < 1e-4);
                assert!(near && twice != logits, "{key}", key = case["ids"]);
                place.run(&line).good();
                assert_ne!(npy(&place.path().join("l.npy")).1, logits);
            }
        }
    }
    wrong_adapters_are_refused(&place);
}

/// `place` has `base.gguf` and its adapter `lora.gguf`.
fn wrong_adapters_are_refused(place: &Place) {
    place.file("other.gguf", words::tiny_of("gpt2"));
    let base = place.path().join("base.gguf");
    place.file("idle.gguf", words::adapter_of(&base, &["token_embd.weight"], 2));
    for (line, code, part) in [
        ("run -m other.gguf --tokens 1 --lora lora.gguf", 65, "it adapts llama"),
        ("run -m base.gguf --tokens 1 --lora base.gguf", 65, "general.type is"),
        ("run -m base.gguf --tokens 1 --lora absent.gguf", 66, "absent.gguf"),
        ("run -m base.gguf --tokens 1 --lora-scaled lora.gguf:x", 2, "FILE:SCALE"),
        (
            "run -m base.gguf --tokens 1 --lora idle.gguf",
            65,
            "idle.gguf: tensor token_embd.weight.lora_a",
        ),
    ] {
        let ran = place.run(line);
        assert!(ran.code == Some(code) && ran.err.contains(part), "{line}: {ran:?}");
    }
}

/// A direction after a layer is a bias of the last product of that layer, which llama models may have.
#[test]
fn control_vectors_add_their_directions() {
    let place = Place::new();
    let file = File::open(&place.file("base.gguf", words::tiny(Type::F32, 1))).unwrap();
    let width = file.tensor("token_embd.weight").unwrap().layout().shape()[1] as usize;
    let layers = file.metadata().usize("llama.block_count").unwrap();
    assert!(layers >= 3, "{layers} layers");
    let last = layers - 1;
    place.file("all.gguf", words::control_vector(width, &(1..layers).collect::<Vec<_>>()));
    place.file("one.gguf", words::control_vector(width, &[1]));
    // The same sums as biases: of both files with their strengths, and only of the last layer.
    let biased = |name: &str, sums: &[(usize, f32)]| {
        let biases: Vec<(String, Vec<u8>)> = sums
            .iter()
            .map(|&(layer, scale)| {
                let values = words::direction(layer, width).into_iter().map(|x| x * scale);
                let bytes = values.flat_map(f32::to_le_bytes).collect();
                (format!("blk.{layer}.ffn_down.bias"), bytes)
            })
            .collect();
        let own = file.tensors().iter().map(|tensor| NewTensor::copied(&file, tensor));
        let more = biases
            .iter()
            .map(|(name, bytes)| NewTensor::bytes(name, Type::F32, &[width as u64], bytes.clone()));
        let tensors: Vec<_> = own.chain(more).collect();
        place.file(name, to_bytes(file.metadata(), tensors).unwrap());
    };
    let mut sums: Vec<(usize, f32)> = (1..layers).map(|layer| (layer, 1.0)).collect();
    sums[0].1 = 1.5;
    biased("both.gguf", &sums);
    biased("last.gguf", &[(last, 1.0)]);
    let both = "--control-vector all.gguf --control-vector-scaled one.gguf:0.5".to_owned();
    let one = format!("--control-vector all.gguf --control-vector-layer-range {last} {last}");
    let logits = |line: &str| {
        let ran = place.run(&format!(
            "run {line} --tokens 1,2,3,4,5,6,7 -n 0 --logits l.npy -ctk f32 -ctv f32"
        ));
        if ran.code == Some(69) {
            skip(format_args!("no adapter for {line}"));
            return None;
        }
        ran.good();
        Some(npy(&place.path().join("l.npy")).1)
    };
    let plain = logits("-m base.gguf -ngl 0").unwrap();
    for (flags, by_hand) in [(&both, "both.gguf"), (&one, "last.gguf")] {
        let expected = logits(&format!("-m {by_hand} -ngl 0")).unwrap();
        let most = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let differs = |logits: &[f32]| {
            logits.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(differs(&plain) > 0.01 * most, "the directions make a difference");
        for device in ["-ngl 0", "-dev software -ngl all", "-dev software -ngl 2"] {
            let Some(found) = logits(&format!("-m base.gguf {flags} {device}")) else { continue };
            assert!(differs(&found) < 2e-4 * most, "{device} {flags}: {}", differs(&found));
        }
    }
    place.file("wide.gguf", words::control_vector(width + 1, &[1]));
    place.file("deep.gguf", words::control_vector(width, &[layers]));
    place.file("zero.gguf", words::control_vector(width, &[0]));
    for (file, code, part) in [
        ("wide.gguf", 65, "the model's states have"),
        ("deep.gguf", 65, "the last layer of the model is"),
        ("zero.gguf", 65, "tensor direction.0"),
        ("base.gguf", 65, "general.architecture is llama"),
        ("absent.gguf", 66, "absent.gguf"),
        ("one.gguf,wide.gguf", 65, "wide.gguf"),
    ] {
        let ran = place.run(&format!("run -m base.gguf --tokens 1 --control-vector {file}"));
        let name = file.rsplit(',').next().unwrap();
        assert!(ran.code == Some(code) && ran.err.contains(part), "{file}: {ran:?}");
        assert!(ran.err.contains(name), "{file}: {ran:?}");
    }
}
