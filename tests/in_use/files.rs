//! Files that change while they are loaded, in prefill and in decode, at moments and places that differ from run to run.

use std::cell::Cell;
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

use super::*;

/// What becomes of a model's file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Truncated,
    Overwritten,
    Replaced,
    Deleted,
    /// A page of it cannot be read any more.
    Failing,
}

impl Change {
    /// Whether the file that was opened is as it was.
    fn is_harmless(self) -> bool {
        matches!(self, Change::Replaced | Change::Deleted)
    }
}

/// When it does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Load,
    Prefill,
    Decode,
}

/// A model's file, written anew for each run.
struct Subject {
    path: PathBuf,
    whole: Vec<u8>,
    random: Random,
}

impl Subject {
    /// The file as it was, of a time long ago: a clock that is coarser than the test would have the same time for a change.
    fn restore(&self) {
        let _ = std::fs::remove_file(&self.path);
        std::fs::write(&self.path, &self.whole).unwrap();
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    fn change(&self, change: Change, model: &Model, place: usize) {
        match change {
            Change::Truncated => shorten(&self.path, place as u64),
            Change::Overwritten => {
                let mut bytes = self.whole.clone();
                bytes[place] ^= 0x40;
                std::fs::write(&self.path, bytes).unwrap();
            }
            Change::Replaced => {
                let next = self.path.with_extension("next");
                std::fs::write(&next, vec![0; self.whole.len()]).unwrap();
                std::fs::rename(next, &self.path).unwrap();
            }
            Change::Deleted => std::fs::remove_file(&self.path).unwrap(),
            Change::Failing => model.file().break_page(place as u64).unwrap(),
        }
    }

    /// A run of load, prompt and answer, with the change after `calls` calls of what reports progress at that moment: the
    /// logits at the end.
    fn run(
        &self,
        change: Option<(Change, Moment)>,
        (place, calls): (usize, usize),
    ) -> Result<Vec<f32>, Error> {
        let model = Model::open(&self.path, OpenOptions::default())?;
        let left = Cell::new(calls);
        let at = |moment: Moment| {
            let Some((change, _)) = change.filter(|(_, when)| *when == moment) else { return };
            if left.get() == 0 {
                self.change(change, &model, place);
            }
            left.set(left.get().wrapping_sub(1));
        };
        let mut session = opened(&model, &mut |_| {
            at(Moment::Load);
            ControlFlow::Continue(())
        })?;
        let sequence = session.open().unwrap();
        session.prefill(sequence, &super::prompt(96), &mut |_| {
            at(Moment::Prefill);
            true
        })?;
        let mut logits = Vec::new();
        for token in 0..6 {
            let run = Run { sequence, tokens: &[5 + token], wanted: Wanted::Last };
            logits = session.step(&[run])?.to_vec();
            at(Moment::Decode);
        }
        // Of a change that came too late for its moment nothing is shown.
        assert!(change.is_none() || left.get() > calls, "the file was not changed");
        Ok(logits)
    }
}

/// Whatever happens to a model's file and when, a run gives the logits of the file that was opened, or an error that names it;
/// another model goes on. `BILAYER_TEST_CHANGES` sets how many runs each change has at each moment.
#[test]
fn a_file_that_changes_at_any_moment_is_an_error_or_has_no_effect() {
    let runs = std::env::var("BILAYER_TEST_CHANGES").ok().and_then(|text| text.parse().ok());
    let runs: u32 = runs.unwrap_or(4);
    let place = place();
    let path = place.path().join("in.gguf");
    let whole = std::fs::read(&path).unwrap();
    let mut subject = Subject { path, whole, random: Random(u64::from(runs)) };
    let other = place.path().join("other.gguf");
    std::fs::write(&other, &subject.whole).unwrap();
    let kept = Model::open(&other, OpenOptions::default()).unwrap();
    // What every step reads: the first change of each kind is there.
    let layers = kept.file().tensors().iter().filter(|tensor| tensor.name().starts_with("blk."));
    let layers: Vec<Range<usize>> = layers
        .map(|tensor| {
            let begin = tensor.layout().offset() as usize;
            begin..begin + kept.file().bytes(tensor).len()
        })
        .collect();
    let mut unaffected = session(&kept, &mut |_| ControlFlow::Continue(()));
    let alone = prompted(&mut unaffected, &mut || ()).unwrap();
    subject.restore();
    let expected = subject.run(None, (0, 0)).unwrap();
    for change in
        [Change::Truncated, Change::Overwritten, Change::Replaced, Change::Deleted, Change::Failing]
    {
        for (moment, calls) in [(Moment::Load, 8), (Moment::Prefill, 5), (Moment::Decode, 5)] {
            let name = format!("{change:?}, {moment:?}").to_lowercase();
            let (tried, mut errors) = (Tried::new(format!("change {name}")), 0);
            for number in 0..runs {
                subject.restore();
                let len = subject.whole.len();
                let mut at = (subject.random.below(len), subject.random.below(calls));
                if number == 0 {
                    at.0 = layers[at.0 % layers.len()].start;
                }
                match subject.run(Some((change, moment)), at) {
                    Ok(logits) => {
                        assert!(logits == expected, "{change:?} {moment:?} {at:?}");
                        let is_read = layers.iter().any(|layer| layer.contains(&at.0));
                        let is_unread = change == Change::Failing && !is_read;
                        assert!(change.is_harmless() || is_unread, "{change:?} {moment:?} {at:?}");
                    }
                    Err(error) => {
                        assert!(!change.is_harmless(), "{change:?} {moment:?} {at:?}: {error}");
                        assert!(matches!(error, Error::File(_)), "{change:?} {moment:?}: {error}");
                        assert!(error.to_string().contains("in.gguf"), "{error}");
                        errors += 1;
                    }
                }
            }
            assert!(
                prompted(&mut unaffected, &mut || ()).unwrap() == alone,
                "another model goes on"
            );
            assert_eq!(errors == 0, change.is_harmless(), "{change:?} {moment:?}");
            tried.done(&format!("{runs} runs, {errors} ended by an error that names the file"));
        }
    }
}
