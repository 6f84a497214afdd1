//! How many replicas a load needs: `cargo run --release --example scaling_sim -- BENCH.json FLEET.toml [REPLICAS...]`.
//!
//! BENCH.json is a result of `bilayer bench -o json` on the machine of a replica; `docs/scaling.md` has the command.
//! Numbers of replicas are simulated in turn in place of the file's; `--json` prints the reports.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use bilayer::fleet::{Report, Scenario, StepTimes, simulate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.remove(at)).is_some();
    let [bench, scenario, replicas @ ..] = &args[..] else {
        return Err("usage: scaling_sim BENCH.json FLEET.toml [REPLICAS...] [--json]".into());
    };
    let read =
        |path: &String| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let named = |path: &str, error: &dyn std::fmt::Display| format!("{path}: {error}");
    let result = serde_json::from_str(&read(bench)?).map_err(|error| named(bench, &error))?;
    let times = StepTimes::from_bench(&result).map_err(|error| named(bench, &error))?;
    let scenario: Scenario =
        toml::from_str(&read(scenario)?).map_err(|error| named(scenario, &error))?;

    let number = |text: &String| text.parse().map_err(|_| format!("`{text}` is no number"));
    let mut counts = replicas.iter().map(number).collect::<Result<Vec<usize>, _>>()?;
    if counts.is_empty() {
        counts.push(scenario.fleet.replicas);
    }
    if !json {
        println!(
            "replicas  tok/s  requests  refused  busy  prefix  cache  first p50/p95   gap p50/p95   MB/s   per Mtok"
        );
    }
    for count in counts {
        let mut scenario = scenario.clone();
        scenario.fleet.replicas = count;
        let report = simulate(&scenario, &times)?;
        match json {
            true => println!("{}", serde_json::to_string(&report)?),
            false => println!("{}", row(&report)),
        }
    }
    Ok(())
}

/// A line of the table: rates, shares in percent, times in milliseconds.
fn row(report: &Report) -> String {
    let Report { replicas, tokens_per_second, finished, refused, .. } = report;
    let [busy, hits, cache] =
        [report.busy, report.prefix_hit_rate, report.cache_peak].map(|share| 100.0 * share);
    let (first, gap) = (report.first_token_ms, report.between_tokens_ms);
    let megabytes = report.stream_bytes_per_second / 1e6;
    let price =
        report.price_per_million_tokens.map_or("-".to_owned(), |price| format!("{price:.2}"));
    format!(
        "{replicas:8} {tokens_per_second:6.0} {finished:9} {refused:8} {busy:4.0}% {hits:6.0}% {cache:5.0}% {:7.0}/{:<7.0} \
         {:5.0}/{:<7.0} {megabytes:6.3} {price:>8}",
        first.p50, first.p95, gap.p50, gap.p95,
    )
}
