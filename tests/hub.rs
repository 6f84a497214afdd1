//! The promise of models where users have them: downloads that resume and are checked, the cache and the stores of other
//! programs read in place, no connection where none is allowed.

#![cfg(feature = "hub")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::io::{BufRead as _, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bilayer::{Access, AccessToken, Hub, HubError, Places, Transfer, Wanted};
use bilayer_quant::Type;
use serde_json::json;

mod support {
    #[cfg(target_os = "linux")]
    pub mod disk;
    pub mod hub;
    pub mod model;
    pub mod program;
    #[cfg(unix)]
    pub mod tried;
    pub mod words;
}

use support::hub::{COMMIT, Faults, Request, TestHub, sha256};
use support::program::{Place, Ran, ran};
use support::words;

const REPO: &str = "org/tiny-GGUF";
const FILE: &str = "tiny-Q8_0.gguf";

/// Bytes that no two places of are alike, more than are read at a time.
fn bytes() -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..700_000).map(|_| next()).collect()
}

/// A hub with one file, and the places of a user who has nothing yet.
fn hub_and_places(place: &Place) -> (TestHub, Places, Vec<u8>) {
    let (hub, bytes) = (TestHub::new(), bytes());
    hub.file(REPO, FILE, &bytes);
    let (cache, endpoint) = (Some(place.path().join("hub")), hub.endpoint.clone());
    (hub, Places { cache, endpoint, ..Places::default() }, bytes)
}

fn wanted(text: &str) -> Wanted {
    text.parse().unwrap()
}

fn fetch(places: &Places, name: &str) -> Result<PathBuf, HubError> {
    Hub::new(places.clone()).fetch(&wanted(name), &mut |_| ControlFlow::Continue(()))
}

/// The folder of the repository in the cache.
fn repo(place: &Place) -> PathBuf {
    place.path().join("hub/models--org--tiny-GGUF")
}

fn incomplete(place: &Place, bytes: &[u8]) -> PathBuf {
    repo(place).join("blobs").join(format!("{}.incomplete", sha256(bytes)))
}

/// The GET requests to the storage.
fn downloads(seen: &[Request]) -> Vec<&Request> {
    seen.iter().filter(|r| r.method == "GET" && r.path.starts_with("/storage/")).collect()
}

// Downloads.

#[test]
fn a_download_is_in_the_layout_of_huggingface_hub() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    let mut told = Vec::new();
    let mut tell = |transfer: Transfer<'_>| {
        assert_eq!((transfer.file, transfer.total_bytes), (FILE, 700_000));
        told.push(transfer.done_bytes);
        ControlFlow::Continue(())
    };
    let path = Hub::new(places.clone()).fetch(&wanted("org/tiny-GGUF:q8_0"), &mut tell).unwrap();
    assert!(told.is_sorted() && told.first() == Some(&0) && told.last() == Some(&700_000));
    assert_eq!(path, repo(&place).join("snapshots").join(COMMIT).join(FILE));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(std::fs::read_to_string(repo(&place).join("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    assert_eq!(
        std::fs::read_link(&path).unwrap(),
        Path::new("../../blobs").join(sha256(&bytes)),
        "links are relative, so that the cache may be moved"
    );
    assert!(!incomplete(&place, &bytes).exists());
    // What is there is used without asking.
    hub.seen();
    assert_eq!(fetch(&places, "org/tiny-GGUF:Q8_0").unwrap(), path);
    assert!(hub.seen().is_empty());
    // Unless the newest is asked for, which is the one that is there.
    let again = Hub::new(places).update(&wanted(REPO), &mut |_| ControlFlow::Continue(()));
    assert_eq!(again.unwrap(), path);
    let seen = hub.seen();
    assert!(!seen.is_empty() && downloads(&seen).is_empty(), "{seen:?}");
}

#[test]
fn a_download_goes_on_where_an_earlier_one_ended() {
    let place = Place::new();
    let (hub, places, bytes) = begun(&place);
    let path = fetch(&places, REPO).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    let seen = hub.seen();
    let ranges: Vec<_> = downloads(&seen).iter().map(|r| r.range.clone()).collect();
    assert_eq!(ranges, [Some("bytes=300001-".to_owned())]);
}

#[test]
fn a_connection_that_breaks_is_opened_again() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    hub.faults(Faults { cut_after: vec![100_000, 50_000], ..Faults::default() });
    let path = fetch(&places, REPO).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    let seen = hub.seen();
    let ranges: Vec<_> = downloads(&seen).iter().map(|r| r.range.as_deref()).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-"), Some("bytes=150000-")]);
}

#[test]
fn a_connection_that_brings_nothing_is_given_up_and_what_arrived_is_kept() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    hub.faults(Faults { cut_after: vec![100_000, 0, 0, 0, 0, 0], ..Faults::default() });
    let error = fetch(&places, REPO).unwrap_err();
    let HubError::Broken { done_bytes, total_bytes, .. } = error else { panic!("{error}") };
    assert_eq!((done_bytes, total_bytes), (100_000, 700_000));
    assert!(error.to_string().contains("goes on from there"), "{error}");
    assert_eq!(std::fs::read(incomplete(&place, &bytes)).unwrap(), bytes[..100_000]);
    hub.faults(Faults::default());
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
}

#[test]
fn a_storage_without_ranges_sends_the_whole_file_again() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    hub.faults(Faults { cut_after: vec![100_000], no_ranges: true, ..Faults::default() });
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
    assert_eq!(downloads(&hub.seen()).len(), 2);
}

/// Places of a user with the first 300,001 bytes of the file.
fn begun(place: &Place) -> (TestHub, Places, Vec<u8>) {
    let (hub, places, bytes) = hub_and_places(place);
    let part = incomplete(place, &bytes);
    std::fs::create_dir_all(part.parent().unwrap()).unwrap();
    std::fs::write(&part, &bytes[..300_001]).unwrap();
    (hub, places, bytes)
}

#[test]
fn what_arrived_is_kept_where_the_answer_is_not_the_file() {
    for refuses_ranges in [None, Some(416), Some(206)] {
        let place = Place::new();
        let (hub, places, bytes) = begun(&place);
        hub.faults(Faults { has_login: true, refuses_ranges, ..Faults::default() });
        let error = fetch(&places, REPO).unwrap_err();
        assert!(matches!(error, HubError::Answer { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("the answer has 6 bytes, the file 700000"), "{text}");
        assert_eq!(std::fs::read(incomplete(&place, &bytes)).unwrap(), bytes[..300_001]);
        // Without the page the whole file comes where there are no parts.
        hub.faults(Faults { refuses_ranges, ..Faults::default() });
        hub.seen();
        assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
        let seen = hub.seen();
        let ranges: Vec<_> = downloads(&seen).iter().map(|r| r.range.as_deref()).collect();
        let tried: &[_] = &[Some("bytes=300001-"), None];
        assert_eq!(ranges, tried[..1 + usize::from(refuses_ranges.is_some())]);
    }
}

#[test]
fn a_page_of_unknown_length_is_not_the_file() {
    let login = || Faults { has_login: true, is_chunked: true, ..Faults::default() };
    let place = Place::new();
    let (hub, places, bytes) = begun(&place);
    hub.faults(login());
    let error = fetch(&places, REPO).unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
    let part = incomplete(&place, &bytes);
    assert!(error.to_string().contains(&format!("delete {}", part.display())), "{error}");
    assert_eq!(std::fs::read(&part).unwrap(), bytes[..300_001]);
    // Where nothing had arrived, nothing of the page is kept.
    std::fs::remove_file(&part).unwrap();
    hub.faults(login());
    let error = fetch(&places, REPO).unwrap_err();
    assert!(error.to_string().contains("the answer has 6 bytes, the file 700000"), "{error}");
    assert_eq!(std::fs::read(&part).unwrap(), b"");
    // A whole file may come in chunks.
    hub.faults(Faults { is_chunked: true, ..Faults::default() });
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
}

#[test]
fn the_checksum_of_what_arrived_earlier_is_told_of_and_interrupted() {
    let place = Place::new();
    let (hub, places, bytes) = begun(&place);
    let mut told = Vec::new();
    let mut stop = |transfer: Transfer<'_>| {
        told.push(transfer.done_bytes);
        ControlFlow::Break(())
    };
    let stopped = Hub::new(places).fetch(&wanted(REPO), &mut stop);
    assert!(matches!(stopped, Err(HubError::Interrupted)), "{stopped:?}");
    assert!(told.len() == 1 && told[0] < 300_001, "{told:?}");
    assert!(downloads(&hub.seen()).is_empty());
    assert_eq!(std::fs::read(incomplete(&place, &bytes)).unwrap(), bytes[..300_001]);
}

#[test]
fn bytes_with_another_checksum_are_deleted() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    hub.faults(Faults { is_damaged: true, ..Faults::default() });
    let error = fetch(&places, REPO).unwrap_err();
    let HubError::Checksum { expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!(*expected, sha256(&bytes));
    assert_ne!(found, expected);
    assert!(!incomplete(&place, &bytes).exists());
    assert!(matches!(Hub::new(places.clone()).cached(&wanted(REPO)), Ok(None)));
    hub.faults(Faults::default());
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
}

#[test]
fn an_interrupted_download_keeps_what_arrived() {
    let place = Place::new();
    let (_hub, places, bytes) = hub_and_places(&place);
    let mut stop = |transfer: Transfer<'_>| match transfer.done_bytes >= 200_000 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let stopped = Hub::new(places.clone()).fetch(&wanted(REPO), &mut stop);
    assert!(matches!(stopped, Err(HubError::Interrupted)), "{stopped:?}");
    let kept = std::fs::read(incomplete(&place, &bytes)).unwrap();
    assert!(kept.len() >= 200_000 && kept[..] == bytes[..kept.len()], "{}", kept.len());
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
}

#[test]
fn of_several_that_want_a_file_one_downloads_it() {
    let place = Place::new();
    let (hub, places, bytes) = hub_and_places(&place);
    hub.faults(Faults { pause: Duration::from_millis(300), ..Faults::default() });
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| found.lock().unwrap().push(fetch(&places, REPO).unwrap()));
        }
    });
    let found = found.into_inner().unwrap();
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|path| std::fs::read(path).unwrap() == bytes));
    assert_eq!(downloads(&hub.seen()).len(), 1);
}

#[test]
fn split_files_are_fetched_whole_and_projectors_are_not() {
    let place = Place::new();
    let (hub, places, _) = hub_and_places(&place);
    let parts = ["big/b-Q4_K_M-00001-of-00002.gguf", "big/b-Q4_K_M-00002-of-00002.gguf"];
    for part in parts {
        hub.file("org/split", part, part);
    }
    hub.file("org/split", "mmproj-Q4_K_M.gguf", "no model");
    let mut told = Vec::new();
    let mut tell = |transfer: Transfer<'_>| {
        told.push((transfer.done_bytes, transfer.total_bytes));
        ControlFlow::Continue(())
    };
    let path = Hub::new(places).fetch(&wanted("org/split"), &mut tell).unwrap();
    assert!(path.ends_with(parts[0]), "{path:?}");
    for part in parts {
        let name = Path::new(part).file_name().unwrap();
        assert_eq!(std::fs::read_to_string(path.with_file_name(name)).unwrap(), part);
    }
    assert!(told.is_sorted() && told.last() == Some(&(64, 64)), "{told:?}");
    assert!(hub.seen().iter().all(|request| !request.path.contains("mmproj")));
}

#[test]
fn the_type_is_the_usual_one_unless_another_is_asked_for() {
    let place = Place::new();
    let (hub, places, _) = hub_and_places(&place);
    for quant in ["BF16", "IQ2_M", "Q4_K_M", "Q8_0"] {
        hub.file("org/many", &format!("m-{quant}.gguf"), quant);
    }
    let text = |name: &str| std::fs::read_to_string(fetch(&places, name).unwrap()).unwrap();
    assert_eq!(text("org/many:bf16"), "BF16");
    // Another type in the cache does not stand in for the usual one.
    assert_eq!(text("org/many"), "Q4_K_M");
    assert_eq!(text("org/many/m-IQ2_M.gguf"), "IQ2_M");
    // It does where the hub has not the usual one, whatever is newer there, and where the hub refuses.
    hub.file("org/eight", "m-Q8_0.gguf", "old");
    assert_eq!(text("org/eight"), "old");
    hub.file("org/eight", "m-Q8_0.gguf", "new");
    assert_eq!(text("org/eight"), "old");
    for status in [401, 404, 429, 503] {
        hub.faults(Faults { refuses: Some(status), ..Faults::default() });
        assert_eq!(text("org/eight"), "old");
    }
    hub.faults(Faults::default());
    // Another quantization than the hub's files give is no reason to keep it.
    hub.file("org/two", "m-IQ2_M.gguf", "IQ2_M");
    hub.file("org/two", "m-Q8_0.gguf", "Q8_0");
    assert_eq!(text("org/two:IQ2_M"), "IQ2_M");
    assert_eq!(text("org/two"), "Q8_0");
    let error = fetch(&places, "org/many:Q5_K_M").unwrap_err().to_string();
    assert!(error.contains("Q5_K_M") && error.contains("BF16, IQ2_M, Q4_K_M, Q8_0"), "{error}");
    let error = fetch(&places, "org/many/other.gguf").unwrap_err().to_string();
    assert!(error.contains("no file other.gguf"), "{error}");
    hub.file("org/plain", "model.safetensors", "x");
    let error = fetch(&places, "org/plain").unwrap_err().to_string();
    assert!(error.contains("try org/plain-GGUF"), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_storage() {
    let place = Place::new();
    let (hub, mut places, bytes) = hub_and_places(&place);
    hub.needs_token("hf_secret");
    let error = fetch(&places, REPO).unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 401, .. }), "{error}");
    let advice = error.to_string();
    for part in ["gated", "/settings/tokens", "--hf-token", "HF_TOKEN"] {
        assert!(advice.contains(part), "{part}: {advice}");
    }
    places.token = AccessToken::new("hf_wrong");
    let error = fetch(&places, REPO).unwrap_err().to_string();
    assert!(error.contains("accept the terms") && !error.contains("hf_wrong"), "{error}");
    places.token = AccessToken::new("hf_secret");
    hub.seen();
    assert_eq!(std::fs::read(fetch(&places, REPO).unwrap()).unwrap(), bytes);
    for request in hub.seen() {
        let expected = (!request.path.starts_with("/storage/")).then_some("Bearer hf_secret");
        assert_eq!(request.token.as_deref(), expected, "{request:?}");
    }
}

#[test]
fn what_the_hub_refuses_is_said() {
    let place = Place::new();
    let (hub, places, _) = hub_and_places(&place);
    let error = fetch(&places, "org/none").unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
    for (status, part) in [(403, "HTTP 403"), (500, "status 500"), (429, "status 429")] {
        hub.faults(Faults { refuses: Some(status), ..Faults::default() });
        let error = fetch(&places, REPO).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // Nobody listens on a port that was just given back.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = Places { endpoint: format!("http://{free}"), ..places };
    let error = fetch(&nowhere, REPO).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
}

// The cache.

#[test]
fn offline_opens_no_connection_and_names_what_is_missing() {
    let place = Place::new();
    let (hub, places, _) = hub_and_places(&place);
    let offline = Places { access: Access::Offline, ..places.clone() };
    let error = fetch(&offline, "org/tiny-GGUF:Q8_0").unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(error.to_string().contains("org/tiny-GGUF:Q8_0 is not in "), "{error}");
    assert!(hub.seen().is_empty());
    let path = fetch(&places, REPO).unwrap();
    hub.seen();
    // Q8_0 is not the usual type, but what there is.
    assert_eq!(fetch(&offline, REPO).unwrap(), path);
    assert!(fetch(&offline, "org/tiny-GGUF:Q4_K_M").is_err());
    assert!(hub.seen().is_empty());
}

#[cfg(unix)]
#[test]
fn links_that_leave_the_cache_are_refused() {
    let place = Place::new();
    let (_hub, places, _) = hub_and_places(&place);
    let snapshot = repo(&place).join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    let secret = place.file("secret", "outside");
    std::os::unix::fs::symlink(&secret, snapshot.join(FILE)).unwrap();
    let error = fetch(&places, REPO).unwrap_err();
    assert!(matches!(error, HubError::Escapes { .. }), "{error}");
    // Within the cache a chain of links is followed: blobs may be shared by repositories.
    let shared = place.path().join("hub/blobs");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::create_dir_all(repo(&place).join("blobs")).unwrap();
    std::fs::write(shared.join("b"), "inside").unwrap();
    std::os::unix::fs::symlink("../../blobs/b", repo(&place).join("blobs/b")).unwrap();
    std::fs::remove_file(snapshot.join(FILE)).unwrap();
    std::os::unix::fs::symlink("../../blobs/b", snapshot.join(FILE)).unwrap();
    let path = fetch(&places, "org/tiny-GGUF:Q8_0").unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), "inside");
}

// The program.

/// Runs the program against the hub.
fn on(hub: &TestHub, place: &Place, arguments: &str) -> Ran {
    let mut command = place.command(arguments);
    ran(command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", place.path()))
}

/// A hub with a model that runs.
fn hub_with_model() -> TestHub {
    let hub = TestHub::new();
    hub.file(REPO, FILE, words::tiny(Type::Q8_0, 1));
    hub
}

#[test]
fn commands_download_a_model_once() {
    let (place, hub) = (Place::new(), hub_with_model());
    let line = "run -hf org/tiny-GGUF:q8_0 -p abc -n 4 -ngl 0 --temp 0";
    let mut first = place.command(line);
    first.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", place.path());
    // As an orchestrator sets the variable for a secret that it has not.
    let first = ran(first.env("HF_TOKEN", "")).good();
    assert!(first.err.contains("downloading tiny-Q8_0.gguf"), "{first:?}");
    hub.seen();
    for command in [
        "run -hfr org/tiny-GGUF:Q8_0 -p abc -n 4 -ngl 0 --temp 0",
        "run -hf org/tiny-GGUF -hff tiny-q8_0.gguf -p abc -n 4 -ngl 0 --temp 0",
        "run -m hf:org/tiny-GGUF:Q8_0 -p abc -n 4 -ngl 0 --temp 0 --offline",
        "run -hf https://huggingface.co/org/tiny-GGUF/blob/main/tiny-Q8_0.gguf -p abc -n 4 -ngl 0 --temp 0",
    ] {
        let again = on(&hub, &place, command).good();
        assert_eq!(again.out, first.out, "{command}");
        assert!(!again.err.contains("downloading"), "{again:?}");
    }
    // A draft model, too, where it is given for a server.
    let body = r#"{"model":"b","prompt":"a","max_tokens":1}"#;
    let line =
        format!(r#"{{"custom_id":"1","method":"POST","url":"/v1/completions","body":{body}}}"#);
    place.file("in.jsonl", line + "\n");
    let batch = "batch in.jsonl out.jsonl -m hf:org/tiny-GGUF:Q8_0 -md hf:org/tiny-GGUF:Q8_0";
    on(&hub, &place, &format!("{batch} --add-model b=hf:org/tiny-GGUF:Q8_0 --offline")).good();
    let missing = on(&hub, &place, "batch in.jsonl o.jsonl -md hf:org/none-GGUF --offline");
    assert!(missing.err.contains("org/none-GGUF is not in "), "{missing:?}");
    for command in ["plan", "inspect", "tokenize abc", "bench -p 4 -n 0 -r 1 -ngl 0"] {
        on(&hub, &place, &format!("{command} -hf org/tiny-GGUF:Q8_0 --offline")).good();
    }
    assert!(hub.seen().is_empty());
}

/// A download that is killed goes on with the next run, and the cache has whole files only; `BILAYER_TEST_KILLS` sets how
/// often.
#[test]
#[cfg(unix)]
fn a_download_killed_at_any_moment_is_completed_by_the_next() {
    let kills = std::env::var("BILAYER_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    let (kills, place, hub) = (kills.unwrap_or(6), Place::new(), TestHub::new());
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf");
    let bytes = std::fs::read(demo).unwrap();
    hub.file(REPO, FILE, &bytes);
    let line = format!("inspect -hf {REPO}");
    let began = Instant::now();
    on(&hub, &place, &line).good();
    let (mut whole, mut state) = (began.elapsed(), 7_u64);
    let blobs = format!("hub/models--{}/blobs", REPO.replace('/', "--"));
    let [complete] = place.names_in(&blobs).try_into().unwrap();
    let tried = support::tried::Tried::new("writer download");
    let (mut runs, mut ended, mut parts) = (0, 0, 0);
    while ended < kills && runs < 4 * kills {
        runs += 1;
        std::fs::remove_dir_all(place.path().join("hub")).unwrap();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let share = (state >> 40) as f64 / f64::from(1 << 24);
        let mut command = place.command(&line);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", place.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(share));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            whole = whole.mul_f64(0.9);
            continue;
        }
        ended += 1;
        let path = place.path().join(&blobs);
        for entry in path.read_dir().into_iter().flatten() {
            let entry = entry.unwrap();
            let found = std::fs::read(entry.path()).unwrap();
            let is_whole = entry.file_name() == complete.as_str();
            parts += usize::from(!is_whole);
            assert!(bytes.starts_with(&found) && (!is_whole || found == bytes), "{entry:?}");
        }
        on(&hub, &place, &line).good();
        assert_eq!(place.names_in(&blobs), [complete.as_str()]);
    }
    tried.done(&format!("{ended} of {runs} runs ended by the signal, {parts} left a part"));
}

/// A server handles signals itself, also where the command caught them during the download.
#[test]
#[cfg(unix)]
fn a_server_that_downloaded_its_model_reloads_and_drains() {
    let (place, hub) = (Place::new(), hub_with_model());
    let mut command = place.command("serve -hf org/tiny-GGUF --port 0 -ngl 0 --log-format text");
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", place.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut lines = std::io::BufReader::new(out).lines().map_while(Result::ok);
    let mut notes = std::io::BufReader::new(err).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("listening on ")));
    let id = child.id().to_string();
    let send =
        |signal: &str| assert!(place.bare("kill").args([signal, &id]).status().unwrap().success());
    send("-HUP");
    assert!(notes.any(|line| line.contains("keys were read again")), "SIGHUP ended it");
    send("-TERM");
    assert!(
        notes.any(|line| line.contains("running answers are finished first")),
        "it did not drain"
    );
    drop(std::thread::spawn(move || notes.for_each(drop)));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_have_codes_and_advice() {
    let (place, hub) = (Place::new(), hub_with_model());
    let model = place.file("model.gguf", words::tiny(Type::Q8_0, 1));
    let cases = [
        ("run -hf org", 2, "a repository is like"),
        ("run --hf-file a.gguf", 2, "--hf-file needs -hf"),
        ("run -m model.gguf -hf org/tiny-GGUF", 2, "both -m and -hf"),
        ("run -hf org/tiny-GGUF:Q2_K", 66, "no file of type Q2_K; it has Q8_0"),
        ("run -hf org/none", 66, "HTTP 404"),
        ("run -hf org/tiny-GGUF --offline", 66, "downloads are off"),
        ("run -m org/tiny-GGUF", 66, "a model on Hugging Face is -hf org/tiny-GGUF"),
        (
            "run -m https://huggingface.co/org/r/resolve/main/a.gguf",
            66,
            "-hf org/r --hf-file a.gguf",
        ),
        (
            "run -m https://huggingface.co/org/r/blob/main/sub/a.gguf",
            66,
            "-hf org/r --hf-file sub/a.gguf",
        ),
        ("run -hf https://huggingface.co/org", 2, "org/repo/blob/main/file.gguf"),
        ("run -m missing.gguf", 66, "missing.gguf"),
        ("run -m ollama:none", 66, "ollama has no model none"),
        ("run -m lmstudio:a/b", 66, "LM Studio has no model a/b"),
        ("run -mu https://x", 2, "give -hf ORG/REPO"),
        ("run -hft hf_é -hf org/tiny-GGUF", 2, "a token is one word"),
    ];
    for (command, code, part) in cases {
        let ran = on(&hub, &place, command);
        assert_eq!(ran.code, Some(code), "{command}: {ran:?}");
        assert!(ran.err.contains(part) && ran.err.lines().count() == 1, "{command}: {ran:?}");
    }
    let mut offline = place.command("plan -hf org/tiny-GGUF");
    let offline = ran(offline.env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_OFFLINE", "1"));
    assert_eq!(offline.code, Some(66), "{offline:?}");
    // A flag wins over the other's variable.
    let mut flag = place.command("plan -m model.gguf --json");
    ran(flag.env("LLAMA_ARG_HF_REPO", "org/none").env("HF_ENDPOINT", &hub.endpoint)).good();
    let mut flag = place.command("plan -hf org/tiny-GGUF --json");
    let flag = flag.env("LLAMA_ARG_MODEL", "none.gguf").env("HF_ENDPOINT", &hub.endpoint);
    ran(flag).good();
    // And over the settings file.
    place.file("bilayer.toml", "hf-repo = \"org/none\"\n");
    on(&hub, &place, &format!("plan -m {}", model.display())).good();
}

/// A command for a hub that is not there, without the proxies and certificates of whoever runs the tests.
fn nowhere(place: &Place, endpoint: &str, name: &str) -> Command {
    let mut command = place.command(&format!("plan -hf {name}"));
    for proxy in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(proxy).env_remove(proxy.to_uppercase());
    }
    for certificates in ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"] {
        command.env_remove(certificates);
    }
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", place.path());
    command
}

/// As an unreachable hub does, a variable that cannot be used leaves the model in the cache.
#[test]
fn settings_that_cannot_be_used_are_errors_unless_the_cache_serves() {
    let (place, hub) = (Place::new(), hub_with_model());
    on(&hub, &place, "plan -hf org/tiny-GGUF:Q8_0").good();
    for (variable, value, part) in [
        ("ALL_PROXY", "ftp://proxy", "ALL_PROXY: not the address of a proxy"),
        ("SSL_CERT_FILE", "missing.pem", "SSL_CERT_FILE: "),
    ] {
        let on =
            |endpoint: &str, name: &str| ran(nowhere(&place, endpoint, name).env(variable, value));
        let missing = on("https://hub.invalid", "org/other-GGUF");
        assert!(missing.code == Some(2) && missing.err.contains(part), "{missing:?}");
        on("https://hub.invalid", "org/tiny-GGUF").good();
        // Certificates are not read where nothing is encrypted.
        let plain = on("http://hub.invalid", "org/other-GGUF");
        let expected = if variable == "ALL_PROXY" { 2 } else { 74 };
        assert_eq!(plain.code, Some(expected), "{plain:?}");
    }
}

/// The first three bytes of a connection, if there is one within a minute.
fn greeting(listener: &std::net::TcpListener) -> Option<[u8; 3]> {
    listener.set_nonblocking(true).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        if let Ok((mut stream, _)) = listener.accept() {
            let mut greeting = [0; 3];
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.read_exact(&mut greeting).unwrap();
            return Some(greeting);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// The hub is asked through a SOCKS proxy, or not at all.
#[test]
fn a_socks_proxy_is_used() {
    let (place, proxy) = (Place::new(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let address = format!("socks5h://{}", proxy.local_addr().unwrap());
    let heard = std::thread::spawn(move || greeting(&proxy));
    let mut command = nowhere(&place, "http://hub.invalid", "org/tiny-GGUF");
    assert_eq!(ran(command.env("ALL_PROXY", address)).code, Some(74));
    // Version 5, one method: no password.
    assert_eq!(heard.join().unwrap(), Some([5, 1, 0]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_noticed_before_the_download() {
    let (place, hub) = (Place::new(), TestHub::new());
    hub.file(REPO, FILE, bytes());
    // Each part has room, but not both.
    for part in 1..3 {
        let bytes = &bytes()[part..150_000 + part];
        hub.file("org/split", &format!("b-Q8_0-0000{part}-of-00002.gguf"), bytes);
    }
    for (repo, part) in [
        (REPO, "no space for tiny-Q8_0.gguf: 700000 bytes are needed"),
        (
            "org/split",
            "no space for b-Q8_0-00001-of-00002.gguf and 1 more: 300000 bytes are needed",
        ),
    ] {
        let script = format!(
            "HF_ENDPOINT={} HF_HOME=disk \"$0\" plan -hf {repo}; code=$?; ls -A disk/hub/*/blobs; exit $code",
            hub.endpoint
        );
        let Some(ran) = support::disk::with_disk(&place, 200_000, &script) else { return };
        assert_eq!(ran.code, Some(73), "{ran:?}");
        assert!(ran.err.contains(part), "{ran:?}");
        assert!(downloads(&hub.seen()).is_empty());
    }
}

/// A model in ollama's store under that name: a template, and blobs of layers of the given types.
fn pull(store: &Path, manifest: &str, layers: &[(&str, &[u8])]) {
    let manifest = store.join("manifests").join(manifest);
    std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    std::fs::create_dir_all(store.join("blobs")).unwrap();
    let template = "application/vnd.ollama.image.template";
    let mut described = vec![json!({"mediaType": template, "digest": "sha256:0", "size": 1})];
    for (ty, bytes) in layers {
        let digest = sha256(bytes);
        std::fs::write(store.join("blobs").join(format!("sha256-{digest}")), bytes).unwrap();
        described.push(json!({
            "mediaType": format!("application/vnd.ollama.image.{ty}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        }));
    }
    let text = json!({"schemaVersion": 2, "layers": described}).to_string();
    std::fs::write(manifest, text).unwrap();
}

#[test]
fn models_of_other_programs_are_found_listed_and_run_in_place() {
    let (place, hub) = (Place::new(), hub_with_model());
    on(&hub, &place, "plan -hf org/tiny-GGUF:Q8_0").good();
    let model = words::tiny(Type::Q4_0, 2);
    let store = place.path().join(".ollama/models");
    pull(&store, "registry.ollama.ai/library/tiny/1b", &[("model", &model)]);
    pull(&store, "registry.ollama.ai/me/mine/latest", &[("model", &model)]);
    std::fs::write(store.join("manifests/registry.ollama.ai/library/tiny/broken"), "{").unwrap();
    let folder = place.path().join(".lmstudio/models/maker/tiny-GGUF");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tiny-Q4_0.gguf"), &model).unwrap();
    std::fs::write(folder.join("mmproj-tiny.gguf"), "no model").unwrap();
    std::fs::create_dir_all(place.path().join("mine")).unwrap();
    place.file("mine/own.gguf", &model);
    place.file("mine/half-00001-of-00002.gguf", "half");
    let list = on(&hub, &place, "models --json --models-dir mine").json();
    let rows = list["models"].as_array().unwrap().iter().map(|row| {
        let text = |key: &str| row[key].as_str().unwrap_or("null").to_owned();
        assert!(row["bytes"].as_u64().unwrap() > 1000, "{row}");
        [text("name"), text("source"), text("architecture"), text("quantization")]
    });
    let rows: Vec<_> = rows.collect();
    let expected = [
        ["hf:org/tiny-GGUF:Q8_0", "huggingface", "llama", "Q8_0"],
        ["lmstudio:maker/tiny-GGUF/tiny-Q4_0", "lmstudio", "llama", "Q4_0"],
        ["ollama:tiny:1b", "ollama", "llama", "Q4_0"],
        ["ollama:me/mine:latest", "ollama", "llama", "Q4_0"],
        ["mine/own.gguf", "folder", "llama", "Q4_0"],
    ];
    assert_eq!(rows, expected);
    let table = on(&hub, &place, "ls --models-dir mine").good().out;
    for [name, ..] in expected {
        assert!(table.contains(name), "{table}");
        let run = format!("run -m {name} -p abc -n 2 -ngl 0 --offline");
        on(&hub, &place, &run).good();
    }
    on(&hub, &place, "run -m ollama:me/mine -p abc -n 2 -ngl 0").good();
    on(&hub, &place, "run -m lmstudio:maker/tiny-GGUF -p abc -n 2 -ngl 0").good();
    let near = on(&hub, &place, "run -m tiny:1b");
    assert!(
        near.code == Some(66) && near.err.contains("-m ollama:tiny:1b would be one"),
        "{near:?}"
    );
    // The base model alone would give other answers.
    let lora: &[u8] = b"adapter";
    pull(&store, "registry.ollama.ai/me/tuned/latest", &[("model", &model), ("adapter", lora)]);
    let tuned = on(&hub, &place, "run -m ollama:me/tuned");
    let flag = format!("--lora {}", store.join("blobs/sha256-").display()) + &sha256(lora);
    assert!(tuned.code == Some(2) && tuned.err.contains(&flag), "{tuned:?}");
    // It is listed, also without the adapter's file.
    std::fs::remove_file(store.join("blobs/sha256-".to_owned() + &sha256(lora))).unwrap();
    let list = on(&hub, &place, "models").good().out;
    assert!(list.contains("ollama:me/tuned:latest"), "{list}");
    let tuned = on(&hub, &place, "run -m ollama:me/tuned");
    assert!(tuned.code == Some(65) && tuned.err.contains("is missing"), "{tuned:?}");
    let broken = on(&hub, &place, "run -m ollama:tiny:broken");
    assert!(broken.code == Some(65) && broken.err.contains("pull the model again"), "{broken:?}");
}

#[test]
fn without_models_the_list_is_empty() {
    let place = Place::new();
    let none = place.run("models").good();
    assert!(none.out.is_empty() && none.err.contains("-hf ORG/REPO"), "{none:?}");
    assert_eq!(place.run("models --json").json(), json!({"models": []}));
}
