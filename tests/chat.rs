//! The promise of chat: templates render as in Jinja2, messages never become special tokens, a conversation computes
//! only its new tokens, and a terminal session can be typed, interrupted, repeated and ended.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use bilayer_engine::Model;
use bilayer_engine::conversation::{Conversation, Role, Turn};
use bilayer_engine::generate::{Generation, Request};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::{Session, Settings};
use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_quant::Type;
use bilayer_text::Error;
use bilayer_text::chat::{Inputs, Template, Templates};
use serde_json::{Map, Value, json};

mod support {
    pub mod data;
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::data::shared;
use support::program::Place;
use support::words;

// Templates.

#[test]
fn a_prompt_begins_as_the_vocabulary_says() {
    let messages = [json!({ "role": "user", "content": "a < b [c] <think>\n" })];
    let Some(path) = shared("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let tokenizer = bilayer_engine::tokenizer(&path).unwrap();
    for name in ["chatml", "llama2"] {
        // One template writes `<s>`; with the other, the vocabulary adds it.
        let template = Templates::default().find(Some(name)).unwrap();
        let inputs = Inputs::new(&messages).with_tokens_of(&tokenizer);
        let prompt = template.prompt(&inputs, &tokenizer).unwrap();
        let ids = tokenizer.encode_prompt(&prompt).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 1, "{name}");
        assert_eq!(ids[0], 1, "{name}");
    }
}

#[test]
fn templates_are_found_by_name_by_text_and_in_the_file() {
    let mut metadata = Metadata::new();
    let none = bilayer_engine::chat_templates(&metadata).unwrap();
    assert_eq!(none, Templates::default());
    assert!(matches!(none.find(None), Err(Error::NoTemplate { .. })));
    metadata.set("tokenizer.chat_template", "own");
    metadata.set("tokenizer.chat_template.tool_use", "tools");
    metadata.set("tokenizer.chat_template.chatml", "not the known one");
    let found = bilayer_engine::chat_templates(&metadata).unwrap();
    let rendered = |asked| found.find(asked).unwrap().render(&Inputs::new(&[])).unwrap();
    assert_eq!(rendered(None), "own");
    assert_eq!(rendered(Some("tool_use")), "tools");
    assert_eq!(rendered(Some("chatml")), "not the known one");
    assert_eq!(rendered(Some("{{ 1 + 1 }}")), "2");
    assert_eq!(rendered(Some("phi4")), "<|im_start|>assistant<|im_sep|>");
    let unknown = found.find(Some("phi5")).unwrap_err().to_string();
    assert!(unknown.contains("'phi5'; known are tool_use, chatml, chatml, llama2"), "{unknown}");
    metadata.set("tokenizer.chat_template", 1u32);
    assert!(bilayer_engine::chat_templates(&metadata).is_err());
}

// Conversations.

#[test]
fn a_conversation_computes_only_new_tokens() {
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 1)).unwrap();
    let source = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:";
    let settings = || Settings {
        ctx_size: Some(200),
        sequences: 2,
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    };
    let mut session = Session::new(&model, settings()).unwrap();
    let template = Template::new("letters", source).unwrap();
    let mut talk = Conversation::new(&mut session, template, Map::new()).unwrap();

    talk.say(Role::User, "hello".into());
    let first = talk.turn(&model, &mut session).unwrap();
    assert_eq!(first.kept, 0);
    let answer = answered(&model, &mut session, &talk, &first);
    talk.say(Role::Assistant, answer.clone());
    talk.say(Role::User, "more".into());
    let second = talk.turn(&model, &mut session).unwrap();
    assert!(second.kept >= first.tokens.len(), "{} of {:?}", second.kept, first.tokens);
    let warm = answered(&model, &mut session, &talk, &second);

    // The answer equals that of the whole conversation run at once.
    let fresh = Turn { kept: 0, ..second.clone() };
    let other =
        Conversation::new(&mut session, Template::new("x", "").unwrap(), Map::new()).unwrap();
    assert_eq!(answered(&model, &mut session, &other, &fresh), warm);

    // Regenerate, undo, and restart with a system prompt.
    assert!(talk.take_answer());
    let again = talk.turn(&model, &mut session).unwrap();
    assert_eq!((&again.tokens, again.kept), (&second.tokens, second.tokens.len() - 1));
    assert!(talk.undo());
    assert!(talk.take_answer());
    assert_eq!(talk.turn(&model, &mut session).unwrap().tokens, first.tokens);
    assert_eq!(session.len(talk.sequence()), first.tokens.len() - 1);
    talk.set_system("be".into());
    assert_eq!((talk.system(), talk.messages().len()), (Some("be"), 2));
    let told = talk.turn(&model, &mut session).unwrap();
    assert!(told.kept < 3 && told.tokens.len() > first.tokens.len(), "{told:?}");
    talk.clear();
    assert_eq!(talk.messages().len(), 1);
    assert!(!talk.undo() && !talk.take_answer());

    talk.say(Role::User, "x".repeat(300));
    let error = talk.turn(&model, &mut session).unwrap_err();
    assert!(error.to_string().contains("do not fit into the context of 200"), "{error}");
}

/// Eight tokens of the greedy answer.
fn answered(model: &Model, session: &mut Session, talk: &Conversation, turn: &Turn) -> String {
    let options = Options { temperature: 0.0, ..Options::default() };
    let sampler = Sampler::new(options, session.vocab(), session.context()).unwrap();
    let new = &turn.tokens[turn.kept..];
    let request = Request { predict: Some(8), ignore_eos: true, ..Request::new(new) };
    let mut answer = Generation::new(model, session, talk.sequence(), sampler, request).unwrap();
    let mut text = String::new();
    while let Some(token) = answer.next().unwrap() {
        text += &token.text;
    }
    assert_eq!(answer.statistics().prompt_tokens, new.len());
    text + &answer.finish()
}

// The command line.

/// A place with a model of letters that has the chat template `source`.
fn place(source: Option<&str>) -> Place {
    let place = Place::new();
    let file = File::from_bytes("tiny", words::tiny(Type::F32, 1)).unwrap();
    let mut metadata = file.metadata().clone();
    if let Some(source) = source {
        metadata.set("tokenizer.chat_template", source);
    }
    let tensors = file.tensors().iter().map(|tensor| {
        let layout = tensor.layout();
        NewTensor::bytes(tensor.name(), layout.ty(), layout.shape(), file.bytes(tensor).to_vec())
    });
    place.file("model.gguf", to_bytes(&metadata, tensors.collect::<Vec<_>>()).unwrap());
    place
}

const LETTERS: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";

/// The messages of a saved chat.
fn saved(place: &Place, name: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(place.path().join(name)).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["bilayer_chat"], 1);
    let messages = document["messages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    messages.iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
}

#[test]
fn a_chat_goes_through_a_pipe() {
    let place = place(Some(LETTERS));
    let script = "one\\\ntwo\n\"\"\"\nthree\n\nfour\n\"\"\"\n/save a.json\n/regen\n/undo\n /five\n\
                  /system be\n/save b.json\n/load a.json\n/set top_k 3\n/set\n/stats\nsix\n/clear\n\
                  /save c.json\n/help\n/exit\nnever\n";
    let run = "run -m model.gguf -cnv --jinja -n 4 --temp 0 -c 4000 --ignore-eos";
    let ran = place.run_with_input(&format!("{run} --json"), script).good();
    let answers: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 5, "{ran:?}");
    let numbers =
        |key: &str| -> Vec<u64> { answers.iter().map(|a| a[key].as_u64().unwrap()).collect() };
    let reused = numbers("reused_tokens");
    assert!(reused[0] == 0 && reused[1..].iter().all(|&reused| reused > 10), "{reused:?}");
    assert_eq!(answers[1]["prompt_tokens"], answers[2]["prompt_tokens"], "/regen asks the same");

    let a = saved(&place, "a.json");
    let said: Vec<&str> = a.iter().step_by(2).map(|(_, said)| said.as_str()).collect();
    assert_eq!(said, ["one\ntwo", "three\n\nfour"]);
    assert_eq!(a[1], ("assistant".into(), answers[0]["text"].as_str().unwrap().into()));
    let b = saved(&place, "b.json");
    assert_eq!(
        b.iter().map(|(role, _)| role.as_str()).collect::<Vec<_>>(),
        ["system", "user", "assistant", "user", "assistant"]
    );
    assert_eq!((b[0].1.as_str(), b[3].1.as_str()), ("be", "/five"));
    assert_eq!(saved(&place, "c.json"), []);
    for part in ["chat template: the model's", "top-k 3", "4 messages, ", "/regen", "prompt: "] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    assert_eq!(place.names().iter().filter(|name| name.ends_with(".part")).count(), 0);

    // One message given by a flag, one answer as text.
    let once = place.run(&format!("{run} -st -sys be -p one")).good();
    assert_eq!(once.out.lines().count(), 1, "{once:?}");
    let shown = place.run(&format!("{run} -st -p one --verbose-prompt")).good();
    assert!(shown.err.contains("prompt of "), "{shown:?}");
    let line = format!("{run} -st -p one --json --logprobs 2").replace("-cnv", "");
    let document = place.run(&line).json();
    assert!(document["logprobs"].as_array().is_some_and(|of| !of.is_empty()), "{document}");
    for implies in ["-st", "-sys be", "-sysf system.txt", "--tools tools.json"] {
        for flag in ["--echo", "--logits l.npy"] {
            let line = format!("{run} -p one {implies} {flag}").replace("-cnv", "");
            let ran = place.run(&line);
            assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
        }
    }
    let plain = place.run(&format!("{run} -p hello").replace("-cnv", "")).good();
    assert!(plain.err.contains("prompt: 7 tokens"), "-p alone is completed: {plain:?}");
    assert!(plain.err.contains("note: the model has a chat template, "), "{plain:?}");
    let meant = place.run(&format!("{run} -no-cnv -p hello").replace("-cnv --jinja", "")).good();
    assert!(meant.out == plain.out && !meant.err.contains("chat template"), "{meant:?}");
}

/// As `serve` does.
#[test]
fn a_model_without_a_template_chats_with_chatml() {
    let place = place(None);
    let chat = "run -m model.gguf -cnv -n 2 -ngl 0 --temp 0";
    let own = place.run_with_input(chat, "/system \"\"\na\n/save ~/own.json").good();
    let warning = "has no chat template, so the chat uses ChatML, which it may not have learned";
    assert!(own.err.contains(warning), "{own:?}");
    assert!(own.err.contains("the system prompt is removed"), "{own:?}");
    let given = place.run_with_input(&format!("{chat} --chat-template chatml"), "a").good();
    assert_eq!(own.out, given.out);
    assert!(!given.err.contains(warning), "{given:?}");
    // The user's own folder is the place.
    assert_eq!(saved(&place, "own.json").len(), 2);
}

#[test]
fn ignored_ends_of_text_are_those_of_the_format_too() {
    let place = place(None);
    place.file("rest.gbnf", r#"root ::= "a<|im_end|>bc""#);
    let chat = "run -m model.gguf -st -p a -ngl 0 --temp 0 --grammar-file rest.gbnf --chat-template chatml";
    for (flags, expected) in
        [("", "a"), ("--ignore-eos", "a<|im_end|>bc"), ("--ignore-eos -r c", "a<|im_end|>b")]
    {
        let found = place.run_with_input(&format!("{chat} {flags}"), "").good();
        assert_eq!(found.out.trim_end(), expected, "{flags}: {found:?}");
    }
}

#[test]
fn chat_errors_are_one_line() {
    let place = place(Some("{{ raise_exception('not today') }}"));
    place.file("odd.jinja", "{{ a");
    place.file("odd.json", "{}");
    let cases = [
        (
            "run -m model.gguf -cnv -p a",
            "",
            2,
            "(the model's) refuses the conversation: not today; ",
        ),
        (
            "run -m model.gguf -cnv --chat-template x",
            "",
            2,
            "no chat template is called 'x'; known are",
        ),
        (
            "run -m model.gguf -cnv --chat-template-file odd.jinja",
            "",
            2,
            "(odd.jinja), line 1: syntax",
        ),
        ("run -m model.gguf -cnv --chat-template-file absent", "", 66, "absent: cannot be read"),
        ("run -m model.gguf -cnv --chat-template-kwargs 1", "", 2, "--chat-template-kwargs is `1`"),
        ("run -m model.gguf -cnv -sysf absent", "", 66, "absent: cannot be read"),
        ("run -m model.gguf -cnv --tokens 1", "", 2, "cannot be used with"),
        ("run -m model.gguf -cnv", "/load odd.json", 2, "odd.json: missing field"),
        ("run -m model.gguf -cnv", "/load absent.json", 66, "absent.json: cannot be read"),
        ("run -m model.gguf -cnv", "/save no/such/folder", 73, "folder: cannot be written"),
        ("run -m model.gguf -cnv", "/set temp -1", 2, "--temp is -1; it must be"),
        ("run -m model.gguf -cnv", "/set heat 1", 2, "no setting `heat`; /set lists"),
        ("run -m model.gguf -cnv", "/set temp", 2, "/set temp has no value; give one after it"),
        ("run -m model.gguf -cnv", "/load ~/absent.json", 66, "absent.json: cannot be read"),
        ("run -m model.gguf -cnv", "/undo", 2, "no message to undo; "),
        ("run -m model.gguf -cnv", "/dance", 2, "no command /dance; /help lists them"),
        (
            "run -m model.gguf -cnv -c 50 --chat-template chatml",
            "hello",
            75,
            "do not fit into the context of 50",
        ),
    ];
    for (line, input, code, part) in cases {
        let ran = place.run_with_input(line, &format!("{input}\n"));
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        let last = ran.err.lines().last().unwrap();
        assert!(last.starts_with("bilayer: ") && last.contains(part), "{line} {input}: {ran:?}");
        assert!(last.contains("; ") && ran.out.is_empty(), "{line}: {ran:?}");
    }
}

#[cfg(unix)]
mod terminal {
    use std::process::Stdio;
    use std::time::Duration;

    use rexpect::process::WaitStatus;
    use rexpect::session::{Options, PtySession, spawn_with_options};

    use super::*;

    /// A chat at a terminal whose answers continue until interrupted.
    fn chat(place: &Place, arguments: &str) -> PtySession {
        let mut command = place.command(arguments);
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::inherit());
        let options = Options::new().timeout_ms(Some(20_000)).strip_ansi_escape_codes(true);
        spawn_with_options(command, options).unwrap()
    }

    /// A chat at a terminal of 40 columns.
    fn narrow_chat(place: &Place, arguments: &str) -> PtySession {
        let mut command = place.bare("sh");
        command.args(["-c", "stty cols 40 rows 24; exec \"$0\" \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_bilayer")).args(arguments.split(' '));
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::inherit());
        let options = Options::new().timeout_ms(Some(20_000)).strip_ansi_escape_codes(false);
        spawn_with_options(command, options).unwrap()
    }

    fn left(chat: &mut PtySession) -> i32 {
        chat.exp_eof().unwrap();
        match chat.process().wait().unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }

    /// Excludes `>`, which is the prompt, end-of-text tokens and characters with a meaning to the terminal.
    const ENDLESS: &str = "run -m model.gguf -c 200000 --ignore-eos -l 33-inf -s 5";

    #[test]
    fn a_terminal_session_types_interrupts_regenerates_and_exits() {
        let place = place(Some(LETTERS));
        // With a template and no prompt, `run` chats by default.
        let mut chat = chat(&place, ENDLESS);
        chat.exp_string("/help lists the commands").unwrap();
        chat.exp_string("> ").unwrap();
        chat.send_line("hello\\").unwrap();
        chat.send_line("you").unwrap();
        chat.exp_string("you").unwrap();
        let stop = |chat: &mut PtySession| {
            // What was typed has ended, and part of the answer has been printed.
            chat.exp_string("\n").unwrap();
            chat.exp_regex("[!-=?-~]{3}").unwrap();
            chat.send_control('c').unwrap();
            chat.exp_string("> ").unwrap();
        };
        stop(&mut chat);
        chat.send_line("/undo").unwrap();
        chat.exp_string("> ").unwrap();
        chat.send_line("again").unwrap();
        chat.exp_string("again").unwrap();
        stop(&mut chat);
        // Tab completes a command.
        chat.send("/reg").unwrap();
        chat.flush().unwrap();
        chat.exp_string("/reg").unwrap();
        chat.send("\t").unwrap();
        chat.flush().unwrap();
        chat.exp_string("/regen ").unwrap();
        chat.send_line("").unwrap();
        stop(&mut chat);
        chat.send_line("/save a.json").unwrap();
        chat.exp_string("> ").unwrap();
        chat.send_line("/dance").unwrap();
        chat.exp_string("no command /dance").unwrap();
        chat.exp_string("> ").unwrap();
        chat.send_line("/exit").unwrap();
        assert_eq!(left(&mut chat), 0);
        let messages = saved(&place, "a.json");
        assert_eq!((messages.len(), messages[0].1.as_str()), (2, "again"));
        let history = place.path().join(".local/state/bilayer/chat_history");
        let history = std::fs::read_to_string(history).unwrap();
        assert!(history.contains("again") && history.contains("/exit"), "{history}");
    }

    #[test]
    fn a_second_interrupt_exits() {
        let place = place(None);
        let chatml = format!("{ENDLESS} -cnv --chat-template chatml -p hello");
        let mut chat = chat(&place, &chatml);
        chat.exp_string("chat template: chatml").unwrap();
        chat.exp_regex("exits\r\n[^>]{3}").unwrap();
        chat.send_control('c').unwrap();
        chat.exp_string("> ").unwrap();
        chat.send_control('c').unwrap();
        assert_eq!(left(&mut chat), 130);
    }

    /// A process terminated during line editing restores the terminal.
    #[test]
    fn sigterm_restores_the_terminal() {
        let place = place(Some(LETTERS));
        let mut command = place.bare("sh");
        let script = "before=$(stty -g); exec 3<&0; \"$0\" \"$@\" <&3 & echo \"process $!.\"; wait $!; \
                      echo \"left with $?.\"; [ \"$before\" = \"$(stty -g)\" ] && echo as before.";
        command.args(["-c", script, env!("CARGO_BIN_EXE_bilayer")]).args(ENDLESS.split(' '));
        command.env("TERM", "xterm").stdin(Stdio::inherit());
        let options = Options::new().timeout_ms(Some(20_000)).strip_ansi_escape_codes(true);
        let mut shell = spawn_with_options(command, options).unwrap();
        let (_, process) = shell.exp_regex(r"process \d+\.").unwrap();
        let id = process.trim_start_matches("process ").trim_end_matches('.');
        shell.exp_string("> ").unwrap();
        shell.send_line("/system be").unwrap();
        shell.exp_string("be").unwrap();
        shell.exp_string("> ").unwrap();
        assert!(place.bare("kill").args(["-TERM", id]).status().unwrap().success());
        shell.exp_string("left with 143.").unwrap();
        shell.exp_string("as before.").unwrap();
        let history = place.path().join(".local/state/bilayer/chat_history");
        assert!(std::fs::read_to_string(history).unwrap().contains("/system be"));
    }

    #[test]
    fn the_end_of_input_exits() {
        let place = place(Some(LETTERS));
        let mut chat = chat(&place, ENDLESS);
        chat.exp_string("> ").unwrap();
        chat.send_control('d').unwrap();
        assert_eq!(left(&mut chat), 0);
    }

    /// Keys as a person presses them, one after the other.
    fn press(chat: &mut PtySession, keys: &[&str]) {
        for key in keys {
            chat.send(key).unwrap();
            chat.flush().unwrap();
            std::thread::sleep(Duration::from_millis(80));
        }
    }

    /// Waits for a part of an answer, stops it and returns what was printed until the next prompt.
    fn stopped(chat: &mut PtySession) -> String {
        chat.exp_regex("[!-=?-~]{3}").unwrap();
        chat.send_control('c').unwrap();
        chat.exp_string("> ").unwrap()
    }

    /// The first user message of the conversation.
    fn first_said(chat: &mut PtySession, place: &Place) -> String {
        press(chat, &["/save said.json", "\r"]);
        chat.exp_string("messages written to").unwrap();
        chat.exp_string("> ").unwrap();
        saved(place, "said.json")[0].1.clone()
    }

    #[test]
    fn pasted_lines_are_one_message() {
        let place = place(Some(LETTERS));
        let mut chat = chat(&place, ENDLESS);
        chat.exp_string("> ").unwrap();
        // A terminal without bracketed paste sends the line breaks as Enter.
        press(&mut chat, &["the first line\rthe second\r\rthe last\r"]);
        chat.exp_string("the last").unwrap();
        stopped(&mut chat);
        assert_eq!(first_said(&mut chat, &place), "the first line\nthe second\n\nthe last");

        // Pasted into a line that was begun by typing; Enter sends it.
        press(&mut chat, &["/clear", "\r"]);
        chat.exp_string("the conversation is empty").unwrap();
        press(&mut chat, &["t", "y", "p", "ed one\rtwo", "\r"]);
        stopped(&mut chat);
        assert_eq!(first_said(&mut chat, &place), "typed one\ntwo");

        // A terminal with brackets, and Alt-Enter.
        // Enter sends a command even when it comes at once with the completion.
        press(&mut chat, &["/", "c", "l", "e", "\t\r"]);
        chat.exp_string("the conversation is empty").unwrap();
        press(&mut chat, &["\x1b[200~one\rtwo\x1b[201~", "\x1b\r", "three", "\r"]);
        stopped(&mut chat);
        assert_eq!(first_said(&mut chat, &place), "one\ntwo\nthree");
        press(&mut chat, &["/exit", "\r"]);
        assert_eq!(left(&mut chat), 0);
    }

    #[test]
    fn what_is_typed_during_an_answer_is_not_echoed_into_it_and_not_lost() {
        let place = place(Some(LETTERS));
        let mut chat = chat(&place, &format!("{ENDLESS} -n 5000"));
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["hello", "\r"]);
        chat.exp_regex("[!-=?-~]{3}").unwrap();
        press(&mut chat, &["/sta", "ts\r/set\r", "and m"]);
        let (answer, rate) = chat.exp_regex(r"\(\d+ tokens, \d+\.\d tok/s\)").unwrap();
        assert!(!answer.contains("/stats") && !answer.contains("/set"), "{answer}");
        assert!(rate.starts_with("(5000 tokens"), "{rate}");
        chat.exp_string("> /stats").unwrap();
        chat.exp_string("2 messages, ").unwrap();
        chat.exp_string("> /set").unwrap();
        chat.exp_string("top-k 40").unwrap();
        chat.exp_string("> and m").unwrap();
        press(&mut chat, &["ore", "\r"]);
        let answer = stopped(&mut chat);
        assert!(!answer.contains("^C") && answer.contains(" tok/s)"), "{answer}");
        press(&mut chat, &["/save a.json", "\r"]);
        chat.exp_string("messages written").unwrap();
        assert_eq!(saved(&place, "a.json")[2].1, "and more");
    }

    #[test]
    fn commands_say_what_they_did() {
        let place = place(Some(LETTERS));
        std::fs::copy(place.path().join("model.gguf"), place.path().join("other.gguf")).unwrap();
        place.file("text.txt", "from a file\n");
        let mut chat = chat(&place, &format!("{ENDLESS} -n 20"));
        chat.exp_string("> ").unwrap();
        let cases = [
            ("/read text.txt", " tok/s)"),
            ("/set temp 0.5", "temp is 0.5"),
            ("/set heat 1", "no setting `heat`; /set lists the settings"),
            ("/set temp x", "; /set lists the settings"),
            ("/save a.json", "2 messages written to a.json"),
            ("/system be kind", "the system prompt is set"),
            ("/show", "system prompt: be kind"),
            ("/model", "/model NAME continues with another"),
            ("/model absent.gguf", "absent.gguf"),
            ("/model other.gguf", "chat template: the model's"),
            ("/stats", "3 messages, "),
            ("/undo", "the last message is removed; 1 message is left"),
            ("/load a.json", "2 messages"),
            ("/clear", "the conversation is empty"),
        ];
        for (command, told) in cases {
            press(&mut chat, &[command, "\r"]);
            let before = chat.exp_string(told).unwrap_or_else(|e| panic!("{command}: {e}"));
            let after = chat.exp_string("> ").unwrap();
            let all = before + &after;
            assert!(!all.contains("--help"), "{command}: {all}");
        }
        assert_eq!(saved(&place, "a.json")[0].1, "from a file");
    }

    #[test]
    fn answers_wrap_between_words() {
        let place = place(Some(LETTERS));
        place.file(
            "g.gbnf",
            "root ::= (word \" \"){80}\nword ::= [a-z] [a-z]? [a-z]? [a-z]? [a-z]? [a-z]?\n",
        );
        let line = "run -m model.gguf -c 4000 -s 5 --grammar-file g.gbnf";
        let mut chat = narrow_chat(&place, line);
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["hello", "\r"]);
        let (answer, _) = chat.exp_regex(r"\(\d+ tokens, ").unwrap();
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["/save a.json", "\r"]);
        chat.exp_string("written").unwrap();
        let said = saved(&place, "a.json").remove(1).1;
        // What follows the message, as the terminal shows it.
        let lines = shown(answer.rsplit("hello").next().unwrap());
        assert!(lines.iter().all(|line| line.chars().count() < 40), "{lines:#?}");
        let words: Vec<&str> = said.split_whitespace().collect();
        let all = |lines: &[&str]| lines.concat();
        let shown: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
        assert_eq!(all(&shown), all(&words));
        let short = words.iter().filter(|word| word.chars().count() < 40);
        assert!(short.clone().count() > 20, "{said}");
        for word in short {
            assert!(shown.contains(word), "{word} is broken: {lines:#?}");
        }
    }

    /// The lines that a terminal shows of `written`.
    fn shown(written: &str) -> Vec<String> {
        let (mut lines, mut column) = (vec![Vec::new()], 0);
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            let line: &mut Vec<char> = lines.last_mut().unwrap();
            match c {
                '\r' => column = 0,
                '\n' => lines.push(Vec::new()),
                '\x1b' => {
                    let mut sequence = String::new();
                    while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
                        sequence.push(rest.next().unwrap());
                    }
                    match sequence.strip_prefix('[').and_then(|s| s.strip_suffix('D')) {
                        Some(back) => column -= back.parse::<usize>().unwrap(),
                        None if sequence == "[K" => line.truncate(column),
                        None => {}
                    }
                }
                c => {
                    line.truncate(column);
                    line.push(c);
                    column += 1;
                }
            }
        }
        lines.iter().map(|line| line.iter().collect()).collect()
    }

    #[test]
    fn a_full_context_goes_on() {
        let place = place(Some(LETTERS));
        let endless = ENDLESS.replace("200000", "160");
        let mut chat = chat(&place, &format!("{endless} -n 300 -sys be"));
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["hello", "\r"]);
        chat.exp_string("(300 tokens, ").unwrap();
        chat.exp_string("the answer went on without the oldest tokens; -c sets").unwrap();
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["and again", "\r"]);
        chat.exp_string("the model does not see the 2 oldest messages; -c sets").unwrap();
        chat.exp_string("(300 tokens, ").unwrap();
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["/save a.json", "\r"]);
        chat.exp_string("5 messages written").unwrap();
        press(&mut chat, &["/set keep 0", "\r"]);
        chat.exp_string("keep is 0").unwrap();
    }

    /// Reasoning is one dimmed line that is folded when the answer begins; `/think` shows it.
    #[test]
    fn reasoning_is_folded() {
        let place = place(Some(THINKING));
        // The grammar makes the model of random weights close its reasoning and answer.
        place.file("g.gbnf", "root ::= \"because of this\" \"</think>\" \"so it is\"");
        let args = "run -m model.gguf -c 4000 --temp 0 --grammar-file g.gbnf";
        let mut chat = narrow_chat(&place, args);
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["why", "\r"]);
        chat.exp_regex(r"\(reasoned for \d+\.\d s, 3 words; /think shows it\)").unwrap();
        let shown = chat.exp_string("tok/s)").unwrap();
        assert!(shown.contains("so it is") && !shown.contains("because"), "{shown}");
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["/think", "\r"]);
        chat.exp_string("because of this").unwrap();
        chat.exp_string("> ").unwrap();
        press(&mut chat, &["/image a.png", "\r"]);
        chat.exp_string("needs its vision or audio encoder (mmproj)").unwrap();
    }
}

/// A template whose answers begin within a block of reasoning.
const THINKING: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:{% if \
                        enable_thinking is undefined or enable_thinking %}<think>{% endif %}";

#[test]
fn reasoning_is_separated_where_asked() {
    let place = place(Some(THINKING));
    place.file("g.gbnf", "root ::= \"because of this\" \"</think>\" \"so it is\"");
    let run = "run -m model.gguf -cnv -st -p why -c 4000 --temp 0 --grammar-file g.gbnf";
    let plain = place.run(run).good();
    assert_eq!(plain.out, "because of this</think>so it is\n", "a pipe gets all of it");
    let split = place.run(&format!("{run} --reasoning-format deepseek")).good();
    assert_eq!(split.out, "so it is\n");
    assert!(split.err.contains("(reasoned for "), "{split:?}");
    let several = format!("{} --reasoning-format deepseek", run.replace(" -st -p why", ""));
    let piped = place.run_with_input(&several, "why\n/think\n").good();
    assert!(piped.err.lines().any(|line| line == "because of this"), "no codes: {piped:?}");
    let document = place.run(&format!("{run} --json")).json();
    assert_eq!(document["text"], "because of this</think>so it is");
    assert_eq!(document["content"], "so it is");
    assert_eq!(document["reasoning_content"], "because of this");
    // Without reasoning, the prompt does not open a block.
    let tokens = |document: &Value| document["prompt_tokens"].as_array().unwrap().len();
    for flags in ["--reasoning-budget 0", "-rea off", "--reasoning off"] {
        let off = place.run(&format!("{run} --json {flags}")).json();
        assert!(tokens(&off) < tokens(&document), "{flags}");
    }
    let refused = place.run(&format!("{run} --image a.png"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--image is not supported; "), "{refused:?}");
    assert!(refused.err.contains("mmproj"), "{refused:?}");
}

/// A template that writes tools and calls as the hermes format does.
const CALLING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}\
                       {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};\
                       {% endfor %}assistant:";

#[test]
fn calls_of_tools_are_shown_and_answered() {
    let place = place(Some(CALLING));
    let parameters = json!({ "type": "object", "properties": { "zone": { "type": "string" } } });
    let tool =
        json!({ "type": "function", "function": { "name": "now", "parameters": parameters } });
    place.file("tools.json", json!([tool]).to_string());
    // The grammar makes the model of random weights call and answer.
    let call = r#"root ::= "so: <tool_call>{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>""#;
    place.file("call.gbnf", call);
    let run = "run -m model.gguf -c 4000 --temp 0 --grammar-file call.gbnf";

    let once = format!("{run} -st -p when");
    let shown = place.run(&format!("{once} --tools tools.json")).good();
    assert_eq!(shown.out, "so:\ncalls now {\"zone\": \"UTC\"}\n");
    assert!(shown.err.contains("/tool TEXT gives the result of now"), "{shown:?}");
    let document = place.run(&format!("{once} --tools tools.json --json")).json();
    let function = json!({ "name": "now", "arguments": "{\"zone\": \"UTC\"}" });
    assert_eq!(document["tool_calls"], json!([{ "type": "function", "function": function }]));
    assert_eq!(document["content"], "so:");
    let untold = place.run(&format!("{once} --json")).json();
    assert!(untold["tool_calls"].is_null(), "nothing is a call without functions: {untold}");
    let len = |document: &Value| document["prompt_tokens"].as_array().unwrap().len();
    assert!(len(&document) > len(&untold), "the template is given the functions");

    let script = "when\n/tool 12:00\n/tool 12:01\n/tool 12:02\n/save a.json\n";
    let ran = place.run_with_input(&format!("{run} --tools tools.json -cnv"), script);
    assert_eq!(ran.out.matches("calls now {\"zone\": \"UTC\"}").count(), 4, "{ran:?}");
    let text = std::fs::read_to_string(place.path().join("a.json")).unwrap();
    let messages: Value = serde_json::from_str(&text).unwrap();
    let messages = messages["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles[..4], ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[2]["content"], "12:00");
    assert_eq!(messages[2]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
    assert_ne!(messages[3]["tool_calls"][0]["id"], messages[1]["tool_calls"][0]["id"]);
    // The model sees call and result.
    let seen = place
        .run_with_input(&format!("{run} --tools tools.json -cnv --json"), "when\n/tool 12:00\n");
    let documents: Vec<Value> =
        seen.good().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(len(&documents[1]) > len(&documents[0]) + "<tool_call></tool_call>12:00".len());

    let unasked = place.run_with_input(&format!("{run} -cnv"), "/tool 12:00\n");
    assert!(unasked.code == Some(2) && unasked.err.contains("awaits no function's result"));
    place.file("wrong.json", "{}");
    let refused = place.run(&format!("{once} --tools wrong.json"));
    assert!(refused.code == Some(2) && refused.err.contains("wrong.json"), "{refused:?}");
}
