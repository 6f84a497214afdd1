//! Sequences whose contents come from elsewhere: from a file, or from pages that were shared before a step that failed.

use bilayer_engine::session::{Run, SequenceId, Wanted};
use bilayer_engine::{Adapters, Error, LoraFile, open_file};

use super::served::{tiny, tokens};
use super::*;

fn settings() -> Settings<'static> {
    Settings { threads: Some(1), ctx_size: Some(64), sequences: 3, ..Settings::default() }
}

/// A session with exact keys and values on the CPU.
fn exact(model: &Model, settings: Settings<'_>) -> Session {
    let placing = bilayer_engine::placement::Placing::cpu();
    let (cache_type_k, cache_type_v) = (Type::F32, Type::F32);
    Session::new(model, Settings { placing, cache_type_k, cache_type_v, ..settings }).unwrap()
}

/// A file with a sequence, in a folder that is deleted with the first result.
fn written(session: &mut Session, sequence: SequenceId) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    session.save(sequence).unwrap().write(&path).unwrap();
    (folder, path)
}

/// Logits after tokens that are appended to a sequence.
fn after(session: &mut Session, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    session.step(&[Run { sequence, tokens, wanted: Wanted::Last }]).unwrap().to_vec()
}

fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-4;
    assert!(found.iter().zip(expected).all(near), "{what}");
}

#[test]
fn a_saved_slot_continues_in_another_session() {
    let model = model();
    let prompt = "ROMEO:\nBut, soft! what light through yonder window breaks?\n";
    let mut first = executor(&model, 2);
    let in_slot = |slot| Submission { slot: Some(slot), ..greedy(&model, prompt, 8) };
    let id = first.submit(in_slot(3)).unwrap();
    let (text, counts) = served(&mut first).remove(&id).unwrap();
    assert_eq!((counts.slot, counts.cached), (3, 0));
    assert!(first.save_slot(2).unwrap().is_none(), "slot 2 is empty");
    let saved = first.save_slot(3).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let bytes = saved.write(&path).unwrap();
    assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
    let read = SavedSequence::read(&path, &model, 256).unwrap();
    assert_eq!(read, saved);

    let mut second = executor(&model, 1);
    second.restore_slot(0, &read, 0).unwrap();
    let id = second.submit(in_slot(1)).unwrap();
    assert_eq!(served(&mut second)[&id].1.cached, 0, "another slot does not have it");
    let id = second.submit(in_slot(0)).unwrap();
    let (again, counts) = served(&mut second).remove(&id).unwrap();
    assert_eq!((again, counts.cached), (text, counts.prompt - 1));
    // What belongs to another model leaves the slot as it is.
    let other = served::tiny();
    let mut of_other = session(&other, 1, 1);
    let sequence = of_other.open().unwrap();
    of_other.prefill(sequence, &served::tokens(9), &mut |_| true).unwrap();
    let foreign = of_other.save(sequence).unwrap();
    second.restore_slot(0, &foreign, 0).expect_err("another model");
    let erased = second.erase_slot(0);
    assert_eq!(erased, counts.prompt + 7, "the last token was not computed");
    let id = second.submit(in_slot(0)).unwrap();
    assert_eq!(served(&mut second)[&id].1.cached, 0);
    second.clear_cache(None);
    assert_eq!(second.session().cache().free_pages(), second.session().cache().pages());
}

#[test]
fn a_damaged_saved_slot_is_refused() {
    let model = model();
    let mut executor = executor(&model, 1);
    let request = Submission { slot: Some(0), ..greedy(&model, "KING:\n", 2) };
    executor.submit(request).unwrap();
    served(&mut executor);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    executor.save_slot(0).unwrap().unwrap().write(&path).unwrap();
    assert!(SavedSequence::is_at(&path).unwrap());
    assert!(!SavedSequence::is_at(folder.path()).unwrap(), "a folder");
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = SavedSequence::read(&path, &model, 256).expect_err("damaged").to_string();
        assert!(error.contains("slot"), "{error}");
    };
    for at in (0..whole.len()).step_by(whole.len() / 60).chain(0..60) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        refused(&bytes);
        refused(&whole[..at]);
    }
    for (magic, problem) in
        [("BLYRSEQ3", "saved by another version"), ("other", "no saved sequence")]
    {
        std::fs::write(&path, [magic.as_bytes(), &whole[magic.len()..]].concat()).unwrap();
        let error = SavedSequence::read(&path, &model, 256).expect_err(magic).to_string();
        assert!(error.contains(problem), "{magic}: {error}");
    }
    std::fs::write(&path, &whole).unwrap();
    let error = SavedSequence::read(&path, &model, 4).expect_err("too long").to_string();
    assert!(error.contains("context of 4"), "{error}");
}

#[test]
fn a_sequence_as_long_as_the_context_is_read_again() {
    let model = tiny();
    let mut session = exact(&model, settings());
    let sequence = session.open().unwrap();
    after(&mut session, sequence, &tokens(64));
    let (_folder, path) = written(&mut session, sequence);
    let read = SavedSequence::read(&path, &model, 64).unwrap();
    let restored = session.restore(&read).unwrap();
    assert_eq!(session.truncate(restored, 63), 63);
    let found = after(&mut session, restored, &tokens(64)[63..]);
    session.truncate(sequence, 63);
    assert_eq!(found, after(&mut session, sequence, &tokens(64)[63..]));
    let error = SavedSequence::read(&path, &model, 63).expect_err("too long").to_string();
    assert!(error.contains("context of 63"), "{error}");
}

#[test]
fn keys_and_values_of_fewer_or_more_tokens_are_refused() {
    let model = tiny();
    let mut session = exact(&model, settings());
    let sequence = session.open().unwrap();
    after(&mut session, sequence, &tokens(10));
    let (_folder, path) = written(&mut session, sequence);
    let whole = std::fs::read(&path).unwrap();
    // After the head, the tokens, the number of caches, the first one's id and the type of its keys: how many.
    let at = 4 * 8 + 10 * 4 + 3 * 8;
    let integer = |at: usize| u64::from_le_bytes(whole[at..][..8].try_into().unwrap());
    let (bytes, count) = (integer(at - 8), integer(at));
    let end = at + 8 + (bytes * count) as usize;
    for times in [1, 0, 2] {
        let keys = &whole[at + 8..end];
        let count = (times * count).to_le_bytes();
        let rest = &whole[end..whole.len() - 8];
        let mut file = [&whole[..at], &count, &keys.repeat(times as usize), rest].concat();
        let hash = file.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        file.extend(hash.to_le_bytes());
        std::fs::write(&path, &file).unwrap();
        let restored = session.restore(&SavedSequence::read(&path, &model, 64).unwrap());
        match times {
            1 => session.close(restored.unwrap()),
            _ => {
                let error = restored.unwrap_err().to_string();
                assert!(error.contains("keys and values"), "{times}: {error}");
            }
        }
    }
    assert_eq!(session.cache().pages_in_use().len(), 1);
}

#[test]
fn keys_of_other_rope_factors_are_refused() {
    let model = Model::from_bytes("long", words::tiny_of("phi3")).unwrap();
    let with = |ctx_size| exact(&model, Settings { ctx_size: Some(ctx_size), ..settings() });
    let (mut short, mut long) = (with(64), with(65));
    let sequence = short.open().unwrap();
    after(&mut short, sequence, &tokens(10));
    let saved = short.save(sequence).unwrap();
    let (_folder, path) = written(&mut short, sequence);
    // The original context of the model is 64 tokens.
    for error in [
        long.restore(&saved).expect_err("other factors"),
        SavedSequence::read(&path, &model, 65).expect_err("other factors"),
    ] {
        assert!(error.to_string().contains("RoPE factors"), "{error}");
    }
    let read = SavedSequence::read(&path, &model, 32).unwrap();
    with(32).restore(&read).unwrap();
}

#[test]
fn a_step_that_does_not_begin_leaves_no_copy_behind() {
    let model = tiny();
    let mut session = exact(&model, settings());
    let (text, other) = (tokens(40), tokens(50)[10..].to_vec());
    let sequence = session.open().unwrap();
    after(&mut session, sequence, &other);
    let saved = session.save(sequence).unwrap();
    let expected = after(&mut session, sequence, &[9]);
    session.truncate(sequence, 0);
    after(&mut session, sequence, &text);
    let of_text = after(&mut session, sequence, &[9]);
    session.truncate(sequence, 40);
    for closes in [true, false] {
        let fork = session.fork(sequence).unwrap();
        let pages = session.cache().free_pages();
        let long = session.open().unwrap();
        let wanted = Wanted::Last;
        let runs = [
            Run { sequence: fork, tokens: &[9, 8, 7], wanted },
            Run { sequence: long, tokens: &tokens(65), wanted },
        ];
        let error = session.step(&runs).unwrap_err();
        assert!(matches!(error, Error::Cache(_)), "{error}");
        assert_eq!((session.len(fork), session.cache().free_pages()), (40, pages));
        session.close(long);
        if closes {
            session.close(fork);
            let restored = session.restore(&saved).unwrap();
            assert_eq!(after(&mut session, restored, &[9]), expected);
            session.close(restored);
        } else {
            assert_eq!(after(&mut session, fork, &[9]), of_text);
            session.close(fork);
        }
    }
}

/// Two devices, the second of which refuses a read once.
fn refusing(model: &Model, after: usize) -> Session {
    let layers = model.graph().layers();
    let cpu = || -> Box<dyn Backend> {
        let options = bilayer_cpu::Options { threads: Some(1), ..Default::default() };
        Box::new(bilayer_cpu::Cpu::new(options).unwrap())
    };
    let device = Failing::new(cpu(), Script { call: Call::Read, after, fault: Fault::Refused });
    let placement = Placement::offload(layers, layers / 2, 0, 1);
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &placement)?)
    };
    let (cache_type_k, cache_type_v) = (Type::F32, Type::F32);
    let settings = Settings { overlap: Overlap::Always, cache_type_k, cache_type_v, ..settings() };
    Session::on(model, vec![cpu(), Box::new(device)], &planner, settings).unwrap()
}

#[test]
fn a_page_that_a_step_in_progress_copies_is_given_to_no_other_step() {
    let model = tiny();
    let (text, other) = (tokens(40), tokens(50)[10..].to_vec());
    let mut failures = 0;
    let mut expected = None;
    // None, or that of either step's results.
    for reads in [usize::MAX, 1, 2] {
        let mut session = refusing(&model, reads);
        let [first, second] = [(); 2].map(|()| session.open().unwrap());
        let run = |sequence, tokens, wanted| Run { sequence, tokens, wanted };
        let prompt = [run(first, &text, Wanted::None)];
        session.step(&prompt).unwrap();
        let fork = session.fork(first).unwrap();
        let steps = [run(fork, &[9], Wanted::Last), run(second, &other, Wanted::Last)];
        let mut in_turn = || {
            let begun = session.begin(&steps[..1]);
            session.close(first);
            begun?;
            session.begin(&steps[1..])?;
            session.finish()?;
            session.finish().map(|_| ())
        };
        failures += usize::from(in_turn().is_err());
        for (step, before) in steps.iter().zip([40, 0]) {
            if session.len(step.sequence) == before {
                session.step(&[*step]).unwrap();
            }
        }
        let found = [fork, second].map(|sequence| after(&mut session, sequence, &[5]));
        let expected = expected.get_or_insert_with(|| found.clone());
        for (found, expected) in found.iter().zip(&*expected) {
            assert_near(found, expected, &format!("refused after {reads} reads"));
        }
        session.close(fork);
        session.close(second);
        assert_eq!(session.cache().free_pages(), session.cache().pages());
    }
    assert_eq!(failures, 2);
}

/// Both sequences of a step share a page; the later run writes positions of the earlier one's text.
#[test]
fn a_page_that_a_step_copies_is_not_written_by_its_later_runs() {
    let model = tiny();
    let text = tokens(40);
    let mut expected = None;
    let mut failures = 0;
    // The steps before take reads, too.
    let plain = [(usize::MAX, false), (1, false)].into_iter();
    for (reads, is_full) in plain.chain((2..200).map(|reads| (reads, true))) {
        if failures == 2 {
            break;
        }
        let mut session = refusing(&model, reads);
        let first = session.open().unwrap();
        session.step(&[Run { sequence: first, tokens: &text, wanted: Wanted::None }]).unwrap();
        let fork = session.fork(first).unwrap();
        session.truncate(fork, 36);
        // With a page for each copy, and no other.
        let beside = is_full.then(|| session.open().unwrap());
        let fills = beside.into_iter().all(|sequence| {
            let tokens = &text[..bilayer_graph::PAGE_TOKENS];
            let run = Run { sequence, tokens, wanted: Wanted::None };
            let is_filled = |session: &Session| session.cache().free_pages() <= 2;
            while !is_filled(&session) && session.step(&[run]).is_ok() {}
            is_filled(&session)
        });
        if !fills {
            continue;
        }
        let wanted = Wanted::Last;
        let runs = [
            Run { sequence: first, tokens: &[9], wanted },
            Run { sequence: fork, tokens: &[1, 2, 3, 4, 5, 6], wanted },
        ];
        if session.step(&runs).is_err() {
            failures += 1;
            assert_eq!([first, fork].map(|sequence| session.len(sequence)), [40, 36]);
            runs.iter().for_each(|run| drop(session.step(&[*run]).unwrap().to_vec()));
        }
        let found = [first, fork].map(|sequence| after(&mut session, sequence, &[5]));
        let expected = expected.get_or_insert_with(|| found.clone());
        for (found, expected) in found.iter().zip(&*expected) {
            assert_near(found, expected, &format!("refused after {reads} reads"));
        }
        [first, fork].into_iter().chain(beside).for_each(|sequence| session.close(sequence));
        assert_eq!(session.cache().free_pages(), session.cache().pages());
    }
    assert_eq!(failures, 2);
}

/// Where an adapter's file is does not matter; what a model's weights are does, also behind the first of each tensor.
#[test]
fn a_sequence_belongs_to_a_model_and_not_to_paths() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes = words::tiny(Type::F32, 7);
    std::fs::write(at("base"), &bytes).unwrap();
    let adapter = words::adapter(&at("base"), 2);
    let adapted = |base: &str, name: &str| {
        std::fs::write(at(name), &adapter).unwrap();
        let loras = vec![LoraFile::open(&at(name), 1.0).unwrap()];
        let adapters = Adapters { loras, ..Adapters::default() };
        Model::adapted(open_file(&at(base)).unwrap(), &[], adapters).unwrap()
    };
    let model = adapted("base", "one");
    let mut session = exact(&model, settings());
    let sequence = session.open().unwrap();
    after(&mut session, sequence, &tokens(20));
    let (_folder, path) = written(&mut session, sequence);
    SavedSequence::read(&path, &adapted("base", "other"), 64).unwrap();
    let (start, row_bytes, rows) = {
        let file = open_file(&at("base")).unwrap();
        let tensor = file.tensor("blk.1.ffn_up.weight").unwrap();
        let data = file.bytes(tensor);
        let place = bytes.windows(data.len()).position(|window| window == &data[..]).unwrap();
        let rows = tensor.layout().rows() as usize;
        (place, data.len() / rows, rows)
    };
    // Any row alone.
    for row in [0, 1, rows / 3, rows - 1] {
        let mut changed = bytes.to_vec();
        changed[start + row * row_bytes + row_bytes / 2] ^= 1;
        std::fs::write(at("changed"), &changed).unwrap();
        let refused = SavedSequence::read(&path, &adapted("changed", "one"), 64).unwrap_err();
        assert!(refused.to_string().contains("another model"), "row {row}: {refused}");
    }
}

/// An adapter is read as its model is: from memory, whatever becomes of its file, or from its map.
#[cfg(target_os = "linux")]
#[test]
fn an_adapter_that_was_read_into_memory_is_immune() {
    let folder = tempfile::tempdir().unwrap();
    let [base, adapter] = ["base", "adapter"].map(|name| folder.path().join(name));
    std::fs::write(&base, words::tiny(Type::F32, 7)).unwrap();
    let bytes = words::adapter(&base, 2);
    for map in [false, true] {
        std::fs::write(&adapter, &bytes).unwrap();
        let options = OpenOptions { map, ..OpenOptions::default() };
        let loras = vec![LoraFile::open_with(&adapter, 1.0, options).unwrap()];
        let adapters = Adapters { loras, ..Adapters::default() };
        let model = Model::adapted(open_file(&base).unwrap(), &[], adapters).unwrap();
        let mut session = exact(&model, settings());
        let sequence = session.open().unwrap();
        after(&mut session, sequence, &tokens(20));
        std::fs::File::options().write(true).open(&adapter).unwrap().set_len(64).unwrap();
        let run = Run { sequence, tokens: &[5], wanted: Wanted::Last };
        match session.step(&[run]) {
            Ok(_) => assert!(!map),
            Err(error) => assert!(map && error.to_string().contains("adapter: "), "{error}"),
        }
    }
}
