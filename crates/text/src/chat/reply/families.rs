//! The table of reply formats: how each is recognised, and its markers.

/// How one family of models writes tool calls.
#[derive(Debug)]
pub struct Family {
    /// Its name, in reports and tests.
    pub name: &'static str,
    /// A template is of this family if it contains all texts of one of these lists. Earlier families come first.
    pub signs: &'static [&'static [&'static str]],
    /// How calls are written.
    pub calls: Syntax,
    /// Markers around the answer, which are no part of it.
    pub wrappers: &'static [&'static str],
}

/// How calls are written.
#[derive(Debug)]
pub enum Syntax {
    /// JSON objects with the keys `name` and `arguments`, or their like.
    Envelope(Envelope),
    /// A name between markers, then the arguments.
    Framed(Framed),
    /// `name(key=value)` or `name{key:value}`.
    Literal(Literal),
    /// Messages with headers that name a channel or recipient.
    Channels(Channels),
}

/// JSON objects that hold name and arguments, several of them in a list or one after the other.
#[derive(Debug)]
pub struct Envelope {
    /// Markers before the first object.
    pub open: &'static [&'static str],
    /// Markers after the last one.
    pub close: &'static [&'static str],
    /// The keys of the name and the arguments in a grammar; all known spellings are read.
    pub keys: Keys,
    /// Where an object may begin a call without a marker.
    pub bare: Bare,
    /// Whether a list surrounds the objects in a grammar; both forms are read.
    pub list: bool,
}

/// How an [`Envelope`] names its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// `{"name": NAME, KEY: ARGUMENTS}`
    Arguments(&'static str),
    /// `{"tool_call_id": "0", "tool_name": NAME, "parameters": ARGUMENTS}`
    Numbered,
    /// `{"tool_name": NAME, "parameters": ARGUMENTS}`
    ToolName,
    /// `{NAME: ARGUMENTS}`
    Name,
}

/// Whether a reply may begin with a call that has no marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bare {
    /// No.
    Never,
    /// Yes, if its first character is this one.
    At(&'static str),
}

/// A name between markers, then the arguments.
#[derive(Debug)]
pub struct Framed {
    /// Markers before the first call.
    pub section: &'static [&'static str],
    /// Markers after the last call of a section.
    pub section_end: &'static [&'static str],
    /// Whether each call may be in a section of its own in a grammar.
    pub repeats_section: bool,
    /// The marker before a name.
    pub call: &'static str,
    /// What is between `call` and the name in a grammar; read where present. Of one with a marker, anything may precede it.
    pub prefix: &'static str,
    /// What follows the name in a grammar, up to the arguments.
    pub name_end: &'static str,
    /// What may follow a name, and up to where the text after it is skipped.
    pub name_ends: &'static [(&'static str, &'static str)],
    /// How arguments are written.
    pub body: Body,
    /// What may follow the arguments; nothing needs to if this is empty.
    pub call_end: &'static [&'static str],
    /// Whether a reply begins with a name, because the prompt ends with `call`.
    pub is_begun: bool,
    /// The name before content.
    pub content_name: Option<&'static str>,
}

/// How arguments are written.
#[derive(Debug)]
pub enum Body {
    /// As a JSON object.
    Json,
    /// Each in tags of its own.
    Tagged(Tags),
}

/// The tags of an argument.
#[derive(Debug)]
pub struct Tags {
    /// Before the key.
    pub key: &'static str,
    /// After the key.
    pub key_end: &'static str,
    /// Where attributes after `key_end` end; empty without attributes.
    pub attributes_end: &'static str,
    /// Before the value, if the key has an end tag.
    pub value: &'static str,
    /// After the value.
    pub value_end: &'static str,
    /// How the value is laid out.
    pub layout: Layout,
}

/// The layout of a tagged value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The value as it is.
    Inline,
    /// One line break before and after it is no part of it.
    Lines,
    /// The end tag holds the key: `value_end`, key, `>`.
    Mirrored,
}

/// Calls written as in a programming language.
#[derive(Debug)]
pub struct Literal {
    /// Markers before the first call.
    pub open: &'static [&'static str],
    /// Markers after the last call.
    pub close: &'static [&'static str],
    /// What precedes a name.
    pub prefix: &'static str,
    /// How calls and their arguments are written.
    pub style: Style,
    /// Where a call may begin without a marker.
    pub bare: Bare,
}

/// The language of [`Literal`] calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `[name(key='value', other=1)]`
    Python,
    /// `name{key:QvalueQ,other:1}` with this quote Q.
    Braces(&'static str),
}

/// Messages with headers.
#[derive(Debug)]
pub struct Channels {
    /// Markers that end a message.
    pub ends: &'static [&'static str],
    /// What may follow the recipient in the header of a call: of each part one spelling or nothing, in a call that we
    /// write the first.
    pub header: &'static [&'static [&'static str]],
    /// Markup of calls in a body; JSON if absent.
    pub markup: Option<&'static Framed>,
}

/// Tags around reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinking {
    /// A text of templates whose models use these tags.
    pub sign: &'static str,
    /// The opening tag, without white space around it.
    pub open: &'static str,
    /// The closing tag.
    pub close: &'static str,
}

macro_rules! thinking {
    ($($sign:literal: $open:literal $close:literal;)*) => {
        &[$(Thinking { sign: $sign, open: $open, close: $close }),*]
    };
}

/// All tags; the last row is for templates that name none.
pub const THINKING: &[Thinking] = thinking! {
    "<seed:think>": "<seed:think>" "</seed:think>";
    "<mm:think>": "<mm:think>" "</mm:think>";
    "<|START_THINKING|>": "<|START_THINKING|>" "<|END_THINKING|>";
    "<|inner_prefix|>": "<|inner_prefix|>" "<|inner_suffix|>";
    "[THINK]": "[THINK]" "[/THINK]";
    "◁think▷": "◁think▷" "◁/think▷";
    "<|channel>": "<|channel>thought" "<channel|>";
    "[BEGIN FINAL RESPONSE]": "Here are my reasoning steps:" "[BEGIN FINAL RESPONSE]";
    "<|end_of_msg|>": "<|open|>think<|sep|>" "<|close|>think<|sep|>";
    "<|think|>": "<|think|>" "<|end|><|begin|>assistant";
    "[unused16]": "[unused16]" "[unused17]";
    "<thought>": "<thought>" "</thought>";
    "</think>": "<think>" "</think>";
    "</thinking>": "<thinking>" "</thinking>";
    "": "<think>" "</think>";
};

const JSON: Keys = Keys::Arguments("arguments");

const fn tagged(open: &'static [&'static str], close: &'static [&'static str]) -> Envelope {
    Envelope { open, close, keys: JSON, bare: Bare::Never, list: false }
}

const fn list(open: &'static [&'static str], close: &'static [&'static str]) -> Envelope {
    Envelope { list: true, ..tagged(open, close) }
}

const fn json_frame(call: &'static str, name_end: &'static str) -> Framed {
    Framed {
        section: &[],
        section_end: &[],
        repeats_section: false,
        call,
        prefix: "",
        name_end,
        name_ends: &[],
        body: Body::Json,
        call_end: &[],
        is_begun: false,
        content_name: None,
    }
}

const fn attribute_tags(
    key: &'static str,
    attributes_end: &'static str,
    value_end: &'static str,
) -> Tags {
    Tags { key, key_end: "\"", attributes_end, value: "", value_end, layout: Layout::Inline }
}

/// `<function=NAME>` with `<parameter=KEY>` lines.
const fn qwen(section: &'static [&'static str], section_end: &'static [&'static str]) -> Framed {
    Framed {
        section,
        section_end,
        repeats_section: true,
        call: "<function=",
        name_ends: &[(">", "")],
        body: Body::Tagged(Tags {
            key: "<parameter=",
            key_end: ">",
            attributes_end: "",
            value: "",
            value_end: "</parameter>",
            layout: Layout::Lines,
        }),
        call_end: &["</function>"],
        ..json_frame("", ">\n")
    }
}

/// `NAME` in an attribute, arguments in tags with attributes.
const fn invoke(section: [&'static [&'static str]; 2], call: &'static str, tags: Tags) -> Framed {
    Framed {
        section: section[0],
        section_end: section[1],
        call,
        name_ends: &[("\"", ">")],
        body: Body::Tagged(tags),
        ..json_frame("", "\">\n")
    }
}

/// Calls of DeepSeek's models from V3.2 on.
const fn dsml(section: [&'static [&'static str]; 2]) -> Framed {
    Framed {
        call_end: &["</｜DSML｜invoke>"],
        ..invoke(
            section,
            "<｜DSML｜invoke name=\"",
            attribute_tags("<｜DSML｜parameter name=\"", ">", "</｜DSML｜parameter>"),
        )
    }
}

const ATEM: Framed = Framed {
    call_end: &["</atem:invoke>"],
    ..invoke(
        [&["<atem:function_calls>"], &["</atem:function_calls>"]],
        "<atem:invoke name=\"",
        attribute_tags("<atem:parameter name=\"", ">", "</atem:parameter>"),
    )
};

macro_rules! families {
    ($($name:literal $signs:expr, $calls:expr $(, drops [$($wrapper:literal),*])?;)*) => {
        &[$(Family {
            name: $name,
            signs: &$signs,
            calls: $calls,
            wrappers: &[$($($wrapper),*)?],
        }),*]
    };
}

use Syntax::{Channels as Ch, Envelope as Json, Framed as Frame, Literal as Lit};

/// All families, the generic one last.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = families! {
    "gpt-oss" [&["<|channel|>", "<|message|>"]], Ch(Channels {
        ends: &["<|end|>", "<|call|>", "<|return|>"],
        header: &[&["<|channel|>commentary"],
            &[" <|constrain|>json", "<|constrain|>json", " json", " "]], markup: None,
    });
    "muse" [&["<atem:function_calls>"]], Ch(Channels {
        ends: &["<|eom|>", "<|eot|>"], header: &[], markup: Some(&ATEM),
    });
    "kimi-k3" [&["<|open|>", "<|end_of_msg|>"]], Frame(Framed {
        name_ends: &[("\"", "<|sep|>")], name_end: "\" index=\"1\"<|sep|>",
        call_end: &["<|close|>call<|sep|>"],
        ..invoke([&["<|open|>tools<|sep|>"], &["<|close|>tools<|sep|>"]], "<|open|>call tool=\"",
            attribute_tags("<|open|>argument key=\"", "<|sep|>", "<|close|>argument<|sep|>"))
    }), drops ["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"];
    "kimi-k2" [&["<|tool_call_begin|>"]], Frame(Framed {
        section: &["<|tool_calls_section_begin|>"], section_end: &["<|tool_calls_section_end|>"],
        prefix: "functions.", call_end: &["<|tool_call_end|>"],
        name_ends: &[("<|tool_call_argument_begin|>", "")],
        ..json_frame("<|tool_call_begin|>", ":0<|tool_call_argument_begin|>")
    });
    "solar-open" [&["<|tool_call:begin|>"]], Frame(Framed {
        section: &["<|tool_calls|>"], prefix: "0<|tool_call:name|>", call_end: &["<|tool_call:end|>"],
        name_ends: &[("<|tool_call:args|>", "")],
        ..json_frame("<|tool_call:begin|>", "<|tool_call:args|>")
    }), drops ["<|content|>", "<|end|><|begin|>assistant"];
    "deepseek-v4" [&["｜DSML｜", "tool_calls>"]], Frame(dsml([
        &["<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"],
        &["</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"],
    ]));
    "deepseek-dsml" [&["｜DSML｜"]], Frame(dsml([
        &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
        &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    ]));
    "deepseek-r1" [&["<｜tool▁call▁begin｜>", "```json"]], Frame(Framed {
        section: &["<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<|tool▁calls▁begin|>"],
        section_end: &["<｜tool▁calls▁end｜>"], prefix: "function<｜tool▁sep｜>",
        name_ends: &[("\n```json\n", ""), ("\n```\n", "")],
        call_end: &["```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"],
        ..json_frame("<｜tool▁call▁begin｜>", "\n```json\n")
    });
    "deepseek-v3.1" [&["<｜tool▁call▁begin｜>"]], Frame(Framed {
        section: &["<｜tool▁calls▁begin｜>"], section_end: &["<｜tool▁calls▁end｜>"],
        name_ends: &[("<｜tool▁sep｜>", "")], call_end: &["<｜tool▁call▁end｜>"],
        ..json_frame("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")
    });
    "minimax-m3" [&["]<]minimax[>["]], Frame(Framed {
        call_end: &["]<]minimax[>[</invoke>"],
        ..invoke([&["]<]minimax[>[<tool_call>"], &["]<]minimax[>[</tool_call>"]],
            "]<]minimax[>[<invoke name=\"", Tags {
                key: "]<]minimax[>[<", key_end: ">", attributes_end: "", value: "",
                value_end: "]<]minimax[>[</", layout: Layout::Mirrored,
            })
    });
    "minimax-m2" [&["<minimax:tool_call>"]], Frame(Framed {
        call_end: &["</invoke>"],
        ..invoke([&["<minimax:tool_call>"], &["</minimax:tool_call>"]], "<invoke name=\"",
            attribute_tags("<parameter name=\"", ">", "</parameter>"))
    });
    "seed-oss" [&["<seed:tool_call>"]], Frame(qwen(&["<seed:tool_call>"], &["</seed:tool_call>"]));
    "gemma4" [&["<|tool_call>"]], Lit(Literal {
        open: &["<|tool_call>"], close: &["<tool_call|>"], prefix: "call:",
        style: Style::Braces("<|\"|>"), bare: Bare::Never,
    });
    "functiongemma" [&["<start_function_call>"]], Lit(Literal {
        open: &["<start_function_call>"], close: &["<end_function_call>"], prefix: "call:",
        style: Style::Braces("<escape>"), bare: Bare::Never,
    });
    "lfm2" [&["<|tool_call_start|>"], &["<|tool_list_start|>"]], Lit(Literal {
        open: &["<|tool_call_start|>"], close: &["<|tool_call_end|>"], prefix: "",
        style: Style::Python, bare: Bare::Never,
    });
    "command-r7b" [&["<|START_ACTION|>"]], Json(Envelope {
        keys: Keys::Numbered, ..list(&["<|START_ACTION|>"], &["<|END_ACTION|>"])
    }), drops ["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"];
    "command-r" [&["Action:", "tool_name"]], Json(Envelope {
        keys: Keys::ToolName, ..list(&["Action:\n```json\n", "Action: ```json\n"], &["```"])
    }), drops ["<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"];
    "apertus" [&["<|tools_prefix|>"]], Json(Envelope {
        keys: Keys::Name, ..list(&["<|tools_prefix|>"], &["<|tools_suffix|>"])
    });
    "glm" [&["<arg_key>"]], Frame(Framed {
        name_ends: &[("\n", ""), ("<arg_key>", ""), ("</tool_call>", "")],
        body: Body::Tagged(Tags {
            key: "<arg_key>", key_end: "</arg_key>", attributes_end: "", value: "<arg_value>",
            value_end: "</arg_value>", layout: Layout::Inline,
        }),
        call_end: &["</tool_call>"],
        ..json_frame("<tool_call>", "\n")
    });
    "minicpm5" [&["<param name="]], Frame(Framed {
        call_end: &["</function>"],
        ..invoke([&[], &[]], "<function name=\"", attribute_tags("<param name=\"", ">", "</param>"))
    });
    "qwen3-coder" [&["<function=", "<parameter="]], Frame(qwen(&["<tool_call>"], &["</tool_call>"]));
    "functionary-v3.1" [&["<function="]], Frame(Framed {
        name_ends: &[(">", "")], call_end: &["</function>"], ..json_frame("<function=", ">")
    });
    "functionary-v3.2" [&[">>>all"], &[">>>${recipient}"]], Frame(Framed {
        name_ends: &[("\n", "")], is_begun: true, content_name: Some("all"), ..json_frame(">>>", "\n")
    });
    "gigachat3.1" [&["<|function_call|>"]], Json(tagged(&["<|function_call|>"], &[]));
    "gigachat3" [&["'role': 'function call'", "role_sep"]], Json(tagged(
        &["<|message_sep|>\n\nfunction call<|role_sep|>\n"], &[]));
    "mistral" [&["[TOOL_CALLS]", "[ARGS]"]], Frame(Framed {
        name_ends: &[("[ARGS]", ""), ("[CALL_ID]", "[ARGS]")],
        ..json_frame("[TOOL_CALLS]", "[ARGS]")
    });
    "mistral-v3" [&["[TOOL_CALLS]"]], Json(list(&["[TOOL_CALLS]"], &[]));
    "nemotron" [&["<TOOLCALL>"]], Json(list(&["<TOOLCALL>"], &["</TOOLCALL>"]));
    "firefunction" [&["functools["]], Json(list(&["functools"], &[]));
    "phi4" [&["<|tool_call|>", "<|/tool_call|>"]], Json(
        list(&["<|tool_call|>"], &["<|/tool_call|>"]));
    "granite3" [&["<|tool_call|>"]], Json(list(&["<|tool_call|>"], &[])),
        drops ["<response>", "</response>"];
    "apriel" [&["<tool_calls>[", "BEGIN FINAL RESPONSE"], &["<tool_calls>[", "<thinking>"]], Json(
        list(&["<tool_calls>"], &["</tool_calls>"]));
    "minimax-m1" [&["<tool_calls>"]], Json(tagged(&["<tool_calls>"], &["</tool_calls>"]));
    "hermes" [&["<tool_call>"]], Json(tagged(&["<tool_call>"], &["</tool_call>"]));
    "llama4" [&["<|python_start|>"]], Lit(Literal {
        open: &["<|python_start|>"], close: &["<|python_end|>"], prefix: "",
        style: Style::Python, bare: Bare::At("["),
    });
    "llama3" [&["<|python_tag|>"], &["\"parameters\": dictionary of argument name"]], Json(Envelope {
        keys: Keys::Arguments("parameters"), bare: Bare::At("{"), ..tagged(&["<|python_tag|>"], &[])
    });
    "gemma3" [&["tool_code"]], Lit(Literal {
        open: &["```tool_code\n"], close: &["```"], prefix: "", style: Style::Python,
        bare: Bare::Never,
    });
    "generic" [&[]], Json(Envelope {
        bare: Bare::At("{"), ..tagged(&["<tool_call>"], &["</tool_call>"])
    });
};
