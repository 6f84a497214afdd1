//! What is checked of a step: that the weights are those of the file that was opened, and that results are numbers.

use std::time::{Duration, SystemTime};

use bilayer_engine::Error;
use bilayer_engine::session::{Run, Wanted};
use bilayer_graph::reference::Reference;

use super::*;

/// A session on one device.
fn on(model: &Model, device: Box<dyn Backend>) -> Session {
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &Placement::single(model.graph().layers(), 0))?)
    };
    let settings = Settings { ctx_size: Some(128), sequences: 1, ..Settings::default() };
    Session::on(model, vec![device], &planner, settings).unwrap()
}

#[test]
fn a_file_that_changes_is_noticed_where_weights_are_read_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, words::tiny(Type::F32, 7)).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // The reference copies all weights.
    let devices: [(Box<dyn Backend>, bool); 2] =
        [(cpu(1), true), (Box::new(Reference::new()), false)];
    for (seconds, (device, is_noticed)) in (1..).zip(devices) {
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut session = on(&model, device);
        let sequence = session.open().unwrap();
        let run = Run { sequence, tokens: &[5, 6], wanted: Wanted::Last };
        session.step(&[run]).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        let found = session.step(&[run]).map(<[f32]>::len);
        assert_eq!(matches!(found, Err(Error::File(_))), is_noticed, "{found:?}");
        assert_eq!(found.is_ok(), !is_noticed, "{found:?}");
    }
}

#[test]
fn the_first_op_whose_result_is_no_number_is_named() {
    for (name, shown) in [
        ("ffn_down", "ffn_down"),
        ("ffn_gate", "ffn_gate"),
        ("ffn_up", "ffn_up"),
        ("attn_q", "attn_q"),
        ("attn_output", "attn_out"),
    ] {
        let bytes = words::tiny_with(Type::F32, 7, &|tensor, values| {
            if tensor == format!("blk.1.{name}.weight") {
                values[17] = f32::NAN;
            }
        });
        let model = Model::from_bytes("damaged", bytes).unwrap();
        let mut session = on(&model, cpu(1));
        let sequence = session.open().unwrap();
        let run = Run { sequence, tokens: &[5, 6], wanted: Wanted::Last };
        for _ in 0..2 {
            let error = session.step(&[run]).unwrap_err();
            let Error::Device(bilayer_graph::Error::NotFinite { label, .. }) = &error else {
                panic!("{name}: {error}")
            };
            assert!(label.contains("layer 1") && label.contains(shown), "{label}");
            assert_eq!(session.len(sequence), 0);
        }
    }
}
