//! The promise of the Python package that holds without a package index: the library loads, generates, and survives misuse.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long the end of the interpreter waits for threads at most.
const LEAVING: Duration = Duration::from_secs(5);

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder with the package as a wheel would install it, or `None` without Python.
fn installed() -> Option<tempfile::TempDir> {
    let minimum = "import sys; sys.exit(sys.version_info < (3, 10))";
    let python = Command::new("python3").args(["-c", minimum]).status();
    if !python.is_ok_and(|status| status.success()) {
        println!("skipped: no python3 of 3.10 or later");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("bilayer");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(root().join("crates/python/python/bilayer")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let programs = std::env::current_exe().unwrap();
    let library = programs.with_file_name("libbilayer_python.so");
    std::fs::copy(library, package.join("_native.abi3.so")).unwrap();
    Some(folder)
}

/// Python with the package and the demo model's path in `DEMO`.
fn prepared(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments).env("PYTHONPATH", folder).env("XDG_RUNTIME_DIR", folder);
    command.env("DEMO", root().join("crates/cli/assets/demo.gguf"));
    command
}

fn python(folder: &Path, arguments: &[&str]) -> Output {
    prepared(folder, arguments).output().unwrap()
}

#[track_caller]
fn good(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}\n{text}", output.status);
    text
}

#[test]
fn the_checks_without_packages_hold() {
    let Some(folder) = installed() else { return };
    let checks = root().join("crates/python/tests/checks.py");
    let text = good(&python(folder.path(), &[checks.to_str().unwrap()]));
    assert!(text.lines().filter(|line| line.starts_with("ok ")).count() >= 10, "{text}");
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn the_command_is_the_command_line() {
    let Some(folder) = installed() else { return };
    let line = "-m bilayer run --temp 0 -n 8 -ngl 0 -p ROMEO:";
    let arguments: Vec<&str> = line.split(' ').collect();
    assert!(!good(&python(folder.path(), &arguments)).trim().is_empty());
    let refused = python(folder.path(), &["-m", "bilayer", "run", "-m", "missing.gguf"]);
    assert_eq!(refused.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("missing.gguf"));
}

/// The interpreter ends while answers are in the making, in the main thread and in others.
#[test]
fn the_interpreter_may_end_in_the_middle_of_an_answer() {
    let Some(folder) = installed() else { return };
    let script = "
import os, sys, threading, bilayer
model = bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=4096)
answer = model.generate('ROMEO:', ignore_eos=True)
next(answer)
def read():
    for _ in model.generate('JULIET:', ignore_eos=True): pass
threading.Thread(target=read, daemon=True).start()
print('leaving')
if sys.argv[1] == 'raise': raise SystemExit(3)
";
    for round in 0..6 {
        let (how, code) = if round % 2 == 0 { ("raise", 3) } else { ("end", 0) };
        let ended = python(folder.path(), &["-c", script, how]);
        let error = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(code), &b"leaving\n"[..]));
        assert!(error.is_empty(), "{error}");
    }
}

/// Runs Python as far as the line `leaving`, and to the end without a word; the time in between.
#[track_caller]
fn left(folder: &Path, script: &str) -> Duration {
    let mut command = prepared(folder, &["-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 8];
    let leaving = child.stdout.as_mut().unwrap().read_exact(&mut first);
    let began = Instant::now();
    let ended = child.wait_with_output().unwrap();
    let took = began.elapsed();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && error.is_empty(), "{}: {error}\n{script}", ended.status);
    assert!(leaving.is_ok() && &first == b"leaving\n" && ended.stdout.is_empty(), "{ended:?}");
    took
}

/// It ends an opening, too, and does not wait as long as it may: here devices are measured again and again.
#[test]
fn the_interpreter_may_end_while_a_model_is_opened() {
    let Some(folder) = installed() else { return };
    let took = left(
        folder.path(),
        "
import os, threading, bilayer
begun = threading.Event()
def load():
    while True:
        try:
            bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=64, cache_dir=os.environ['PYTHONPATH'], remeasure=True,
                            progress=lambda *_: begun.set())
        except bilayer.Error:
            break
threading.Thread(target=load, daemon=True).start()
begun.wait()
print('leaving', flush=True)
",
    );
    assert!(took < LEAVING, "{took:?}");
}

/// Nor is a thread ended while it is told of the progress: in one opening that takes its time, and in one after the other.
#[test]
fn the_interpreter_may_end_while_it_is_told_of_an_opening() {
    let Some(folder) = installed() else { return };
    for (seconds, again) in [(0.01, "break"), (0.3, "break"), (0.001, "pass"), (0.0, "pass")] {
        let script = format!(
            "
import os, threading, time, bilayer
begun = threading.Event()
def told(*_):
    begun.set()
    time.sleep({seconds})
def load():
    while True:
        try:
            bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=64, progress=told)
        except bilayer.Error:
            break
        {again}
threading.Thread(target=load, daemon=True).start()
begun.wait()
print('leaving', flush=True)
"
        );
        for _ in 0..3 {
            let took = left(folder.path(), &script);
            assert!(took < LEAVING, "{took:?}");
        }
    }
}

#[test]
fn ctrl_c_ends_an_answer() {
    let Some(folder) = installed() else { return };
    let script = "
import os, signal, threading, bilayer
# A suite in the background inherits an ignored one.
signal.signal(signal.SIGINT, signal.default_int_handler)
model = bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=8192)
threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
try:
    # Once is over too early on a fast machine.
    while True:
        model.generate('ROMEO:', ignore_eos=True).text()
except KeyboardInterrupt:
    print('interrupted')
print(len(model.generate('ROMEO:', max_tokens=4, ignore_eos=True).text()) > 0)
";
    assert_eq!(good(&python(folder.path(), &["-c", script])), "interrupted\nTrue\n");
}

/// A signal is noticed while a model is opened, and the opening ends: here devices are measured, which takes seconds.
#[test]
fn ctrl_c_ends_an_opening() {
    let Some(folder) = installed() else { return };
    let script = "
import os, signal, threading, time, bilayer
signal.signal(signal.SIGINT, signal.default_int_handler)
raised = []
def interrupt():
    raised.append(time.monotonic())
    signal.raise_signal(signal.SIGINT)
def begun(*_):
    if not raised: threading.Timer(0.1, interrupt).start()
try:
    while True:
        bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=64, cache_dir=os.environ['PYTHONPATH'], remeasure=True, progress=begun)
except KeyboardInterrupt:
    print('interrupted', time.monotonic() - raised[0] < 1)
loaders = [thread for thread in os.listdir('/proc/self/task') if open(f'/proc/self/task/{thread}/comm').read() == 'bilayer\\n']
ends = time.monotonic() + 30
while any(os.path.exists(f'/proc/self/task/{thread}') for thread in loaders) and time.monotonic() < ends:
    time.sleep(0.01)
print('ended', time.monotonic() < ends)
";
    let text = good(&python(folder.path(), &["-c", script]));
    assert_eq!(text, "interrupted True\nended True\n");
}

/// A signal is noticed although the callable that is told of the progress runs no Python, and looks for none.
#[test]
fn ctrl_c_ends_an_opening_that_tells_a_native_function() {
    let Some(folder) = installed() else { return };
    let script = "
import ctypes, functools, os, signal, threading, time, bilayer
signal.signal(signal.SIGINT, signal.default_int_handler)
calls = []
bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=64, progress=lambda *_: calls.append(_))
sleep = functools.partial(ctypes.CDLL(None).usleep, ctypes.c_uint(50000))
began = time.monotonic()
threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
try:
    bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=64, progress=sleep)
except KeyboardInterrupt:
    print('interrupted', len(calls) > 20, time.monotonic() - began < len(calls) * 0.05 * 0.9)
";
    assert_eq!(good(&python(folder.path(), &["-c", script])), "interrupted True True\n");
}

/// A signal ends work that has no partial result, after which the model is free.
#[test]
fn ctrl_c_ends_logits() {
    let Some(folder) = installed() else { return };
    let script = "
import os, signal, threading, time, bilayer
signal.signal(signal.SIGINT, signal.default_int_handler)
model = bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=8192)
tokens = [model.bos] * 8000
threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
try:
    while True:
        model._native.logits(tokens)
except KeyboardInterrupt:
    print('interrupted')
began = time.monotonic()
model.generate('a', max_tokens=1).text()
print(time.monotonic() - began < 2)
";
    assert_eq!(good(&python(folder.path(), &["-c", script])), "interrupted\nTrue\n");
}

/// When the exception is raised, nothing writes any more, and an existing file is as it was.
#[test]
fn ctrl_c_ends_a_quantization() {
    let Some(folder) = installed() else { return };
    let script = "
import os, signal, sys, threading, bilayer, bilayer._native
folder = os.environ['PYTHONPATH']
model, out = os.path.join(folder, 'in.gguf'), os.path.join(folder, 'out.gguf')
sizes = ['--layers', '2', '--width', '1024', '--ffn', '4096', '--vocab', '320', '--type', 'F16']
assert bilayer._native.command(['bilayer', 'synth', *sizes, model]) == 0
with open(out, 'wb') as file: file.write(b'old')
before = sorted(os.listdir(folder))
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
try:
    while True: bilayer.quantize(model, os.path.join(folder, 'out.gguf'), 'IQ3_S', threads=1)
except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    print(sorted(os.listdir(folder)) == before, open(out, 'rb').read() == b'old')
";
    let ran = python(folder.path(), &["-c", script]);
    assert_eq!(good(&ran).lines().last(), Some("True True"), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("interrupted"), "{ran:?}");
}

/// Threads of the parent are neither joined nor waited for.
#[test]
fn a_forked_process_ends_without_the_threads_of_its_parent() {
    let Some(folder) = installed() else { return };
    let script = "
import os, sys, threading, time, bilayer
def opened(): return bilayer.Bilayer(os.environ['DEMO'], gpu_layers=0, context=4096)
dropped, waits, kept = opened(), opened(), opened()
def read():
    for _ in waits.generate('ROMEO:', ignore_eos=True): pass
next(dropped.generate('ROMEO:', ignore_eos=True))
del dropped
thread = threading.Thread(target=read, daemon=True)
thread.start()
pid = os.fork()
if pid == 0:
    del kept
    sys.exit(0)
began = time.monotonic()
print(os.waitpid(pid, 0)[1], time.monotonic() - began < 4)
";
    let ended = python(folder.path(), &["-W", "ignore", "-c", script]);
    assert_eq!(good(&ended), "0 True\n");
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}
