//! The promise of measured placement: a plan's figures come from this machine or a described one, measured times are kept
//! until they prove wrong, runs are compared with predictions, and traces are complete.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Run, Session, Settings, Wanted};
use bilayer_engine::{Model, OpenOptions};
use bilayer_measure::trace::{Names, Timeline};
use bilayer_scheduler::Offload;
use serde_json::Value;

mod support {
    pub mod gpu;
    pub mod program;
}

use support::program::{Place, ran};

const MACHINE: &str = include_str!("../examples/machines/rtx-4090.toml");

/// A model whose layers take long enough to be timed.
fn model(place: &Place) -> PathBuf {
    let shape =
        "--layers 3 --width 256 --heads 4 --kv-heads 2 --ffn 768 --vocab 2048 --context 512";
    place.run(&format!("synth {shape} --type Q4_K_M m.gguf")).good();
    place.path().join("m.gguf")
}

#[test]
fn a_described_machine_is_planned_by_its_roofline() {
    let place = Place::new();
    place.run("synth --shape llama-70b --hollow 70b.gguf").good();
    place.file("65.toml", MACHINE);
    place.file("80.toml", MACHINE.replace("read_gbps = 65 ", "read_gbps = 80 "));
    for (file, expected) in [("65.toml", 3.1), ("80.toml", 3.8)] {
        let line = format!("plan -m 70b.gguf --machine {file} -c 4096 --json");
        let plan = place.run(&line).json();
        let predicted = &plan["predicted"];
        assert_eq!(predicted["basis"], "estimated", "{plan}");
        let tps = 1e3 / predicted["decode_ms"].as_f64().unwrap();
        assert!((tps / expected - 1.0).abs() < 0.1, "{file}: {tps} tok/s, not {expected}");
        let layers = plan["gpu_layers"].as_u64().unwrap();
        assert!((42..=46).contains(&layers), "{layers}");
        // (Tcpu + Tgpu) / max, from the layers' own figures.
        let mut by_device: BTreeMap<&str, f64> = BTreeMap::new();
        for layer in plan["layers"].as_array().unwrap() {
            *by_device.entry(layer["device"].as_str().unwrap()).or_default() +=
                layer["ms"].as_f64().unwrap();
        }
        let head = predicted["decode_ms"].as_f64().unwrap() - by_device.values().sum::<f64>();
        *by_device.get_mut("gpu").unwrap() += head;
        let bound =
            by_device.values().sum::<f64>() / by_device.values().copied().fold(0.0, f64::max);
        let told = predicted["groups"]["bound"].as_f64().unwrap();
        assert!((told - bound).abs() < 0.01, "{told} for {bound}");
    }
    let text = place.run("plan -m 70b.gguf --machine 65.toml -c 4096").good().out;
    for part in ["decode", "tok/s (estimated)", "overlap", "with two groups of sequences"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let wrong = place.run("plan -m 70b.gguf --machine nothing.toml");
    assert_eq!(wrong.code, Some(66), "{wrong:?}");
    place.file("bad.toml", MACHINE.replace("[gpu]", "[tpu]"));
    let wrong = place.run("plan -m 70b.gguf --machine bad.toml");
    assert!(wrong.code == Some(2) && wrong.err.contains("bad.toml"), "{wrong:?}");
}

/// The files of times in a folder.
fn times(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_times =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("times-");
    paths.filter(is_times).collect()
}

/// A stored file is the FNV-1a hash of its content followed by the content.
fn write_kept(path: &Path, content: &str) {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = content.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
    std::fs::write(path, [&hash.to_le_bytes(), content.as_bytes()].concat()).unwrap();
}

/// These times of the CPU, a hundred times as fast.
fn too_fast(written: &str) -> String {
    let mut stale: Value = serde_json::from_str(written).unwrap();
    for layer in stale["devices"][0]["layers"].as_array_mut().unwrap() {
        layer["decode_ms"] = (layer["decode_ms"].as_f64().unwrap() / 100.0).into();
    }
    stale["devices"][0]["output"]["decode_ms"] = 1e-6.into();
    stale["devices"][0]["segment"]["decode_ms"] = 0.into();
    stale.to_string()
}

/// The content of a stored file.
fn kept_text(path: &Path) -> String {
    String::from_utf8(std::fs::read(path).unwrap().split_off(8)).unwrap()
}

/// The predicted speed of a plan, tokens of a prompt per second, and what it is based on.
fn prefill(plan: &Value) -> (f64, &str) {
    let predicted = &plan["predicted"];
    let ms = predicted["prefill_ms_per_token"].as_f64().unwrap();
    (1e3 / ms, predicted["basis"].as_str().unwrap())
}

/// A session of small steps has times of its own.
#[test]
fn a_short_run_leaves_the_times_of_long_steps_alone() {
    let place = Place::new();
    place.run("synth --shape llama-8b --hollow 8b.gguf").good();
    place.file("machine.toml", MACHINE);
    let kept = place.path().join("kept");
    let run = |line: &str| {
        let mut command = place.command(line);
        let on = ["-m", "8b.gguf", "--simulate", "machine.toml", "--json"];
        ran(command.args(on).env("BILAYER_CACHE", &kept)).json()
    };
    let bench = |tokens: usize| {
        let found = run(&format!("bench --no-compute -p {tokens} -n 0 -r 1"));
        found[0]["avg_ns"].as_f64().unwrap() / 1e6
    };
    let plan = |flags: &str| run(&format!("plan {flags}"));
    let before = plan("");
    let short_ms = bench(16);
    assert_eq!(plan(""), before, "times of steps of 16 tokens say nothing about 512");
    let short = plan("-c 16");
    let (tps, basis) = prefill(&short);
    assert_eq!(basis, "measured", "a session as small uses them: {short}");
    assert!((tps * short_ms / 16e3 - 1.0).abs() < 0.1, "{tps} tok/s, measured {short_ms} ms");
    let long_ms = bench(512);
    let long = plan("");
    let (tps, basis) = prefill(&long);
    assert_eq!(basis, "measured", "{long}");
    assert!((tps * long_ms / 512e3 - 1.0).abs() < 0.1, "{tps} tok/s, measured {long_ms} ms");
    assert_eq!(plan("-c 16"), short);
}

/// `plan --for` predicts the first token of short prompts, and of prompts whose weights are streamed.
#[test]
fn the_time_to_the_first_token_is_that_of_a_run() {
    let place = Place::new();
    place.file("machine.toml", MACHINE);
    place.run("synth --shape llama-8b --hollow 8b.gguf").good();
    place.run("synth --shape llama-70b --hollow 70b.gguf").good();
    place.run("synth --shape qwen3-30b-a3b --hollow 30b.gguf").good();
    for (model, layers, tokens, slack) in [
        ("8b.gguf", "all", 1, 0.1),
        ("8b.gguf", "all", 16, 0.1),
        ("8b.gguf", "all", 100, 0.2),
        ("8b.gguf", "all", 512, 0.1),
        ("8b.gguf", "all", 4096, 0.1),
        // 8 of 128 experts: 32 tokens use most of them, and give few rows to each.
        ("30b.gguf", "all", 16, 0.13),
        ("30b.gguf", "all", 32, 0.1),
        ("30b.gguf", "all", 64, 0.1),
        ("30b.gguf", "all", 512, 0.1),
        // More attention adds its share of the operations to all of the time, of which reading experts is the most.
        ("30b.gguf", "all", 2048, 0.2),
        ("70b.gguf", "40", 64, 0.1),
        ("70b.gguf", "40", 700, 0.1),
        ("70b.gguf", "40", 2048, 0.12),
    ] {
        let on = format!("-m {model} --simulate machine.toml --json -ngl {layers}");
        let found = place.run(&format!("plan {on} -c {tokens} --for 3s --types Q4_K_M")).json();
        let told = found["candidates"][0]["first_token_ms"].as_f64().unwrap();
        let ran = place.run(&format!("bench {on} --no-compute -p {tokens} -n 0 -r 1")).json();
        let ms = ran[0]["avg_ns"].as_f64().unwrap() / 1e6;
        assert!((told / ms - 1.0).abs() < slack, "{on}: {tokens} tokens: {told} ms for {ms}");
        let per_token = found["candidates"][0]["per_token_ms"].as_f64().unwrap();
        assert!(told > 0.99 * per_token, "{told} ms, and {per_token} for a token");
    }
    // An encoder has no answers.
    place.run("synth --shape minilm-l6 encoder.gguf").good();
    let encoder = place.run("plan -m encoder.gguf --simulate machine.toml --for 20tok/s");
    assert!(encoder.code == Some(2) && encoder.err.contains("generates no tokens"), "{encoder:?}");
}

/// Alone, the CPU is measured on request.
#[test]
fn times_are_measured_once_and_again_if_they_prove_wrong() {
    let place = Place::new();
    model(&place);
    let kept = place.path().join("kept");
    let run = |line: &str| ran(place.command(line).env("BILAYER_CACHE", &kept)).good();
    let answer = "run -m m.gguf -p ab -n 40 --temp 0 --ignore-eos";
    let before = run("plan -m m.gguf --json").json();
    assert_eq!(before["predicted"]["basis"], "estimated", "{before}");
    assert!(times(&kept).is_empty(), "a plan measures nothing");

    let unasked = run(answer);
    assert!(!unasked.err.contains("predicted "), "{unasked:?}");
    assert!(times(&kept).is_empty(), "there is nothing to decide");
    let asking = format!("{answer} --remeasure");
    let first = run(&asking);
    assert!(
        first.err.contains("predicted ") && first.err.contains(" ms/token, measured "),
        "{first:?}"
    );
    // On a busy machine the times may look wrong, in which case they were removed.
    let measured = || (0..20).any(|_| !times(&kept).is_empty() || run(&asking).code.is_none());
    assert!(measured());
    let [path] = &times(&kept)[..] else { panic!("{:?}", times(&kept)) };
    let written = kept_text(path);
    let after = run("plan -m m.gguf --json").json();
    assert_eq!(after["predicted"]["basis"], "measured", "{after}");
    let document: Value = serde_json::from_str(&run(&format!("{answer} --json")).out).unwrap();
    for key in ["predicted_ms_per_token", "measured_ms_per_token"] {
        assert!(document[key].as_f64().unwrap() > 0.0, "{key} in {document}");
    }

    // Stored times that are too fast are noticed.
    write_kept(path, &too_fast(&written));
    let told = run(answer);
    assert!(told.err.contains("the prediction is dropped until --remeasure"), "{told:?}");
    assert!(times(&kept).is_empty());
    assert!(measured());

    // Invalid files and times of another model are ignored as well.
    for nonsense in ["", "{}", "[1, 2", &written.replacen("\"layers\":[{", "\"layers\":[{},{", 1)] {
        write_kept(path, nonsense);
        let plan = run("plan -m m.gguf --json").json();
        assert_eq!(plan["predicted"]["basis"], "estimated", "{nonsense}: {plan}");
        run(&asking);
        assert!(measured());
        let plan = run("plan -m m.gguf --json").json();
        assert_eq!(plan["predicted"]["basis"], "measured", "{nonsense}: {plan}");
    }
    // Without a folder for them, they are measured each time, and a note says so.
    place.file("no-folder", "");
    let ran_without =
        ran(place.command(&asking).env("BILAYER_CACHE", place.path().join("no-folder")));
    let told = ran_without.good().err;
    assert!(told.contains("no-folder: measured times cannot be kept: "), "{told}");
    assert!(told.contains(" ms/token, measured "), "{told}");
    assert!(!run(&asking).err.contains("cannot be kept"));
    let threads = run("plan -m m.gguf -t 1 --json").json();
    assert_eq!(threads["predicted"]["basis"], "estimated", "times of other threads: {threads}");
}

#[test]
fn a_slow_gpu_gets_no_layers_and_the_plan_says_why() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let reason = "no layer is offloaded: the GPU is slower than the CPU";
    let alone = |place: &Place, line: &str| {
        let mut command = place.command(&format!("{line} -m m.gguf -dev software"));
        ran(command.env("BILAYER_CACHE", place.path().join("kept"))).good()
    };
    let attempt = || {
        let place = Place::new();
        model(&place);
        let ran = alone(&place, "run -p ab -n 4 --temp 0");
        (place, ran)
    };
    let (mut place, mut ran) = attempt();
    // On a busy machine the CPU may be measured as too slow.
    for _ in 0..4 {
        if !ran.err.contains(reason) {
            (place, ran) = attempt();
        }
    }
    assert!(ran.err.contains(reason), "{ran:?}");
    assert!(ran.err.contains("placement: out:cpu 2-0:cpu"), "{ran:?}");
    let plan = alone(&place, "plan --json").json();
    assert_eq!((&plan["gpu_layers"], &plan["predicted"]["basis"]), (&0.into(), &"measured".into()));

    // Stored times that are too fast: one run notices, the next one measures.
    let [path] = &times(&place.path().join("kept"))[..] else { panic!("one file of times") };
    write_kept(path, &too_fast(&kept_text(path)));
    let told = alone(&place, "run -p ab -n 40 --temp 0 --ignore-eos");
    assert!(told.err.contains("the next run measures the devices again"), "{told:?}");
    assert!(!path.exists());
    alone(&place, "run -p ab -n 4 --temp 0");
    assert!(path.exists());
}

#[test]
fn a_profile_moves_layers_one_by_one_and_counts_their_memory() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let place = Place::new();
    model(&place);
    let line =
        "profile -m m.gguf -dev software -p 32 -n 3 -r 1 -c 256 --json --out drawn --trace t.json";
    let profile = place.run(line).json();
    let points = profile["points"].as_array().unwrap();
    assert_eq!(points.len(), 5, "three layers, the head, and none: {profile}");
    for (count, point) in points.iter().enumerate() {
        assert_eq!(point["gpu_layers"], count);
        for key in ["decode_ms", "predicted_decode_ms", "prefill_tps", "speedup", "cpu_ms"] {
            assert!(point[key].as_f64().unwrap() > 0.0, "{key} at {count}: {point}");
        }
        let planned = point["gpu_bytes"].as_f64().unwrap();
        let held = point["gpu_held_bytes"].as_f64().unwrap();
        // Lists and tables of a step are not planned.
        let bound = 0.03 * held + 65536.0;
        assert!((planned - held).abs() <= bound, "{count}: {planned} planned, {held} held");
        assert_eq!(count > 0, point["gpu_ms"].as_f64().unwrap() > 0.0, "{point}");
    }
    // Which number is recommended depends on the times of this run: no other is much faster.
    let decode_ms = |point: &Value| point["decode_ms"].as_f64().unwrap();
    let recommended = &points[profile["recommended"].as_u64().unwrap() as usize];
    let fastest = points.iter().map(decode_ms).fold(f64::INFINITY, f64::min);
    let allowed = fastest * (1.0 + bilayer_measure::profile::SLACK);
    assert!(decode_ms(recommended) <= allowed, "{profile}");
    assert!(!profile["timeline"].as_array().unwrap().is_empty());
    let drawn = std::fs::read_to_string(place.path().join("drawn/profile.html")).unwrap();
    assert!(drawn.contains("</html>"), "the page ends");
    check_trace(&place.path().join("t.json"));
}

/// A document of the Chrome trace event format: an object with `traceEvents`, each with a phase `ph`; complete events
/// (`X`) have name, process, thread, start and duration in microseconds; metadata (`M`) names a thread or the process; an
/// arrow begins (`s`) and ends (`f`) on two threads. On each thread events nest, and the outer ones leave no gap. Returns the threads' names.
#[track_caller]
fn check_trace(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut names = BTreeMap::new();
    let mut lanes: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<(String, u64, f64)>> = BTreeMap::new();
    for event in document["traceEvents"].as_array().unwrap() {
        assert!(event["name"].is_string() && event["pid"].is_u64(), "{event}");
        let lane = event["tid"].as_u64().unwrap();
        match event["ph"].as_str().unwrap() {
            "M" => {
                let name = event["args"]["name"].as_str().unwrap().to_owned();
                match event["name"].as_str().unwrap() {
                    "thread_name" => drop(names.insert(lane, name)),
                    "process_name" => assert!(name.starts_with("bilayer "), "{name}"),
                    other => panic!("metadata {other}"),
                }
            }
            "X" => {
                let (at, long) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                assert!(at >= 0.0 && long >= 0.0 && event["cat"].is_string(), "{event}");
                lanes.entry(lane).or_default().push((at, at + long));
            }
            phase @ ("s" | "f") => {
                let arrow = arrows.entry(event["id"].as_u64().unwrap()).or_default();
                arrow.push((phase.to_owned(), lane, event["ts"].as_f64().unwrap()));
            }
            other => panic!("phase {other}"),
        }
    }
    for arrow in arrows.values() {
        let [(from, from_lane, begin), (to, to_lane, end)] = &arrow[..] else {
            panic!("{arrow:?}")
        };
        assert_eq!((from.as_str(), to.as_str()), ("s", "f"));
        assert!(from_lane != to_lane && *end + 1.0 >= *begin, "{arrow:?}");
    }
    let all = || lanes.values().flatten();
    let start = all().map(|(from, _)| *from).fold(f64::INFINITY, f64::min);
    let end = all().map(|(_, to)| *to).fold(0.0, f64::max);
    for (lane, events) in &lanes {
        assert!(names.contains_key(lane), "lane {lane} has no name");
        let mut outer = 0.0;
        let mut open: Vec<f64> = Vec::new();
        // Events are written by time, outer before inner.
        for &(from, to) in events {
            while open.last().is_some_and(|last| *last <= from + 1e-3) {
                open.pop();
            }
            if let Some(last) = open.last() {
                assert!(to <= last + 1e-3, "{lane}: {from}..{to} crosses an end at {last}");
            } else {
                outer += to - from;
            }
            open.push(to);
        }
        let wall = end - start;
        assert!((outer / wall - 1.0).abs() < 0.01, "lane {lane}: {outer} of {wall} us");
    }
    names.into_values().collect()
}

#[test]
fn a_trace_is_complete_on_every_lane() {
    let place = Place::new();
    model(&place);
    let line = "run -m m.gguf -p abcdefgh -n 6 --temp 0 --ignore-eos --trace t.json";
    place.run(&format!("{line} -ngl 0")).good();
    let trace = place.path().join("t.json");
    assert_eq!(check_trace(&trace), ["host", "cpu"]);
    let text = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(text.matches("\"name\":\"step\"").count(), 6, "a prompt and five tokens");
    for part in ["layer 2 ", "\"cat\":\"wait\"", "\"cat\":\"between\"", "\"cat\":\"op\""] {
        assert!(text.contains(part), "{part}");
    }
    // Kernels are named by their work, and the document says what ran where.
    for part in
        ["attn_q", "ffn_down", "(matmul", "\"model\":\"bilayer m.gguf\"", "\"placement\":\""]
    {
        assert!(text.contains(part), "{part}");
    }
    if support::gpu::gpu().is_none() {
        return;
    }
    place.run(&format!("{line} -dev software -ngl 2")).good();
    assert_eq!(check_trace(&trace), ["host", "cpu", "gpu"]);
    let text = std::fs::read_to_string(&trace).unwrap();
    for part in ["write to gpu", "read from cpu", "wait for gpu", "submit to gpu", "idle"] {
        assert!(text.contains(part), "{part}");
    }
    // Hidden states of 256 values go to the GPU in each of six steps, with an arrow.
    let width = 256 * 4;
    assert!(text.matches("\"ph\":\"f\"").count() >= 6, "arrows");
    assert!(text.contains(&format!("\"bytes\":{width},\"gbps\":")), "bytes of a transfer");
    let refused = place.run(&format!("{line}/in/no/folder"));
    assert_eq!(refused.code, Some(73), "{refused:?}");
}

#[test]
fn the_bytes_of_a_trace_are_those_that_a_step_reads() {
    let place = Place::new();
    let path = model(&place);
    let model = Model::open(&path, OpenOptions::default()).unwrap();
    let settings =
        Settings { placing: Placing::cpu(), trace_events: Some(1 << 12), ..Settings::default() };
    let mut session = Session::new(&model, settings).unwrap();
    let sequence = session.open().unwrap();
    for tokens in [1, 5] {
        session.trace_mut().unwrap().clear();
        let tokens = vec![7; tokens];
        let run = Run { sequence, tokens: &tokens, wanted: Wanted::Last };
        session.step(&[run]).unwrap();
        let timeline = Timeline::new(session.trace().unwrap());
        let names = Names::of(&session);
        let read: u64 = timeline.events().iter().map(|event| timeline.bytes(event, &names)).sum();
        assert_eq!(read, session.step_bytes(tokens.len())[0]);
        let file = std::fs::metadata(&path).unwrap().len();
        assert!(read > file / 2, "{read} of {file}");
    }
}

/// The median ratio of steps with a trace to adjacent steps without one.
fn ratio(model: &Model, steps: usize) -> f64 {
    let session = |trace_events| {
        let placing = Placing { gpu_layers: Offload::Count(0), ..Placing::default() };
        let settings =
            Settings { ctx_size: Some(512), placing, trace_events, ..Settings::default() };
        let mut session = Session::new(model, settings).unwrap();
        let sequence = session.open().unwrap();
        (session, sequence)
    };
    let mut both = [session(None), session(Some(1 << 14))];
    let mut ratios = Vec::with_capacity(steps);
    for step in 0..steps {
        let mut seconds = [0.0; 2];
        // The order alternates, since the first of a pair runs with colder caches.
        for side in [step % 2, 1 - step % 2] {
            let (session, sequence) = &mut both[side];
            let run = Run { sequence: *sequence, tokens: &[7], wanted: Wanted::Last };
            let began = Instant::now();
            session.step(&[run]).unwrap();
            seconds[side] = began.elapsed().as_secs_f64();
        }
        ratios.push(seconds[1] / seconds[0]);
    }
    ratios.sort_by(f64::total_cmp);
    ratios[steps / 2]
}

#[test]
fn a_trace_costs_less_than_one_percent() {
    let place = Place::new();
    let shape = "--layers 2 --width 1024 --heads 8 --kv-heads 2 --ffn 4096 --vocab 8192";
    place.run(&format!("synth {shape} --context 512 --type Q8_0 m.gguf")).good();
    let model = Model::open(&place.path().join("m.gguf"), OpenOptions::default()).unwrap();
    // Other work on the machine disturbs single attempts, not all.
    let mut found = Vec::new();
    for _ in 0..8 {
        found.push(ratio(&model, 240));
        if found.last().is_some_and(|ratio| *ratio < 1.01) {
            return;
        }
    }
    panic!("with a trace steps take {found:?} of the time without");
}
