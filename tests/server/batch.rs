//! The promise of `bilayer batch`: every request of a file is answered once, whatever happens in between.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::program::{Place, Ran};
use super::{DEMO, with, words};

fn request(id: &str, url: &str, body: &Value) -> String {
    json!({ "custom_id": id, "method": "POST", "url": url, "body": body }).to_string()
}

/// Greedy completions of texts of several lengths.
fn completions(count: usize) -> String {
    completions_with(count, &json!({}))
}

/// Those with more fields.
fn completions_with(count: usize, more: &Value) -> String {
    let words = "ROMEO: But soft what light through yonder window breaks It is the east".split(' ');
    let words: Vec<&str> = words.collect();
    let line = |at: usize| {
        let prompt = words[..1 + at * 5 % words.len()].join(" ");
        let body = json!({ "prompt": prompt, "max_tokens": 3 + at % 7, "temperature": 0.0 });
        request(&format!("request-{at}"), "/v1/completions", &with(body, more)) + "\n"
    };
    (0..count).map(line).collect()
}

/// The answers of an output, each its `custom_id` and text.
fn texts(place: &Place, name: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(place.path().join(name)).unwrap();
    let line = |line: &str| {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer["response"]["status_code"], 200, "{line}");
        let text = answer["response"]["body"]["choices"][0]["text"].as_str().unwrap().to_owned();
        (answer["custom_id"].as_str().unwrap().to_owned(), text)
    };
    text.lines().map(line).collect()
}

/// The lines of an output without what differs between runs: ids, times, and what the cache had of a prompt.
fn lines(place: &Place, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path().join(name)).unwrap();
    let line = |line: &str| {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        let without = |value: &mut Value, keys: &[&str]| {
            keys.iter()
                .for_each(|key| assert!(value.as_object_mut().unwrap().remove(*key).is_some()));
        };
        without(&mut answer["response"], &["request_id"]);
        let body = &mut answer["response"]["body"];
        without(body, &["id", "created", "timings", "devices"]);
        without(&mut body["usage"], &["prompt_tokens_details"]);
        answer
    };
    text.lines().map(line).collect()
}

/// With `--deterministic` texts and log probabilities have the same bits, however many requests run at once.
#[test]
fn deterministic_answers_do_not_depend_on_what_runs_at_once() {
    let place = Place::new();
    place.file("in.jsonl", completions_with(24, &json!({ "logprobs": 2 })));
    let answers = |at_once: u32, more: &str| {
        place.run(&format!("batch -ngl 0 -np {at_once} -c 512 {more} in.jsonl out.jsonl")).good();
        lines(&place, "out.jsonl")
    };
    let expected = answers(1, "--deterministic");
    assert_eq!(expected.len(), 24);
    let logprobs = &expected[0]["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"];
    assert!(logprobs[0].as_f64() < Some(0.0), "{logprobs}");
    for at_once in [2, 3, 4] {
        assert_eq!(answers(at_once, "--deterministic --overwrite"), expected, "{at_once} at once");
    }
}

#[test]
fn embeddings_are_those_of_the_command() {
    let place = Place::new();
    place.file("encoder.gguf", words::scorer("nomic-bert", &[]));
    let texts = ["a b c", "d", "e f g h"];
    let line = |(at, text): (usize, &&str)| {
        request(&at.to_string(), "/v1/embeddings", &json!({ "input": text }))
    };
    place.file("in.jsonl", texts.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"));
    let ran = place.run("batch -ngl 0 -m encoder.gguf in.jsonl out.jsonl").good();
    assert!(ran.err.contains("3 requests done") && ran.err.contains(" 0 failed"), "{ran:?}");
    let out = std::fs::read_to_string(place.path().join("out.jsonl")).unwrap();
    for (at, (line, text)) in out.lines().zip(texts).enumerate() {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer["custom_id"], json!(at.to_string()));
        let body = &answer["response"]["body"];
        assert_eq!(
            (&answer["response"]["status_code"], &body["object"]),
            (&json!(200), &json!("list"))
        );
        let embedded = place.command("embed -ngl 0 -m encoder.gguf").arg(text).output().unwrap();
        let expected = Ran::new(&embedded).json()["embedding"].clone();
        let numbers = |list: &Value| -> Vec<f64> {
            list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let (found, expected) = (numbers(&body["data"][0]["embedding"]), numbers(&expected));
        assert_eq!(found.len(), expected.len());
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5;
        assert!(found.iter().zip(&expected).all(is_close), "{text}: {found:?}, not {expected:?}");
    }
    assert_eq!(out.lines().count(), 3);
}

#[test]
fn answers_are_those_of_the_library_in_the_order_of_the_requests() {
    let place = Place::new();
    let input = completions(12);
    place.file("in.jsonl", &input);
    let ran = place.run("batch -ngl 0 -np 4 -c 512 in.jsonl out.jsonl").good();
    assert!(ran.err.contains("12 requests done"), "{ran:?}");
    assert_eq!(place.names(), ["in.jsonl", "out.jsonl"]);
    let found = texts(&place, "out.jsonl");
    let mut model = bilayer::Model::builder(DEMO).gpu_layers(0).open().unwrap();
    for (line, (id, text)) in input.lines().zip(&found) {
        let asked: Value = serde_json::from_str(line).unwrap();
        assert_eq!(asked["custom_id"], json!(id));
        let most = asked["body"]["max_tokens"].as_u64().unwrap() as usize;
        let prompt = asked["body"]["prompt"].as_str().unwrap();
        let request = bilayer::Request::new(prompt).max_tokens(most).greedy();
        assert_eq!(*text, model.generate(request).unwrap().text().unwrap(), "{prompt}");
    }
    assert_eq!(found.len(), 12);
    // The output is kept unless asked for.
    let again = place.run("batch -ngl 0 in.jsonl out.jsonl");
    assert_eq!(again.code, Some(73), "{again:?}");
    assert!(again.err.contains("--overwrite"), "{again:?}");
    place.run("batch -ngl 0 --overwrite -np 3 -c 512 in.jsonl out.jsonl").good();
    assert_eq!(texts(&place, "out.jsonl"), found);
}

/// However many answers and prompts its requests have, a batch refuses none of them.
#[test]
fn requests_of_many_answers_are_answered() {
    let place = Place::new();
    let message = json!({ "role": "user", "content": "Who?" });
    let chat = json!({ "messages": [message], "n": 8, "max_tokens": 1 });
    let prompts: Vec<String> = (0..40).map(|at| format!("{at}")).collect();
    let texts = json!({ "prompt": prompts, "max_tokens": 1 });
    let mut lines = vec![request("texts", "/v1/completions", &texts)];
    lines.extend((0..8).map(|at| request(&format!("{at}"), "/v1/chat/completions", &chat)));
    place.file("in.jsonl", lines.join("\n"));
    let ran = place.run("batch -ngl 0 -np 2 -c 512 in.jsonl out.jsonl").good();
    assert!(ran.err.contains("9 requests done") && ran.err.contains(" 0 failed"), "{ran:?}");
    let out = std::fs::read_to_string(place.path().join("out.jsonl")).unwrap();
    let counts = out.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).unwrap();
        answer["response"]["body"]["choices"].as_array().unwrap().len()
    });
    assert_eq!(counts.collect::<Vec<_>>(), [40, 8, 8, 8, 8, 8, 8, 8, 8]);
}

/// Each waits until the answers of the other one have ended, also that which was loaded first.
#[test]
fn models_take_turns_where_one_has_room() {
    let place = Place::new();
    let line = |at: usize| {
        let model = ["demo", "two"][at % 2];
        let body = json!({ "model": model, "prompt": "ROMEO:", "max_tokens": 2 });
        request(&format!("{at}"), "/v1/completions", &body)
    };
    place.file("in.jsonl", (0..6).map(line).collect::<Vec<_>>().join("\n"));
    let models = format!("-m {DEMO} --add-model two={DEMO} --models-max 1");
    let ran = place.run(&format!("batch -ngl 0 -np 2 -c 512 {models} in.jsonl out.jsonl")).good();
    assert!(ran.err.contains("6 requests done") && ran.err.contains(" 0 failed"), "{ran:?}");
    assert_eq!(texts(&place, "out.jsonl").len(), 6);
}

#[test]
fn wrong_requests_are_answered_with_what_is_wrong() {
    let place = Place::new();
    let good = json!({ "prompt": "ROMEO:", "max_tokens": 2 });
    let cases = [
        (request("a", "/v1/completions", &good), ""),
        ("{".to_owned(), "is no JSON"),
        ("[1]".to_owned(), "is no JSON object"),
        (json!({ "url": "/v1/completions", "body": good }).to_string(), "custom_id"),
        (request("a", "/v1/completions", &good), "as in line 1"),
        (request("b", "/v1/files", &good), "/v1/chat/completions, "),
        (
            json!({ "custom_id": "c", "method": "GET", "url": "/v1/completions" }).to_string(),
            "POST",
        ),
        (request("d", "/v1/completions", &json!({ "prompt": "x", "stream": true })), "stream"),
        (request("e", "/v1/completions", &json!({ "max_tokens": 2 })), "prompt"),
        (request("f", "/v1/embeddings", &json!({ "input": "x" })), "encoder"),
        (request("g", "/v1/completions", &json!({ "prompt": "x ".repeat(2000) })), "context"),
    ];
    let lines: Vec<&str> = cases.iter().map(|(line, _)| line.as_str()).collect();
    // A byte order mark and a blank line are no request, and the last needs no line break.
    place.file("in.jsonl", format!("\u{feff}{}", lines.join("\n").replacen("\n", "\r\n\n", 1)));
    let ran = place.run("batch -ngl 0 -c 256 in.jsonl out.jsonl");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("11 requests done") && ran.err.contains("10 failed"), "{ran:?}");
    let out = std::fs::read_to_string(place.path().join("out.jsonl")).unwrap();
    assert_eq!(out.lines().count(), cases.len());
    for (line, (asked, problem)) in out.lines().zip(&cases) {
        let answer: Value = serde_json::from_str(line).unwrap();
        let status = &answer["response"]["status_code"];
        if problem.is_empty() {
            assert_eq!((status, &answer["error"]), (&json!(200), &Value::Null), "{line}");
            continue;
        }
        let found = match answer["error"].is_null() {
            true => answer["response"]["body"]["error"]["message"].as_str(),
            false => answer["error"]["message"].as_str(),
        };
        assert!(*status != 200 && found.unwrap().contains(problem), "{asked}: {line}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_and_kept() {
    let place = Place::new();
    place.file("in.jsonl", completions(3));
    place.file("other.jsonl", completions(2));
    place.file("empty.jsonl", "\n \n");
    let refused = |arguments: &str, code: i32, problem: &str| {
        let ran = place.run(&format!("batch -ngl 0 {arguments}"));
        assert_eq!(ran.code, Some(code), "{arguments}: {ran:?}");
        assert!(ran.err.contains(problem), "{arguments}: {ran:?}");
    };
    refused("none.jsonl out.jsonl", 66, "none.jsonl");
    refused("empty.jsonl out.jsonl", 65, "empty.jsonl: has no requests");
    refused("in.jsonl in.jsonl", 2, "same file");
    refused("in.jsonl none/out.jsonl", 73, "none/out.jsonl.journal");
    refused("/dev/null out.jsonl", 65, "no regular file");
    refused("-m none.gguf in.jsonl out.jsonl", 66, "none.gguf");
    // A journal of other requests, or of another model.
    let kept = "{\"journal\":2,\"of\":{\"requests\":\"x\",\"models\":[]}}\n";
    place.file("out.jsonl.journal", kept);
    refused("in.jsonl out.jsonl", 2, "out.jsonl.journal: is the journal of another batch");
    place.file("out.jsonl.journal", "notes\n");
    refused("in.jsonl out.jsonl", 2, "does not begin as a journal does");
    let journal = std::fs::read_to_string(place.path().join("out.jsonl.journal")).unwrap();
    assert_eq!(journal, "notes\n");
}

/// Runs a command and kills it after a time; its end, if it came first.
fn killed(place: &Place, arguments: &str, after: Duration) -> Option<Ran> {
    let mut command = place.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while began.elapsed() < after {
        if child.try_wait().unwrap().is_some() {
            return Some(Ran::new(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// `BILAYER_TEST_KILLS` sets how many moments, at least thirty.
#[test]
fn killed_at_thirty_random_moments_every_request_is_answered_once() {
    let wanted = std::env::var("BILAYER_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    let (wanted, place) = (wanted.unwrap_or(30).max(30), Place::new());
    place.file("in.jsonl", completions(60));
    let whole = Instant::now();
    place.run("batch -ngl 0 -np 4 -c 512 in.jsonl undisturbed.jsonl").good();
    let whole = whole.elapsed();
    let expected = lines(&place, "undisturbed.jsonl");
    assert_eq!((expected.len(), texts(&place, "undisturbed.jsonl").len()), (60, 60));
    let arguments = "batch -ngl 0 -np 4 -c 512 --audit log in.jsonl out.jsonl";
    let tried = crate::support::tried::Tried::new("writer batch");
    let (mut kills, mut ends, mut state) = (0, 0, 7_u64);
    while kills < wanted {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let share = (state >> 40) as f64 / f64::from(1 << 24);
        let ended = killed(&place, arguments, whole.mul_f64(share));
        kills += usize::from(ended.is_none());
        ended.map(Ran::good);
        let exists = |name: &str| place.path().join(name).exists();
        // Without a journal the batch is complete, even if the process was killed then.
        if exists("out.jsonl") && !exists("out.jsonl.journal") {
            ends += 1;
            assert_eq!(lines(&place, "out.jsonl"), expected);
            place.run("audit verify --requests in.jsonl --answers out.jsonl log").good();
            std::fs::remove_file(place.path().join("out.jsonl")).unwrap();
        }
    }
    place.run(arguments).good();
    assert_eq!(lines(&place, "out.jsonl"), expected, "after {kills} kills and {ends} ends");
    place.run("audit verify --requests in.jsonl --answers out.jsonl log").good();
    assert_eq!(place.names(), ["in.jsonl", "log", "out.jsonl", "undisturbed.jsonl"]);
    tried.done(&format!("{kills} of {kills} runs ended by the signal, {ends} batches complete"));
}

#[test]
fn a_changed_log_is_found() {
    let place = Place::new();
    place.file("in.jsonl", completions(4));
    let ran = place.run("batch -ngl 0 --audit log in.jsonl out.jsonl").good();
    let head = ran.err.lines().find_map(|line| line.strip_prefix("last line of the log: "));
    let head = head.unwrap();
    let good = place.run(&format!("audit verify --head {head} --answers out.jsonl log")).good();
    assert!(good.out.contains("6 lines, unchanged") && good.out.contains("4 answers, complete"));
    let log = std::fs::read_to_string(place.path().join("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let first: Value = serde_json::from_str(lines[0]).unwrap();
    assert!(first["program"].as_str().unwrap().starts_with("bilayer "), "{first}");
    let changed = |lines: &[&str], problem: &str| {
        place.file("log", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
        let ran = place.run(&format!("audit verify --head {head} log"));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(problem), "{problem}: {ran:?}");
    };
    for missing in 0..lines.len() - 1 {
        let mut rest = lines.clone();
        rest.remove(missing);
        changed(&rest, "does not follow the one before it");
    }
    changed(&lines[..5], "lines are missing");
    let edited = lines[2].replace("\"line\":", "\"line\": ");
    changed(&[lines[0], lines[1], &edited, lines[3]], "line 4 does not follow");
    changed(&[lines[0], "notes"], "line 2 is no line of such a log");
    // A batch does not append to it.
    let ran = place.run("batch -ngl 0 --audit log --overwrite in.jsonl out.jsonl");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    place.file("log", &log);
    let out = std::fs::read_to_string(place.path().join("out.jsonl")).unwrap();
    place.file("out.jsonl", out.replacen("\"id\"", "\"ID\"", 1));
    let ran = place.run("audit verify --answers out.jsonl log");
    assert!(ran.code == Some(1) && ran.err.contains("line 1 is not the recorded"), "{ran:?}");
}

/// A batch that runs and has some answers, of which the journal is `out.jsonl.journal`.
fn answering(place: &Place, arguments: &str) -> Child {
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let journal = place.path().join("out.jsonl.journal");
    let lines =
        || std::fs::read(&journal).unwrap_or_default().iter().filter(|&&b| b == b'\n').count();
    while lines() < 4 {
        assert_eq!(child.try_wait().unwrap(), None, "it ends before it is disturbed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// The end of a batch that must have had an error, after which its answers are in the journal.
#[track_caller]
fn failed(place: &Place, child: Child, code: i32, problem: &str) {
    let ran = Ran::new(&child.wait_with_output().unwrap());
    assert!(ran.code == Some(code) && ran.err.contains(problem), "{problem}: {ran:?}");
    assert!(!place.path().join("out.jsonl").exists(), "{ran:?}");
    let journal = std::fs::read_to_string(place.path().join("out.jsonl.journal")).unwrap();
    assert!(journal.lines().count() > 3, "{ran:?}");
    for line in journal.lines().skip(1) {
        assert!(line.contains("\"status_code\":200"), "{line}");
    }
}

/// Completions of one model, one after the other.
const ONE_BY_ONE: &str = "batch -m m.gguf -ngl 0 -np 1 -c 512 --temp 0 in.jsonl out.jsonl";

#[test]
#[cfg(target_os = "linux")]
fn a_model_that_is_truncated_in_use_leaves_the_answers_before() {
    let place = Place::new();
    let model = std::fs::read(DEMO).unwrap();
    let path = place.file("m.gguf", &model);
    place.file("in.jsonl", completions(200));
    let arguments = format!("{ONE_BY_ONE} --audit log");
    let child = answering(&place, &arguments);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    failed(&place, child, 74, "m.gguf: ");
    place.file("m.gguf", &model);
    let ran = place.run(&arguments).good();
    assert!(ran.err.contains("of them before") && ran.err.contains(" 0 failed"), "{ran:?}");
    assert_eq!(texts(&place, "out.jsonl").len(), 200);
    place.run("audit verify --requests in.jsonl --answers out.jsonl log").good();
}

#[test]
#[cfg(unix)]
fn requests_that_are_changed_meanwhile_are_refused() {
    let place = Place::new();
    std::fs::copy(DEMO, place.path().join("m.gguf")).unwrap();
    let requests = completions(200);
    place.file("in.jsonl", &requests);
    let child = answering(&place, ONE_BY_ONE);
    // In place and of the same length.
    place.file("in.jsonl", requests.replace("ROMEO", "JULIE"));
    failed(&place, child, 74, "in.jsonl: line ");
    let ran = place.run(ONE_BY_ONE);
    assert!(ran.code == Some(2) && ran.err.contains("of other requests"), "{ran:?}");
    place.file("in.jsonl", &requests);
    place.run(ONE_BY_ONE).good();
    place.run(&ONE_BY_ONE.replace("out.jsonl", "undisturbed.jsonl")).good();
    assert_eq!(texts(&place, "out.jsonl"), texts(&place, "undisturbed.jsonl"));
}

#[test]
fn other_models_and_settings_do_not_continue_a_batch() {
    let place = Place::new();
    let model = std::fs::read(DEMO).unwrap();
    let path = place.file("m.gguf", &model);
    place.file("lora.gguf", words::adapter(&path, 2));
    place.file("in.jsonl", completions(200));
    let arguments = format!("{ONE_BY_ONE} --audit log");
    let mut child = answering(&place, &arguments);
    child.kill().unwrap();
    child.wait().unwrap();
    let journal = || std::fs::read(place.path().join("out.jsonl.journal")).unwrap();
    let before = journal();
    let refused = |flags: &str, what: &str| {
        let ran = place.run(&format!("{arguments} {flags}"));
        assert!(ran.code == Some(2) && ran.err.contains(what), "{flags}: {ran:?}");
        assert!(journal() == before, "{flags}");
    };
    refused("--lora lora.gguf", "(with other adapters)");
    refused("--top-k 3 --context-shift", "(with other context-shift, top-k)");
    refused("-ctk q8_0", "(with other cache-type-k)");
    // Another model of the same shape: the last weights differ.
    let first = {
        let file = bilayer_gguf::File::open(&path).unwrap();
        let tensor = file.bytes(file.tensors().last().unwrap());
        tensor.as_ptr().addr() - file.maps().next().unwrap().as_ptr().addr()
    };
    let mut other = model.clone();
    other[first] ^= 1;
    place.file("m.gguf", &other);
    refused("", "(with other models)");
    place.file("m.gguf", &model);
    // Where layers are computed is no such setting.
    place.run(&format!("{arguments} -t 1")).good();
    assert_eq!(texts(&place, "out.jsonl").len(), 200);
    let log = std::fs::read_to_string(place.path().join("log")).unwrap();
    let begin: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!((&begin["adapters"], &begin["settings"]["ctx-size"]), (&json!([]), &json!(512)));
    assert!(begin["models"][0]["sha256"].is_string(), "{begin}");

    place.run(&format!("{ONE_BY_ONE} --overwrite --audit more --lora-scaled lora.gguf:0.5")).good();
    let log = std::fs::read_to_string(place.path().join("more")).unwrap();
    let begin: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(begin["adapters"][0]["scale"], 0.5, "{begin}");
    assert!(begin["adapters"][0]["lora"].is_string(), "{begin}");
}

#[test]
#[cfg(unix)]
fn outputs_are_regular_files_and_keep_links_and_permissions() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    place.file("in.jsonl", completions(2));
    let path = place.file("real.jsonl", "old");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("real.jsonl", place.path().join("link.jsonl")).unwrap();
    place.run("batch -ngl 0 --overwrite in.jsonl link.jsonl").good();
    assert!(place.path().join("link.jsonl").is_symlink());
    assert_eq!(texts(&place, "real.jsonl").len(), 2);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    for pipe in ["pipe", "x.jsonl.journal"] {
        let made = std::process::Command::new("mkfifo").arg(place.path().join(pipe)).status();
        assert!(made.unwrap().success());
    }
    let before = place.names();
    for (arguments, code, problem) in [
        ("--overwrite in.jsonl pipe", 73, "pipe: cannot be written: it is a pipe or device"),
        (
            "--overwrite in.jsonl /dev/null",
            73,
            "/dev/null: cannot be written: it is a pipe or device",
        ),
        ("in.jsonl x.jsonl", 2, "x.jsonl.journal: is no regular file"),
        ("--audit out.jsonl.journal in.jsonl out.jsonl", 2, "is the journal of the batch"),
        ("--audit ./out.jsonl.journal in.jsonl out.jsonl", 2, "is the journal of the batch"),
    ] {
        let ran = place.run(&format!("batch -ngl 0 {arguments}"));
        assert!(ran.code == Some(code) && ran.err.contains(problem), "{arguments}: {ran:?}");
        assert_eq!(place.names(), before, "{arguments}");
    }
    let ran = place.run("batch -ngl 0 --audit pipe in.jsonl out.jsonl");
    assert!(ran.code == Some(2) && ran.err.contains("pipe: is no regular file"), "{ran:?}");
    place.file("empty", "");
    let ran = place.run("audit verify empty");
    assert!(ran.code == Some(1) && ran.err.contains("empty: has no lines"), "{ran:?}");
}
