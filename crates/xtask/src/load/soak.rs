//! A server under mixed use for a long time: what it holds must not grow, and answers must not change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Setting;
use super::client::Client;
use super::completion::{PATH, Prompts, body};
use super::process::{Held, Server};
use crate::report::{Row, Section, Verdict};
use crate::status;

/// The model that answers; small, so that there are many requests.
pub const DEMO: &str = "crates/cli/assets/demo.gguf";

/// Where layers are: on the CPU, and on the first adapter. It is named since it is a software one where there is no GPU, and
/// such are not used otherwise.
const PLACES: [(&str, &str); 2] = [("CPU", "-ngl 0 -dev none"), ("adapter", "-ngl 99 -dev 0")];

/// How long a run must be that is recorded: shorter ones show failures and no growth.
pub const RECORDED_SECONDS: u64 = 1800;

/// How long caches and the allocator's threads fill before growth is measured, at most half of the time: of 46 MB the last 2
/// came within a minute and a half, and no more in the half hour after it.
const WARM_UP: Duration = Duration::from_secs(120);

/// Growth of memory that is allowed: bytes an hour; for a run of any length, since the allocator keeps some; and for a run that
/// is too short to warm up, in which 4.2 MB were seen.
const BYTES_AN_HOUR: f64 = 1_000_000.0;
const BYTES_ANYWAY: f64 = 2_000_000.0;
const BYTES_COLD: f64 = 8_000_000.0;

/// Times after the warm-up when all clients pause and memory is read, at most, and the time between two of them at least: a
/// pause takes seconds, too.
const READINGS: u32 = 12;
const READ_EVERY: Duration = Duration::from_secs(5);

/// Distinct requests whose answers are compared with their first ones.
const FIXED: u64 = 8;

/// Time for connections to be closed after the last request.
const SETTLING: Duration = Duration::from_secs(5);

/// A kind of client: its name, and what request number `n` is. An error is a failed request.
type SoakKind = (&'static str, fn(&mut Soaker, u64) -> Result<()>);

const KINDS: [SoakKind; 6] = [
    ("chat answers, compared with the first of the same seed", Soaker::chat),
    ("streams that the client leaves", Soaker::leave),
    ("long prompts", Soaker::long_prompt),
    ("batches of embeddings", Soaker::embed),
    ("slots saved, restored and erased", Soaker::slot),
    ("models swapped", Soaker::swap),
];

/// A client with what it remembers.
struct Soaker {
    client: Client,
    prompts: Prompts,
    answers: HashMap<u64, String>,
    done: Done,
}

impl Soaker {
    fn new(server: &Server, seed: u64, what: &'static str) -> Soaker {
        Soaker {
            client: Client::new(server.address),
            prompts: Prompts::seeded(seed),
            answers: HashMap::new(),
            done: Done { what, requests: 0, failures: Vec::new() },
        }
    }

    /// Sends requests until the time is over.
    fn work(&mut self, request: fn(&mut Soaker, u64) -> Result<()>, end: Instant) {
        while Instant::now() < end {
            if let Err(error) = request(self, self.done.requests) {
                self.done.failures.push(format!("{error:#}"));
                self.client.close();
            }
            self.done.requests += 1;
        }
        self.client.close();
    }

    /// Uses three models in the same order, so that they are the loaded ones: what else is loaded at some time changes memory
    /// more than anything that could be left over.
    fn settle(&mut self) -> Result<()> {
        self.use_other(0)?;
        self.embed(0)?;
        self.chat(0)?;
        self.client.close();
        sleep(Duration::from_secs(1));
        Ok(())
    }

    /// A document in return for another.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.client.post(path, &body.to_string())?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.head.status == 200, "{path}: status {}: {text}", answer.head.status);
        serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
    }

    fn chat(&mut self, n: u64) -> Result<()> {
        let which = n % FIXED;
        let body = json!({
            "model": "chat", "seed": which, "temperature": 0.8, "max_tokens": 24,
            "messages": [{ "role": "user", "content": format!("Speak of scene {which}.") }],
        });
        let answer = self.ask("/v1/chat/completions", &body)?;
        let text = answer["choices"][0]["message"]["content"].as_str().context("no content")?;
        let first = self.answers.entry(which).or_insert_with(|| text.to_owned());
        ensure!(first == text, "another answer to request {which}: `{text}` after `{first}`");
        Ok(())
    }

    fn leave(&mut self, n: u64) -> Result<()> {
        let mut body = body(&self.prompts.next(24), 64);
        body["stream"] = true.into();
        let mut left = 1 + n % 7;
        let gone = self.client.stream(PATH, &body.to_string(), |_| {
            left -= 1;
            if left == 0 { bail!("enough") } else { Ok(()) }
        });
        self.client.close();
        match gone {
            Err(error) if error.to_string() != "enough" => Err(error),
            _ => Ok(()),
        }
    }

    fn long_prompt(&mut self, _: u64) -> Result<()> {
        let body = body(&self.prompts.next(700), 4);
        self.ask(PATH, &body).map(drop)
    }

    fn embed(&mut self, n: u64) -> Result<()> {
        let input: Vec<String> = (0..1 + n % 9).map(|i| format!("text {i} of {n}")).collect();
        let count = input.len();
        let answer = self.ask("/v1/embeddings", &json!({ "model": "encoder", "input": input }))?;
        let rows = answer["data"].as_array().map_or(0, Vec::len);
        ensure!(rows == count, "{rows} embeddings of {count} texts");
        Ok(())
    }

    fn slot(&mut self, n: u64) -> Result<()> {
        let prompt = self.prompts.next(48);
        let request =
            json!({ "model": "chat", "prompt": prompt, "n_predict": 8, "id_slot": 0, "seed": n });
        self.ask("/completion", &request)?;
        let file = json!({ "filename": format!("soak-{}", n % 3) });
        // Another model may be the one that was used last.
        match self.ask("/slots/0?action=save&model=chat", &file) {
            // Another request took the slot meanwhile, and has not filled it.
            Err(error) if error.to_string().contains("slot 0 is empty") => return Ok(()),
            saved => saved?,
        };
        self.ask("/slots/0?action=restore&model=chat", &file)?;
        self.ask("/slots/0?action=erase&model=chat", &json!({})).map(drop)
    }

    /// Of these models one is loaded at a time beside the others.
    fn use_other(&mut self, n: u64) -> Result<()> {
        let mut body = body(&self.prompts.next(16), 4);
        body["model"] = ["second", "third"][(n % 2) as usize].into();
        self.ask(PATH, &body).map(drop)
    }

    fn swap(&mut self, n: u64) -> Result<()> {
        self.use_other(n)?;
        sleep(Duration::from_secs(2));
        Ok(())
    }
}

/// What the clients of one kind did.
struct Done {
    what: &'static str,
    requests: u64,
    failures: Vec<String>,
}

/// One server for `length`.
struct SoakRun {
    length: Duration,
    done: Vec<Done>,
    /// Seconds after the warm-up, and what was held.
    held: Vec<(f64, Held)>,
    /// Descriptors after the warm-up and at the end, without clients.
    descriptors: [usize; 2],
}

impl SoakRun {
    fn of(server: &Server, length: Duration) -> Result<SoakRun> {
        let warm = warm_up(length);
        let kinds = KINDS.iter().zip(0..);
        let mut soakers: Vec<_> =
            kinds.map(|(&(what, _), seed)| Soaker::new(server, seed, what)).collect();
        let mut settler = Soaker::new(server, 0, "settling");
        work(&mut soakers, warm)?;
        settler.settle()?;
        let before = server.settled(0, SETTLING)?.descriptors;
        let began = Instant::now();
        let mut held = Vec::new();
        let readings = readings(length - warm);
        for _ in 0..readings {
            work(&mut soakers, (length - warm) / readings)?;
            settler.settle()?;
            held.push((began.elapsed().as_secs_f64(), server.held()?));
        }
        let after = server.settled(before, SETTLING)?.descriptors;
        let done = soakers.into_iter().map(|soaker| soaker.done).collect();
        Ok(SoakRun { length, done, held, descriptors: [before, after] })
    }

    fn rows(&self, place: &str) -> Vec<Row> {
        let points: Vec<_> = self.held.iter().map(|(at, held)| (*at, held.anonymous)).collect();
        let slope = slope(&points);
        let seconds = points.last().map_or(0.0, |point| point.0);
        let anyway = if warm_up(self.length) < WARM_UP { BYTES_COLD } else { BYTES_ANYWAY };
        let bar = (BYTES_AN_HOUR / 3600.0 * seconds).max(anyway);
        let grown = slope * seconds;
        let mut rows = vec![
            Row::judged(
                format!("{place}: growth of anonymous memory in {:.1} min", seconds / 60.0),
                format!("{:+.2} MB ({:+.2} MB an hour)", grown / 1e6, slope * 3600.0 / 1e6),
                format!("at most {:.2} MB", bar / 1e6),
                Verdict::at_most(grown, bar),
            ),
            Row::judged(
                format!("{place}: open files, after the warm-up and at the end"),
                format!("{}, {}", self.descriptors[0], self.descriptors[1]),
                "no more",
                Verdict::at_most(self.descriptors[1] as f64, self.descriptors[0] as f64),
            ),
        ];
        rows.extend(self.done.iter().map(|done| {
            let failed = match done.failures.first() {
                None => String::new(),
                Some(first) => {
                    let first = first.replace('|', "/").replace('\n', " ");
                    format!(", {} failed, the first: {first}", done.failures.len())
                }
            };
            let is_well = done.requests > 0 && done.failures.is_empty();
            Row::judged(
                format!("{place}: {}", done.what),
                format!("{}{failed}", done.requests),
                "some, none fails",
                Verdict::at_least(f64::from(u8::from(is_well)), 1.0),
            )
        }));
        rows
    }
}

/// How much of a run on a device warms up.
fn warm_up(length: Duration) -> Duration {
    WARM_UP.min(length / 2)
}

/// How often memory is read in a run of this length.
fn readings(length: Duration) -> u32 {
    let most = length.as_secs() / READ_EVERY.as_secs();
    READINGS.min(most as u32).max(1)
}

/// All clients for a time.
fn work(soakers: &mut [Soaker], length: Duration) -> Result<()> {
    let end = Instant::now() + length;
    thread::scope(|scope| {
        let clients: Vec<_> = soakers
            .iter_mut()
            .zip(KINDS)
            .map(|(soaker, (_, request))| scope.spawn(move || soaker.work(request, end)))
            .collect();
        let done: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        ensure!(done.iter().all(|done| done.is_ok()), "a client panicked");
        Ok(())
    })
}

/// The slope of the line with the least squared distance from the points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let spread: f64 = points.iter().map(|point| (point.0 - x) * (point.0 - x)).sum();
    if spread > 0.0 { together / spread } else { 0.0 }
}

/// The models of the server: the one that chats under three names, and a random encoder.
fn models(setting: &Setting) -> Result<[(&'static str, PathBuf); 4]> {
    let encoder = setting.folder.join("minilm-l6-F16.gguf");
    if !encoder.exists() {
        let make = ["synth", "--shape", "minilm-l6", "--type", "F16"];
        status(Command::new(&setting.bilayer).args(make).arg(&encoder))?;
    }
    let copy = |name: &str| -> Result<PathBuf> {
        let path = setting.folder.join(format!("{name}.gguf"));
        std::fs::copy(DEMO, &path).with_context(|| path.display().to_string())?;
        Ok(path)
    };
    Ok([
        ("chat", Path::new(DEMO).to_owned()),
        ("second", copy("second")?),
        ("third", copy("third")?),
        ("encoder", encoder),
    ])
}

/// Half of the time on each device.
pub fn soak(setting: &Setting) -> Result<Section> {
    let models = models(setting)?;
    let given = models.map(|(name, path)| format!("-m {name}={}", path.display())).join(" ");
    let slots = setting.folder.join("slots");
    std::fs::create_dir_all(&slots)?;
    let length = Duration::from_secs(setting.seconds) / PLACES.len() as u32;
    let mut rows = Vec::new();
    for (place, flags) in PLACES {
        eprintln!("xtask: soak, {place}, {} s", length.as_secs());
        let flags = format!(
            "{given} --models-max 3 -np 4 -c 4096 --kv-unified --deterministic -t {} {flags} --slot-save-path {}",
            setting.threads,
            slots.display()
        );
        let launch = super::process::Launch { model: None, ..setting.launch("soak", flags) };
        rows.extend(SoakRun::of(&launch.bilayer()?, length)?.rows(place));
    }
    let about = format!(
        "A client each for chats, streams that are left, long prompts, embeddings, slots and swapped models, against one \
         server of four models of which three are loaded, {} s on the CPU and as long on the adapter. The first \
         {} s warm up. Then all clients pause {} times and memory is read while the same three models are loaded; its \
         growth is that of the fitted line.",
        length.as_secs(),
        warm_up(length).as_secs(),
        readings(length - warm_up(length))
    );
    Ok(Section { name: "soak", about, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_fitted() {
        let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0)];
        assert!((slope(&points) - 2.0).abs() < 1e-12);
        assert!(slope(&[(1.0, 5.0)]).abs() < 1e-12);
        let run = |slope: f64, descriptors| SoakRun {
            length: 2 * WARM_UP,
            done: vec![Done { what: "requests", requests: 1, failures: Vec::new() }],
            held: (0..100)
                .map(|i| {
                    let held = Held { anonymous: 1e9 + slope * f64::from(i), ..Held::default() };
                    (f64::from(i), held)
                })
                .collect(),
            descriptors,
        };
        let failures = |run: &SoakRun| {
            Section { name: "soak", about: String::new(), rows: run.rows("CPU") }.failures()
        };
        assert_eq!(failures(&run(100.0, [9, 9])), 0);
        assert_eq!(failures(&run(50_000.0, [9, 9])), 1, "memory grows");
        let short = |slope| SoakRun { length: WARM_UP, ..run(slope, [9, 9]) };
        assert_eq!(failures(&short(50_000.0)), 0, "it may still warm up");
        assert_eq!(failures(&short(100_000.0)), 1, "not so much");
        assert_eq!(failures(&run(0.0, [9, 10])), 1, "files stay open");
        let broken = SoakRun {
            done: vec![Done { what: "requests", requests: 2, failures: vec!["x|y".to_owned()] }],
            ..run(0.0, [9, 9])
        };
        assert_eq!(failures(&broken), 1, "a request fails");
    }
}
