//! Runs the program as a user would, in a folder of its own, without this machine's settings, variables or input.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder for files, also home and working directory of every run.
pub struct Place {
    folder: TempDir,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: TempDir::new().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the folder, in order.
    pub fn names(&self) -> Vec<String> {
        self.names_in("")
    }

    /// The names in a folder in it, in order.
    pub fn names_in(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The program with `arguments`, which are split at spaces; stdin is empty.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = self.bare(env!("CARGO_BIN_EXE_bilayer"));
        command.args(arguments.split_whitespace());
        command
    }

    /// Any program, in this folder.
    pub fn bare(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).env("HOME", self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let others = ["LLAMA_ARG_", "LLAMA_CACHE", "XDG_", "HF_", "HUGGINGFACE_", "OLLAMA_"];
            if others.iter().any(|other| name.starts_with(other)) || name == "COLUMNS" {
                command.env_remove(&*name);
            }
        }
        // Compiled kernels are shared by all tests.
        command.env("BILAYER_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/kept"));
        command
    }

    /// Runs `arguments`, which are split at spaces.
    pub fn run(&self, arguments: &str) -> Ran {
        ran(&mut self.command(arguments))
    }

    /// Runs the program with `input` piped in.
    pub fn run_with_input(&self, arguments: &str, input: &str) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A program may close the pipe before reading all of it.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        Ran::new(&child.wait_with_output().unwrap())
    }
}

/// Runs a command to its end.
pub fn ran(command: &mut Command) -> Ran {
    Ran::new(&command.output().unwrap())
}

/// Copies a file, or a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}

impl Ran {
    pub fn new(output: &std::process::Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The output of a run that must have succeeded.
    #[track_caller]
    pub fn good(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The JSON document of a run that must have succeeded.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let ran = self.good();
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error} in {ran:?}"))
    }
}
