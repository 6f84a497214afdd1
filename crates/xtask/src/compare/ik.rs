//! Runs the llama-bench of ik_llama.cpp, whose sources are not fetched: the user names the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cases::Case;
use super::{Measured, Tests, keep_best, name};
use crate::output;

/// A llama-bench of ik_llama.cpp.
#[derive(Debug)]
pub struct Ik {
    program: PathBuf,
}

impl Ik {
    /// Checks that the program is one: that of llama.cpp has no `--run-time-repack`.
    pub fn ready(program: &Path) -> Result<Ik> {
        let file = program.display();
        if !program.is_file() {
            bail!("--ik: {file} is not a file; name the llama-bench of ik_llama.cpp");
        }
        let program = std::path::absolute(program)?;
        let help = Command::new(&program).arg("--help").output();
        let help = help.with_context(|| format!("--ik: {file} cannot be run"))?;
        let text = [help.stdout, help.stderr].concat();
        check_help(&String::from_utf8_lossy(&text)).with_context(|| format!("--ik: {file}"))?;
        Ok(Ik { program })
    }

    /// Measures it with repacked weights and without, and takes the better result of each test. It has no tests of
    /// several sequences, of prompts behind others, or of a first token: their results are missing.
    pub fn measure(&self, file: &Path, case: &Case) -> Result<Tests> {
        let mut best = Tests::new();
        for repack in ["1", "0"] {
            let Some(arguments) = arguments(case, repack) else { continue };
            let mut command = Command::new(&self.program);
            command.arg("-m").arg(file).args(arguments);
            keep_best(&mut best, results(&output(&mut command)?)?, case);
        }
        Ok(best)
    }
}

fn check_help(help: &str) -> Result<()> {
    if !help.contains("--n-prompt") {
        bail!("not a llama-bench: its help does not mention --n-prompt");
    }
    if !help.contains("--run-time-repack") {
        bail!("a llama-bench, but not that of ik_llama.cpp: it has no --run-time-repack");
    }
    Ok(())
}

/// The arguments after the model; `None` if it has no test of the case.
fn arguments(case: &Case, repack: &str) -> Option<Vec<String>> {
    let prompt = if case.depth == 0 { case.prompt } else { 0 };
    let generate = if case.sequences.contains(&1) { case.generate } else { 0 };
    if case.first_token || prompt + generate == 0 {
        return None;
    }
    let fixed = ["-r", "1", "-o", "json", "-ngl", "0", "-rtr", repack, "-t"];
    let mut arguments: Vec<String> = fixed.map(str::to_owned).into();
    arguments.extend([case.threads.to_string(), "-p".to_owned(), prompt.to_string()]);
    let behind = generate > 0 && case.depth > 0;
    let alone = if behind { 0 } else { generate };
    arguments.extend(["-n".to_owned(), alone.to_string()]);
    if behind {
        arguments.extend(["-gp".to_owned(), format!("{},{generate}", case.depth)]);
    }
    Some(arguments)
}

/// The tests of its output, a JSON list that messages of loading may precede.
fn results(text: &str) -> Result<Tests> {
    let start = if text.starts_with("[\n") { Some(0) } else { text.find("\n[\n").map(|at| at + 1) };
    let start = start.context("--ik: the program wrote no JSON list")?;
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    let list = values.next().context("--ik: the program wrote no JSON list")??;
    let mut tests = Tests::new();
    for test in list.as_array().context("--ik: the program wrote no JSON list")? {
        let value = test["avg_ts"].as_f64().context("--ik: a test without avg_ts")?;
        // A test of generation behind a prompt has both sizes.
        let mut test = test.clone();
        let [prompt, generate] = ["n_prompt", "n_gen"].map(|key| test[key].as_u64().unwrap_or(0));
        if prompt > 0 && generate > 0 {
            (test["n_prompt"], test["n_depth"]) = (0.into(), prompt.into());
        } else {
            test["n_depth"] = 0.into();
        }
        test["n_parallel"] = 1.into();
        let name = name(&test).context("--ik: a test without n_prompt and n_gen")?;
        tests.insert(name, Measured { value, peak: f64::NAN, share: None });
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn results_are_read_behind_messages() {
        let text = "======== model has mixed types [2]\n[\n  {\n    \"n_prompt\": 512,\n    \"n_gen\": 0,\n    \
                    \"avg_ts\": 93.5,\n    \"samples_ns\": [ 1 ]\n  },\n  {\n    \"n_prompt\": 0,\n    \"n_gen\": 64,\n    \
                    \"avg_ts\": 21.25\n  },\n  {\n    \"n_prompt\": 4096,\n    \"n_gen\": 32,\n    \"avg_ts\": 9.0\n  }\n]\n";
        let found = results(text).unwrap();
        let values: Vec<(&str, f64)> =
            found.iter().map(|(name, measured)| (name.as_str(), measured.value)).collect();
        assert_eq!(values, [("pp512", 93.5), ("tg32 @ d4096", 9.0), ("tg64", 21.25)]);
        for (text, part) in [
            ("", "no JSON list"),
            ("llama-bench: no model\n", "no JSON list"),
            ("[\n {\"n_prompt\": 5, \"n_gen\": 0} ]\n", "avg_ts"),
            ("[\n {\"avg_ts\": 5} ]\n", "n_prompt"),
        ] {
            let error = format!("{:#}", results(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(results("[\n {\"n_prompt\": ").is_err());
    }

    #[test]
    fn a_case_has_the_arguments_of_its_tests() {
        let line = |case: &Case| arguments(case, "1").map(|arguments| arguments.join(" "));
        let all = cases::all();
        let fixed = "-r 1 -o json -ngl 0 -rtr 1 -t 2";
        assert_eq!(line(&all[0]), Some(format!("{fixed} -p 512 -n 64")));
        let of = |part| all.iter().find(|case| case.part == part).unwrap();
        assert_eq!(line(of("depth")), Some(format!("{fixed} -p 0 -n 0 -gp 4096,32")));
        assert_eq!(line(of("sequences")), None);
        let first = all.iter().find(|case| case.first_token).unwrap();
        assert_eq!(line(first), None);
    }

    #[test]
    fn other_programs_are_refused() {
        check_help("  -p, --n-prompt <n>\n  -rtr, --run-time-repack <0|1>").unwrap();
        for (help, part) in [("usage: ls", "not a llama-bench"), ("--n-prompt", "not that of ik")] {
            let error = format!("{:#}", check_help(help).unwrap_err());
            assert!(error.contains(part), "{help}: {error}");
        }
        let error = format!("{:#}", Ik::ready(Path::new("nowhere/llama-bench")).unwrap_err());
        assert!(error.contains("nowhere/llama-bench is not a file"), "{error}");
    }
}
