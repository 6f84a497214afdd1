//! A healthy client's requests while other clients misbehave, and what happens to connections beyond the limits.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Setting;
use super::client::{self, Client, connect, post_head};
use super::completion::{PATH, Prompts, body};
use super::process::Server;
use crate::report::{Row, Section, Verdict, ms, quantile};

/// Idle connections.
pub const IDLE: usize = 5000;

/// Files that this process and the server may need: the idle connections and everything else.
pub const DESCRIPTORS: usize = IDLE + 1000;

/// Connections that send a byte of their head or body a second.
const SLOW: usize = 200;

/// Bodies over the limit of 8 MiB and depth bombs, with the time between them.
const LARGE_BYTES: usize = 9 << 20;
const LARGE_EVERY: Duration = Duration::from_millis(100);
const BOMB_DEPTH: usize = 100_000;
const BOMB_EVERY: Duration = Duration::from_millis(20);

/// The healthy client sends this many requests, or as many as it can in this time: less than the 10 s after which the
/// server closes connections without a request.
const REQUESTS: usize = 400;
const AT_MOST: Duration = Duration::from_secs(8);

/// The bar: p99 as a multiple of that alone, or these milliseconds if they are more.
const BAR: f64 = 2.0;
const FLOOR_MS: f64 = 5.0;

/// The attacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    Idle,
    SlowHeads,
    SlowBodies,
    LargeBodies,
    DepthBombs,
}

impl Attack {
    const ALL: [Attack; 5] = [
        Attack::Idle,
        Attack::SlowHeads,
        Attack::SlowBodies,
        Attack::LargeBodies,
        Attack::DepthBombs,
    ];

    fn name(self) -> String {
        match self {
            Attack::Idle => format!("{IDLE} idle connections"),
            Attack::SlowHeads => format!("{SLOW} slow heads"),
            Attack::SlowBodies => format!("{SLOW} slow bodies"),
            Attack::LargeBodies => {
                format!(
                    "bodies of {} MiB, one each {} ms",
                    LARGE_BYTES >> 20,
                    LARGE_EVERY.as_millis()
                )
            }
            Attack::DepthBombs => {
                format!("JSON {BOMB_DEPTH} levels deep, one each {} ms", BOMB_EVERY.as_millis())
            }
        }
    }

    /// The status that its requests deserve; connections that only wait get none.
    fn status(self) -> Option<u16> {
        match self {
            Attack::Idle | Attack::SlowHeads | Attack::SlowBodies => None,
            Attack::LargeBodies => Some(413),
            Attack::DepthBombs => Some(400),
        }
    }
}

/// What an attack's requests were answered with.
#[derive(Default)]
struct Tally(Mutex<BTreeMap<String, usize>>);

impl Tally {
    fn count(&self, answer: &str) {
        if let Ok(mut answers) = self.0.lock() {
            *answers.entry(answer.to_owned()).or_default() += 1;
        }
    }

    fn read(&self) -> BTreeMap<String, usize> {
        self.0.lock().map(|answers| answers.clone()).unwrap_or_default()
    }
}

/// Runs the healthy client alone and beside each attack.
pub fn hostile(setting: &Setting) -> Result<Section> {
    let flags = format!(
        "--max-connections {DESCRIPTORS} --max-connections-per-ip {DESCRIPTORS} -t {} -ngl 0 -dev none",
        setting.threads
    );
    let mut launch = setting.launch("hostile", flags);
    launch.model = None;
    launch.descriptors = Some(DESCRIPTORS + 500);
    let server = launch.bilayer()?;
    let fresh = server.held()?;
    let mut prompts = Prompts::new();
    healthy(server.address, &mut prompts)?;
    let mut rows = Vec::new();
    for attack in Attack::ALL {
        eprintln!("xtask: hostile: {}", attack.name());
        let alone = quantile(&healthy(server.address, &mut prompts)?, 0.99);
        rows.extend(beside(&server, attack, alone, &mut prompts)?);
        // Connections that wait for nothing are gone before the next attack.
        server.settled(fresh.descriptors, Duration::from_secs(40))?;
    }
    let after = server.settled(fresh.descriptors, Duration::from_secs(40))?;
    rows.push(Row::judged(
        "file descriptors afterwards",
        format!("{} (at the start {})", after.descriptors, fresh.descriptors),
        "as at the start",
        Verdict::at_most(after.descriptors as f64, fresh.descriptors as f64),
    ));
    rows.push(Row::shown(
        "resident memory without files (RssAnon)",
        format!(
            "{:.1} MiB at the start, {:.1} MiB afterwards",
            fresh.anonymous / f64::from(1 << 20),
            after.anonymous / f64::from(1 << 20)
        ),
    ));
    drop(server);
    rows.push(beyond(setting, 64, "")?);
    rows.push(beyond(setting, 100, "--max-connections 100 --max-connections-per-ip 1000")?);
    let about = format!(
        "The embedded demo model. A healthy client opens a connection for each of {REQUESTS} requests (8 tokens of prompt, 4 of \
         answer; fewer requests if they take more than {} s); its p99 alone is measured before each attack. The bar is \
         {BAR} times that, or {FLOOR_MS} ms if that is more.",
        AT_MOST.as_secs()
    );
    Ok(Section { name: "hostile", about, rows })
}

/// Times of a healthy client's requests, milliseconds.
fn healthy(address: SocketAddr, prompts: &mut Prompts) -> Result<Vec<f64>> {
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < REQUESTS && began.elapsed() < AT_MOST {
        let body = body(&prompts.next(8), 4).to_string();
        let answer = Client::new(address).post(PATH, &body).context("the healthy client")?;
        if answer.head.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            bail!("the healthy client got status {}: {text}", answer.head.status);
        }
        times.push(ms(answer.took));
    }
    Ok(times)
}

/// The healthy client beside an attack.
fn beside(server: &Server, attack: Attack, alone: f64, prompts: &mut Prompts) -> Result<Vec<Row>> {
    let stop = AtomicBool::new(false);
    let tally = Tally::default();
    let idle = if attack == Attack::Idle { open(server.address, IDLE)? } else { Vec::new() };
    let times = thread::scope(|scope| {
        let attacker = scope.spawn(|| run(attack, server.address, &stop, &tally));
        if attack != Attack::Idle {
            // All slow connections are open before the first request.
            sleep(Duration::from_secs(1));
        }
        let times = healthy(server.address, prompts);
        stop.store(true, Ordering::Relaxed);
        let attacked = attacker.join().unwrap_or_else(|_| bail!("the attacker panicked"));
        attacked.and(times)
    })?;
    let p99 = quantile(&times, 0.99);
    let bar = (BAR * alone).max(FLOOR_MS);
    let name = attack.name();
    let mut rows = vec![Row::judged(
        format!("{name}: p99"),
        format!("{p99:.1} ms, alone {alone:.1} ms"),
        format!("at most {bar:.1} ms"),
        Verdict::at_most(p99, bar),
    )];
    if attack == Attack::Idle {
        let open = idle.iter().filter(|stream| is_open(stream)).count();
        rows.push(Row::judged(
            format!("{name}: still open at the end"),
            open.to_string(),
            "all",
            Verdict::at_least(open as f64, IDLE as f64),
        ));
    }
    if let Some(status) = attack.status() {
        let answers = tally.read();
        let wrong = answers.keys().filter(|answer| **answer != status.to_string()).count();
        let list = answers.iter().map(|(answer, count)| format!("{count} times {answer}"));
        let verdict = if answers.is_empty() { f64::NAN } else { wrong as f64 };
        rows.push(Row::judged(
            format!("{name}: answers"),
            list.collect::<Vec<_>>().join(", "),
            format!("only {status}"),
            Verdict::at_most(verdict, 0.0),
        ));
    }
    Ok(rows)
}

/// Attacks until told to stop.
fn run(attack: Attack, address: SocketAddr, stop: &AtomicBool, tally: &Tally) -> Result<()> {
    let is_running = || !stop.load(Ordering::Relaxed);
    match attack {
        Attack::Idle => Ok(()),
        Attack::SlowHeads => drip(address, "POST /v1/completions HTTP/1.1\r\nx-slow: ", is_running),
        Attack::SlowBodies => drip(address, &post_head(PATH, 1 << 20), is_running),
        Attack::LargeBodies => {
            let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(LARGE_BYTES));
            repeat(address, &body, LARGE_EVERY, tally, is_running)
        }
        Attack::DepthBombs => {
            let body = format!("{{\"prompt\": {}", "[".repeat(BOMB_DEPTH));
            repeat(address, &body, BOMB_EVERY, tally, is_running)
        }
    }
}

/// Opens connections that send nothing.
fn open(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    (0..count)
        .map(|number| connect(address).with_context(|| format!("connection {number}")))
        .collect()
}

/// Whether the server has neither closed a connection nor sent anything.
fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Many connections that send the start of a request and then a byte a second; closed ones are opened again.
fn drip(address: SocketAddr, start: &str, is_running: impl Fn() -> bool) -> Result<()> {
    let begin = || -> Result<TcpStream> {
        let mut stream = connect(address)?;
        stream.write_all(start.as_bytes())?;
        Ok(stream)
    };
    let mut streams = (0..SLOW).map(|_| begin()).collect::<Result<Vec<_>>>()?;
    while is_running() {
        let round = Instant::now();
        for stream in &mut streams {
            if stream.write_all(b"a").is_err() {
                *stream = begin()?;
            }
        }
        while is_running() && round.elapsed() < Duration::from_secs(1) {
            sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Sends a body again and again, each on a connection of its own, and counts the answers.
fn repeat(
    address: SocketAddr,
    body: &str,
    every: Duration,
    tally: &Tally,
    is_running: impl Fn() -> bool,
) -> Result<()> {
    let request = format!("{}{body}", post_head(PATH, body.len()));
    while is_running() {
        let began = Instant::now();
        let mut stream = connect(address)?;
        // The server may answer and close before it has read everything.
        let written = stream.write_all(request.as_bytes());
        match client::answer(stream) {
            Ok(head) => tally.count(&head.status.to_string()),
            Err(_) if written.is_err() => tally.count("closed while sending"),
            Err(error) => tally.count(&format!("{error:#}")),
        }
        sleep(every.saturating_sub(began.elapsed()));
    }
    Ok(())
}

/// Whether the connection after the last allowed one is refused, and a place that becomes free is given to the next.
fn beyond(setting: &Setting, allowed: usize, flags: &str) -> Result<Row> {
    let mut launch = setting.launch("hostile-limits", format!("{flags} -t 1 -ngl 0 -dev none"));
    launch.model = None;
    let server = launch.bilayer()?;
    let mut kept = open(server.address, allowed)?;
    sleep(Duration::from_millis(200));
    let were_open = kept.iter().filter(|stream| is_open(stream)).count();
    let refused = refusal(server.address)?;
    if let Some(stream) = kept.pop() {
        stream.shutdown(Shutdown::Both)?;
    }
    sleep(Duration::from_millis(200));
    let next = Client::new(server.address).get("/health");
    let next =
        next.map_or_else(|error| format!("{error:#}"), |answer| answer.head.status.to_string());
    let is_right = were_open == allowed && refused.is_some() && next == "200";
    let refused = refused.unwrap_or("not refused");
    let named = if flags.is_empty() { "default limits" } else { flags };
    Ok(Row::judged(
        format!("connection {} ({named})", allowed + 1),
        format!("{refused}; {were_open} others stay open; after one has left: status {next}"),
        "closed or 503; then 200",
        Verdict::at_least(f64::from(u8::from(is_right)), 1.0),
    ))
}

/// How the server refuses a connection; `None` if it does not.
fn refusal(address: SocketAddr) -> Result<Option<&'static str>> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut start = [0; 12];
    Ok(match stream.read(&mut start) {
        Ok(0) => Some("closed"),
        Ok(_) if start.starts_with(b"HTTP/1.1 503") => Some("503"),
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some("closed"),
        Err(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn closed_connections_and_refusals_are_recognized() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(address).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert!(is_open(&stream));
        drop(accepted);
        sleep(Duration::from_millis(50));
        assert!(!is_open(&stream));
        let answers: [&[u8]; 3] =
            [b"", b"HTTP/1.1 503 Service Unavailable", b"HTTP/1.1 200 OK ..."];
        let server = thread::spawn(move || {
            for answer in answers {
                listener.accept().unwrap().0.write_all(answer).unwrap();
            }
        });
        assert_eq!(refusal(address).unwrap(), Some("closed"));
        assert_eq!(refusal(address).unwrap(), Some("503"));
        assert_eq!(refusal(address).unwrap(), None);
        server.join().unwrap();
    }
}
