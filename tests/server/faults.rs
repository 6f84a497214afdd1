//! Clients that leave or do not read, and a server that is killed.

use std::path::PathBuf;

use super::*;

/// Waits until `is_so`, at most 10 seconds.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_busy(server: &Server, slot: usize) -> bool {
    server.get("/slots").good()[slot]["is_processing"].as_bool().unwrap()
}

/// A prompt of some thousand tokens.
fn long_prompt() -> String {
    "Now is the winter of our discontent, and all the clouds that lowered upon us. ".repeat(60)
}

#[test]
fn a_client_that_leaves_in_its_prompt_frees_its_place() {
    let server = Server::start("-np 1 -c 8192 -t 1 --metrics --max-step-ms 20");
    let body = json!({ "prompt": long_prompt(), "ignore_eos": true, "n_predict": 400 });
    let stream = server.stream("/completion", &body);
    until("the prompt was not begun", || is_busy(&server, 0));
    drop(stream);
    until("the request was not cancelled", || !is_busy(&server, 0));
    let metrics = server.get("/metrics").body;
    let count = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{metrics}")).trim().parse::<u64>().unwrap()
    };
    assert_eq!(count("llamacpp:tokens_predicted_total "), 0, "it left in the prompt");
    assert_eq!(server.post("/completion", &json!({ "prompt": "a", "n_predict": 2 })).status, 200);
}

/// A slot is saved while another one's prompt takes long steps. The client leaves meanwhile, and the file is there.
#[test]
fn a_client_that_leaves_while_a_slot_is_saved_leaves_the_file() {
    let place = Place::new();
    let folder = place.path().join("slots");
    std::fs::create_dir(&folder).unwrap();
    let server = Server::start_in(
        place,
        &format!("-np 2 -c 16384 -t 1 --max-step-ms 200 --slot-save-path {}", folder.display()),
    );
    let ask = |slot: u32, prompt: &str| json!({ "prompt": prompt, "id_slot": slot, "n_predict": 1, "ignore_eos": true });
    server.post("/completion", &ask(0, "ROMEO:\nBut, soft!")).good();
    server.post("/slots/0?action=save", &json!({ "filename": "sound.bin" })).good();
    for attempt in 0.. {
        // Another prompt each time, so that nothing of it is cached.
        let prompt = format!("{attempt}{}", long_prompt());
        let busy = server.stream("/completion", &ask(1, &prompt));
        until("the prompt was not begun", || is_busy(&server, 1));
        let name = format!("{attempt}.bin");
        let save = server.stream("/slots/0?action=save", &json!({ "filename": name }));
        std::thread::sleep(Duration::from_millis(40));
        let is_early = !folder.join(&name).exists();
        drop(save);
        drop(busy);
        until("the prompt was not cancelled", || !is_busy(&server, 1));
        let began = Instant::now();
        while !folder.join(&name).exists() && began.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let is_there = folder.join(&name).exists();
        // A request that the server had not read when the client left is not carried out.
        assert!(is_there || attempt < 4, "no file of {name}");
        if is_there && (is_early || attempt > 4) {
            let restore = server.post("/slots/0?action=restore", &json!({ "filename": name }));
            assert!(restore.good()["n_restored"].as_u64() > Some(4));
            return;
        }
    }
}

/// A client that does not read its answer delays no other, and has all of it once it reads. The answer is larger than the buffers
/// of both sockets, at most 4 MiB by Linux's defaults, and what the server writes ahead, so the end of it waits in the server.
#[test]
fn a_client_that_does_not_read_delays_no_other() {
    let place = Place::new();
    let log = place.path().join("log");
    let server = Server::start_in(place, "-np 2 -c 4096 -t 1 --log-format json --log-file log");
    // A request is logged when its response has been sent.
    let sent = |path: &str| {
        let log = std::fs::read_to_string(&log).unwrap();
        log.lines().filter(|line| line.contains(&format!("\"path\":\"{path}\""))).count()
    };
    let long = json!({
        "prompt": "ROMEO:\n", "ignore_eos": true, "stream": true, "n_predict": 1200, "n_probs": 128,
        "temperature": 0.0
    });
    let mut slow = server.stream("/completion", &long);
    let others = |count: usize| {
        for _ in 0..3 {
            let body = json!({ "prompt": "a", "max_tokens": 4, "ignore_eos": true });
            let answer = server.post("/v1/completions", &body).good();
            assert_eq!(answer["usage"]["completion_tokens"], 4);
        }
        until("the other answers are sent", || sent("/v1/completions") == count);
        assert_eq!(sent("/completion"), 0, "the whole answer fits into buffers");
    };
    others(3);
    until("the answer is computed", || !is_busy(&server, 0) && !is_busy(&server, 1));
    std::thread::sleep(Duration::from_millis(200));
    others(6);
    let (mut text, mut bytes) = (String::new(), 0);
    while let Some(event) = slow.event() {
        text += event["content"].as_str().unwrap_or_default();
        bytes += event.to_string().len();
    }
    assert!(bytes > 8 << 20, "{bytes}");
    until("the answer is sent", || sent("/completion") == 1);
    let whole =
        json!({ "prompt": "ROMEO:\n", "ignore_eos": true, "n_predict": 1200, "temperature": 0.0 });
    assert_eq!(json!(text), server.post("/completion", &whole).good()["content"]);
}

/// What a process has done since it began: ticks of CPU time, and calls that read and that write.
#[cfg(target_os = "linux")]
fn done(pid: u32) -> [u64; 3] {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let io = read("io");
    let calls = ["syscr: ", "syscw: "].map(|name| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    });
    [ticks, calls[0], calls[1]]
}

/// What fails while no request runs is noticed by the next one: until then nothing is computed, on no device, and nothing is
/// read or written.
#[cfg(target_os = "linux")]
#[test]
fn a_server_without_requests_computes_reads_and_writes_nothing() {
    let adapter = gpu::gpu().map(|_| "-dev software -ngl 3");
    for device in [""].into_iter().chain(adapter) {
        let server = Server::start(&format!("-np 2 -c 512 {device} --metrics"));
        let body = json!({ "prompt": "ROMEO:\n", "ignore_eos": true, "n_predict": 8 });
        server.post("/completion", &body).good();
        let mut begun = done(server.pid());
        until("the server does not come to rest", || {
            std::thread::sleep(Duration::from_millis(100));
            let now = done(server.pid());
            std::mem::replace(&mut begun, now) == now
        });
        std::thread::sleep(Duration::from_millis(1500));
        let [ticks, reads, writes] = done(server.pid());
        assert!(ticks <= begun[0] + 3, "{device}: {} of 150 ticks", ticks - begun[0]);
        assert_eq!([reads, writes], begun[1..], "{device}: calls that read and that write");
        // A short answer may take less than a tick.
        until("answers take no time", || {
            server.post("/completion", &body).good();
            done(server.pid())[0] > ticks
        });
    }
}

/// A client that sends half its body has no place yet: with one place and one in the queue, others are answered meanwhile.
#[test]
fn a_client_that_sends_slowly_delays_no_other() {
    let server = Server::start("-np 1 -c 512 -t 1 --max-queue 1");
    let body = json!({ "prompt": "ROMEO:\n", "n_predict": 4, "temperature": 0.0 }).to_string();
    let (first, rest) = body.split_at(body.len() / 2);
    let head = format!(
        "POST /completion HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{first}",
        body.len()
    );
    let slow: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let whole = server.send("POST", "/completion", &[], &body).good()["content"].clone();
    assert!(!is_busy(&server, 0));
    for mut stream in slow {
        stream.write_all(rest.as_bytes()).unwrap();
        assert_eq!(Reply::read(stream).good()["content"], whole);
    }
}

/// A server at a socket that keeps slots.
#[cfg(unix)]
struct Keeper {
    place: Place,
    socket: PathBuf,
}

#[cfg(unix)]
impl Keeper {
    fn new() -> Keeper {
        let place = Place::new();
        std::fs::create_dir(place.path().join("slots")).unwrap();
        Keeper { socket: place.path().join("bilayer.sock"), place }
    }

    /// Starts it, and waits until it listens.
    fn start(&self) -> std::process::Child {
        let line = format!(
            "serve -ngl 0 -np 1 -c 256 --host {} --slot-save-path slots",
            self.socket.display()
        );
        let mut command = self.place.command(&line);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = [0; 14];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        child
    }

    /// The answer's head and body, as far as the server lives to send them.
    fn ask(&self, path: &str, body: &Value) -> String {
        use std::os::unix::net::UnixStream;
        let body = body.to_string();
        let mut text = String::new();
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return text };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.read_to_string(&mut text);
        text
    }

    fn post(&self, path: &str, body: &Value) -> String {
        let text = self.ask(path, body);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        text
    }

    /// Fills the slot with an answer.
    fn answer(&self, prompt: &str) {
        self.post("/completion", &json!({ "prompt": prompt, "n_predict": 4, "id_slot": 0 }));
    }
}

/// A server that was killed while it had nothing to do starts again on the same socket, with the slots that were saved.
#[cfg(unix)]
#[test]
fn a_server_that_was_killed_starts_again_where_it_was() {
    let keeper = Keeper::new();
    let mut first = keeper.start();
    keeper.answer("ROMEO:\n");
    let name = json!({ "filename": "a.bin" });
    keeper.post("/slots/0?action=save", &name);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(keeper.socket.exists(), "what was killed leaves its socket");
    let mut second = keeper.start();
    assert!(keeper.post("/slots/0?action=restore", &name).contains("n_restored"));
    second.kill().unwrap();
    second.wait().unwrap();
}

/// A server that is killed while it saves a slot leaves the old file or the new one, and its next save cleans up;
/// `BILAYER_TEST_KILLS` sets how often.
#[cfg(unix)]
#[test]
fn a_server_killed_while_it_saves_leaves_a_slot_that_can_be_restored() {
    let kills = std::env::var("BILAYER_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    let (kills, keeper) = (kills.unwrap_or(4), Keeper::new());
    let tried = crate::support::tried::Tried::new("writer slot");
    let name = json!({ "filename": "a.bin" });
    let mut server = keeper.start();
    keeper.answer("ROMEO:\n");
    keeper.post("/slots/0?action=save", &name);
    let (mut took, mut drafts, mut cut, mut state) = (Duration::ZERO, 0, 0, 7_u64);
    for _ in 0..kills {
        keeper.answer("JULIET:\nO, where is");
        let began = Instant::now();
        keeper.post("/slots/0?action=save", &json!({ "filename": "b.bin" }));
        took = took.max(began.elapsed());
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let share = (state >> 40) as f64 / f64::from(1 << 24);
        std::thread::scope(|scope| {
            let save = scope.spawn(|| keeper.ask("/slots/0?action=save", &name));
            std::thread::sleep(took.mul_f64(share));
            server.kill().unwrap();
            cut += usize::from(!save.join().unwrap().contains("200 OK"));
        });
        server.wait().unwrap();
        drafts += keeper.place.names_in("slots").len() - 2;
        server = keeper.start();
        for slot in ["a.bin", "b.bin"] {
            let restored = keeper.post("/slots/0?action=restore", &json!({ "filename": slot }));
            assert!(restored.contains("n_restored"), "{slot}: {restored}");
        }
        keeper.post("/slots/0?action=save", &name);
        assert_eq!(keeper.place.names_in("slots"), ["a.bin", "b.bin"]);
    }
    server.kill().unwrap();
    server.wait().unwrap();
    tried.done(&format!(
        "{kills} of {kills} servers ended by the signal, {cut} before the answer, {drafts} drafts seen"
    ));
}

/// Requests that come before their model is loaded wait for it; then those beyond the queue are refused. Another client, which
/// sends half a head meanwhile, delays none of them.
#[test]
fn requests_before_the_model_is_there_are_queued_within_the_limit() {
    let server = Server::start(&format!(
        "-np 1 -c 512 -t 1 --max-queue 2 --models-max 2 -m one={DEMO} --add-model two={DEMO}"
    ));
    let mut slow = server.connect();
    slow.write_all(b"POST /completion HTTP/1.1\r\nhost:").unwrap();
    let state = || server.get("/v1/models").good()["data"][1]["status"]["value"].clone();
    assert_eq!(state(), "unloaded");
    let body =
        json!({ "model": "two", "prompt": "ROMEO:\n", "ignore_eos": true, "max_tokens": 24 });
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..8).map(|_| scope.spawn(|| server.post("/v1/completions", &body))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let (answered, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|of| of.status == 200);
    assert!(answered.len() > 1 && !refused.is_empty(), "{replies:?}");
    for reply in refused {
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    assert_eq!(state(), "loaded");
    // Its time for a head is not over.
    slow.write_all(b" x\r\n").unwrap();
}

/// A save replaces saved slots alone: here not the model that is served, by its name or a link, nor another file.
#[test]
fn a_save_replaces_no_file_but_a_saved_slot() {
    let place = Place::new();
    let folder = place.path().join("slots");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(DEMO, folder.join("model.gguf")).unwrap();
    std::fs::hard_link(folder.join("model.gguf"), folder.join("hard.bin")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("model.gguf", folder.join("soft.bin")).unwrap();
    #[cfg(not(unix))]
    std::fs::write(folder.join("soft.bin"), "other").unwrap();
    std::fs::write(folder.join("keys"), "sk-admin\n").unwrap();
    std::fs::write(folder.join("empty"), "").unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    std::fs::write(folder.join("earlier.bin"), "BLYRSEQ1 and more").unwrap();
    let server = Server::start_in(place, "-m slots/model.gguf -np 1 -c 256 --slot-save-path slots");
    let body = json!({ "prompt": "ROMEO:\n", "n_predict": 4, "id_slot": 0 });
    server.post("/completion", &body).good();
    let save = |name: &str| server.post("/slots/0?action=save", &json!({ "filename": name }));
    for name in ["model.gguf", "hard.bin", "soft.bin", "keys", "empty", "folder"] {
        let reply = save(name);
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!("filename")), "{name}: {error}");
        assert!(error["message"].as_str().unwrap().contains(name), "{name}: {error}");
    }
    for name in ["a.bin", "a.bin", "earlier.bin"] {
        save(name).good();
        server.post("/slots/0?action=restore", &json!({ "filename": name })).good();
    }
    assert_eq!(std::fs::read(folder.join("hard.bin")).unwrap(), std::fs::read(DEMO).unwrap());
    assert!(folder.join("soft.bin").exists());
    server.post("/completion", &body).good();
}

/// A restore holds a sequence in memory, so they take turns: many at once need the memory of one.
#[cfg(target_os = "linux")]
#[test]
fn many_restores_need_the_memory_of_one() {
    let place = Place::new();
    let folder = place.path().join("slots");
    std::fs::create_dir(&folder).unwrap();
    let server = Server::start_in(place, "-np 1 -c 8192 --slot-save-path slots");
    let body = json!({ "prompt": long_prompt(), "n_predict": 1, "id_slot": 0 });
    server.post("/completion", &body).good();
    let name = json!({ "filename": "a.bin" });
    let bytes = server.post("/slots/0?action=save", &name).good()["n_written"].as_u64().unwrap();
    let restore = || server.post("/slots/0?action=restore", &name);
    restore().good();
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let before = peak();
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..64).map(|_| scope.spawn(restore)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let more = peak() - before;
    assert!(more < 10 * bytes, "{more} bytes for slots of {bytes}");
    assert!(replies.iter().any(|reply| reply.status == 200));
    for reply in replies.iter().filter(|reply| reply.status != 200) {
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    restore().good();
}

/// The state of each model that a server offers.
fn states(server: &Server) -> Vec<Value> {
    let models = server.get("/v1/models").good();
    let models = models["data"].as_array().unwrap();
    models.iter().map(|model| model["status"]["value"].clone()).collect()
}

fn ask(server: &Server, model: &str) -> Reply {
    let body = json!({ "model": model, "prompt": "ROMEO:\n", "max_tokens": 2 });
    server.post("/v1/completions", &body)
}

/// The request in which the change is noticed fails, the next one loads the model again, and other models are unaffected.
/// Windows refuses to truncate a file that is mapped.
#[cfg(unix)]
#[test]
fn a_model_whose_file_changes_is_loaded_again() {
    let place = Place::new();
    let whole = std::fs::read(DEMO).unwrap();
    let (one, log) = (place.file("one.gguf", &whole), place.path().join("log"));
    place.file("two.gguf", &whole);
    let flags =
        "-m one=one.gguf --add-model two=two.gguf --models-max 2 -np 1 -c 256 --log-file log";
    let server = Server::start_in(place, flags);
    let status = |path: &str| server.get(path).status;
    ask(&server, "one").good();
    ask(&server, "two").good();
    // Written again as it was: its time is another one.
    std::fs::write(&one, &whole).unwrap();
    assert_eq!(ask(&server, "one").status, 500);
    ask(&server, "one").good();
    // Truncated: it cannot be loaded until it is whole again.
    std::fs::write(&one, &whole[..whole.len() / 2]).unwrap();
    for _ in 0..3 {
        let reply = ask(&server, "one");
        assert!(reply.status == 500 && reply.body.contains("one.gguf"), "{reply:?}");
    }
    assert_eq!(states(&server), ["failed", "loaded"]);
    assert_eq!(status("/readyz"), 200, "the other model answers");
    ask(&server, "two").good();
    std::fs::write(&one, &whole).unwrap();
    ask(&server, "one").good();
    assert_eq!(states(&server), ["loaded", "loaded"]);
    let log = std::fs::read_to_string(log).unwrap();
    let warnings = log.lines().filter(|line| line.contains("one.gguf") && line.contains("again"));
    assert_eq!(warnings.count(), 2, "{log}");
}

/// A server whose only model cannot be loaded as its file is wants no requests until the file is another one.
#[cfg(unix)]
#[test]
fn a_server_without_a_usable_model_is_not_ready() {
    let place = Place::new();
    let whole = std::fs::read(DEMO).unwrap();
    let file = place.file("model.gguf", &whole);
    let server = Server::start_in(place, "-m model.gguf -np 1 -c 256");
    let status = |path: &str| server.get(path).status;
    ask(&server, "model").good();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let failed = ask(&server, "model");
    assert!(failed.body.contains("load the model again"), "{failed:?}");
    let failed = ask(&server, "model");
    assert!(failed.body.contains("cannot be loaded"), "{failed:?}");
    let reply = server.get("/readyz");
    assert!(reply.status == 503 && reply.header("retry-after").is_some(), "{reply:?}");
    assert_eq!((status("/health"), status("/livez")), (200, 200));
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(status("/readyz"), 200);
    ask(&server, "model").good();
    assert_eq!(status("/readyz"), 200);
}

/// What is known to be wrong with a model before it is loaded is no reason to unload another one.
#[test]
fn a_model_that_cannot_be_loaded_unloads_no_other() {
    let place = Place::new();
    let whole = std::fs::read(DEMO).unwrap();
    place.file("cut.gguf", &whole[..whole.len() / 2]);
    place.file("text.gguf", "no model");
    let gone = place.file("gone.gguf", &whole);
    let flags = format!(
        "-m good={DEMO} --add-model cut=cut.gguf --add-model text=text.gguf --add-model gone=gone.gguf \
         --models-max 1 -np 1 -c 256"
    );
    let server = Server::start_in(place, &flags);
    std::fs::remove_file(gone).unwrap();
    for name in ["cut", "text", "gone"] {
        let reply = ask(&server, name);
        assert!(reply.status == 500 && reply.body.contains(name), "{reply:?}");
        assert_eq!(states(&server)[0], "loaded", "{name}");
    }
    assert_eq!(states(&server), ["loaded", "failed", "failed", "failed"]);
    ask(&server, "good").good();
}

/// Lines that cannot be written to the log file are lost, which is said once.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_is_said_once() {
    let place = Place::new();
    let mut command = place.command("serve --port 0 -ngl 0 -np 1 -c 64 --log-file /dev/full");
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").expect(&line);
    for _ in 0..3 {
        assert_eq!(support::http::send(address, ("GET", "/livez"), &[], "").status, 200);
    }
    child.kill().unwrap();
    let said = child.wait_with_output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said.matches("/dev/full").count(), 1, "{said}");
    assert!(said.contains("warning"), "{said}");
}
