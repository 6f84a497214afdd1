//! The promise of the library for models that the repository does not have: what encoders score, and what drafts leave alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;

use bilayer::bench::{self, Test};
use bilayer::convert::Convert;
use bilayer::inspect::Inspection;
use bilayer::quantize::{self, Calibration, Event, Job, Method, Quantize, mix};
use bilayer::verify::Side;
use bilayer::{
    Builder, Cancel, CpuLevel, Encode, Error, Excess, Execution, Function, GpuLayers, Message,
    MetadataOverride, Model, Norm, Numa, OpOffload, Pooling, Reply, Request, Simulation, SplitMode,
    Tools, extract, route,
};
use bilayer_cpu::level::Level;
use bilayer_quant::Type;
use support::words;

mod support {
    pub mod model;
    pub mod words;
}

/// The model inside the binary, as a file.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf");

/// A folder with `reranker.gguf`, which gives one score, `classifier.gguf` with three labels, and `tiny.gguf`, a decoder.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("reranker.gguf", &words::scorer("nomic-bert", &["LABEL_0"]));
    write("classifier.gguf", &words::scorer("nomic-bert", &["bad", "fair", "good"]));
    write("tiny.gguf", &words::tiny(Type::Q8_0, 1));
    folder
}

/// Opens a file on the CPU.
fn open(path: PathBuf) -> Model {
    Model::builder(path).gpu_layers(0).open().unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, part: &str) {
    let error = result.err().expect("an error");
    assert!(error.to_string().contains(part), "{error}");
    assert_eq!(error.exit_code() as u8, 2, "{error}");
}

#[test]
fn rerank_scores_pairs_of_query_and_document() {
    let folder = folder();
    let mut model = open(folder.path().join("reranker.gguf"));
    let documents = ["a b c", "d e", "a b c d e f g h"];
    let scores = model.rerank("a b", &documents).unwrap();
    assert_eq!(scores.len(), 3);
    for (document, &score) in documents.iter().zip(&scores) {
        let alone = model.rerank("a b", &[document]).unwrap()[0];
        assert!((score - alone).abs() < 1e-4, "{document}: {score} among others, {alone} alone");
    }
    assert!((scores[0] - scores[2]).abs() > 1e-4, "{scores:?}");
    let other = model.rerank("g h", &documents).unwrap();
    assert!(
        (scores[0] - other[0]).abs() > 1e-4,
        "the score depends on the query: {scores:?} {other:?}"
    );
    refused(model.embed(&["ab"]), "Builder::embeddings");
    let long = model.rerank(&"a ".repeat(9000), &["b"]).unwrap_err();
    assert!(long.to_string().contains("longer than the context"), "{long}");
    assert_eq!(long.exit_code() as u8, 75, "{long}");
    // Documents are truncated, and nothing is scored without one.
    model.set_excess(Excess::Truncate);
    let long = "b c d ".repeat(9000);
    let cut = model.rerank("a b", &[&*long, "b c d"]).unwrap();
    assert!(cut[0].is_finite() && cut[0] != cut[1], "{cut:?}");
    let error = model.rerank(&long, &["b"]).unwrap_err();
    assert!(error.to_string().contains("leaves no room for a document"), "{error}");
    assert_eq!(error.advice().to_string(), "; shorten the query");
}

#[test]
fn classify_gives_every_label_its_probability() {
    let folder = folder();
    let mut model = open(folder.path().join("classifier.gguf"));
    let texts = model.classify(&["a b c", "z y x"]).unwrap();
    assert_eq!(texts.len(), 2);
    for labels in &texts {
        let names: Vec<&str> = labels.iter().map(|label| label.name.as_str()).collect();
        assert_eq!(names, ["bad", "fair", "good"]);
        let sum: f32 = labels.iter().map(|label| label.probability).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{labels:?}");
    }
    assert_ne!(texts[0], texts[1]);
    let (first, second) = ("a b c".to_owned(), "z y x".to_owned());
    assert_eq!(model.classify(&[&first, &second]).unwrap(), texts);
    assert_eq!(model.classify(&[Cow::from("a b c"), Cow::from(second)]).unwrap(), texts);
    assert_eq!(model.classify(&[Box::<str>::from("a b c"), "z y x".into()]).unwrap(), texts);
    refused(model.rerank("a b", &["abc"]), "Model::classify");
    let pairs = model.classify(&[("a b c", "z y x"), ("a b c", "d")]).unwrap();
    assert!(pairs[0] != texts[0] && pairs[0] != pairs[1], "{pairs:?}");

    // Of labels that may hold together, each has a probability of its own.
    let key = MetadataOverride::new("{arch}.classifier.multi_label", true);
    let path = folder.path().join("classifier.gguf");
    let mut model = Model::builder(path).gpu_layers(0).metadata(key).open().unwrap();
    let own = model.classify(&["a b c"]).unwrap().remove(0);
    let odds = |p: f32| (p / (1.0 - p)).ln();
    for (own, exclusive) in own.windows(2).zip(texts[0].windows(2)) {
        let expected = (exclusive[0].probability / exclusive[1].probability).ln();
        let found = odds(own[0].probability) - odds(own[1].probability);
        assert!((found - expected).abs() < 1e-3, "{own:?} {exclusive:?}");
    }
    let sum: f32 = own.iter().map(|label| label.probability).sum();
    assert!((sum - 1.0).abs() > 1e-3, "{own:?}");
}

#[test]
fn vectors_are_scaled_and_pooled_as_asked() {
    let folder = folder();
    let builder = || Model::builder(folder.path().join("classifier.gguf")).gpu_layers(0);
    let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
    let embed = |mut model: Model| model.embed(&["a b c"]).unwrap().remove(0);
    let unit = embed(builder().embeddings().open().unwrap());
    let raw = embed(builder().embeddings().norm(Norm::None).open().unwrap());
    let factor = length(&raw);
    assert!((length(&unit) - 1.0).abs() < 1e-4 && (factor - 1.0).abs() > 1e-2, "{factor}");
    assert!(raw.iter().zip(&unit).all(|(raw, unit)| (raw - factor * unit).abs() < 1e-4));
    let bare = || {
        let key = MetadataOverride::new("{arch}.normalize_embeddings", false);
        builder().embeddings().metadata(key).open().unwrap()
    };
    assert_eq!(embed(bare()), raw, "as the checkpoint says");
    let mut model = bare();
    model.set_norm(Norm::P(2));
    assert_eq!(embed(model), unit);
    let first = embed(builder().pooling(Pooling::Cls).open().unwrap());
    let mean = embed(builder().pooling(Pooling::Mean).open().unwrap());
    assert_ne!(first, mean);
    let mut tokens = builder().pooling(Pooling::None).open().unwrap();
    refused(tokens.embed(&["a b c"]), "pooling is none");
    // A decoder embeds if it is told how.
    let decoder = || Model::builder(DEMO).gpu_layers(0);
    refused(decoder().open().unwrap().embed(&["a b c"]), "generates text");
    // One whose file has the key has it replaced.
    let key = || MetadataOverride::new("{arch}.pooling_type", 3i64);
    let own = embed(decoder().metadata(key()).open().unwrap());
    let as_mean = embed(decoder().metadata(key()).pooling(Pooling::Mean).open().unwrap());
    assert_ne!(own, as_mean);
    let [mean, last] = [Pooling::Mean, Pooling::Last].map(|pooling| {
        let mut model = decoder().pooling(pooling).open().unwrap();
        assert!(!model.generates());
        refused(model.generate("a").map(drop), "generates no text");
        embed(model)
    });
    assert!((length(&mean) - 1.0).abs() < 1e-4 && (length(&last) - 1.0).abs() < 1e-4);
    assert_ne!(mean, last);
    assert_eq!((mean, last), (as_mean, own));
}

#[test]
fn every_call_can_be_cancelled() {
    #[track_caller]
    fn interrupted<T>(result: Result<T, Error>) {
        assert_eq!(result.err().expect("an error").exit_code() as u8, 130);
    }
    let folder = folder();
    let cancel = Cancel::new();
    let open = |name: &str| Model::builder(folder.path().join(name)).gpu_layers(0).cancel(&cancel);
    let mut embedder = open("classifier.gguf").embeddings().open().unwrap();
    let mut classifier = open("classifier.gguf").open().unwrap();
    let mut reranker = open("reranker.gguf").open().unwrap();
    let key = MetadataOverride::new("{arch}.classifier.per_token", true);
    let mut extractor = open("classifier.gguf").metadata(key).open().unwrap();
    let options = extract::Options::default();
    let mut decoder = open("tiny.gguf").open().unwrap();
    cancel.cancel();
    interrupted(embedder.embed(&["a b"]));
    let route = route::Route { label: "a".to_owned(), examples: vec!["b".to_owned()] };
    interrupted(embedder.route(&["a b"], &[route]));
    interrupted(classifier.classify(&["a b"]));
    interrupted(reranker.rerank("a", &["b"]));
    interrupted(extractor.extract(&["a b"], &options));
    interrupted(decoder.logits("ab"));
    cancel.reset();
    assert_eq!(extractor.extract(&["a b"], &options).unwrap().len(), 1);
    assert_eq!(embedder.embed(&["a b"]).unwrap().len(), 1);
    assert!(decoder.logits("ab").unwrap().rows() > 0);
    // No memory is taken for logits that the context does not allow.
    let error = decoder.logits(vec![1; 30_000_000]).expect_err("too long");
    assert!(error.to_string().contains("context") && error.exit_code() as u8 == 75, "{error}");
    refused(embedder.extract(&["a b"], &options), "does not label tokens");
}

/// The weights are not all loaded when it ends, and whoever is told of the progress may panic.
#[test]
fn loading_can_be_cancelled() {
    let cancel = Cancel::new();
    let mut told = Vec::new();
    let opened = Model::builder(DEMO)
        .gpu_layers(0)
        .cancel(&cancel)
        .progress(|progress| {
            told.push(progress);
            if told.len() == 3 {
                cancel.cancel();
            }
        })
        .open();
    assert_eq!(opened.err().expect("an error").exit_code() as u8, 130);
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|progress| progress.done_bytes < progress.total_bytes), "{told:?}");
    cancel.reset();
    assert!(Model::builder(DEMO).gpu_layers(0).context(64).cancel(&cancel).open().is_ok());
    let panicking = || Model::builder(DEMO).gpu_layers(0).progress(|_| panic!("told")).open();
    let cause = std::panic::catch_unwind(panicking).err().expect("a panic");
    assert_eq!(cause.downcast_ref(), Some(&"told"));
}

#[test]
fn a_conversation_without_messages_is_refused() {
    let mut model = open(DEMO.into());
    let none: Vec<Message> = Vec::new();
    refused(model.generate(none.clone()), "messages must not be empty");
    refused(model.batch([none]), "messages must not be empty");
    assert_eq!(Message::list("[]").unwrap_err().to_string(), "messages must not be empty");
}

/// The end texts of a known format are like tokens that end a text; those of the request are its own wish.
#[test]
fn ignored_ends_of_text_are_those_of_the_format_too() {
    let model = Model::builder(DEMO).gpu_layers(0).context(256).chat_template("chatml");
    let mut model = model.open().unwrap();
    let asked = || {
        let rest = r#"root ::= "a<|im_end|>bc""#;
        Request::new([Message::user("where")]).greedy().grammar(rest).max_tokens(64)
    };
    let mut text = |request: Request| model.chat(request).unwrap().text().unwrap();
    assert_eq!(text(asked()), "a");
    assert_eq!(text(asked().ignore_eos()), "a<|im_end|>bc");
    assert_eq!(text(asked().ignore_eos().stop("c")), "a<|im_end|>b");
}

#[test]
fn the_last_message_of_the_assistant_is_continued_if_that_is_asked_for() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}\
                    {% if add_generation_prompt %}assistant:<think>{% endif %}";
    let model = Model::builder(DEMO).gpu_layers(0).context(256).chat_template(template);
    let mut model = model.parallel(2).open().unwrap();
    let asked = |answer: &str| {
        let messages = [Message::user("where"), Message::assistant(answer)];
        Request::new(messages).greedy().max_tokens(8)
    };
    let text = "user:where;assistant:In fair";
    let with_bos = Encode { add_special: true, ..Encode::default() };
    let tokens = model.tokens_as(text, with_bos).unwrap();
    let request = || Request::new(&tokens[..]).greedy().max_tokens(8);
    let expected = model.generate(request()).unwrap().text().unwrap();
    let continued = || asked("In fair").continue_final_message();
    assert_eq!(model.chat(continued()).unwrap().text().unwrap(), expected);
    assert_ne!(model.chat(asked("In fair")).unwrap().text().unwrap(), expected);
    let mut texts = [String::new(), String::new()];
    for item in model.batch([continued(), request()]).unwrap() {
        let (number, token) = item.unwrap();
        texts[number] += &token.text;
    }
    assert_eq!(texts, [expected.clone(), expected]);
    // Reasoning that has begun goes on.
    let rest = r#"root ::= "so</think>yes""#;
    for (begun, reasoning, content) in
        [("<think>Hm ", "so", "yes"), ("<think>Hm</think>Oh ", "", "so</think>yes")]
    {
        let request = asked(begun).continue_final_message().grammar(rest).max_tokens(64);
        let reply = model.chat(request).unwrap().reply().unwrap();
        assert_eq!((&*reply.reasoning, &*reply.content), (reasoning, content), "{begun}");
    }
    let user = Request::new([Message::user("where")]).continue_final_message();
    refused(model.chat(user), "needs a last message of the assistant");
    let several = [Message::assistant("a"), Message::assistant("b")];
    let several = Request::new(several).continue_final_message();
    refused(model.chat(several), "more than one message of the assistant");
    refused(model.generate(Request::new("a").continue_final_message()), "the prompt is none");
}

#[test]
fn a_reply_has_the_text_that_an_interrupted_answer_withheld() {
    let cancel = Cancel::new();
    let mut model = Model::builder(DEMO).gpu_layers(0).cancel(&cancel).open().unwrap();
    let request = || Request::new("ROMEO:\n").max_tokens(12);
    let texts: Vec<String> =
        model.generate(request()).unwrap().map(|token| token.unwrap().text).collect();
    let stop = texts[4..8].concat() + "\u{1}";
    let mut answer = model.generate(request().stop(stop)).unwrap();
    let text: String = answer.by_ref().take(6).map(|token| token.unwrap().text).collect();
    assert_eq!(text, texts[..4].concat());
    cancel.cancel();
    assert!(answer.next().is_none());
    assert_eq!(answer.parse(&text).content, texts[..6].concat());
}

/// Whatever an answer ends with, a stop string may begin so: it is withheld until then, and ends only once.
#[test]
fn an_answer_may_end_in_the_middle_of_a_stop_string() {
    let mut model = Model::builder(DEMO).gpu_layers(0).context(128).open().unwrap();
    for tokens in 1..12 {
        let request = || Request::new("ROMEO:\n").max_tokens(tokens);
        let whole = model.generate(request()).unwrap().text().unwrap();
        let begin = whole.chars().next_back().unwrap();
        let stop = format!("{begin}\u{1}");
        let found = model.generate(request().stop(&stop)).unwrap().text().unwrap();
        assert_eq!(found, whole, "{stop:?}");
        let reply = model.generate(request().stop(&stop)).unwrap().reply().unwrap();
        assert_eq!(reply.content, whole, "{stop:?}");
    }
}

#[test]
fn models_without_a_head_are_refused_by_name() {
    let folder = folder();
    let mut decoder = open(folder.path().join("tiny.gguf"));
    refused(decoder.rerank("ab", &["abc"]), "generates text");
    refused(decoder.classify(&["abc"]), "generates text");

    let path = folder.path().join("classifier.gguf");
    let mut embedder = Model::builder(&path).gpu_layers(0).embeddings().open().unwrap();
    let vectors = embedder.embed(&["a b c", "z y x"]).unwrap();
    for vector in &vectors {
        let square: f32 = vector.iter().map(|x| x * x).sum();
        assert!((square - 1.0).abs() < 1e-4, "{square}");
    }
    refused(embedder.classify(&["abc"]), "open a classifier");
    refused(embedder.rerank("ab", &["abc"]), "open a reranker");
    refused(Model::builder(&path).lookup().open(), "scorer");
}

#[test]
fn drafts_are_used_and_leave_greedy_answers_as_they_are() {
    let prompt = "ROMEO:\nO me! O me! O me! O me! O";
    let answer = |mut model: Model| {
        let request = Request::new(prompt).greedy().max_tokens(32);
        let mut answer = model.generate(request).unwrap();
        let tokens: Vec<u32> = answer.by_ref().map(|token| token.unwrap().id).collect();
        (tokens, answer.statistics())
    };
    let builder = || Model::builder(DEMO).gpu_layers(0).context(256);
    let (expected, plain) = answer(builder().open().unwrap());
    assert_eq!((expected.len(), plain.drafted), (32, 0));
    for (name, model) in
        [("lookup", builder().lookup()), ("a draft model", builder().draft_model(DEMO))]
    {
        let (found, statistics) = answer(model.open().unwrap());
        assert_eq!(found, expected, "with {name}");
        assert!(statistics.drafted > 0, "{name}: {statistics:?}");
    }
    let (found, one) = answer(builder().draft_model(DEMO).draft_max(1).open().unwrap());
    assert_eq!(found, expected, "with drafts of one token");
    assert!((1..=16).contains(&one.accepted) && one.accepted <= one.drafted, "{one:?}");
    refused(builder().lookup().draft_max(0).open(), "draft-max is 0; it must be between 1 and 64");
    refused(builder().lookup().draft_min(65).open(), "draft-min is 65");
    refused(builder().lookup().draft_p_min(1.5).open(), "draft-p-min is 1.5");
    refused(builder().draft_max(65).open(), "draft-max is 65");
    let (_, same) = answer(builder().draft_model(DEMO).open().unwrap());
    assert!(same.accepted > same.drafted / 2, "a model accepts its own drafts: {same:?}");
}

/// A machine with two GPUs.
const TWO_GPUS: &str = r#"
    cpu = { name = "c", memory = "64GiB", read_gbps = 60, tops = 2, submit_us = 5, kernel_us = 2 }
    gpu = [
        { name = "a", memory = "8GiB", read_gbps = 800, tops = 90, upload_gbps = 20, download_gbps = 20, submit_us = 20, kernel_us = 4, wait_us = 20 },
        { name = "b", memory = "6GiB", read_gbps = 400, tops = 50, upload_gbps = 20, download_gbps = 20, submit_us = 20, kernel_us = 4, wait_us = 20 },
    ]
"#;

/// Every method for placements, beside the flag that is made for it.
#[test]
fn placements_are_those_of_the_command() {
    type Set = fn(Builder<'static>) -> Builder<'static>;
    let folder = folder();
    let machine = folder.path().join("two.toml");
    std::fs::write(&machine, TWO_GPUS).unwrap();
    let simulation = Simulation::described(TWO_GPUS, Execution::Compute).unwrap();
    let builder = || Model::builder(DEMO).simulate(simulation.clone()).context(256);
    let shown = |plan: &serde_json::Value| {
        let of = |device: &serde_json::Value| {
            ["label", "budget_bytes", "weight_bytes", "kv_bytes"].map(|key| device[key].clone())
        };
        let devices: Vec<_> = plan["devices"].as_array().unwrap().iter().map(of).collect();
        let rest = ["map", "gpu_layers", "streaming", "notes"].map(|key| plan[key].clone());
        (rest, devices)
    };
    let rows: [(&str, Set); 11] = [
        ("-ngl all", |model| model),
        ("-ngl all -ot attn_k=cpu -ot ffn=gpu1", |model| {
            model.override_tensor("attn_k", 0).override_tensor("ffn", 2)
        }),
        ("-ngl all -nkvo", |model| model.cache_on_cpu()),
        ("-ngl all -sm none", |model| model.split_mode(SplitMode::None)),
        ("-ngl all -sm none -mg 1", |model| model.split_mode(SplitMode::None).main_gpu(1)),
        ("-ngl all -fitt 2GiB", |model| model.margin_bytes(2 << 30)),
        ("-ngl all -fitt 2GiB,3GiB", |model| model.margin_bytes(2 << 30).margin_bytes(3 << 30)),
        ("-ngl all --vram 2GiB,3GiB", |model| model.gpu_bytes(2 << 30).gpu_bytes(3 << 30)),
        ("-ngl all -ts 1,3", |model| model.tensor_split([1.0, 3.0])),
        ("-ngl 1 --op-offload-min-batch 64", |model| {
            model.gpu_layers(1).op_offload(OpOffload::From(64))
        }),
        ("-ngl 1 -nopo", |model| model.gpu_layers(1).op_offload(OpOffload::Never)),
    ];
    let mut seen = Vec::new();
    for (flags, set) in rows {
        let plan = set(builder().gpu_layers(GpuLayers::All)).plan().unwrap();
        // As the command prints it: numbers that are read from a text may differ in their last digit.
        let found = shown(&serde_json::from_slice(&serde_json::to_vec(&plan).unwrap()).unwrap());
        let mut asked = vec!["plan", "-m", DEMO, "-c", "256", "--json"];
        asked.extend(["--simulate", machine.to_str().unwrap()].into_iter().chain(flags.split(' ')));
        assert_eq!(found, shown(&command(&asked)), "{flags}");
        assert!(!seen.contains(&found), "{flags} changes nothing");
        seen.push(found);
    }
    let all = || builder().gpu_layers(GpuLayers::All);
    refused(all().main_gpu(2).plan(), "main-gpu is 2");
    refused(all().override_tensor("(", 0).plan(), "a regular expression");
    refused(all().override_tensor("attn", 3).plan(), "at most gpu1");
    refused(all().margin_bytes(1).margin_bytes(1).margin_bytes(1).plan(), "a list of 3");
    refused(all().ubatch_size(0).plan(), "ubatch-size is 0");
}

/// The file is longer than memory; the rest of it is a hole.
#[test]
#[cfg(target_os = "linux")]
fn a_plan_reads_no_file_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    std::fs::copy(DEMO, &path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8 << 40).unwrap();
    let builder = || Model::builder(&path).gpu_layers(0).no_mmap();
    builder().plan().unwrap();
    let target = "1 tok/s".parse().unwrap();
    builder().plan_for(&target, &[]).unwrap();
    let path = path.to_str().unwrap();
    command(&["plan", "-m", path, "--no-mmap", "-ngl", "0", "--json"]);
}

#[test]
fn the_cpu_may_run_other_kernels_for_comparison() {
    let first = |model: Builder| {
        let mut model = model.gpu_layers(0).context(64).threads(1).open().unwrap();
        let request = Request::new("ROMEO: O me!").greedy().max_tokens(1).logprobs(1);
        let token = model.generate(request).unwrap().next().unwrap().unwrap();
        token.logprobs.unwrap().0.logprob
    };
    let usual = first(Model::builder(DEMO));
    let rows = [
        Model::builder(DEMO).no_mmap(),
        Model::builder(DEMO).unfused(),
        Model::builder(DEMO).cpu_level(CpuLevel::Scalar).ubatch_size(2),
    ];
    for model in rows {
        let found = first(model);
        assert!((found - usual).abs() < 0.05, "{found}, {usual}");
    }
}

#[test]
fn the_cpu_may_divide_its_weights_and_round_them_in_prompts() {
    let first = |model: Builder| {
        let mut model = model.gpu_layers(0).context(512).threads(2).open().unwrap();
        let request = Request::new("ROMEO: O me! ".repeat(60)).greedy().max_tokens(1).logprobs(1);
        let token = model.generate(request).unwrap().next().unwrap().unwrap();
        (token.logprobs.unwrap().0.logprob, model.plan().notes.join("; "))
    };
    let builder = || Model::builder(DEMO);
    let (whole, _) = first(builder());
    let (divided, notes) = first(builder().numa(Numa::Simulate(2)));
    assert_eq!(divided, whole, "the same bits");
    assert!(notes.contains("copied to 2 simulated NUMA nodes"), "{notes}");
    let (rounded, _) = first(builder().fast_prefill());
    let rounds = matches!(Level::detect(), Level::Avx512Vnni | Level::Avx512Bf16);
    assert!((rounded - whole).abs() < 0.1 && (rounded != whole) == rounds, "{rounded}, {whole}");
}

/// Kilobytes of memory that this process has locked.
#[cfg(target_os = "linux")]
fn locked_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn weights_may_be_locked_in_memory() {
    let before = locked_kb();
    let open = || Model::builder(DEMO).gpu_layers(0).context(64).mlock().open();
    match open() {
        Ok(model) => {
            let len_kb = std::fs::metadata(DEMO).unwrap().len() / 1024;
            assert!(locked_kb() >= before + len_kb, "{before} {}", locked_kb());
            drop(model);
            assert_eq!(locked_kb(), before);
        }
        Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
    }
}

/// A table of positions is a matrix, too, but multiplied with nothing.
#[test]
fn an_adapter_of_what_is_no_factor_is_refused() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("gpt2.gguf"), words::tiny_of("gpt2")).unwrap();
    let open = |matrix: &str| {
        std::fs::write(path("a.gguf"), words::adapter_of(&path("gpt2.gguf"), &[matrix], 2))
            .unwrap();
        Model::builder(path("gpt2.gguf")).gpu_layers(0).lora(path("a.gguf"), 1.0).open()
    };
    open("blk.0.attn_output.weight").unwrap();
    let error = open("position_embd.weight").err().unwrap().to_string();
    assert!(error.contains("position_embd.weight.lora_a"), "{error}");
}

#[test]
fn a_draft_model_needs_the_same_vocabulary() {
    let folder = folder();
    let tiny = folder.path().join("tiny.gguf");
    let error =
        Model::builder(DEMO).gpu_layers(0).draft_model(tiny).open().err().expect("an error");
    assert!(error.to_string().contains("vocabular"), "{error}");
}

/// A template that writes tools and calls as the hermes format does.
const CALLING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}\
                       {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};\
                       {% endfor %}assistant:";

#[test]
fn functions_are_told_and_calls_are_parts_of_the_reply() {
    let mut model =
        Model::builder(DEMO).gpu_layers(0).context(512).chat_template(CALLING).open().unwrap();
    let tools = Tools::parse(
        r#"[{"type": "function", "function": {"name": "now", "parameters":
            {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"]}}}]"#,
    )
    .unwrap();
    let ask = || Request::new([Message::user("when")]).greedy().max_tokens(96);
    let untold = model.chat(ask()).unwrap().prompt_tokens();
    let told = model.chat(ask().tools(tools.clone())).unwrap().prompt_tokens();
    assert!(told > untold + 20, "the template is given the functions: {told}, {untold}");
    // The grammar makes a model call that does not know how.
    let call = r#"root ::= "so: <tool_call>{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>""#;
    let reply = model.chat(ask().tools(tools.clone()).grammar(call)).unwrap().reply().unwrap();
    let now = Function { name: "now".to_owned(), arguments: "{\"zone\": \"UTC\"}".to_owned() };
    assert_eq!(reply, Reply { content: "so:".to_owned(), calls: vec![now], ..Reply::default() });
    let untold = model.chat(ask().grammar(call)).unwrap().reply().unwrap();
    assert!(untold.calls.is_empty() && untold.content.contains("now"), "{untold:?}");
    refused(model.generate(Request::new("when").tools(tools)), "in a conversation");
    let given = |calls: &str| {
        format!(
            r#"[{{"role": "user", "content": "when"}}, {{"role": "assistant", "content": null{calls}}},
                {{"role": "tool", "content": [{{"type": "text", "text": "now"}}]}}]"#
        )
    };
    let mut count = |calls: &str| {
        let messages = Message::list(&given(calls)).unwrap();
        model.chat(Request::new(messages).max_tokens(1)).unwrap().prompt_tokens()
    };
    let plain = count("");
    let called =
        count(r#", "tool_calls": [{"function": {"name": "now", "arguments": {"zone": "UTC"}}}]"#);
    assert!(called > plain + 10, "the template is given the calls: {called}, {plain}");
    let plain = model.generate(Request::new("ROMEO:").greedy().max_tokens(4)).unwrap();
    assert!(!plain.reply().unwrap().content.is_empty());
}

/// What a command writes on standard output, as JSON.
fn command(arguments: &[&str]) -> serde_json::Value {
    let ran = Command::new(env!("CARGO_BIN_EXE_bilayer")).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn files_are_quantized_as_by_the_command() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let same = |method: Method<'_>, ty: &str, flags: &[&str]| {
        let quantize = Quantize { requantize: true, ..Quantize::new(mix(ty).unwrap()) };
        let (input, out) = (path("tiny.gguf"), path("library.gguf"));
        let mut steps = Vec::new();
        let job = Job { method, ..Job::new(&input, &out, quantize) };
        let done = job.run(&mut |event| {
            if let Event::Progress(step, ..) = event {
                steps.push(step);
            }
            ControlFlow::Continue(())
        });
        let theirs = path("command.gguf");
        let asked = ["quantize", input.to_str().unwrap(), theirs.to_str().unwrap(), ty, "--json"];
        let asked = [&asked, &["--allow-requantize"][..], flags].concat();
        let reported = command(&asked);
        assert_eq!(done.unwrap().to_bytes, reported["bytes"].as_u64().unwrap());
        assert!(std::fs::read(&out).unwrap() == std::fs::read(&theirs).unwrap(), "{asked:?}");
        steps.dedup();
        steps
    };
    let blocks = |imatrix| Method::Blocks { imatrix };
    assert_eq!(same(blocks(None), "Q4_0", &[]), [quantize::Step::Writing]);
    let text = "a b c d e f g h ".repeat(64);
    std::fs::write(path("text.txt"), &text).unwrap();
    let importance = Model::builder(path("tiny.gguf")).gpu_layers(0).context(16);
    let (given, theirs, named) = (path("imatrix.gguf"), path("theirs.gguf"), path("text.txt"));
    let importance = importance.imatrix(&text, named.to_str().unwrap()).unwrap().unwrap();
    importance.write(&given).unwrap();
    let tiny = path("tiny.gguf");
    let asked =
        ["imatrix", "-m", tiny.to_str().unwrap(), "-f", named.to_str().unwrap(), "-c", "16"];
    let rest = ["-ngl", "0", "-o", theirs.to_str().unwrap(), "--json"];
    assert!(command(&[&asked[..], &rest].concat())["windows"].as_u64().unwrap() > 4);
    assert!(std::fs::read(&given).unwrap() == std::fs::read(&theirs).unwrap());
    let flags = ["--imatrix", given.to_str().unwrap()];
    assert_eq!(same(blocks(Some(&given)), "Q4_0", &flags), [quantize::Step::Writing]);
    let calibration = Calibration { text: &text, window_len: 16, windows: 4 };
    let method = Method::Activations { smooth: None, gptq: true, refine: true, text: calibration };
    let text = path("text.txt");
    let flags = ["--gptq", "--calibration", text.to_str().unwrap(), "-c", "16", "--chunks", "4"];
    let steps = [quantize::Step::Rounding, quantize::Step::Writing];
    assert_eq!(same(method, "Q4_0", &flags), steps);
}

#[test]
fn a_checkpoint_is_converted_as_by_the_command() {
    let folder = folder();
    let (out, theirs) = (folder.path().join("library.gguf"), folder.path().join("command.gguf"));
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train_demo/checkpoint");
    let plan = Convert::default().plan(checkpoint.as_ref()).unwrap();
    plan.write(&out, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let reported =
        command(&["convert", checkpoint, "--outfile", theirs.to_str().unwrap(), "--json"]);
    assert_eq!(plan.bytes(), reported["bytes"].as_u64().unwrap());
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&theirs).unwrap());
    let error = Convert::default().plan(folder.path()).err().unwrap();
    assert!(error.to_string().contains("config.json"), "{error}");
}

#[test]
fn adapters_are_those_of_the_command() {
    let listed = command(&["devices", "--json"]);
    let names: Vec<&str> = listed["adapters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    let found = bilayer::adapters();
    assert_eq!(found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), names);
}

#[test]
fn files_are_inspected_as_by_the_command() {
    let folder = folder();
    for name in ["tiny.gguf", "classifier.gguf"] {
        let path = folder.path().join(name);
        let found = Inspection::open(&path).unwrap();
        let reported = command(&["inspect", path.to_str().unwrap(), "--json"]);
        assert_eq!(serde_json::to_value(&found).unwrap(), reported);
        assert!(found.problems.is_empty() && found.parameters > 0, "{found:?}");
    }
    let missing = Inspection::open(&folder.path().join("missing.gguf")).unwrap_err();
    assert!(missing.to_string().contains("missing.gguf"), "{missing}");
}

#[test]
fn what_cannot_be_quantized_is_refused_by_file() {
    let folder = folder();
    let (input, out) = (folder.path().join("tiny.gguf"), folder.path().join("out.gguf"));
    let job = Job::new(&input, &out, Quantize::new(mix("Q4_0").unwrap()));
    let error = job.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().starts_with(input.to_str().unwrap()), "{error}");
    assert_eq!(error.exit_code() as u8, 2, "{error}");
    let quantize = Quantize { requantize: true, ..job.quantize.clone() };
    let job = Job { quantize, ..job };
    let stopped = job.run(&mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(stopped.exit_code() as u8, 130, "{stopped}");
    let missing = folder.path().join("missing.gguf");
    let error = Job { input: &missing, ..job }.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("missing.gguf"), "{error}");
    assert_eq!(error.exit_code() as u8, 66, "{error}");
    assert!(!out.exists());
}

#[test]
fn speed_and_perplexity_are_measured_as_by_the_commands() {
    let folder = folder();
    let text = folder.path().join("text.txt");
    let words = "What is past is prologue. ".repeat(40);
    std::fs::write(&text, &words).unwrap();
    let model = || Model::builder(DEMO).gpu_layers(0).context(64);
    let report = model().perplexity(&words).unwrap().unwrap();
    let asked = ["perplexity", "-m", DEMO, "-f", text.to_str().unwrap(), "-c", "64", "-ngl", "0"];
    let reported = command(&[&asked[..], &["--json"]].concat());
    let found = report.estimate.perplexity().value;
    assert_eq!(found, reported["perplexity"].as_f64().unwrap());
    assert_eq!(report.windows as u64, reported["windows"].as_u64().unwrap());
    let tests = [Test { prompt: 8, ..Test::default() }, Test { generate: 4, ..Test::default() }];
    let method = bench::Method { repetitions: 2, warm_up: false, ..Default::default() };
    let bilayer::Benched { plan, measured, .. } = model().bench(&tests, &method).unwrap().unwrap();
    assert_eq!(plan.gpu_layers, 0);
    refused(model().bench(&[Test::default()], &method), "at least one with tokens");
    assert_eq!(measured.iter().map(|measured| measured.test).collect::<Vec<_>>(), tests);
    assert!(measured.iter().all(|measured| measured.samples_ns.len() == 2), "{measured:?}");
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(model().cancel(&cancel).bench(&tests, &method).unwrap().is_none());
    assert!(model().cancel(&cancel).perplexity(&words).unwrap().is_none());
    assert!(model().cancel(&cancel).imatrix(&words, "words").unwrap().is_none());
    let ended = model().cancel(&cancel).verify("ROMEO:", Side::Reference, Some(Side::Cpu(None)));
    assert_eq!(ended.expect_err("an error").exit_code() as u8, 130);
    refused(model().perplexity("short"), "two windows");
    let sides = ["verify", "-m", DEMO, "-p", "ROMEO: O", "--a", "reference", "--b", "cpu:scalar"];
    let reported = command(&[&sides[..], &["--json"]].concat());
    let scalar = Some(Side::Cpu(Some(CpuLevel::Scalar)));
    let verified = model().verify("ROMEO: O", Side::Reference, scalar).unwrap();
    assert_eq!(verified.report.ops.len(), reported["ops"].as_array().unwrap().len());
    assert_eq!(verified.report.is_good(), reported["ok"].as_bool().unwrap());
    refused(model().verify(&"a b ".repeat(600), Side::Reference, scalar), "between 1 and 512");
    let alone = model().verify("ROMEO:", Side::Cpu(None), None).unwrap();
    // None was asked for.
    assert!(alone.second == Side::Reference && alone.without_gpu.is_none(), "{alone:?}");
    let encoder = Model::builder(folder.path().join("reranker.gguf")).perplexity(&words);
    refused(encoder, "is an encoder");
}
