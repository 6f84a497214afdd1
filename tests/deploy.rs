//! The promise of `examples/deploy`: the balancers pass streams as they come and leave out a replica that stops, the unit and the
//! manifests are valid, and the array job answers every request.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod support {
    pub mod http;
    pub mod program;
}

use support::http::Server;
use support::program::{Place, ran};

/// A file of the examples.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/deploy").join(name)
}

/// Whether a program is on the PATH; says so if not.
fn has(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap();
    // Debian installs servers where only root looks.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let is_there =
        std::env::split_paths(&folders).chain(more).any(|folder| folder.join(program).is_file());
    if !is_there {
        println!("skipped: no program {program}");
    }
    is_there
}

/// A command with the folders in which Debian installs servers.
fn command(program: &str, place: &Place) -> Command {
    let mut command = place.bare(program);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Two replicas behind a balancer.
struct Balanced {
    balancer: Child,
    address: String,
    replicas: Option<[Server; 2]>,
    _place: Place,
}

impl Balanced {
    /// Starts replicas, and the balancer with the example's file, in which only addresses are changed and `more` is replaced.
    fn start(name: &str, more: &[(&str, &str)], start: impl Fn(&Place) -> Command) -> Balanced {
        let replicas = ["first", "second"].map(|name| Server::start(&format!("-a {name} -c 2048")));
        // Nobody else takes a port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut text = std::fs::read_to_string(example(name)).unwrap();
        let addresses = [
            ("127.0.0.1:8000", free.as_str()),
            ("127.0.0.1:8081", replicas[0].address.as_str()),
            ("127.0.0.1:8082", replicas[1].address.as_str()),
        ];
        for (old, new) in addresses.iter().chain(more) {
            assert_eq!(text.matches(old).count(), 1, "{name} has {old} once");
            text = text.replace(old, new);
        }
        let place = Place::new();
        place.file(name, text);
        let balancer = start(&place).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let balanced =
            Balanced { balancer, address: free, replicas: Some(replicas), _place: place };
        let began = Instant::now();
        while balanced.try_name().is_none_or(|name| name.is_empty()) {
            assert!(began.elapsed() < Duration::from_secs(30), "{name}: no answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        balanced
    }

    /// The name of the replica that answers, if one does.
    fn try_name(&self) -> Option<String> {
        let stream = TcpStream::connect(&self.address).ok()?;
        drop(stream);
        let reply = support::http::send(&self.address, ("GET", "/v1/models"), &[], "");
        (reply.status == 200).then(|| reply.json()["data"][0]["id"].as_str().unwrap().to_owned())
    }

    /// A stream through the balancer: when each event came, after the request.
    fn stream(&self) -> Vec<Duration> {
        let body = json!({
            "prompt": "ROMEO:", "max_tokens": 400, "temperature": 0, "stream": true, "ignore_eos": true
        });
        let began = Instant::now();
        let mut stream = support::http::stream(&self.address, "/v1/completions", &body);
        let mut times = Vec::new();
        while let Some(event) = stream.event() {
            assert!(event["choices"].is_array(), "{event}");
            times.push(began.elapsed());
        }
        times
    }

    fn promises(mut self) {
        let times = self.stream();
        assert!(times.len() > 100, "{} events", times.len());
        let (first, last) = (times[0], times[times.len() - 1]);
        assert!(2 * first < last, "the first event after {first:?}, the last after {last:?}");
        let halves = times.iter().filter(|time| 2 * **time < last).count();
        assert!(halves > times.len() / 10, "{halves} of {} came in the first half", times.len());

        let names: BTreeSet<String> = (0..20).filter_map(|_| self.try_name()).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["first", "second"]);
        let [first, second] = self.replicas.take().unwrap();
        let stopped = Command::new("kill").arg(first.pid().to_string()).status().unwrap();
        assert!(stopped.success());
        // Requests that arrive meanwhile go to the other replica.
        let mut counts = [0, 0, 0];
        for _ in 0..40 {
            match self.try_name().as_deref() {
                Some("second") => counts[1] += 1,
                Some(_) => counts[0] += 1,
                None => counts[2] += 1,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(counts[2], 0, "{counts:?}");
        assert!(counts[1] >= 20, "{counts:?}");
        drop((first, second));
    }
}

impl Drop for Balanced {
    fn drop(&mut self) {
        let _ = self.balancer.kill();
        let _ = self.balancer.wait();
    }
}

#[test]
fn haproxy_balances_and_streams() {
    if !has("haproxy") {
        return;
    }
    let start = |place: &Place| {
        let mut haproxy = command("haproxy", place);
        haproxy.args(["-db", "-f", "haproxy.cfg"]);
        haproxy
    };
    Balanced::start("haproxy.cfg", &[], start).promises();
}

#[test]
fn nginx_balances_and_streams() {
    if !has("nginx") {
        return;
    }
    let start = |place: &Place| {
        let mut nginx = command("nginx", place);
        nginx.args(["-g", "daemon off; master_process off;", "-c", "nginx.conf", "-p", "."]);
        nginx
    };
    // Where Debian's build keeps temporary files only root may write.
    let folders = "access_log off; client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; \
                   uwsgi_temp_path d; scgi_temp_path e;";
    Balanced::start("nginx.conf", &[("access_log off;", folders)], start).promises();
}

#[test]
fn the_unit_is_valid() {
    if !has("systemd-analyze") {
        return;
    }
    let place = Place::new();
    let unit = std::fs::read_to_string(example("bilayer.service")).unwrap();
    let program = env!("CARGO_BIN_EXE_bilayer");
    place.file("bilayer.service", unit.replace("/usr/local/bin/bilayer", program));
    let checked = ran(command("systemd-analyze", &place).args(["verify", "./bilayer.service"]));
    let about_ours = checked.err.lines().filter(|line| line.contains("bilayer.service"));
    assert_eq!(about_ours.collect::<Vec<_>>(), Vec::<&str>::new(), "{checked:?}");
    // Its flags are the program's.
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let flags = line.split_once(" serve ").unwrap().1;
    let flags = flags.replace("/var/lib/bilayer/model.gguf", "missing.gguf");
    assert_eq!(place.run(&format!("serve {flags}")).code, Some(66));
}

/// Where home folders are hidden or the root is read-only, -hf downloads into what may be written.
#[test]
fn downloads_go_to_a_volume() {
    for (name, parts) in [
        ("Containerfile", ["HF_HOME=/var/lib/bilayer/", "VOLUME /var/lib/bilayer\n"]),
        ("bilayer.service", ["HF_HOME=/var/lib/bilayer/", "StateDirectory=bilayer\n"]),
        (
            "kubernetes/deployment.yaml",
            ["HF_HOME, value: /var/lib/bilayer/", "downloads, mountPath: /var/lib/bilayer}\n"],
        ),
        // A new volume belongs to root, but its group is that of the program.
        ("kubernetes/deployment.yaml", ["runAsUser: 10001\n", "fsGroup: 10001\n"]),
        ("Containerfile", ["--uid 10001 ", "USER 10001\n"]),
    ] {
        let text = std::fs::read_to_string(example(name)).unwrap();
        assert!(parts.iter().all(|part| text.contains(part)), "{name} lacks one of {parts:?}");
    }
}

/// The image has no repository that the build could ask.
#[test]
fn an_image_may_know_its_commit() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let containerfile = read(&example("Containerfile"));
    let (before, _) = containerfile.split_once("RUN cargo build").unwrap();
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/deploy.md"));
    for name in ["BILAYER_BUILD_COMMIT", "BILAYER_BUILD_NUMBER"] {
        assert!(before.contains(&format!("ARG {name}\n")), "{name}");
        assert!(page.contains(&format!("--build-arg {name}=")), "{name}");
    }
}

#[test]
fn the_array_job_answers_every_request_once() {
    let place = Place::new();
    let line = |at: usize| {
        json!({
            "custom_id": format!("r{at}"), "method": "POST", "url": "/v1/completions",
            "body": { "prompt": "ROMEO:", "max_tokens": 2 }
        })
    };
    place.file("requests.jsonl", (0..7).map(|at| format!("{}\n", line(at))).collect::<String>());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/assets/demo.gguf");
    let programs = Path::new(env!("CARGO_BIN_EXE_bilayer")).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    // The last task runs again, as after a requeue.
    for task in ["3", "4", "5", "5"] {
        let mut job = place.bare("sh");
        job.arg(example("slurm-array.sh")).arg(&demo).args(["requests.jsonl", "results"]);
        job.env("PATH", &path).env("SLURM_ARRAY_TASK_ID", task).env("SLURM_ARRAY_TASK_MIN", "3");
        ran(job.env("SLURM_ARRAY_TASK_COUNT", "3")).good();
    }
    let mut ids = Vec::new();
    for task in 3..6 {
        let path = place.path().join(format!("results/answers-{task}.jsonl"));
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let answer: Value = serde_json::from_str(line).unwrap();
            assert_eq!(answer["response"]["status_code"], 200, "{line}");
            ids.push(answer["custom_id"].as_str().unwrap().to_owned());
        }
    }
    ids.sort();
    assert_eq!(ids, ["r0", "r1", "r2", "r3", "r4", "r5", "r6"]);
}

/// With `kubernetes-validate` of PyPI, which has the schemas.
#[test]
fn the_manifests_are_valid() {
    if !has("kubernetes-validate") {
        return;
    }
    let mut count = 0;
    for entry in std::fs::read_dir(example("kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let checked = ran(Command::new("kubernetes-validate").arg("--strict").arg(&path));
        assert_eq!(checked.code, Some(0), "{checked:?}");
        count += 1;
    }
    assert!(count >= 4, "{count}");
}
