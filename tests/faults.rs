//! The promise of faults: whatever operation of a disk or call of a device fails, there is an error or the right answer,
//! what was running goes on, and no half file remains. docs/internals/faults.md names the test of each case.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its case shall stop")]
#![allow(clippy::print_stdout, reason = "counts are shown")]

use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bilayer_convert::convert::Convert;
use bilayer_convert::imatrix::{Entry, Imatrix};
use bilayer_convert::mix::Mix;
use bilayer_convert::quantize::Quantize;
use bilayer_convert::synth::{Shape, Synth};
use bilayer_engine::Model;
use bilayer_engine::session::{Run, SavedSequence, SequenceId, Session, Settings, Wanted};
use bilayer_files::{Disk, Operation, on_disk};
use bilayer_gguf::{File, Metadata, NewTensor};
use bilayer_graph::Backend;
use bilayer_measure::perplexity::Base;
use bilayer_quant::Type;
use bilayer_scheduler::{Placement, place};

mod support {
    pub mod devices;
    pub mod folder;
    pub mod gpu;
    pub mod logits;
    pub mod model;
    pub mod words;
}

use support::devices::{CALLS, Call, Failing, Fault, Queued, Script, cpu};
use support::folder::Folder;
use support::logits::argmax;
use support::words;

// ---- Disks --------------------------------------------------------------------------------------

/// A disk on which the operation after `left` others fails, and all after it, as those of a full disk do.
struct Breaking {
    left: AtomicUsize,
    kind: io::ErrorKind,
    failed: Mutex<Option<Operation>>,
    renamed: AtomicBool,
}

impl Disk for Breaking {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let passes = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, passes).is_ok() {
            self.renamed.fetch_or(operation == Operation::Rename, Ordering::SeqCst);
            return Ok(());
        }
        self.failed.lock().unwrap().get_or_insert(operation);
        Err(io::Error::from(self.kind))
    }
}

/// What writers read.
struct Inputs {
    model: File,
    folder: Folder,
    saved: SavedSequence,
}

impl Inputs {
    fn new() -> Inputs {
        let model = Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap();
        let mut session = Session::new(&model, settings()).unwrap();
        let sequence = session.open().unwrap();
        session.prefill(sequence, &some(70, 1), &mut |_| true).unwrap();
        let saved = session.save(sequence).unwrap();
        let file = File::from_bytes("in", words::tiny(Type::F32, 7)).unwrap();
        Inputs { model: file, folder: Folder::tiny(), saved }
    }
}

type Writer = (&'static str, fn(&Inputs, &Path) -> Result<(), String>);

/// All writers of the libraries.
const WRITERS: [Writer; 6] = [
    ("gguf", |_, path| {
        let tensor = NewTensor::bytes("a", Type::F32, &[2], vec![1; 8]);
        bilayer_gguf::write(path, &Metadata::new(), [tensor]).map_err(|error| error.to_string())
    }),
    ("imatrix", |_, path| {
        let mut imatrix = Imatrix::new(vec!["text".to_owned()], 1, 8);
        imatrix.insert("a", Entry::new(vec![1.0; 64], vec![3])).unwrap();
        imatrix.write(path).map_err(|error| error.to_string())
    }),
    ("synth", |_, path| {
        let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::find("Q4_K_M").unwrap());
        let written = synth.write(path, &mut |_, _| ControlFlow::Continue(()));
        written.map(drop).map_err(|error| error.to_string())
    }),
    ("quantize", |inputs, path| {
        let quantize = Quantize::new(Mix::find("Q8_0").unwrap());
        let plan = quantize.plan(&inputs.model, None).unwrap();
        let written = plan.write(path, &mut |_, _| ControlFlow::Continue(()));
        written.map_err(|error| error.to_string())
    }),
    ("convert", |inputs, path| {
        let plan = Convert::default().plan(inputs.folder.path()).unwrap();
        let written = plan.write(path, &mut |_, _| ControlFlow::Continue(()));
        written.map_err(|error| error.to_string())
    }),
    ("saved sequence", |inputs, path| {
        inputs.saved.write(path).map(drop).map_err(|error| error.to_string())
    }),
];

/// Runs every writer on disks whose first, second, ... operation fails, until none does.
fn on_breaking_disks(kind: io::ErrorKind) {
    let inputs = Inputs::new();
    for (name, write) in WRITERS {
        let mut operations = Vec::new();
        for after in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("out");
            std::fs::write(&path, "old").unwrap();
            let disk = Arc::new(Breaking {
                left: AtomicUsize::new(after),
                kind,
                failed: Mutex::default(),
                renamed: AtomicBool::default(),
            });
            let written = on_disk(disk.clone(), || write(&inputs, &path));
            let found = std::fs::read(&path).unwrap();
            let names = std::fs::read_dir(folder.path()).unwrap().count();
            let failed = *disk.failed.lock().unwrap();
            // A complete file that cannot take its name is kept.
            let expected = 1 + usize::from(failed == Some(Operation::Rename));
            assert_eq!(names, expected, "{name}: {failed:?} after {after} operations");
            let Some(failed) = failed else {
                assert!(written.is_ok() && found.len() > 3, "{name}: {written:?}");
                break;
            };
            let message = written.expect_err(name);
            assert!(message.contains("out"), "{name}: {message}");
            let is_new = disk.renamed.load(Ordering::SeqCst);
            assert_eq!(found != b"old", is_new, "{name}: {failed:?} after {after} operations");
            operations.push(failed);
        }
        for operation in [Operation::Create, Operation::Write, Operation::Sync, Operation::Rename] {
            assert!(operations.contains(&operation), "{name}: {operation:?} never failed");
        }
        println!("{name}: {} operations failed in turn", operations.len());
    }
}

#[test]
fn writers_on_a_full_disk_leave_the_old_file_whatever_operation_fails() {
    on_breaking_disks(io::ErrorKind::StorageFull);
}

#[test]
fn writers_on_a_broken_disk_leave_the_old_file_whatever_operation_fails() {
    on_breaking_disks(io::ErrorKind::Other);
}

/// Bytes of which a read fails.
struct Reads<'a> {
    bytes: &'a [u8],
    left: usize,
    failed: &'a AtomicBool,
}

impl Read for Reads<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            self.failed.store(true, Ordering::SeqCst);
            io::Error::other("the disk is broken")
        })?;
        self.bytes.read(out)
    }
}

#[test]
fn readers_give_an_error_whatever_read_fails() {
    let inputs = Inputs::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    inputs.saved.write(&path).unwrap();
    let saved = std::fs::read(&path).unwrap();
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap();
    let vocab = model.config().vocab;
    let numbers = [4, vocab as u32, 1, 3, 4, 5, 6].map(u32::to_le_bytes).concat();
    let row = vec![0; Base::<&[u8]>::row_bytes(vocab)];
    let base = [&b"_logits_"[..], &numbers, &row].concat();
    type Reader<'a> = &'a dyn Fn(BufReader<Reads<'_>>) -> Result<(), String>;
    let readers: [(&[u8], Reader<'_>); 2] = [
        (&saved, &|reads| {
            let read = SavedSequence::read_from(&path, reads, saved.len() as u64, &model, 256);
            read.map(drop).map_err(|error| error.to_string())
        }),
        (&base, &|reads| {
            let opened = Base::new(reads, base.len() as u64, &model);
            let mut opened = opened.map_err(|error| error.to_string())?;
            opened.rows(&mut row.clone()).map_err(|error| error.to_string())
        }),
    ];
    for (bytes, read) in readers {
        let mut failures = 0;
        for left in 0.. {
            let failed = AtomicBool::default();
            let reads = Reads { bytes, left, failed: &failed };
            let result = read(BufReader::with_capacity(16, reads));
            if !failed.load(Ordering::SeqCst) {
                result.unwrap();
                break;
            }
            let message = result.expect_err("a read failed");
            let is_named = message.contains("the disk is broken") || message.contains("is cut off");
            assert!(is_named, "{message}");
            failures += 1;
        }
        assert!(failures > 2, "{failures}");
    }
}

// ---- Devices ------------------------------------------------------------------------------------

fn settings() -> Settings<'static> {
    Settings {
        threads: Some(1),
        ctx_size: Some(256),
        sequences: 2,
        outputs: Some(8),
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    }
}

fn some(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 3 + ((i * 31 + seed * 17 + i * i * 7) % 120) as u32).collect()
}

/// Where layers are: all on the device that fails, or half of them.
const PLACES: [&str; 2] = ["device", "hybrid"];

/// A session of a CPU and `device`, which has layers as `place_name` says.
fn session(
    model: &Model,
    device: Box<dyn Backend>,
    place_name: &str,
) -> Result<Session, bilayer_engine::Error> {
    let layers = model.graph().layers();
    let count = if place_name == "hybrid" { layers / 2 + 1 } else { layers + 1 };
    let placement = Placement::offload(layers, count, 0, 1);
    let planner =
        |graph: &_, machine: &_, budget: &_| Ok(place(graph, machine, budget, &placement)?);
    Session::on(model, vec![cpu(1), device], &planner, settings())
}

/// The tokens after a prompt of 40.
fn answer(session: &mut Session, sequence: SequenceId) -> Result<Vec<u32>, bilayer_engine::Error> {
    let logits = session.prefill(sequence, &some(40, 2), &mut |_| true)?.expect("not cancelled");
    let mut text = vec![argmax(logits)];
    for _ in 0..4 {
        let tokens = &text[text.len() - 1..];
        let logits = session.step(&[Run { sequence, tokens, wanted: Wanted::Last }])?;
        text.push(argmax(logits));
    }
    Ok(text)
}

/// [`answer`] in a sequence of its own.
fn fresh(session: &mut Session) -> Result<Vec<u32>, bilayer_engine::Error> {
    let sequence = session.open()?;
    let text = answer(session, sequence);
    session.close(sequence);
    text
}

fn tiny() -> Model {
    Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap()
}

fn simulated() -> Box<dyn Backend> {
    Box::new(Queued::new(cpu(1), Duration::ZERO))
}

/// An error that moving layers cannot help is the caller's, and what comes after it is answered as if it had not been.
#[test]
fn a_call_that_is_refused_is_an_error_and_the_session_goes_on() {
    let model = tiny();
    let expected = fresh(&mut Session::new(&model, settings()).unwrap()).unwrap();
    for (place_name, call) in PLACES.iter().flat_map(|place| CALLS.map(|call| (place, call))) {
        for after in 0.. {
            let script = Script { call, after, fault: Fault::Refused };
            let device = Failing::new(simulated(), script);
            let failed = device.failed.clone();
            let at = format!("{place_name} {call:?} {after}");
            let answers = match session(&model, Box::new(device), place_name) {
                Ok(mut session) => (0..3).map(|_| fresh(&mut session)).collect(),
                Err(error) => vec![Err(error)],
            };
            let mut errors = 0;
            for text in answers {
                match text {
                    Ok(text) => assert_eq!(text, expected, "{at}"),
                    Err(error) => {
                        assert!(error.to_string().contains("limit"), "{at}: {error}");
                        errors += 1;
                    }
                }
            }
            let has_failed = *failed.lock().unwrap();
            assert_eq!(errors, usize::from(has_failed), "{at}");
            if !has_failed {
                assert!(after > 0, "{at}: no such call is made");
                break;
            }
        }
    }
}

/// A device that computes no numbers gives no text.
#[test]
fn what_a_device_reads_as_no_number_is_an_error() {
    let model = tiny();
    let expected = fresh(&mut Session::new(&model, settings()).unwrap()).unwrap();
    for place_name in PLACES {
        for after in 0.. {
            let script = Script { call: Call::Read, after, fault: Fault::NoNumber };
            let device = Failing::new(simulated(), script);
            let failed = device.failed.clone();
            let mut session = session(&model, Box::new(device), place_name).unwrap();
            let text = fresh(&mut session);
            if !*failed.lock().unwrap() {
                assert!(after > 0);
                break;
            }
            let error = text.expect_err("a value is no number").to_string();
            assert!(error.contains("not finite"), "{place_name} {after}: {error}");
            assert_eq!(fresh(&mut session).unwrap(), expected, "{place_name} {after}");
        }
    }
}

/// A save that fails is an error, and the sequence and the session go on.
#[test]
fn a_save_that_fails_changes_nothing() {
    let model = tiny();
    let mut alone = Session::new(&model, settings()).unwrap();
    let expected = fresh(&mut alone).unwrap();
    for fault in [Fault::Refused, Fault::OutOfMemory, Fault::Lost] {
        for place_name in PLACES {
            let mut failures = 0;
            for after in 0.. {
                let script = Script { call: Call::Save, after, fault };
                let device = Failing::new(simulated(), script);
                let failed = device.failed.clone();
                let mut session = session(&model, Box::new(device), place_name).unwrap();
                let sequence = session.open().unwrap();
                assert_eq!(answer(&mut session, sequence).unwrap(), expected);
                let saved = session.save(sequence);
                if !*failed.lock().unwrap() {
                    saved.unwrap();
                    break;
                }
                saved.expect_err("a save failed");
                failures += 1;
                assert_eq!(fresh(&mut session).unwrap(), expected, "{fault:?} {after}");
                let again = session.save(sequence).unwrap();
                assert_eq!(again.tokens().len(), 44);
            }
            assert!(failures > 0);
        }
    }
}

/// The adapter of this machine, a software one where there is no GPU, fails at calls of each kind.
#[test]
fn an_adapter_that_fails_does_not_change_the_answer() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = tiny();
    let expected = fresh(&mut Session::new(&model, settings()).unwrap()).unwrap();
    let mut failures = 0;
    for (fault, call) in [Fault::Lost, Fault::OutOfMemory].map(|f| CALLS.map(|c| (f, c))).concat() {
        let script = Script { call, after: 1, fault };
        let device = Failing::new(Box::new(support::gpu::gpu().unwrap()), script);
        let failed = device.failed.clone();
        let mut session = session(&model, Box::new(device), "hybrid").unwrap();
        assert_eq!(fresh(&mut session).unwrap(), expected, "{fault:?} {call:?}");
        let has_failed = usize::from(*failed.lock().unwrap());
        assert_eq!(session.take_warnings().len(), has_failed, "{fault:?} {call:?}");
        failures += has_failed;
    }
    assert!(failures > 6, "{failures}");
}
