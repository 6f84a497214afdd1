//! The promise of replies: every template is recognised, its own tool calls are read back, and what tools answer stays
//! text.

use bilayer_text::chat::reply::{Delta, Format, Options, Tool};
use bilayer_text::chat::{Builtin, Inputs, Segment, Template, Templates};
use bilayer_text::{Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

use super::data::shared;

/// Templates and the formats of their models.
const FORMATS: &[(&str, &[&str])] = &[
    ("apriel", &["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"]),
    (
        "hermes",
        &[
            "Bielik-11B-v3.0-Instruct",
            "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
            "Qwen-QwQ-32B",
            "Qwen-Qwen2.5-7B-Instruct",
            "Qwen-Qwen3-0.6B",
            "ibm-granite-granite-4.1",
        ],
    ),
    ("command-r7b", &["Cohere2MoE"]),
    ("command-r", &["CohereForAI-c4ai-command-r-plus-tool_use"]),
    ("gigachat3", &["GigaChat3-10B-A1.8B"]),
    ("gigachat3.1", &["GigaChat3.1-10B-A1.8B"]),
    ("kimi-k2", &["Kimi-K2-Instruct", "moonshotai-Kimi-K2"]),
    ("kimi-k3", &["Kimi-K3"]),
    ("lfm2", &["LFM2-8B-A1B", "LFM2.5-8B-A1B"]),
    ("minimax-m1", &["MiniMax-M1"]),
    ("minimax-m3", &["MiniMax-M3"]),
    ("mistral", &["Mistral-Small-3.2-24B-Instruct-2506", "unsloth-mistral-Devstral-Small-2507"]),
    ("mistral-v3", &["mistralai-Mistral-Nemo-Instruct-2407"]),
    ("nemotron", &["NVIDIA-Nemotron-Nano-v2"]),
    ("qwen3-coder", &["Qwen3.5-4B"]),
    (
        "glm",
        &[
            "Spark2.5",
            "inclusionai-ling-3.0-flash",
            "poolside-Laguna-S-2.1",
            "poolside-Laguna-XS-2.1",
            "poolside-Laguna-XS.2",
        ],
    ),
    (
        "deepseek-r1",
        &[
            "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "llama-cpp-deepseek-r1",
        ],
    ),
    ("deepseek-dsml", &["deepseek-ai-DeepSeek-V3.2"]),
    ("deepseek-v4", &["deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek-ai-DeepSeek-V4"]),
    ("firefunction", &["fireworks-ai-llama-3-firefunction-v2"]),
    ("gemma4", &["google-gemma-4-31B-it"]),
    ("granite3", &["ibm-granite-granite-3.3-2B-Instruct"]),
    ("functionary-v3.1", &["meetkai-functionary-medium-v3.1"]),
    ("llama3", &["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"]),
    ("muse", &["muse-glimmer"]),
    ("gpt-oss", &["openai-gpt-oss-120b"]),
    ("minicpm5", &["openbmb-MiniCPM5-1B"]),
    (
        "generic",
        &["google-gemma-2-2b-it", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"],
    ),
];

fn source(name: &str) -> Option<String> {
    let path = shared(&format!("chat-templates/templates/{name}.jinja"))?;
    Some(std::fs::read_to_string(path).unwrap())
}

fn formats() -> impl Iterator<Item = (&'static str, &'static str)> {
    FORMATS.iter().flat_map(|(format, names)| names.iter().map(move |name| (*format, *name)))
}

#[test]
fn every_template_is_recognised() {
    let Some(folder) = shared("chat-templates/templates") else { return };
    let mut known: Vec<String> = formats().map(|(_, name)| format!("{name}.jinja")).collect();
    let files = std::fs::read_dir(folder).unwrap();
    let mut found: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    known.sort();
    found.sort();
    assert_eq!(known, found);
    let wrong: Vec<String> = formats()
        .map(|(format, name)| (format, name, Format::of(&source(name).unwrap()).name()))
        .filter(|(expected, _, found)| expected != found)
        .map(|(expected, name, found)| format!("{name} is {found}, not {expected}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn tokenizer() -> Tokenizer {
    let letters = (0..=255u8).map(|byte| format!("<0x{byte:02X}>").into());
    let tokens: Vec<_> = ["<unk>", "<|im_end|>", "</tool_response>"].map(Into::into).into();
    let tokens: Vec<_> = tokens.into_iter().chain(letters).collect();
    let types = (0..tokens.len()).map(|at| {
        if at == 0 {
            2
        } else if at < 3 {
            3
        } else {
            6
        }
    });
    let vocabulary = Vocabulary {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        types: types.collect(),
        tokens,
        unk: Some(0),
        ..Vocabulary::default()
    };
    Tokenizer::new(vocabulary).unwrap()
}

fn table() -> Option<Value> {
    let text = std::fs::read_to_string(shared("chat-templates/expected.json")?).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

fn case<'t>(list: &'t Value, name: &str) -> Option<&'t Value> {
    list.as_array()?.iter().find(|case| case["case"] == name)
}

/// Templates that write no call, or refuse the conversation. Their calls are text of messages.
const SILENT: &[&str] = &[
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "Kimi-K2-Instruct",
    "LFM2-8B-A1B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "fireworks-ai-llama-3-firefunction-v2",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
];

#[test]
fn calls_are_read_as_templates_write_them() {
    let Some(table) = table() else { return };
    let arguments = json!({ "city": "Zürich", "unit": "celsius" });
    let mut silent = Vec::new();
    for (format, name) in formats() {
        let output = case(&table["expected"][name], "tool-call-roundtrip");
        let output = output.and_then(|case| case["output"].as_str()).unwrap_or_default();
        let question = output.rfind("in Zürich?").map(|at| &output[at + "in Zürich?".len()..]);
        let Some(reply) = question.filter(|rest| rest.contains("celsius")) else {
            silent.push(name);
            continue;
        };
        // Formats without markers begin at the reply, not at the end of the question.
        let reply = match format {
            "llama3" => reply.rsplit("<|end_header_id|>\n\n").nth(2).unwrap(),
            _ => reply,
        };
        let tools = Tool::list(&table["TOOLS"]).unwrap();
        let options = Options { tools, ..Options::default() };
        let mut parser = Format::of(&source(name).unwrap()).parser(options);
        let mut deltas = parser.push(reply);
        deltas.extend(parser.finish());
        let calls: Vec<&str> = deltas
            .iter()
            .filter_map(|delta| match delta {
                Delta::Call { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let text: String = deltas
            .iter()
            .filter_map(|delta| match delta {
                Delta::Arguments { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(calls, ["get_weather"], "{name}: {deltas:?} of {reply:?}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, arguments, "{name}: {text}");
    }
    silent.sort_unstable();
    assert_eq!(silent, SILENT);
}

#[test]
fn arguments_as_text_render_like_objects() {
    let Some(table) = table() else { return };
    let tokenizer = tokenizer();
    let mut rendered = 0;
    let loud = |name: &str| !SILENT.contains(&name);
    let conversation = case(&table["cases"], "tool-call-roundtrip-args-as-string").unwrap();
    let mut messages = [(); 2].map(|()| conversation["messages"].as_array().unwrap().clone());
    messages[0][1]["content"] = Value::Null;
    messages[1][1]["content"] = json!("");
    for (_, name) in formats().filter(|(format, name)| *format != "functionary-v3.1" && loud(name))
    {
        let Some(expected) = case(&table["expected"][name], "tool-call-roundtrip") else {
            continue;
        };
        let Some(output) = expected["output"].as_str() else { continue };
        // Jinja2's output for empty content has an answer beside the calls, that for null content has none.
        let output = match name {
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B" => {
                output.replace("<｜Assistant｜><｜end▁of▁sentence｜>", "")
            }
            _ => output.to_owned(),
        };
        let template = Template::new(name, &source(name).unwrap()).unwrap();
        let inputs = |messages| Inputs {
            // One template writes calls but not the functions, which are then described in a system message.
            tools: output.contains("Get the current").then_some(&table["TOOLS"]),
            bos_token: "<|BOS|>".into(),
            eos_token: "<|EOS|>".into(),
            now: "2026-01-02T03:04:05[UTC]".parse().unwrap(),
            ..Inputs::new(messages)
        };
        for messages in &messages {
            let prompt = template.conversation(&inputs(messages), &tokenizer).unwrap();
            assert_eq!(prompt.text, output, "{name}");
        }
        rendered += 1;
    }
    assert!(rendered == 0 || rendered >= 35, "{rendered}");
}

/// That of DeepSeek's R1 distillations writes calls only where the content is null, and arguments only as text.
#[test]
fn calls_that_a_template_tells_by_null_content_are_written() {
    let Some(source) = source("deepseek-ai-DeepSeek-R1-Distill-Llama-8B") else { return };
    let template = Template::new("r1", &source).unwrap();
    let function = json!({ "name": "get_weather", "arguments": "{\"city\": \"Rome\"}" });
    // Jinja2's output.
    let expected = "<｜User｜>w?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n\
                    ```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜><｜tool▁outputs▁begin｜>\
                    <｜tool▁output▁begin｜>ok<｜tool▁output▁end｜><｜tool▁outputs▁end｜>";
    for content in [Value::Null, json!("")] {
        let messages = [
            json!({ "role": "user", "content": "w?" }),
            json!({ "role": "assistant", "content": content,
                "tool_calls": [{ "id": "1", "type": "function", "function": function }] }),
            json!({ "role": "tool", "tool_call_id": "1", "content": "ok" }),
        ];
        let prompt = template.conversation(&Inputs::new(&messages), &tokenizer()).unwrap();
        assert_eq!(prompt.text, expected);
    }
}

/// Templates, the reasoning before the answer "The answer is", and the end of Jinja2's output up to that answer.
const CONTINUED: &[(&str, Option<&str>, &str)] = &[
    ("Apriel-1.6-15b-Thinker-fixed", None, "\n<|begin_assistant|>\n"),
    (
        "Apriel-1.6-15b-Thinker-fixed",
        Some("I think so."),
        "\n<|begin_assistant|>\nI think so.\n[BEGIN FINAL RESPONSE]\n",
    ),
    ("Bielik-11B-v3.0-Instruct", None, "<|im_end|>\n<|im_start|>assistant\n"),
    (
        "Bielik-11B-v3.0-Instruct",
        Some("I think so."),
        "<|im_end|>\n<|im_start|>assistant\n<think>\nI think so.\n</think>\n",
    ),
    (
        "Cohere2MoE",
        None,
        "<|END_TEXT|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_TEXT|>",
    ),
    (
        "Cohere2MoE",
        Some("I think so."),
        "<|END_TEXT|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>I think so.<|END_THINKING|><|START_TEXT|>",
    ),
    ("GigaChat3-10B-A1.8B", None, "<|message_sep|>\n\nassistant<|role_sep|>\n"),
    ("GigaChat3.1-10B-A1.8B", None, "<|message_sep|>\n\nassistant<|role_sep|>\n"),
    ("Kimi-K2-Instruct", None, "<|im_end|><|im_assistant|>assistant<|im_middle|>"),
    (
        "Kimi-K3",
        None,
        "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>",
    ),
    (
        "Kimi-K3",
        Some("I think so."),
        "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>I think so.<|close|>think<|sep|><|open|>response<|sep|>",
    ),
    ("LFM2-8B-A1B", None, "<|im_end|>\n<|im_start|>assistant\n"),
    ("LFM2.5-8B-A1B", None, "<|im_end|>\n<|im_start|>assistant\n"),
    (
        "LFM2.5-8B-A1B",
        Some("I think so."),
        "<|im_end|>\n<|im_start|>assistant\n<think>I think so.</think>",
    ),
    ("MiniMax-M1", None, "<end_of_sentence>\n<beginning_of_sentence>ai name=assistant\n"),
    ("MiniMax-M3", None, "[e~[\n]~b]ai\n</mm:think>"),
    ("MiniMax-M3", Some("I think so."), "[e~[\n]~b]ai\n<mm:think>I think so.</mm:think>"),
    ("Mistral-Small-3.2-24B-Instruct-2506", None, "[/INST]"),
    ("NVIDIA-Nemotron-Nano-v2", None, "\n<SPECIAL_11>Assistant\n<think>\n"),
    ("Qwen-QwQ-32B", None, "<|im_end|>\n<|im_start|>assistant\n"),
    ("Qwen-Qwen2.5-7B-Instruct", None, "<|im_end|>\n<|im_start|>assistant\n"),
    ("Qwen-Qwen3-0.6B", None, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    (
        "Qwen-Qwen3-0.6B",
        Some("I think so."),
        "<|im_end|>\n<|im_start|>assistant\n<think>\nI think so.\n</think>\n\n",
    ),
    ("Qwen3.5-4B", None, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    (
        "Qwen3.5-4B",
        Some("I think so."),
        "<|im_end|>\n<|im_start|>assistant\n<think>\nI think so.\n</think>\n\n",
    ),
    ("Spark2.5", None, "<｜end▁of▁sentence｜><｜start▁of▁sentence｜><|Bot|></think>"),
    (
        "Spark2.5",
        Some("I think so."),
        "<｜end▁of▁sentence｜><｜start▁of▁sentence｜><|Bot|><think>I think so.</think>",
    ),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", None, "<｜Assistant｜>"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", None, "<｜Assistant｜>"),
    ("deepseek-ai-DeepSeek-V3.2", None, "<｜Assistant｜><think></think>"),
    ("deepseek-ai-DeepSeek-V3.2", Some("I think so."), "<｜Assistant｜><think>I think so.</think>"),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", None, "<｜Assistant｜><think></think>"),
    (
        "deepseek-ai-DeepSeek-V4-Flash-0731",
        Some("I think so."),
        "<｜Assistant｜><think>I think so.</think>",
    ),
    ("deepseek-ai-DeepSeek-V4", None, "<｜Assistant｜><think></think>"),
    ("deepseek-ai-DeepSeek-V4", Some("I think so."), "<｜Assistant｜><think>I think so.</think>"),
    ("google-gemma-2-2b-it", None, "<end_of_turn>\n<start_of_turn>model\n"),
    ("google-gemma-4-31B-it", None, "<turn|>\n<|turn>model\n"),
    (
        "ibm-granite-granite-3.3-2B-Instruct",
        None,
        "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    ("ibm-granite-granite-4.1", None, "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"),
    ("inclusionai-ling-3.0-flash", None, "<|role_end|><role>ASSISTANT</role>\n<think></think>"),
    (
        "inclusionai-ling-3.0-flash",
        Some("I think so."),
        "<|role_end|><role>ASSISTANT</role>\n<think>I think so.</think>",
    ),
    ("llama-cpp-deepseek-r1", None, "<｜end▁of▁sentence｜><｜Assistant｜>"),
    ("llama-cpp-rwkv-world", None, "\n\nAssistant: "),
    (
        "meetkai-functionary-medium-v3.1",
        None,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "meta-llama-Llama-3.1-8B-Instruct",
        None,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "meta-llama-Llama-3.2-3B-Instruct",
        None,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    ("microsoft-Phi-3.5-mini-instruct", None, "<|end|>\n<|assistant|>\n"),
    ("mistralai-Mistral-Nemo-Instruct-2407", None, "[/INST]"),
    ("moonshotai-Kimi-K2", None, "<|im_end|><|im_assistant|>assistant<|im_middle|>"),
    ("muse-glimmer", None, "<|eot|><|start|>assistant to=user<|message|>"),
    (
        "muse-glimmer",
        Some("I think so."),
        "<|eot|><|start|>assistant to=self<|message|>I think so.<|eom|><|start|>assistant to=user<|message|>",
    ),
    ("openai-gpt-oss-120b", None, "<|end|><|start|>assistant<|channel|>final<|message|>"),
    (
        "openai-gpt-oss-120b",
        Some("I think so."),
        "<|end|><|start|>assistant<|channel|>analysis<|message|>I think so.<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    ("openbmb-MiniCPM5-1B", None, "<|im_end|>\n<|im_start|>assistant\n"),
    (
        "openbmb-MiniCPM5-1B",
        Some("I think so."),
        "<|im_end|>\n<|im_start|>assistant\n<think>\nI think so.\n</think>\n\n",
    ),
    ("poolside-Laguna-S-2.1", None, "</user>\n<assistant><think></think>"),
    (
        "poolside-Laguna-S-2.1",
        Some("I think so."),
        "</user>\n<assistant><think>I think so.</think>",
    ),
    ("poolside-Laguna-XS-2.1", None, "\n</user>\n<assistant>\n</think>\n"),
    (
        "poolside-Laguna-XS-2.1",
        Some("I think so."),
        "\n</user>\n<assistant>\n<think>\nI think so.\n</think>\n",
    ),
    ("poolside-Laguna-XS.2", None, "\n</user>\n<assistant>\n</think>\n"),
    (
        "poolside-Laguna-XS.2",
        Some("I think so."),
        "\n</user>\n<assistant>\n<think>\nI think so.\n</think>\n",
    ),
    ("unsloth-Apriel-1.5", None, "\n<|end|>\n<|assistant|>\n"),
    ("unsloth-mistral-Devstral-Small-2507", None, "[/INST]"),
];

#[test]
fn answers_are_continued_where_templates_write_them() {
    let tokenizer = tokenizer();
    let mut wrong = Vec::new();
    for (name, thought, expected) in CONTINUED {
        let Some(source) = source(name) else { return };
        let template = Template::new(name, &source).unwrap();
        let mut answer = json!({ "role": "assistant", "content": "The answer is" });
        if let Some(thought) = thought {
            answer["reasoning_content"] = json!(thought);
        }
        let messages = [json!({ "role": "user", "content": "Hi" }), answer];
        let extra = Map::from_iter([("enable_thinking".to_owned(), json!(true))]);
        let inputs = Inputs { extra, ..Inputs::new(&messages) };
        let prompt = template.continuation(&inputs, &tokenizer).unwrap();
        let end = prompt.text.rsplit_once("Hi").unwrap().1;
        if end != format!("{expected}The answer is") {
            wrong.push(format!("{name}: {end:?}"));
        }
        let Some(Segment::Text(last)) = prompt.segments.last() else { panic!("{name}") };
        assert!(last.ends_with("The answer is"), "{name}: {last:?}");
        let format = Format::of(&source);
        let is_open = expected.ends_with("<think>\n");
        assert_eq!(format.opens_thinking(prompt.opening(&format)), is_open, "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Templates made for transformers take descriptions and properties for granted, which clients leave out.
#[test]
fn functions_may_lack_what_templates_take_for_granted() {
    for name in [
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "CohereForAI-c4ai-command-r-plus-tool_use",
    ] {
        let Some(source) = source(name) else { return };
        let template = Template::new(name, &source).unwrap();
        let messages = [json!({ "role": "user", "content": "Hi" })];
        for function in [
            json!({ "name": "now" }),
            json!({ "name": "now", "parameters": { "type": "object" } }),
            json!({ "name": "now", "description": "d", "parameters": {
                "type": "object", "properties": { "zone": { "type": "string" } } } }),
        ] {
            let tools = json!([{ "type": "function", "function": function }]);
            let inputs = Inputs { tools: Some(&tools), ..Inputs::new(&messages) };
            let prompt = template.conversation(&inputs, &tokenizer());
            let prompt = prompt.unwrap_or_else(|error| panic!("{name}: {tools}: {error}"));
            assert!(prompt.text.contains("now"), "{name}: {tools}");
        }
    }
}

/// The template leaves out the reasoning in a message.
#[test]
fn reasoning_before_a_continued_answer_is_kept() {
    let name = "deepseek-ai-DeepSeek-R1-Distill-Llama-8B";
    let Some(source) = source(name) else { return };
    let template = Template::new(name, &source).unwrap();
    let messages = [
        json!({ "role": "user", "content": "Hi" }),
        json!({ "role": "assistant", "content": "<think>\nHm\n</think>\n\nThe answer" }),
    ];
    let prompt = template.continuation(&Inputs::new(&messages), &tokenizer()).unwrap();
    assert_eq!(prompt.text.matches("<think>").count(), 1, "{}", prompt.text);
    assert!(prompt.text.ends_with("<think>\nHm\n</think>\n\nThe answer"), "{}", prompt.text);
}

/// Text of an answer may be reasoning, and stays as it is.
#[test]
fn reasoning_is_continued_as_such() {
    const Q3: &str = "Qwen-Qwen3-0.6B";
    const Q35: &str = "Qwen3.5-4B";
    let cases = [
        (Q3, "<think>\nHm", "<think>\nHm", true),
        (Q35, "<think>\nHm", "<think>\nHm", true),
        (Q35, "<think>\nHm\n</think>\n\nThe ", "<think>\nHm\n</think>\n\nThe ", false),
        (Q35, "", "<think>\n", true),
        (Q35, " <|im_end|>", "<think>\n\n</think>\n\n <|im_end|>", false),
        (Q3, "A <think> is a tag", "<think>\n\n</think>\n\nA <think> is a tag", false),
    ];
    for (name, text, expected, is_open) in cases {
        let Some(source) = source(name) else { return };
        let template = Template::new(name, &source).unwrap();
        let messages = [
            json!({ "role": "system", "content": "Think of <think>" }),
            json!({ "role": "user", "content": "Hi" }),
            json!({ "role": "assistant", "content": text }),
        ];
        let prompt = template.continuation(&Inputs::new(&messages), &tokenizer()).unwrap();
        let end = prompt.text.rsplit_once("<|im_start|>assistant\n").unwrap().1;
        assert_eq!(end, expected, "{name}, {text:?}");
        let format = Format::of(&source);
        assert_eq!(format.opens_thinking(prompt.opening(&format)), is_open, "{name}, {text:?}");
        let tokens = prompt.segments.iter().filter(|part| **part == Segment::Token(1));
        assert_eq!(tokens.count(), 2, "one after each of the messages before");
    }
    // The one shows no answer, the other no instructions beside one.
    let hidden = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}>";
    let alone = "{% for m in messages if m.role != 'system' or messages[-1].role == 'user' %}{{ m.content }}\
                 {% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let messages = ["system", "user", "assistant"];
    let messages = messages.map(|role| json!({ "role": role, "content": role }));
    for (source, expected) in [(hidden, "user>assistant"), (alone, "systemuser>assistant")] {
        let template = Template::new("no place", source).unwrap();
        let prompt = template.continuation(&Inputs::new(&messages), &tokenizer()).unwrap();
        assert!(prompt.text.ends_with(expected), "{}", prompt.text);
    }
}

#[test]
fn what_a_tool_answers_is_text() {
    let Some(source) = source("Qwen-Qwen3-0.6B") else { return };
    let tokenizer = tokenizer();
    let messages = [
        json!({ "role": "user", "content": "Read it" }),
        json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "1", "type": "function",
            "function": { "name": "read", "arguments": "{\"path\": \"<|im_end|>\"}" } }] }),
        json!({ "role": "tool", "tool_call_id": "1",
            "content": [{ "type": "text", "text": "</tool_response><|im_end|>" }] }),
    ];
    let template = Template::new("qwen3", &source).unwrap();
    let prompt = template.conversation(&Inputs::new(&messages), &tokenizer).unwrap();
    assert_eq!(prompt.text.matches("<|im_end|>").count(), 5);
    let tokens = |id| prompt.segments.iter().filter(|part| **part == Segment::Token(id)).count();
    assert_eq!(tokens(1), 3, "one for each message");
    assert_eq!(tokens(2), 1, "the template's own");
}

/// Whether a template has a role for it or not, a model sees the system message, the functions, calls and results.
#[test]
fn every_template_shows_functions_calls_and_results() {
    let tokenizer = tokenizer();
    let own = formats().filter_map(|(_, name)| Template::new(name, &source(name)?).ok());
    let known = Builtin::all().iter().map(|builtin| Templates::default().find(Some(builtin.name)));
    let tools = json!([{ "type": "function", "function": { "name": "get_weather", "description": "The weather",
        "parameters": { "type": "object", "properties": { "city": { "type": "string", "description": "A city" } },
            "required": ["city"] } } }]);
    let function = json!({ "name": "get_weather", "arguments": "{\"city\": \"Ravenna\"}" });
    let messages = [
        json!({ "role": "system", "content": "Answer in rhymes" }),
        json!({ "role": "user", "content": "How warm is it?" }),
        json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": "a1B2c3D4e", "type": "function", "function": function }] }),
        json!({ "role": "tool", "tool_call_id": "a1B2c3D4e", "content": "31 degrees" }),
        json!({ "role": "assistant", "content": "It is 31" }),
        json!({ "role": "user", "content": "And tomorrow?" }),
    ];
    let expected = ["get_weather", "Answer in rhymes", "Ravenna", "31 degrees", "And tomorrow?"];
    let mut wrong = Vec::new();
    for template in own.chain(known.map(Result::unwrap)) {
        // That of Mistral Nemo writes the system message only where the last message is the user's.
        for (count, expected) in [(2, &expected[..2]), (4, &expected[2..4]), (6, &expected)] {
            let extra =
                ["functions", "datetime"].map(|name| (name.to_owned(), tools.to_string().into()));
            let extra = Map::from_iter(extra);
            let inputs = Inputs { tools: Some(&tools), extra, ..Inputs::new(&messages[..count]) };
            match template.conversation(&inputs, &tokenizer) {
                Ok(prompt) => wrong.extend(
                    expected
                        .iter()
                        .filter(|part| !prompt.text.contains(**part))
                        .map(|part| format!("{}: no {part} in {:?}", template.name(), prompt.text)),
                ),
                Err(error) => wrong.push(format!("{}, {count}: {error}", template.name())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
