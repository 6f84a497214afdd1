//! What an executor asks of drafters, and what it counts.

use std::time::Duration;

use bilayer_engine::Error;
use bilayer_engine::generate::speculate::{Draft, Text};
use bilayer_engine::session::{CacheError, Spent, Warning};

use super::served::{exactly, last, run, tiny, tokens};
use super::*;

/// How a drafter is made and what it is asked.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A drafter that knows the answer, and proposes a wrong token at each place in `wrong`.
#[derive(Clone)]
struct Knowing {
    text: Vec<u32>,
    wrong: Vec<usize>,
    /// The length of the text after which it fails.
    fails: usize,
    error: fn() -> Error,
    makes: Option<usize>,
    notes: Notes,
}

impl Drafter for Knowing {
    fn begin(&mut self, _: &Options) -> Result<(), Error> {
        self.notes.note("begin".to_owned());
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        self.notes.note(format!("{most} after {}", text.len()));
        assert!(draft.tokens().is_empty());
        assert!(text.from(0).eq(self.text[..text.len()].iter().copied()), "another text");
        for at in (text.len()..self.text.len()).take(most) {
            draft.push(if self.wrong.contains(&at) { 2 } else { self.text[at] });
        }
        if text.len() >= self.fails { Err((self.error)()) } else { Ok(()) }
    }

    fn move_spent(&mut self, all: &mut Spent) {
        all.total += Duration::from_secs(1000);
    }
}

impl DrafterSource for Knowing {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        self.notes.note("make".to_owned());
        let Some(left) = &mut self.makes else { return Err(Error::LogitsNotFinite) };
        let has_room = *left > 0;
        *left = left.saturating_sub(1);
        Ok(has_room.then(|| -> Box<dyn Drafter> { Box::new(self.clone()) }))
    }
}

/// The tokens of an answer, its counts, and the executor's warnings.
fn drafted(model: &Model, knowing: &Knowing, predict: usize) -> (Vec<u32>, Served, Vec<Warning>) {
    let mut executor = executor(model, 1).with_drafts(Box::new(knowing.clone()));
    let id = executor.submit(exactly(model, tokens(10), predict)).unwrap();
    let all = run(&mut executor);
    let found = all.iter().filter_map(|(_, event)| match event {
        Event::Token(delta) => Some(delta),
        _ => None,
    });
    let numbers = found.clone().map(|delta| delta.served.generated);
    assert!(numbers.eq(1..=predict), "each token has its number");
    let ids = found.map(|delta| delta.token.id).collect();
    (ids, last(&all, id), executor.take_warnings())
}

#[test]
fn draft_tokens_are_asked_for_verified_and_counted() {
    let model = tiny();
    let knowing = Knowing {
        text: tokens(10),
        wrong: Vec::new(),
        fails: usize::MAX,
        error: || Error::LogitsNotFinite,
        makes: Some(0),
        notes: Notes::default(),
    };
    // Without room for a drafter each token takes a step, before which a drafter is asked for.
    let (answer, served, warnings) = drafted(&model, &knowing, 20);
    assert_eq!((served.drafts, served.drafted, served.accepted, warnings.len()), (0, 0, 0, 0));
    assert_eq!(knowing.notes.take(), ["make"; 18]);
    let knowing = Knowing { text: [tokens(10), answer.clone()].concat(), ..knowing };
    let of = |knowing: &Knowing, predict: usize| {
        let (found, served, warnings) = drafted(&model, knowing, predict);
        assert_eq!(found, answer[..predict], "the answer is the same");
        let notes = knowing.notes.take();
        (notes, [served.drafts, served.drafted, served.accepted], served, warnings.len())
    };
    let certain = Knowing { makes: Some(1), ..knowing.clone() };
    // One token comes of the prompt and one after each draft, which is no longer than the rest.
    let (notes, counts, served, _) = of(&certain, 20);
    assert_eq!(notes, ["make", "begin", "7 after 11", "7 after 19", "2 after 27"]);
    assert_eq!(counts, [3, 16, 16]);
    let spent = Duration::from_secs(3000);
    assert!(served.spent.total >= spent && served.spent.total < 2 * spent);
    assert_eq!(of(&certain, 2).0, [] as [&str; 0]);
    assert_eq!(of(&certain, 3).0, ["make", "begin", "1 after 11"]);
    // The third of seven is wrong: it and those behind are rejected, and the model selects another.
    let wrong = Knowing { wrong: vec![13], ..certain.clone() };
    let (notes, counts, ..) = of(&wrong, 8);
    assert_eq!(notes, ["make", "begin", "6 after 11", "3 after 14"]);
    assert_eq!(counts, [2, 9, 5]);
    // The last one is wrong.
    let wrong = Knowing { wrong: vec![16], ..certain.clone() };
    let (notes, counts, ..) = of(&wrong, 8);
    assert_eq!(
        (notes, counts),
        (["make", "begin", "6 after 11"].map(str::to_owned).to_vec(), [1, 6, 5])
    );
}

/// A drafter that fails at once, of a source that makes none.
fn failing() -> Knowing {
    Knowing {
        text: tokens(10),
        wrong: Vec::new(),
        fails: 0,
        error: || Error::LogitsNotFinite,
        makes: Some(0),
        notes: Notes::default(),
    }
}

#[test]
fn an_answer_goes_on_without_a_drafter_that_fails() {
    let model = tiny();
    let knowing = failing();
    let (answer, ..) = drafted(&model, &knowing, 12);
    knowing.notes.take();
    let text = [tokens(10), answer.clone()].concat();
    for (fails, makes, expected, drafted_tokens) in [
        (0, Some(5), vec!["make", "begin", "7 after 11"], 0),
        (12, Some(5), vec!["make", "begin", "7 after 11", "2 after 19"], 7),
        (0, None, vec!["make"], 0),
    ] {
        let failing = Knowing { text: text.clone(), fails, makes, ..knowing.clone() };
        let (found, served, warnings) = drafted(&model, &failing, 12);
        assert_eq!(found, answer);
        assert_eq!(
            (failing.notes.take(), served.drafted),
            (expected.iter().map(|of| (*of).to_owned()).collect(), drafted_tokens)
        );
        assert!(matches!(warnings[..], [Warning::NotDrafted { .. }]), "{warnings:?}");
    }
}

/// A draft model whose KV cache other answers fill is asked again a page of tokens later, since they may have ended.
#[test]
fn a_drafter_without_room_for_the_text_is_made_again_later() {
    let model = tiny();
    let knowing = failing();
    let (answer, ..) = drafted(&model, &knowing, 40);
    knowing.notes.take();
    let full = || CacheError::Full { pages: 1 }.into();
    let text = [tokens(10), answer.clone()].concat();
    let knowing = Knowing { text, error: full, makes: Some(5), ..knowing };
    let (found, served, warnings) = drafted(&model, &knowing, 40);
    assert_eq!(found, answer);
    let expected = ["make", "begin", "7 after 11", "make", "begin", "6 after 43"];
    assert_eq!(knowing.notes.take(), expected);
    assert_eq!((served.drafted, warnings.len()), (0, 0), "{warnings:?}");
}
