//! The promise of `bench`: its output has llama-bench's fields, its numbers are consistent, lists and ranges expand to the
//! right tests, and the output is a complete document however a run ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::ops::ControlFlow;
use std::path::Path;

use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::Overlap;
use bilayer_gguf::File;
use bilayer_measure::Error;
use bilayer_measure::bench::{Bench, Method, Setup, Test};
use bilayer_quant::Type;
use bilayer_scheduler::Offload;
use serde_json::Value;

mod support {
    pub mod gpu;
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::program::{Place, Ran, ran};
use support::words;

/// llama-bench's JSON fields in its order, and what each value is: s, i, f, b for text, whole number, number, truth;
/// I and F for lists of them. From the output of llama-bench b7500 or thereabouts.
const FIELDS: &str = "build_commit:s build_number:i cpu_info:s gpu_info:s backends:s model_filename:s model_type:s \
    model_size:i model_n_params:i n_batch:i n_ubatch:i n_threads:i cpu_mask:s cpu_strict:b poll:i type_k:s type_v:s \
    n_gpu_layers:i n_cpu_moe:i split_mode:s main_gpu:i no_kv_offload:b flash_attn:i devices:s tensor_split:s \
    tensor_buft_overrides:s use_mmap:b use_direct_io:b embeddings:b no_op_offload:i no_host:b fit_target:i \
    fit_min_ctx:i n_prompt:i n_gen:i n_depth:i test_time:s avg_ns:i stddev_ns:i avg_ts:f stddev_ts:f samples_ns:I \
    samples_ts:F";

/// Our own fields, in order.
const OWN: [&str; 22] = [
    "n_parallel",
    "placement",
    "adapter",
    "cpu_level",
    "numa",
    "k_cache_hadamard",
    "fast_prefill",
    "step_bytes",
    "cpu_step_bytes",
    "weight_gbps",
    "cpu_weight_gbps",
    "probe_gbps",
    "probe_share",
    "cpu_busy",
    "gpu_busy",
    "crossing_busy",
    "peak_resident_bytes",
    "adapter_bytes",
    "predicted_token_ms",
    "warm_up",
    "kernels",
    "device_busy",
];

/// A place with `model.gguf`, random weights of a tiny model of three layers.
fn place() -> Place {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::Q8_0, 1));
    place
}

fn rows(ran: Ran) -> Vec<Value> {
    ran.json().as_array().unwrap().clone()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"))
}

fn numbers(row: &Value, name: &str) -> Vec<f64> {
    row[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[track_caller]
fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{what}: {found}, not {expected}");
}

fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (samples.len() - 1) as f64).sqrt())
}

/// Checks names, order and types of the fields.
fn check_fields(row: &Value) {
    let found: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let fields: Vec<(&str, &str)> =
        FIELDS.split_whitespace().map(|field| field.split_once(':').unwrap()).collect();
    let names = fields.iter().map(|(name, _)| *name);
    assert_eq!(found, names.chain(OWN).collect::<Vec<_>>());
    for (name, kind) in fields {
        let value = &row[name];
        let items = value.as_array();
        let is_right = match kind {
            "s" => value.is_string(),
            "i" => value.is_i64() || value.is_u64(),
            "f" => value.is_f64(),
            "b" => value.is_boolean(),
            "I" => items.is_some_and(|items| items.iter().all(Value::is_u64)),
            "F" => items.is_some_and(|items| items.iter().all(Value::is_f64)),
            other => panic!("{other}"),
        };
        assert!(is_right, "{name} is {value}, not {kind}");
    }
}

/// Checks that derived numbers agree with those they are computed from.
fn check_numbers(row: &Value, repetitions: usize) {
    let parallel = number(row, "n_parallel");
    let each = number(row, "n_prompt") + number(row, "n_gen");
    let tokens = parallel * each;
    let (ns, ts) = (numbers(row, "samples_ns"), numbers(row, "samples_ts"));
    assert_eq!((ns.len(), ts.len()), (repetitions, repetitions));
    for (ns, ts) in ns.iter().zip(&ts) {
        assert!(*ns > 0.0);
        near(*ts, 1e9 * tokens / ns, "samples_ts");
    }
    let ((ns, ns_deviation), (ts, ts_deviation)) =
        (mean_and_deviation(&ns), mean_and_deviation(&ts));
    near(number(row, "avg_ts"), ts, "avg_ts");
    near(number(row, "stddev_ts"), ts_deviation, "stddev_ts");
    assert!((number(row, "avg_ns") - ns).abs() <= 1.0, "{row}");
    assert!((number(row, "stddev_ns") - ns_deviation).abs() <= 1.0, "{row}");

    let busy = ["cpu_busy", "gpu_busy", "crossing_busy"].map(|name| number(row, name));
    assert!(busy.iter().all(|share| (0.0..=1.001).contains(share)), "{row}");
    // A busy machine may hold up a step, so that there is no lower bound.
    assert!(busy[0] + busy[1] > 0.0, "{row}");
    let devices = row["device_busy"].as_array().unwrap();
    let shares: Vec<f64> = devices.iter().map(|device| number(device, "busy")).collect();
    near(shares[0], busy[0], "busy share of the CPU");
    assert!((shares[1..].iter().sum::<f64>() - busy[1]).abs() < 1e-6, "{row}");
    for device in devices {
        assert!(device["name"].is_string() && number(device, "busy_ms") >= 0.0, "{row}");
    }
    if row["n_prompt"] != 0 {
        assert!(row["weight_gbps"].is_null() && row["probe_gbps"].is_null(), "{row}");
        return;
    }
    // A step reads the weights once for a token of each sequence.
    let steps = ts / parallel;
    near(number(row, "weight_gbps"), number(row, "step_bytes") * steps / 1e9, "weight_gbps");
    let reads = number(row, "cpu_step_bytes") >= 0.01 * number(row, "step_bytes");
    if row["cpu_weight_gbps"].is_null() || row["probe_gbps"].is_null() || !reads {
        assert!(row["probe_share"].is_null());
        return;
    }
    let share = number(row, "cpu_weight_gbps") / number(row, "probe_gbps");
    near(number(row, "probe_share"), share, "probe_share");
    if row["gpu_busy"] == 0.0 {
        // The time in steps is at most the total time.
        let seconds = numbers(row, "samples_ns").iter().sum::<f64>() / 1e9;
        let least = number(row, "step_bytes") * each * repetitions as f64 / seconds / 1e9;
        assert!(number(row, "cpu_weight_gbps") >= 0.999 * least, "{row}");
    }
}

#[test]
fn a_step_reads_the_experts_its_tokens_are_routed_to() {
    let place = place();
    let shape = "--layers 2 --width 64 --heads 2 --kv-heads 2 --ffn 96 --vocab 512 --type Q8_0";
    place.run(&format!("synth --shape mixtral-8x7b {shape} experts.gguf")).good();
    let file = File::open(&place.path().join("experts.gguf")).unwrap();
    let bytes = |is_counted: &dyn Fn(&str) -> bool| -> f64 {
        let counted = file.tensors().iter().filter(|tensor| is_counted(tensor.name()));
        counted.map(|tensor| tensor.layout().len_bytes() as f64).sum()
    };
    let experts = bytes(&|name| name.contains("_exps"));
    let table = bytes(&|name| name == "token_embd.weight");
    let others = bytes(&|name| !name.contains("_exps") && name != "token_embd.weight");
    for row in rows(place.run("bench -m experts.gguf -p 0 -n 2 -np 1,4 -r 1 -ngl 0 --json")) {
        let tokens = number(&row, "n_parallel");
        // A token skips each of 8 experts with probability 3/4.
        let used = experts * (1.0 - 0.75f64.powf(tokens));
        let expected = others + used + table / 512.0 * tokens;
        assert!((number(&row, "step_bytes") - expected).abs() < 10.0, "{row} {expected}");
    }
}

#[test]
fn json_has_llama_benchs_fields_and_consistent_numbers() {
    let place = place();
    let bytes = words::tiny(Type::Q8_0, 1);
    let file = File::from_bytes("tiny", bytes).unwrap();
    let line = "bench -m model.gguf -p 9 -n 3 -pg 4,2 -d 0,5 -r 3 -ngl 0 -t 2 -b 4 -ub 2 -ctk f32";
    let rows = rows(place.run(&format!("{line} --json")));
    let sizes =
        |row: &Value| ["n_prompt", "n_gen", "n_depth"].map(|name| row[name].as_u64().unwrap());
    let tests: Vec<_> = rows.iter().map(sizes).collect();
    let each = |depth| [[9, 0, depth], [0, 3, depth], [4, 2, depth]];
    assert_eq!(tests, [each(0), each(5)].concat());
    let time = "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z$";
    let time = regex::Regex::new(time).unwrap();
    for row in &rows {
        check_fields(row);
        check_numbers(row, 3);
        let layouts = file.tensors().iter().map(|tensor| tensor.layout());
        assert_eq!(row["model_size"], layouts.clone().map(|l| l.len_bytes()).sum::<u64>());
        assert_eq!(row["model_n_params"], layouts.map(|l| l.elements()).sum::<u64>());
        let expected = [
            ("model_filename", "model.gguf"),
            ("backends", "CPU"),
            ("gpu_info", ""),
            ("type_k", "f32"),
            ("type_v", "f16"),
            ("tensor_buft_overrides", "none"),
            ("placement", "out:cpu 2-0:cpu"),
        ];
        for (name, expected) in expected {
            assert_eq!(row[name], expected, "{name}");
        }
        for (name, expected) in
            [("n_threads", 2), ("n_batch", 4), ("n_ubatch", 2), ("n_gpu_layers", 0)]
        {
            assert_eq!(row[name], expected, "{name}");
        }
        assert_eq!((&row["use_mmap"], &row["warm_up"]), (&true.into(), &true.into()));
        assert!(row["model_type"].as_str().unwrap().starts_with("llama "), "{row}");
        assert!(time.is_match(row["test_time"].as_str().unwrap()), "{row}");
        // All tensors in full, except one row of the embedding, plus all of it where it is also the head.
        let table = file.tensor("token_embd.weight").unwrap().layout();
        let is_head = file.tensor("output.weight").is_none();
        let whole = if is_head { 0 } else { table.len_bytes() };
        let row_bytes = table.len_bytes() / table.shape()[0];
        let size = row["model_size"].as_u64().unwrap();
        assert_eq!(row["step_bytes"], size - whole + row_bytes);
        assert!(row["kernels"].as_array().unwrap().len() >= 5, "{row}");
        if cfg!(target_os = "linux") {
            assert!(number(row, "peak_resident_bytes") > 1e6, "{row}");
        }
    }
    let share = |row: &&Value| !row["probe_share"].is_null();
    assert_eq!(rows.iter().filter(share).count(), 2, "those that only generate");
}

#[test]
fn sequences_generate_together_and_are_counted_together() {
    let place = place();
    let line = "bench -m model.gguf -p 3 -n 4 -np 1,3 -d 2 -r 2 -ngl 0 -t 2 --json";
    let rows = rows(place.run(line));
    let sizes =
        |row: &Value| ["n_prompt", "n_gen", "n_parallel"].map(|name| row[name].as_u64().unwrap());
    let tests: Vec<_> = rows.iter().map(sizes).collect();
    assert_eq!(tests, [[3, 0, 1], [3, 0, 3], [0, 4, 1], [0, 4, 3]]);
    for row in &rows {
        check_fields(row);
        check_numbers(row, 2);
    }
    let md =
        place.run("bench -m model.gguf -p 0 -n 2 -np 4 -d 3 -r 1 -ngl 0 --no-probe").good().out;
    assert!(md.contains("tg2 x4 @ d3"), "{md}");
    let refused = place.run("bench -m model.gguf -np 300");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("256 sequences"), "{refused:?}");
    // A step generates one token of each; prompts run one after the other.
    let refused = place.run("bench -m model.gguf -p 0 -n 2 -np 1,9 -ub 16,8 -r 1 -ngl 0");
    let said = "parallel (-np) is 9; it must be at most the 8 tokens of a step (-ub)";
    assert!(refused.code == Some(2) && refused.err.contains(said), "{refused:?}");
    place.run("bench -m model.gguf -p 4 -n 0 -np 9 -ub 8 -r 1 -ngl 0 --no-probe").good();
}

/// Attention to a filled cache takes time; for several sequences nothing is predicted.
#[test]
fn tokens_are_predicted_at_the_depth_of_their_test() {
    let place = Place::new();
    place.run("synth --shape llama-8b --hollow 8b.gguf").good();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/machines/rtx-4090.toml");
    let line = "bench -m 8b.gguf -p 8 -n 2 -d 0,4096 -np 1,2 -r 1 -ngl all --no-compute --json";
    let mut command = place.command(line);
    let rows = rows(ran(command.arg("--simulate").arg(machine)));
    for row in &rows {
        let [generated, parallel, depth] =
            ["n_gen", "n_parallel", "n_depth"].map(|name| row[name].as_u64().unwrap());
        let predicted = row["predicted_token_ms"].as_f64();
        if generated == 0 || parallel > 1 {
            assert_eq!(predicted, None, "{row}");
            continue;
        }
        let ms = number(row, "avg_ns") / 1e6 / generated as f64;
        assert!((predicted.unwrap() / ms - 1.0).abs() < 0.02, "depth {depth}: {row}");
    }
    assert_eq!(rows.len(), 8);
}

#[test]
fn every_format_has_the_same_values() {
    let place = place();
    let line = "bench -m model.gguf -p 4 -n 2 -r 2 -ngl 0 --no-probe --no-warmup";
    let names: Vec<&str> = FIELDS
        .split_whitespace()
        .map(|field| field.split_once(':').unwrap().0)
        .chain(OWN)
        .collect();

    let lines = place.run(&format!("{line} -o jsonl")).good().out;
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        check_fields(row);
        check_numbers(row, 2);
        assert_eq!((&row["warm_up"], &row["probe_gbps"]), (&false.into(), &Value::Null));
    }

    let csv = place.run(&format!("{line} -o csv")).good().out;
    // SQL has the fields of CSV, and -oe another form on stderr.
    let both = place.run(&format!("{line} -o sql -oe csv")).good();
    let fields = csv.lines().next().unwrap();
    assert!(both.err.contains(fields), "{}", both.err);
    let inserted = format!("INSERT INTO llama_bench ({}) VALUES (", fields.replace(',', ", "));
    assert_eq!(both.out.matches(&inserted).count(), csv.lines().count() - 1, "{}", both.out);
    assert!(both.out.starts_with("CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,"));
    let lines: Vec<&str> = csv.lines().collect();
    let head: Vec<&str> = lines[0].split(',').collect();
    let is_json_only = |name: &&str| name.starts_with("samples_") || *name == "device_busy";
    let scalars = names.iter().copied().filter(|name| !is_json_only(name));
    assert_eq!(head, scalars.collect::<Vec<_>>());
    assert_eq!(lines.len(), 3);
    for (line, tokens) in lines[1..].iter().zip([("4", "0"), ("0", "2")]) {
        let inner = line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap();
        let cells: Vec<&str> = inner.split("\",\"").collect();
        assert_eq!(cells.len(), head.len(), "{line}");
        let cell = |name: &str| cells[head.iter().position(|head| *head == name).unwrap()];
        assert_eq!((cell("n_prompt"), cell("n_gen")), tokens);
        assert_eq!((cell("use_mmap"), cell("cpu_strict"), cell("adapter")), ("1", "0", ""));
        let decimals = cell("avg_ts").split_once('.').unwrap().1;
        assert_eq!(decimals.len(), 6, "{line}");
    }

    let md = place.run(&format!("{line} -d 3 -o md")).good().out;
    let cells = |line: &str| -> Vec<String> {
        let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap();
        inner.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let lines: Vec<&str> = md.lines().collect();
    let head = ["model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "of read"];
    assert_eq!(cells(lines[0]), head);
    assert!(lines[1].chars().all(|c| "|-: ".contains(c)), "{md}");
    let widths: Vec<usize> = lines[..4].iter().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|&width| width == widths[0]), "{md}");
    let speed = regex::Regex::new("^[0-9]+\\.[0-9]{2} ± [0-9]+\\.[0-9]{2}$").unwrap();
    for (line, test) in lines[2..4].iter().zip(["pp4 @ d3", "tg2 @ d3"]) {
        let cells = cells(line);
        assert_eq!((cells[3].as_str(), cells[5].as_str()), ("CPU", test));
        assert!(speed.is_match(&cells[6]), "{line}");
        assert_eq!(cells[7].is_empty(), test.starts_with("pp"), "{line}");
    }
    for part in ["\nbuild: ", "\ncpu: ", "\nkernels: "] {
        assert!(md.contains(part), "{part} in {md}");
    }
}

#[test]
fn lists_and_ranges_make_every_combination() {
    let place = place();
    let line =
        "bench -m model.gguf -p 2-8*2 -n 1-5+2 -n 0 -r 1 -ngl 0 -t 1,2 --no-probe -o jsonl -fa 0,1";
    let lines = place.run(line).good().out;
    let made: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut expected = Vec::new();
    for flash_attn in [0, 1] {
        for threads in [1, 2] {
            let tests = [(2, 0), (4, 0), (8, 0), (0, 1), (0, 3), (0, 5)];
            expected
                .extend(tests.map(|(prompt, generate)| [flash_attn, threads, prompt, generate]));
        }
    }
    let found = made.iter().map(|row| {
        ["flash_attn", "n_threads", "n_prompt", "n_gen"].map(|name| row[name].as_u64().unwrap())
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // The deviation of one sample is 0.
    assert!(made.iter().all(|row| row["stddev_ts"] == 0.0 && row["stddev_ns"] == 0));
    place.file("bilayer.toml", "threads = 1\nno-kv-offload = true\nn-predict = 7\n");
    let line = "bench -m model.gguf -p 2 -n 0 -r 1 -ngl 0 -mmp 1,0 --json";
    let rows = rows(place.run(line));
    let found = rows.iter().map(|row| (&row["n_threads"], &row["no_kv_offload"], &row["use_mmap"]));
    let (one, yes, no) = (&Value::from(1), &Value::from(true), &Value::from(false));
    assert_eq!(found.collect::<Vec<_>>(), [(one, yes, yes), (one, yes, no)]);
    let levels = place.run("bench -m model.gguf -p 0 -n 1 -r 1 -ngl 0 --cpu-level scalar --json");
    assert_eq!(levels.json()[0]["cpu_level"], "scalar");
}

#[test]
fn without_a_model_it_is_the_demo_model() {
    let place = Place::new();
    let rows = rows(place.run("bench -p 16 -n 4 -r 2 -ngl 0 --json --trace trace.json"));
    for row in &rows {
        check_fields(row);
        check_numbers(row, 2);
        assert_eq!(row["model_filename"], "demo");
        assert_eq!(row["use_mmap"], false);
    }
    assert_eq!(rows[0]["model_type"], "llama 5.25M Q4_K - Medium");
    let trace = std::fs::read(place.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
}

#[test]
fn errors_name_the_flag() {
    let place = place();
    place.file("learned.gguf", words::tiny_of("gpt2"));
    let cases = [
        ("-p 5-2", 2, "'--n-prompt <LIST>': 5 is more than 2"),
        ("-n 1-9*1", 2, "'--n-gen <LIST>': the range never ends"),
        ("-d x", 2, "'--n-depth <LIST>': it must be a number or a range"),
        ("-pg 512", 2, "'--prompt-gen <PROMPT,GEN>': it must be two numbers"),
        ("-ngl many", 2, "'--gpu-layers <LIST>': it must be auto, all"),
        ("-ub 0", 2, "'--ubatch-size <LIST>': it must be at least 1"),
        ("-ctk q4_k", 2, "'--cache-type-k <LIST>'"),
        ("-r 0", 2, "'--repetitions <N>'"),
        ("-o xml", 2, "'--output <FORM>'"),
        ("-o md --json", 2, "--json"),
        ("-p 0 -n 0", 2, "nothing to measure: -p, -n and -pg are 0"),
        ("-p 1-1000 -n 1-1000 -d 1-9", 2, "18000 results"),
        ("-t 600", 2, "threads is 600"),
        ("--cpu-level none", 2, "none"),
        ("-mg 1", 2, "main-gpu is 1; it must be below 1"),
        ("-m learned.gguf -p 8 -d 100000", 2, "reduce -p, -n, -pg or -d"),
        ("-m missing.gguf", 66, "missing.gguf"),
        ("-dev nothing-of-this-name -p 1 -n 0", 69, "no GPU `nothing-of-this-name`"),
        ("-p 1 -n 0 -r 1 -ngl 0 --trace no/such/folder.json", 73, "no/such/folder.json"),
    ];
    for (flags, code, part) in cases {
        let model = if flags.contains("-m ") { "" } else { "-m model.gguf" };
        let ran = place.run(&format!("bench {model} {flags}"));
        assert_eq!(ran.code, Some(code), "{flags}: {ran:?}");
        let last = ran.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("bilayer: ") && last.contains(part), "{flags}: {ran:?}");
        assert!(ran.out.is_empty(), "{flags}: {ran:?}");
    }
}

/// An interrupted run leaves a complete document with the results so far.
#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_complete_document() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    let place = place();
    let line = "bench -m model.gguf -p 1-999 -n 0 -r 50 -ngl 0 --no-probe -o json";
    let mut command = place.command(line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("  },\n") {
        assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rows: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(!rows.is_empty() && rows.len() < 200, "{}", rows.len());
    rows.iter().for_each(check_fields);
}

#[test]
fn layers_move_if_only_their_number_differs() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let place = place();
    let line = "bench -m model.gguf -p 0 -n 4 -d 3 -r 2 -dev software -ngl 0,1-3,all --json";
    let rows = rows(place.run(line));
    let column = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("n_gpu_layers"), [0, 1, 2, 3, 4]);
    let maps = ["2-0:cpu", "2-0:cpu", "2:gpu 1-0:cpu", "2-1:gpu 0:cpu", "2-0:gpu"];
    for (row, map) in rows.iter().zip(maps) {
        check_fields(row);
        check_numbers(row, 2);
        assert!(row["placement"].as_str().unwrap().ends_with(map), "{row}");
        assert_eq!((&row["devices"], &row["backends"]), (&"software".into(), &"Vulkan".into()));
        let is_offloaded = row["n_gpu_layers"] != 0;
        assert_eq!(number(row, "gpu_busy") > 0.0, is_offloaded, "{row}");
        assert_eq!(
            number(row, "step_bytes") > number(row, "cpu_step_bytes"),
            is_offloaded,
            "{row}"
        );
    }
    assert!(numbers_fall(&column("cpu_step_bytes")), "{rows:?}");
}

fn numbers_fall(values: &[Value]) -> bool {
    values.windows(2).all(|pair| pair[0].as_u64() > pair[1].as_u64())
}

/// In the engine, one session serves every placement, and its sequence keeps the tokens before the test.
#[test]
fn a_session_is_kept_from_placement_to_placement() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::Q8_0, 1)).unwrap();
    let placing = |count| Placing {
        gpu_layers: Offload::Count(count),
        devices: vec!["software".to_owned()],
        ..Placing::default()
    };
    let mut too_small = placing(4);
    (too_small.vram_bytes, too_small.margin_bytes) = (vec![1], vec![0]);
    let setup = Setup {
        threads: Some(1),
        cpu_level: None,
        fast_prefill: false,
        numa: Default::default(),
        context: 16,
        parallel: 1,
        ubatch_size: 8,
        cache_type_k: Type::F16,
        cache_type_v: Type::F16,
        hadamard_keys: false,
        fuse: true,
        overlap: Overlap::Auto,
        trace_events: None,
        placings: vec![placing(0), placing(2), too_small, placing(4)],
    };
    let method = Method { repetitions: 2, warm_up: true, batch_size: 8, probe: false };
    let test = Test { prompt: 3, generate: 2, depth: 5, parallel: 1 };
    let never = bilayer_engine::Cancel::new();
    let mut bench = Bench::new(&model);
    let mut told = 0;
    let mut loads = Vec::new();
    for number in [0, 1, 2, 3, 0] {
        let made = bench
            .ready(&setup, number, &mut |_| {
                told += 1;
                ControlFlow::Continue(())
            })
            .map(|session| session.plan().gpu_layers);
        loads.push(std::mem::take(&mut told));
        match made {
            Ok(count) => assert_eq!(count, [0, 2, 0, 4][number]),
            Err(error) => {
                // A placement that does not fit leaves the session unchanged.
                assert!(
                    number == 2 && matches!(error, Error::Engine(bilayer_engine::Error::Plan(_))),
                    "{error}"
                );
            }
        }
        let mut depths = 0;
        let phase =
            &mut |phase| depths += usize::from(phase == bilayer_measure::bench::Phase::Depth);
        let measured = bench.run(test, &method, phase, &never).unwrap().unwrap();
        assert_eq!(measured.samples_ns.len(), 2);
        assert_eq!(depths, usize::from(loads.len() == 1), "the cache moves along");
    }
    assert!(loads[0] > 0 && loads[1..].iter().all(|&told| told == 0), "{loads:?}");
    let other = Setup { threads: Some(2), ..setup };
    bench
        .ready(&other, 0, &mut |_| {
            told += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(told > 0, "another setup is another session");
}
