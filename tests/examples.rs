//! Every example runs and prints what its documentation says. `cargo test` and `cargo nextest run` build them first.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use support::data::shared;
use support::program::{Place, Ran, ran};

mod support {
    pub mod data;
    pub mod gpu;
    pub mod program;
}

/// The executable of an example, in a folder beside the tested binary.
fn program(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_bilayer")).with_file_name("examples");
    let path = folder.join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.exists(), "{}: run `cargo build --examples` first", path.display());
    path
}

fn run(place: &Place, name: &str, arguments: &[&str]) -> Ran {
    let mut command = place.bare(&program(name).to_string_lossy());
    ran(command.args(arguments)).good()
}

/// The model inside the binary, as a file.
fn demo() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf")
}

#[test]
fn generate_continues_a_prompt_and_counts() {
    let place = Place::new();
    let once = run(&place, "generate", &[demo(), "ROMEO:\n"]);
    let (text, last) = once.out.trim_end().rsplit_once('\n').unwrap();
    assert!(text.len() > 40, "{text}");
    assert!(last.contains("48 generated, stopped by length"), "{last}");
    let again = run(&place, "generate", &[demo(), "ROMEO:\n"]);
    assert_eq!(again.out, once.out, "a seed gives a text");
}

#[test]
fn chat_computes_only_what_is_new() {
    let place = Place::new();
    let out = run(&place, "chat", &[demo(), "chatml"]).out;
    let computed: Vec<usize> = out
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split(' ').next()?.parse().ok())
        .collect();
    let [first, second] = computed[..] else { panic!("{out}") };
    assert!(first > 0 && second > 0, "{out}");
    // The new tokens of the second turn are fewer than those of the first turn and its answer.
    let cold = place.bare(&program("chat").to_string_lossy()).arg(demo()).output().unwrap();
    assert!(!cold.status.success(), "the demo has no chat template of its own");
    assert!(second < first + 24, "{out}");
}

#[test]
fn logits_name_the_perplexity_and_the_next_tokens() {
    let place = Place::new();
    let out = run(&place, "logits", &[demo(), "To be or not to"]).out;
    let mut lines = out.lines();
    let perplexity = lines.next().unwrap().rsplit_once("perplexity ").unwrap().1;
    let perplexity: f64 = perplexity.parse().unwrap();
    assert!(perplexity > 1.0 && perplexity < 2000.0, "{out}");
    let percents = lines.map(|line| line.trim_end_matches(" %").rsplit_once(' ').unwrap().1);
    let percents: Vec<f64> = percents.map(|percent| percent.parse().unwrap()).collect();
    assert_eq!(percents.len(), 3, "{out}");
    assert!(percents.is_sorted_by(|a, b| a >= b) && percents.iter().sum::<f64>() <= 100.1);
}

#[test]
fn logits_of_ids_are_written_as_floats() {
    let place = Place::new();
    let rows = place.path().join("rows.f32");
    let out = run(&place, "logits_of_ids", &[demo(), "1,2,3", rows.to_str().unwrap()]).out;
    let [count, vocab]: [usize; 2] = serde_json::from_str(&out).unwrap();
    let bytes = std::fs::read(rows).unwrap();
    assert_eq!((count, bytes.len()), (3, 4 * 3 * vocab));
    let floats = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    assert!(floats.clone().all(f32::is_finite) && floats.clone().any(|x| x != 0.0));
}

#[test]
fn batch_answers_as_if_alone_and_side_by_side() {
    let place = Place::new();
    let out = run(&place, "batch", &[demo(), "ROMEO:", "JULIET:", "NURSE:"]).out;
    let lines: Vec<&str> = out.lines().collect();
    let [romeo, juliet, nurse, order] = lines[..] else { panic!("{out}") };
    for (line, prompt) in [(romeo, "ROMEO:"), (juliet, "JULIET:"), (nurse, "NURSE:")] {
        assert!(line.starts_with(prompt) && line.len() > prompt.len() + 10, "{line}");
    }
    assert!(order.contains("[0, 1, 0, 1"), "two at a time: {order}");
    assert!(order.trim_end_matches(']').ends_with('2'), "the third comes last: {order}");
}

#[test]
fn embed_finds_each_text_most_similar_to_itself() {
    let place = Place::new();
    let shape = "--shape minilm-l6 --layers 2 --width 32 --heads 4 --ffn 64 --vocab 600";
    place.run(&format!("synth {shape} --type F16 m.gguf")).good();
    let texts = ["a cat", "a kitten", "a tax return"];
    let out = run(&place, "embed", &["m.gguf", texts[0], texts[1], texts[2]]).out;
    let rows: Vec<Vec<f32>> = out
        .lines()
        .map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect())
        .collect();
    assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3], "{out}");
    for (text, row) in rows.iter().enumerate() {
        assert!((row[text] - 1.0).abs() < 2e-3, "{out}");
        assert!(row.iter().all(|&x| x <= row[text] + 1e-3), "{out}");
    }
    if let Some(folder) = shared("all-minilm-l6-v2") {
        let line =
            format!("convert {} --outtype f16 --outfile real.gguf", folder.join("model").display());
        place.run(&line).good();
        let out = run(&place, "embed", &["real.gguf", texts[0], texts[1], texts[2]]).out;
        let first: Vec<f32> = out.split_whitespace().map_while(|word| word.parse().ok()).collect();
        assert!(first[1] > first[2] + 0.2, "a kitten is more of a cat than a tax return: {out}");
    }
}

#[test]
fn hybrid_placement_splits_the_layers() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let place = Place::new();
    let out = run(&place, "hybrid_placement", &[demo(), "software"]).out;
    let maps: Vec<&str> = out.lines().filter(|line| !line.starts_with(' ')).collect();
    let [cpu, half, all] = maps[..] else { panic!("{out}") };
    assert!(!cpu.contains("gpu"), "{cpu}");
    assert!(half.contains("gpu") && half.contains(":cpu"), "{half}");
    assert!(!all.split_once(": ").unwrap().1.contains("cpu"), "{all}");
}

#[test]
fn a_fleet_is_simulated_with_step_times_of_bench() {
    let place = Place::new();
    let bench = place.run("bench -p 16,64 -n 8 -np 1,4 -d 0,64 -r 1 --no-probe -o json").good();
    place.file("bench.json", bench.out);
    let scenario =
        |name: &str| format!("{}/examples/scaling_sim/{name}", env!("CARGO_MANIFEST_DIR"));
    let office = scenario("office.toml");
    let arguments = ["bench.json", &office, "1", "2", "--json"];
    let simulated = run(&place, "scaling_sim", &arguments);
    let reports: Vec<serde_json::Value> =
        simulated.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [one, two] = &reports[..] else { panic!("{simulated:?}") };
    for (replicas, report) in [(1, one), (2, two)] {
        assert_eq!(report["replicas"], replicas);
        let [arrived, finished, refused] =
            ["arrived", "finished", "refused"].map(|key| report[key].as_u64().unwrap());
        assert!(arrived > 300 && arrived == finished + refused, "{report}");
        assert!(report["price_per_million_tokens"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(two["busy"].as_f64().unwrap() < one["busy"].as_f64().unwrap(), "{one} {two}");
    assert_eq!(run(&place, "scaling_sim", &arguments).out, simulated.out, "it is repeatable");

    let table = run(&place, "scaling_sim", &["bench.json", &office]).out;
    assert!(table.starts_with("replicas") && table.lines().count() == 2, "{table}");
    let refused = |file: &str, text: String, part: &str| {
        place.file(file, text);
        let given = if file.ends_with("json") { [file, &office] } else { ["bench.json", file] };
        let mut command = place.bare(&program("scaling_sim").to_string_lossy());
        let ran = ran(command.args(given));
        assert!(ran.code != Some(0) && ran.err.contains(part), "{part}: {ran:?}");
    };
    let text = std::fs::read_to_string(&office).unwrap();
    refused("odd.toml", text.replace("sequences", "seats"), "seats");
    refused("none.toml", text.replace("replicas = 2", "replicas = 0"), "fleet.replicas");
    refused("empty.json", "[]".to_owned(), "no test of generation");
    for name in ["team.toml", "public.toml"] {
        let scenario: toml::Table =
            std::fs::read_to_string(scenario(name)).unwrap().parse().unwrap();
        bilayer::fleet::Scenario::deserialize(scenario).unwrap().check().unwrap();
    }
}
