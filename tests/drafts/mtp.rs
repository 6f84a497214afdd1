//! Drafts by a model's block for multi-token prediction: its logits, and what drafting with it keeps.

use std::path::PathBuf;

use bilayer_engine::generate::speculate::MtpDrafter;
use bilayer_engine::requests::{Event, Executor, ExecutorSettings, Submission};
use bilayer_engine::session::Purpose;
use bilayer_graph::Graph;
use bilayer_graph::reference::Reference;
use bilayer_scheduler::{Budget, Plan};
use serde::Deserialize;

use super::support::devices::cpu;
use super::support::logits::argmax;
use super::support::model::random_bytes;
use super::support::{checkpoint, gpu, greedy};
use super::*;

/// Checkpoints with such a block: with states, with experts, with latent attention.
const CHECKPOINTS: [&str; 4] = ["qwen35", "qwen35-moe", "deepseek3", "glm4-moe"];

/// Bound on the relative error of logits: expected ones have five decimals.
const BOUND: f64 = 5e-5;

/// A checkpoint with what transformers and the paper's formula give (`mtp` in the data's README).
struct Subject {
    name: &'static str,
    folder: PathBuf,
    model: Model,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
    mtp: Mtp,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Mtp {
    case: usize,
    /// The best token after token `i + 1`, from the model's hidden state at `i`.
    argmax_each: Vec<u32>,
    logits_first: Vec<f32>,
    logits_last: Vec<f32>,
    /// The model's next token, then drafts, each from the hidden states of the one before.
    chain: Vec<u32>,
    /// Logits of the first draft.
    chain_logits_first: Vec<f32>,
}

fn subjects() -> impl Iterator<Item = Subject> {
    CHECKPOINTS.into_iter().filter_map(|name| {
        let folder = shared(&format!("arch-tiny/{name}"))?;
        let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let model = Model::from_bytes(name, checkpoint::bytes(&folder, Type::F32)).unwrap();
        let expected = serde_json::from_str(&text).unwrap();
        Some(Subject { name, folder, model, expected })
    })
}

pub(super) fn settings_for(purpose: Purpose) -> Settings<'static> {
    Settings {
        purpose,
        sequences: 2,
        ubatch_size: 64,
        outputs: Some(64),
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        ..settings()
    }
}

type Backends = Vec<Box<dyn Backend>>;

/// A session with the layers in turn on the given devices, embedding and head on the last one.
fn session_on(model: &Model, purpose: Purpose, backends: Backends) -> Session {
    let devices = backends.len();
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| -> Result<Plan, Error> {
        let layers = (0..graph.layers() as usize).map(|layer| layer % devices).collect();
        let (embedding, output) = (0, devices - 1);
        let placement = Placement { embedding, layers, output, exceptions: Default::default() };
        Ok(place(graph, machine, budget, &placement)?)
    };
    Session::on(model, backends, &planner, settings_for(purpose)).unwrap()
}

fn bounds() -> Bounds {
    Bounds { draft_max: 3, draft_p_min: 0.0, ..Bounds::default() }
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(expected).map(|(f, e)| square(f - e)).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    let error = (off / whole).sqrt();
    assert!(error <= BOUND, "{what}: error {error:e}");
}

/// The block's logits at every position of a text and those of three drafts are the original ones, on every backend and
/// divided between two, in pieces of any size.
#[test]
fn logits_of_the_block_are_those_of_the_original_code() {
    let gpu = || gpu::gpu().map(|gpu| -> Box<dyn Backend> { Box::new(gpu) });
    for Subject { name, model, expected, .. } in subjects() {
        let mut devices: Vec<(&str, Backends, Backends)> = vec![
            ("reference", vec![Box::new(Reference::new())], vec![Box::new(Reference::new())]),
            ("cpu", vec![cpu(1)], vec![cpu(1)]),
        ];
        if gpu().is_some() {
            let all = || gpu().into_iter().collect();
            devices.push(("gpu", all(), all()));
            let both = || [Some(cpu(1)), gpu()].into_iter().flatten().collect();
            devices.push(("both", both(), both()));
        }
        let ids = &expected.cases[expected.mtp.case].ids;
        for (device, of_model, of_block) in devices {
            let mut main = session_on(&model, Purpose::WithHidden, of_model);
            let mut block = session_on(&model, Purpose::Mtp, of_block);
            let whole = main.open().unwrap();
            let run = Run { sequence: whole, tokens: ids, wanted: Wanted::Last };
            let next = argmax(main.step(&[run]).unwrap());
            let hidden = main.hidden().to_vec();
            let width = model.config().width;
            assert_eq!(hidden.len(), ids.len() * width);
            for size in [ids.len(), 7, 1] {
                let what = format!("{name} on {device}, pieces of {size}");
                let sequence = block.open().unwrap();
                let mut rows = Vec::new();
                let pairs = ids[1..].chunks(size).zip(hidden.chunks(size * width));
                for (tokens, states) in pairs {
                    block.give_hidden(&states[..tokens.len() * width]);
                    let run = Run { sequence, tokens, wanted: Wanted::All };
                    rows.extend_from_slice(block.step(&[run]).unwrap());
                }
                let vocab = block.vocab();
                let each: Vec<u32> = rows.chunks_exact(vocab).map(argmax).collect();
                assert_eq!(each, expected.mtp.argmax_each, "{what}");
                assert_close(&rows[..vocab], &expected.mtp.logits_first, &what);
                assert_close(&rows[rows.len() - vocab..], &expected.mtp.logits_last, &what);
                let mut chain = vec![next];
                let mut states = hidden[hidden.len() - width..].to_vec();
                for at in 0..3 {
                    block.give_hidden(&states);
                    let tokens = &chain[at..=at];
                    let row = block.step(&[Run { sequence, tokens, wanted: Wanted::Last }]);
                    let row = row.unwrap().to_vec();
                    if at == 0 {
                        assert_close(&row, &expected.mtp.chain_logits_first, &what);
                    }
                    chain.push(argmax(&row));
                    states = block.hidden().to_vec();
                }
                assert_eq!(chain, expected.mtp.chain, "{what}");
                block.close(sequence);
            }
        }
    }
}

/// Compares every draft with that of a drafter which has seen the text at once and has drafted nothing before.
struct Compared<'m> {
    model: &'m Model,
    drafter: MtpDrafter,
    drafts: usize,
}

fn drafter(model: &Model) -> MtpDrafter {
    let settings = Settings { sequences: 4, outputs: None, ..settings_for(Purpose::Mtp) };
    MtpDrafter::new(model, settings, bounds()).unwrap()
}

pub(super) fn drafted(drafter: &mut MtpDrafter, text: Text<'_>, most: usize) -> Vec<u32> {
    let mut draft = Draft::default();
    drafter.draft(text, most, &mut draft).unwrap();
    draft.tokens().to_vec()
}

impl Drafter for Compared<'_> {
    fn begin(&mut self, options: &Options) -> Result<(), Error> {
        self.drafter.begin(options)
    }

    fn see(&mut self, start: usize, tokens: &[u32], hidden: &[f32]) -> Result<(), Error> {
        self.drafter.see(start, tokens, hidden)
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        let mut session = Session::new(self.model, settings_for(Purpose::WithHidden)).unwrap();
        let sequence = session.open().unwrap();
        let mut fresh = drafter(self.model);
        fresh.begin(&greedy()).unwrap();
        for (at, tokens) in text.held.chunks(64).enumerate() {
            session.step(&[Run { sequence, tokens, wanted: Wanted::Last }]).unwrap();
            fresh.see(at * 64, tokens, session.hidden()).unwrap();
        }
        let expected = drafted(&mut fresh, text, most);
        self.drafter.draft(text, most, draft)?;
        assert_eq!(draft.tokens(), expected, "after {} tokens", text.len());
        assert_eq!(expected.len(), most.min(3));
        self.drafts += 1;
        Ok(())
    }
}

/// Drafts, nearly all of which are rejected by a model with random weights, leave the text as it is; and what was accepted
/// or rejected before a draft makes no difference to it, whether states return to the last accepted token from a
/// checkpoint or are computed again.
#[test]
fn drafts_leave_the_text_and_no_traces() {
    for Subject { name, model, expected, .. } in subjects() {
        let prompt = &expected.cases[1].ids;
        let plain = Session::new(&model, settings_for(Purpose::Own));
        let plain = greedy::answer((&model, &mut plain.unwrap()), prompt, 24, None).0;
        for checkpoints in [0, 16] {
            let settings = Settings { checkpoints, ..settings_for(Purpose::WithHidden) };
            let mut session = Session::new(&model, settings).unwrap();
            let mut compared = Compared { model: &model, drafter: drafter(&model), drafts: 0 };
            for _ in 0..2 {
                let drafter: &mut dyn Drafter = &mut compared;
                let (ids, statistics) =
                    greedy::answer((&model, &mut session), prompt, 24, Some(drafter));
                assert_eq!(ids, plain, "{name}, {checkpoints} checkpoints");
                assert!(statistics.drafted > 0 && statistics.accepted < statistics.drafted);
            }
            assert!(compared.drafts > 10, "{name}");
        }
    }
}

/// A model of which the layers add nothing, so that the next token depends on the last one alone, by a random table; and
/// whose block has the same table. `sizes` are further keys of the architecture.
pub(super) fn continued_by_a_table(name: &str, ty: Type, sizes: &[(&str, u32)]) -> Model {
    let mut metadata = (bilayer_models::find(name).unwrap().tiny)();
    metadata.set("tokenizer.ggml.model", "no_vocab");
    metadata.set(&format!("{name}.block_count"), 4u32);
    for (key, size) in sizes {
        metadata.set(&format!("{name}.{key}"), *size);
    }
    metadata.set(&format!("{name}.nextn_predict_layers"), 1u32);
    let width = metadata.usize(&format!("{name}.embedding_length")).unwrap();
    let change = |name: &str, values: &mut [f32]| {
        let adds = ["attn_output.weight", "ssm_out.weight", "ffn_down"];
        if name.ends_with("eh_proj.weight") {
            // The embedding, and nothing of the hidden state.
            let ones = values.iter_mut().enumerate();
            ones.for_each(|(at, x)| *x = f32::from(at % (2 * width) == at / (2 * width)));
        } else if adds.iter().any(|part| name.contains(part)) {
            values.fill(0.0);
        } else if name.ends_with("norm.weight") {
            values.fill(1.0);
        }
    };
    let bytes = random_bytes(&metadata, ty, &["output.weight"], 11, &change);
    Model::from_bytes(name, bytes).unwrap()
}

/// If every draft is right, a step gives as many tokens as it verifies.
#[test]
fn right_drafts_are_all_accepted() {
    for name in ["qwen35", "qwen35moe", "qwen3next", "deepseek2", "glm4moe"] {
        let model = continued_by_a_table(name, Type::F32, &[]);
        let prompt: Vec<u32> = (3..20).collect();
        let mut plain = Session::new(&model, settings_for(Purpose::Own)).unwrap();
        let (plain, _) = greedy::answer((&model, &mut plain), &prompt, 40, None);
        let mut session = Session::new(&model, settings_for(Purpose::WithHidden)).unwrap();
        let mut drafter = drafter(&model);
        let drafter: &mut dyn Drafter = &mut drafter;
        let (ids, statistics) = greedy::answer((&model, &mut session), &prompt, 40, Some(drafter));
        assert_eq!(ids, plain, "{name}");
        assert_eq!(statistics.accepted, statistics.drafted, "{name}");
        // The first token follows the prompt; then there are four a step.
        assert_eq!(statistics.steps, 39usize.div_ceil(4), "{name}");
    }
}

/// Prints how much faster right drafts make models of 24 layers.
#[test]
#[ignore = "measures time, which needs a quiet machine"]
#[expect(clippy::print_stdout, reason = "a measurement")]
fn speed_of_right_drafts() {
    let sizes = [
        ("block_count", 25),
        ("embedding_length", 768),
        ("feed_forward_length", 2304),
        ("attention.head_count", 12),
        ("attention.head_count_kv", 4),
        ("vocab_size", 8192),
    ];
    let dense = [("leading_dense_block_count", 24)];
    let recurrent = [
        ("full_attention_interval", 4),
        ("ssm.state_size", 64),
        ("ssm.group_count", 8),
        ("ssm.time_step_rank", 16),
        ("ssm.inner_size", 1024),
    ];
    for (name, more) in [("glm4moe", &dense[..]), ("qwen35", &recurrent[..])] {
        let model = continued_by_a_table(name, Type::Q8_0, &[&sizes[..], more].concat());
        let settings = |purpose| Settings { threads: Some(2), ..settings_for(purpose) };
        let prompt: Vec<u32> = (3..20).collect();
        let mut plain = Session::new(&model, settings(Purpose::Own)).unwrap();
        let mut session = Session::new(&model, settings(Purpose::WithHidden)).unwrap();
        let mut drafter = MtpDrafter::new(&model, settings(Purpose::Mtp), bounds()).unwrap();
        for _ in 0..3 {
            let (expected, without) = greedy::answer((&model, &mut plain), &prompt, 32, None);
            let drafter: &mut dyn Drafter = &mut drafter;
            let (ids, with) = greedy::answer((&model, &mut session), &prompt, 32, Some(drafter));
            assert_eq!(ids, expected);
            assert_eq!(with.accepted, with.drafted);
            let times = [without.generate, with.generate, with.drafting].map(|t| t.as_millis());
            let gain = without.generate.as_secs_f64() / with.generate.as_secs_f64();
            println!("{name}: {times:?} ms without, with, of it drafting: {gain:.2}x");
        }
    }
}

/// Several answers at once, each with a drafter of its own, and one that continues what is cached.
#[test]
fn a_server_drafts_with_the_block() {
    for Subject { name, model, expected, .. } in subjects() {
        let prompts = [&expected.cases[0].ids, &expected.cases[1].ids, &expected.cases[0].ids];
        let answers = |purpose| {
            let settings = Settings { cached_sequences: 2, ..settings_for(purpose) };
            let session = Session::new(&model, settings).unwrap();
            let mut executor = Executor::new(session, ExecutorSettings::default());
            if purpose == Purpose::WithHidden {
                executor = executor.with_drafts(Box::new(drafter(&model)));
            }
            let mut answers = Vec::new();
            let (mut drafted, mut events) = (0, Vec::new());
            for group in [&prompts[..2], &prompts[2..]] {
                let ids = group.iter().map(|prompt| executor.submit(submission(&model, prompt)));
                let ids: Vec<_> = ids.map(Result::unwrap).collect();
                while executor.step(&mut events) {}
                for id in ids {
                    let mut tokens = Vec::new();
                    for (_, event) in events.iter().filter(|(of, _)| *of == id) {
                        match event {
                            Event::Token(delta) => tokens.push(delta.token.id),
                            Event::Ended { served, .. } => drafted += served.drafted,
                            Event::Failed(error) => panic!("{error}"),
                            _ => {}
                        }
                    }
                    answers.push(tokens);
                }
            }
            (answers, drafted)
        };
        let (plain, none) = answers(Purpose::Own);
        let (found, drafted) = answers(Purpose::WithHidden);
        assert_eq!(found, plain, "{name}");
        assert!(none == 0 && drafted > 0, "{name}");
    }
}

fn submission(model: &Model, prompt: &[u32]) -> Submission {
    let request = Request { predict: Some(12), ignore_eos: true, ..Request::new(prompt.to_vec()) };
    let sampler = Sampler::new(greedy(), model.config().vocab, 256).unwrap();
    Submission::new(request, sampler)
}

/// The converter writes the block; a file without it names the key that it lacks.
#[test]
fn a_file_without_the_block_is_refused_by_key() {
    for Subject { name, folder, model, .. } in subjects() {
        let key = model.config().mtp_key();
        assert_eq!(model.file().metadata().usize(&key).unwrap(), 1, "{name}");
        let block = format!("blk.{}.nextn.eh_proj.weight", model.config().layers.len());
        assert!(model.file().tensor(&block).is_some(), "{name} of {}", folder.display());
    }
    let refused = MtpDrafter::new(&tiny(Type::F32, 7), settings(), bounds()).err().unwrap();
    assert!(refused.to_string().contains("llama.nextn_predict_layers"), "{refused}");
}
