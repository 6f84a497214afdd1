//! Devices that fail while tokens are drafted or drafts verified, and drafters that fail: the same text, a warning, and work
//! that goes on.

use bilayer_engine::generate::speculate::{DrafterSource, MtpDrafter};
use bilayer_engine::requests::{Event, Executor, ExecutorSettings, Submission};
use bilayer_engine::session::{Purpose, Warning, What};
use bilayer_scheduler::OpOffload;

use super::mtp::{continued_by_a_table, drafted, settings_for};
use super::support::model::random_bytes;
use super::*;

/// A CPU and a GPU with this memory, which fails as `fault` says.
fn machine(gib: f64, fault: &str) -> Simulation {
    let text = format!(
        "[cpu]\nname = \"c\"\nmemory = \"1GiB\"\nread_gbps = 0.1\ntops = 0.01\n\
         [gpu]\nname = \"the card\"\nmemory = \"{gib}GiB\"\nread_gbps = 99\ntops = 9\n{fault}\n"
    );
    Simulation::described(&text, Execution::Compute).unwrap()
}

/// `settings` on a machine, planned as if its GPU had 1 GiB.
fn on(machine: &Simulation, gpu_layers: Offload, settings: Settings<'static>) -> Settings<'static> {
    let placing = Placing {
        gpu_layers,
        vram_bytes: vec![1 << 30],
        margin_bytes: vec![0],
        simulated: Some(machine.clone()),
        op_offload: OpOffload::Never,
        ..Placing::default()
    };
    Settings { placing, ..settings }
}

fn bounds() -> Bounds {
    Bounds { draft_max: 3, draft_p_min: 0.0, ..Bounds::default() }
}

/// What drafts, for a model.
enum Source {
    /// A model of its own.
    Draft(Model),
    /// The model's block for multi-token prediction.
    Mtp,
}

/// A model and what drafts for it.
struct Subject {
    name: &'static str,
    model: Model,
    source: Source,
}

fn subjects() -> [Subject; 3] {
    let mtp = |name| Subject {
        name,
        model: continued_by_a_table(name, Type::F32, &[]),
        source: Source::Mtp,
    };
    let draft = Subject { name: "draft model", model: near(1.0), source: Source::Draft(near(0.7)) };
    [draft, mtp("qwen35"), mtp("glm4moe")]
}

/// Models of one seed with a factor on a part of each layer: they often agree.
fn near(factor: f32) -> Model {
    undecided(7, factor)
}

/// Where layers are: those of the source of drafts, and those of the model.
const PLACES: [(&str, [Offload; 2]); 3] = [
    ("drafts", [Offload::All, Offload::Count(0)]),
    ("model", [Offload::Count(0), Offload::All]),
    ("both", [Offload::All, Offload::All]),
];

impl Subject {
    fn purpose(&self) -> [Purpose; 2] {
        match self.source {
            Source::Draft(_) => [Purpose::Own, Purpose::Own],
            Source::Mtp => [Purpose::Mtp, Purpose::WithHidden],
        }
    }

    fn session(&self, machine: &Simulation, gpu_layers: Offload) -> Session {
        let settings = settings_for(self.purpose()[1]);
        Session::new(&self.model, on(machine, gpu_layers, settings)).unwrap()
    }

    /// The source of drafts for three answers.
    fn drafter(&self, machine: &Simulation, gpu_layers: Offload) -> Box<dyn Drafting> {
        let settings = Settings { sequences: 4, ..settings_for(self.purpose()[0]) };
        let settings = on(machine, gpu_layers, Settings { outputs: None, ..settings });
        match &self.source {
            Source::Draft(draft) => {
                Box::new(DraftModel::new(draft, &self.model, settings, bounds()).unwrap())
            }
            Source::Mtp => Box::new(MtpDrafter::new(&self.model, settings, bounds()).unwrap()),
        }
    }

    fn answer(&self, session: &mut Session, drafter: Option<&mut dyn Drafter>) -> (Answer, usize) {
        let prompt = some(12, 3);
        let request = Request { predict: Some(9), ignore_eos: true, ..Request::new(&prompt) };
        let (answer, spent) = generate((&self.model, session), &greedy(), request, drafter);
        (answer, spent.drafted)
    }
}

/// A drafter that makes others.
trait Drafting: Drafter + DrafterSource {
    /// Bytes planned for it on the GPU.
    fn used_bytes(&self) -> u64;
}

fn used_bytes(session: &Session) -> u64 {
    session.plan().devices.get(1).map_or(0, |device| device.used_bytes)
}

impl Drafting for DraftModel {
    fn used_bytes(&self) -> u64 {
        used_bytes(&self.session())
    }
}

impl Drafting for MtpDrafter {
    fn used_bytes(&self) -> u64 {
        used_bytes(&self.session())
    }
}

/// That there is one warning for each session that moved, and that it says where from and where to. Number of warnings.
#[track_caller]
fn assert_named(warnings: &[Warning], place: &str, what: &str) -> usize {
    let of_drafts = |warning: &&Warning| matches!(warning, Warning::Draft(_));
    let drafts = warnings.iter().filter(of_drafts).count();
    let found = [drafts, warnings.len() - drafts];
    let most = [usize::from(place != "model"), usize::from(place != "drafts")];
    assert!(found[0] <= most[0] && found[1] <= most[1], "{what}: {warnings:?}");
    for warning in warnings {
        let is_move = match warning {
            Warning::Draft(warning) => matches!(**warning, Warning::Moved { .. }),
            warning => matches!(warning, Warning::Moved { .. }),
        };
        let text = warning.to_string();
        let is_named = text.contains("the card") && text.contains("all runs on the CPU");
        assert!(is_move && is_named, "{what}: {text}");
    }
    warnings.len()
}

/// A device refuses one of its submits or is lost there, early or late: two answers are those without drafts, and drafts go on.
#[test]
fn a_device_that_fails_while_drafting_does_not_change_the_answer() {
    for subject in subjects() {
        let sound = machine(1.0, "");
        let (expected, _) = subject.answer(&mut subject.session(&sound, Offload::Count(0)), None);
        let faults = ["lost_at", "out_of_memory_at"];
        for ((place, [of_draft, of_model]), fault) in
            PLACES.iter().flat_map(|place| faults.map(|fault| (place, fault)))
        {
            let mut failures = 0;
            // Drafts take more submits than what verifies them.
            for at in (1..).step_by(if *place == "model" { 2 } else { 11 }) {
                let what = format!("{} {place} {fault} {at}", subject.name);
                let machine = machine(1.0, &format!("{fault} = {at}"));
                let mut drafter = subject.drafter(&machine, *of_draft);
                let mut session = subject.session(&machine, *of_model);
                for _ in 0..2 {
                    let drafter: &mut dyn Drafter = drafter.as_mut();
                    let (answer, drafted) = subject.answer(&mut session, Some(drafter));
                    assert_eq!(answer, expected, "{what}");
                    assert!(drafted > 0, "{what}");
                }
                let found = assert_named(&session.take_warnings(), place, &what);
                if found == 0 {
                    break;
                }
                failures += 1;
            }
            assert!(failures > 1, "{} {place} {fault}: {failures} failures", subject.name);
        }
    }
}

/// A card that has no room for the caches gets fewer layers, or none; the warning is known once there is an answer.
#[test]
fn a_card_without_room_for_a_drafter_has_less_of_it() {
    for subject in subjects() {
        let sound = machine(1.0, "");
        let (expected, _) = subject.answer(&mut subject.session(&sound, Offload::Count(0)), None);
        let drafter = subject.drafter(&sound, Offload::All);
        let planned = drafter.used_bytes();
        drop(drafter);
        for part in [0.2, 0.6, 0.9] {
            let small = machine(planned as f64 * part / f64::from(1 << 30), "");
            let mut drafter = subject.drafter(&small, Offload::All);
            assert!(drafter.used_bytes() < planned);
            let mut session = subject.session(&small, Offload::Count(0));
            let drafter: &mut dyn Drafter = drafter.as_mut();
            let (answer, drafted) = subject.answer(&mut session, Some(drafter));
            assert_eq!(answer, expected, "{} {part}", subject.name);
            assert!(drafted > 0);
            let warnings = session.take_warnings();
            let is_less = |warning: &Warning| {
                let Warning::Draft(warning) = warning else { return false };
                matches!(**warning, Warning::Reduced { .. })
                    && warning.to_string().contains("the card is out of memory")
            };
            assert!(!warnings.is_empty() && warnings.iter().all(is_less), "{warnings:?}");
        }
    }
}

/// The tokens of three requests at once, draft tokens counted, and the warnings.
fn served(subject: &Subject, session: Session, drafter: Option<Box<dyn DrafterSource>>) -> Served {
    let mut executor = Executor::new(session, ExecutorSettings::default());
    if let Some(drafter) = drafter {
        executor = executor.with_drafts(drafter);
    }
    let vocab = subject.model.config().vocab;
    let submit = |number: usize| {
        let prompt = some(5 + number, number);
        let request = Request { predict: Some(9), ignore_eos: true, ..Request::new(prompt) };
        let sampler = Sampler::new(greedy(), vocab, 256).unwrap();
        Submission::new(request, sampler)
    };
    let ids: Vec<_> = (0..3).map(|number| executor.submit(submit(number)).unwrap()).collect();
    let (mut events, mut warnings) = (Vec::new(), Vec::new());
    while executor.step(&mut events) {
        warnings.extend(executor.take_warnings());
    }
    let mut served = Served { answers: vec![Vec::new(); ids.len()], drafted: 0, warnings };
    for (id, event) in events {
        match event {
            Event::Token(delta) => {
                let answer = ids.iter().position(|of| *of == id).unwrap();
                served.answers[answer].push(delta.token.id);
            }
            Event::Ended { served: of, .. } => served.drafted += of.drafted,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    served
}

struct Served {
    answers: Vec<Vec<u32>>,
    drafted: usize,
    warnings: Vec<Warning>,
}

/// As above, with several requests in the scheduler.
#[test]
fn a_device_that_fails_while_drafting_loses_no_request() {
    for subject in subjects() {
        let sound = machine(1.0, "");
        let plain = served(&subject, subject.session(&sound, Offload::Count(0)), None);
        assert_eq!(plain.drafted, 0);
        for (place, [of_draft, of_model]) in PLACES {
            let mut failures = 0;
            let submits = (1..).step_by(if place == "model" { 3 } else { 13 });
            for (at, fault) in submits.zip(["lost_at", "out_of_memory_at"].iter().cycle()) {
                let what = format!("{} {place} {fault} {at}", subject.name);
                let machine = machine(1.0, &format!("{fault} = {at}"));
                let drafter = subject.drafter(&machine, of_draft);
                let found = served(&subject, subject.session(&machine, of_model), Some(drafter));
                assert_eq!(found.answers, plain.answers, "{what}");
                assert!(found.drafted > 0, "{what}");
                if assert_named(&found.warnings, place, &what) == 0 {
                    break;
                }
                failures += 1;
            }
            assert!(failures > 1, "{} {place}: {failures} failures", subject.name);
        }
    }
}

/// A drafter that fails at a call of this name, after so many.
struct Broken {
    call: &'static str,
    left: usize,
}

impl Broken {
    fn check(&mut self, call: &str) -> Result<(), Error> {
        if call == self.call {
            self.left = self.left.checked_sub(1).ok_or(Error::LogitsNotFinite)?;
        }
        Ok(())
    }
}

impl Drafter for Broken {
    fn begin(&mut self, _: &Options) -> Result<(), Error> {
        Ok(())
    }

    fn see(&mut self, _: usize, _: &[u32], _: &[f32]) -> Result<(), Error> {
        self.check("see")
    }

    fn draft(&mut self, text: Text<'_>, _: usize, draft: &mut Draft) -> Result<(), Error> {
        draft.push(text.last);
        self.check("draft")
    }

    fn draft_ahead(&mut self, _: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.check("draft ahead")
    }
}

impl DrafterSource for Broken {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        self.check("make")?;
        Ok(Some(Box::new(Broken { ..*self })))
    }
}

/// A drafter that fails drafts no more, and the answer goes on.
#[test]
fn a_drafter_that_fails_leaves_the_answer() {
    let [subject, mtp, _] = subjects();
    let sound = machine(1.0, "");
    let session = |subject: &Subject| subject.session(&sound, Offload::Count(0));
    let is_named = |warnings: &[Warning], count: usize| {
        let text = |warning: &Warning| warning.to_string();
        let is_one = |warning| matches!(warning, &Warning::NotDrafted { .. });
        warnings.len() == count
            && warnings.iter().all(is_one)
            && warnings.iter().all(|of| text(of).contains("not finite"))
    };
    for subject in [&subject, &mtp] {
        let (expected, _) = subject.answer(&mut session(subject), None);
        let plain = served(subject, session(subject), None);
        for call in ["draft", "see", "draft ahead", "make"] {
            for left in [0, 2] {
                let what = format!("{}: {call} {left}", subject.name);
                let mut broken = Broken { call, left };
                let mut with = session(subject);
                let (answer, _) = subject.answer(&mut with, Some(&mut broken));
                assert_eq!(answer, expected, "{what}");
                let warnings = with.take_warnings();
                assert!(is_named(&warnings, usize::from(call != "make")), "{what}: {warnings:?}");
                let broken = Box::new(Broken { call, left });
                let found = served(subject, session(subject), Some(broken));
                assert_eq!(found.answers, plain.answers, "{what}");
                let fails = match (call, &subject.source) {
                    // One of three is not made; hidden states are seen where there are any.
                    ("make", _) => 3 - left,
                    ("see", Source::Draft(_)) => 0,
                    _ => 3,
                };
                assert!(is_named(&found.warnings, fails), "{what}: {:?}", found.warnings);
            }
        }
    }
}

/// A draft model that has moved to the CPU does not take its time from the model: it drafts between steps.
#[test]
fn a_draft_model_on_the_cpu_does_not_draft_ahead() {
    let [subject, ..] = subjects();
    for (fault, is_ahead) in [("", true), ("lost_at = 3", false)] {
        let machine = machine(1.0, fault);
        let settings = on(&machine, Offload::Count(0), settings_for(Purpose::Own));
        let settings = Settings { trace_events: Some(1 << 12), ..settings };
        let mut session = Session::new(&subject.model, settings).unwrap();
        let mut drafter = subject.drafter(&machine, Offload::All);
        let mut beside_ns = 0;
        for _ in 0..2 {
            session.trace_mut().unwrap().clear();
            let drafter: &mut dyn Drafter = drafter.as_mut();
            assert!(subject.answer(&mut session, Some(drafter)).1 > 0);
            let events = session.trace().unwrap().recorded().iter();
            beside_ns =
                events.filter(|event| event.what == What::Beside).map(|event| event.ns).sum();
        }
        assert_eq!(beside_ns > 0, is_ahead, "{fault}: {beside_ns}");
        assert_eq!(session.take_warnings().is_empty(), is_ahead);
    }
}

/// Draft tokens after a loss do not depend on keys and values that were lost: they are those of a drafter that begins there.
#[test]
fn a_block_begins_anew_after_a_loss() {
    let mut metadata = (bilayer_models::find("glm4moe").unwrap().tiny)();
    metadata.set("tokenizer.ggml.model", "no_vocab");
    metadata.set("glm4moe.block_count", 4u32);
    metadata.set("glm4moe.nextn_predict_layers", 1u32);
    let bytes = random_bytes(&metadata, Type::F32, &["output.weight"], 11, &|_, _| ());
    let model = Model::from_bytes("random", bytes).unwrap();
    let text = some(40, 6);
    let mut session = Session::new(&model, settings_for(Purpose::WithHidden)).unwrap();
    let sequence = session.open().unwrap();
    session.step(&[Run { sequence, tokens: &text, wanted: Wanted::Last }]).unwrap();
    let (hidden, width) = (session.hidden().to_vec(), model.config().width);
    // The drafts after `ends` tokens each, of a drafter that sees the text from `start` on.
    let drafts = |fault: &str, start: usize, ends: &[usize]| {
        let settings = on(&machine(1.0, fault), Offload::All, settings_for(Purpose::Mtp));
        let mut drafter = MtpDrafter::new(&model, settings, bounds()).unwrap();
        drafter.begin(&greedy()).unwrap();
        let mut seen = start;
        let after = |&end: &usize| {
            let part = std::mem::replace(&mut seen, end)..end;
            let states = &hidden[part.start * width..part.end * width];
            drafter.see(part.start, &text[part], states).unwrap();
            drafted(&mut drafter, Text { held: &text[..end], last: text[end] }, 3)
        };
        let drafts: Vec<_> = ends.iter().map(after).collect();
        (drafts, drafter.take_warnings().len())
    };
    let (whole, none) = drafts("", 0, &[20, 30]);
    let (anew, _) = drafts("", 20, &[30]);
    assert!(none == 0 && whole[1] != anew[0], "what was seen matters: {whole:?} {anew:?}");
    for at in 1.. {
        let (found, moves) = drafts(&format!("lost_at = {at}"), 0, &[20, 30]);
        // After a loss within the second draft the rest of it may be worse.
        let is_second = found[0] == whole[0] && found[1] != anew[0];
        assert!(moves == 0 || found[1] == anew[0] || is_second, "{at}: {found:?} {anew:?}");
        if moves == 0 {
            assert!(at > 6 && found == whole, "{at}: {found:?} {whole:?}");
            break;
        }
    }
}

#[test]
fn a_program_whose_drafts_lose_their_device_ends_well() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 7));
    place.file("draft.gguf", words::tiny(Type::Q8_0, 7));
    let description = |fault: &str| {
        format!(
            "[cpu]\nname = \"c\"\nmemory = \"1GiB\"\nread_gbps = 9\ntops = 1\n\
             [gpu]\nname = \"the card\"\nmemory = \"1GiB\"\nread_gbps = 99\ntops = 9\n{fault}\n"
        )
    };
    let run = |flags: &str| {
        let line =
            format!("run -m model.gguf -p abcabcabc -n 12 --temp 0 -ngl 0 --ignore-eos {flags}");
        place.run(&line).good()
    };
    let plain = run("");
    for fault in ["lost_at = 6", "out_of_memory_at = 6"] {
        place.file("m.toml", description(fault));
        let ran = run("--simulate m.toml -md draft.gguf -ngld all --draft-p-min 0");
        assert_eq!(ran.out, plain.out, "{fault}");
        let warnings: Vec<&str> =
            ran.err.lines().filter(|line| line.contains("warning: ")).collect();
        let [warning] = warnings[..] else { panic!("{fault}: {}", ran.err) };
        let parts = ["draft: the card ", "all runs on the CPU"];
        assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
        assert!(ran.err.contains(" | drafted: "), "{}", ran.err);
    }
}
