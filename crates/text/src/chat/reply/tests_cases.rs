//! Recorded forms of replies, by family.

use super::Case;

macro_rules! cases {
    ($($format:literal $reply:literal
        $(thinks $reasoning:literal)? $(says $content:literal)? $(calls $($name:ident $arguments:literal),+)?;)*) => {
        &[$(Case {
            format: $format,
            reply: $reply,
            reasoning: concat!($($reasoning)?),
            content: concat!($($content)?),
            calls: &[$($((stringify!($name), $arguments)),+)?],
        }),*]
    };
}

#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    "hermes" "Hello,\nworld!  " says "Hello,\nworld!  ";
    "hermes" "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>" calls weather r#"{"city": "Oslo", "days": 2}"#;
    "hermes" "One moment.\n<tool_call>{\"name\": \"none\", \"arguments\": {}}</tool_call>" says "One moment." calls none "{}";
    "hermes" "<think>\nHm.\n</think>\n\nHi <think>" thinks "Hm." says "Hi <think>";
    "hermes" "<think>a <think> b</think>Hi" thinks "a <think> b" says "Hi";
    "hermes" "<think>a <tool_call> b</think><tool_call>\n{\"name\": \"none\"}\n</tool_call>" thinks "a <tool_call> b" calls none "{}";
    "hermes" "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\": \"A\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\": \"B\"}}\n</tool_call>" calls time r#"{"city": "A"}"#, time r#"{"city": "B"}"#;
    "hermes" "<tool_call>{\"arguments\": {\"city\": \"}\\\"{\"}, \"name\": \"time\"}</tool_call> done" says "done" calls time r#"{"city": "}\"{"}"#;
    "hermes" "<tool_call>{\"name\": \"time\", \"arguments\": \"{\\\"city\\\": \\\"Rome\\\"}\"}</tool_call>" calls time r#"{"city": "Rome"}"#;
    "hermes" "<tool_call>{\"name\": \"nosuch\", \"arguments\": {}}</tool_call>" says "<tool_call>{\"name\": \"nosuch\", \"arguments\": {}}</tool_call>";
    "hermes" "Write <tool_call> around it." says "Write <tool_call> around it.";
    "hermes" "a <tool_call>oops <tool_call>{\"name\": \"none\"}</tool_call>" says "a <tool_call>oops" calls none "{}";
    "hermes" "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"a\nb\"}}\n</tool_call>" calls run r#"{"code": "a\nb"}"#;
    "hermes" "<tool_call>\n{\"name\": \"time\", \"argu" says "<tool_call>\n{\"name\": \"time\", \"argu";
    "hermes" "<tool_call>{\"name\": \"none\", \"arguments\": null, \"id\": 7}</tool_call>" calls none "{}";
    "hermes" "<tool_call>{\"name\": \"none\", \"arguments\": {}, \"why\": 1}</tool_call> <tool_call>oops" says ": 1}</tool_call> <tool_call>oops" calls none "{}";
    "hermes" "<tool_call>{\"name\": \"none\", \"arguments\": {}; <tool_call>oops" says "; <tool_call>oops" calls none "{}";
    "hermes" "</think>Hi" says "Hi";
    "hermes" "x < y && <tool> or </think>" says "x < y && <tool> or </think>";
    "hermes" "<tool_call>[{\"name\": \"none\"}, {\"name\": \"none\"}]</tool_call>" calls none "{}", none "{}";
    "hermes" "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"it\\'s \\$5 \\u12\"}}</tool_call> done" says "done" calls run r#"{"code": "it's \\$5 \\u12"}"#;
    "hermes" "<tool_call>{\"name\": \"run\", \"arguments\": \"{\\\"code\\\": \\\"it\\'s\\\"}\"}</tool_call>" calls run r#"{"code": "it's"}"#;
    "mistral" "[TOOL_CALLS]run[ARGS]{\"code\": \"\\d\\_\"}" calls run r#"{"code": "\\d\\_"}"#;
    "gpt-oss" " to=functions.run<|channel|>commentary json<|message|>{\"code\": \"\\d\\u1\"}<|call|>" calls run r#"{"code": "\\d\\u1"}"#;
    "qwen3-coder" "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>" calls weather r#"{"city": "New\nYork", "days": 3}"#;
    "qwen3-coder" "<function=run><parameter=code>if a < b:\n  f(\"</p>\")</parameter></function>" calls run r#"{"code": "if a < b:\n  f(\"</p>\")"}"#;
    "qwen3-coder" "<function=none>\n</function>\n</tool_call>\n\nSo" says "So" calls none "{}";
    "qwen3-coder" "<function=none>\n</function>\n<function=none>\n</function>\n</tool_call>" calls none "{}", none "{}";
    "qwen3-coder" "<function=none>\n</function>\n</tool>" says "</tool>" calls none "{}";
    "qwen3-coder" "So:\n\n<tool_call>\n<function=none>\n</function>\n</tool_call>" says "So:" calls none "{}";
    "qwen3-coder" "<tool_call>\n<function=time>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[1, \"a\"]\n</parameter>\n<parameter=any>\n12\n</parameter>\n</function>\n<function=none>\n</function>\n</tool_call>" calls time r#"{"exact": true, "tags": [1, "a"], "any": 12}"#, none "{}";
    "qwen3-coder" "<tool_call>\n<function=nosuch>\n</function>\n</tool_call>" says "<tool_call>\n<function=nosuch>\n</function>\n</tool_call>";
    "qwen3-coder" "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>" calls none "{}";
    "qwen3-coder" "<tool_call>\n<function=time>\n<parameter=days>\nsoon\n</parameter>\n</function>\n</tool_call>" calls time r#"{"days": "soon"}"#;
    "qwen3-coder" "<think>\nx\n</think>\n\n<tool_call>\n<function=time>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>" thinks "x" calls time r#"{"unit": "C"}"#;
    "llama3" "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}" calls weather r#"{"city": "Oslo"}"#;
    "llama3" "<|python_tag|>{\"name\": \"time\", \"parameters\": {}}" calls time "{}";
    "llama3" "{\"name\": \"none\", \"parameters\": {}}; {\"name\": \"none\", \"parameters\": {}}" calls none "{}", none "{}";
    "llama3" "{\"type\": \"function\", \"name\": \"time\", \"parameters\": {\"days\": 1}}" calls time r#"{"days": 1}"#;
    "llama3" "{\"type\": \"function\", \"function\": {\"name\": \"time\", \"parameters\": {\"days\": 1}}}" calls time r#"{"days": 1}"#;
    "llama3" "{\"answer\": 42}" says "{\"answer\": 42}";
    "llama3" "A set is {1, 2}." says "A set is {1, 2}.";
    "mistral" "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}" calls weather r#"{"city": "Oslo"}"#;
    "mistral" "[TOOL_CALLS]time[CALL_ID]123456789[ARGS]{\"days\": 1}[TOOL_CALLS]none[ARGS]{}" calls time r#"{"days": 1}"#, none "{}";
    "mistral" "Yes.[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}, \"id\": \"abcdefghi\"}]" says "Yes." calls time "{}";
    "mistral" "[THINK]Hm[/THINK]Hello" thinks "Hm" says "Hello";
    "mistral" "[TOOL_CALLS]oops, no" says "[TOOL_CALLS]oops, no";
    "mistral-v3" "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {\"city\": \"A\"}, \"id\": \"123456789\"}, {\"name\": \"none\", \"arguments\": {}}]" calls time r#"{"city": "A"}"#, none "{}";
    "mistral-v3" " [TOOL_CALLS] [{\"name\": \"none\", \"arguments\": {}}]" calls none "{}";
    "deepseek-r1" "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>" calls weather r#"{"city": "Oslo"}"#;
    "deepseek-r1" "<think>Hm</think>Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>none\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{\"days\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>" thinks "Hm" says "Hi" calls none "{}", time r#"{"days": 1}"#;
    "deepseek-r1" "<｜tool▁call▁begin｜>function<｜tool▁sep｜>none\n```json\n{}```<｜tool▁call▁end｜>" calls none "{}";
    "deepseek-v3.1" "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{\"city\": \"A\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>none<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>" calls time r#"{"city": "A"}"#, none "{}";
    "deepseek-v3.1" "REASON</think>" says "REASON</think>";
    "deepseek-v4" "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"none\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" calls none "{}";
    "deepseek-dsml" "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"any\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>" calls weather r#"{"city": "12", "any": [1]}"#;
    "deepseek-dsml" "</think>\n\nSo\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"none\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"none\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" says "So" calls none "{}", none "{}";
    "glm" "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>" calls weather r#"{"city": "Oslo", "days": 2}"#;
    "glm" "<tool_call>time<arg_key>city</arg_key><arg_value> a\n</arg_value></tool_call><tool_call>none</tool_call>" calls time r#"{"city": " a\n"}"#, none "{}";
    "glm" "<think></think>\n<tool_call>none\n</tool_call>" calls none "{}";
    "glm" "Use <tool_call> tags" says "Use <tool_call> tags";
    "glm" "<tool_call>time\n<arg_key>city</arg_key>Oslo" says "<arg_key>city</arg_key>Oslo" calls time "{}";
    "kimi-k2" "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>{\"city\": \"A\"}<|tool_call_end|><|tool_call_begin|>functions.none:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>" calls time r#"{"city": "A"}"#, none "{}";
    "kimi-k2" "<think>x</think>Ok<|tool_calls_section_begin|><|tool_call_begin|>none:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>" thinks "x" says "Ok" calls none "{}";
    "kimi-k3" "<|open|>response<|sep|>Hi, a <|sep|><|close|>response<|sep|><|close|>message<|sep|>" says "Hi, a <|sep|>";
    "kimi-k3" "<|open|>think<|sep|>x<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"time\" index=\"1\"<|sep|><|open|>argument key=\"any\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"none\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>" thinks "x" calls time r#"{"any": 1, "city": "1"}"#, none "{}";
    "gpt-oss" "<|channel|>final<|message|>Hello.\n" says "Hello.\n";
    "gpt-oss" "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi" thinks "Hm" says "Hi";
    "gpt-oss" "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{\"city\": \"A\"}<|call|>" thinks "Hm" calls time r#"{"city": "A"}"#;
    "gpt-oss" "<|channel|>commentary to=functions.time <|constrain|>json<|message|>{\"days\": 1}" calls time r#"{"days": 1}"#;
    "gpt-oss" " to=functions.none<|channel|>analysis<|message|>{}" calls none "{}";
    "gpt-oss" "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi" thinks "Hm" says "Hi";
    "gpt-oss" "Plain text" says "Plain text";
    "gpt-oss" "<|channel|>fin" says "<|channel|>fin";
    "gpt-oss" "<|chan" says "<|chan";
    "gpt-oss" "<|start|>x" says "<|start|>x";
    "gpt-oss" "<|message|>Hi<|end|>" says "Hi";
    "gpt-oss" " to=all<|message|>Hi" says "Hi";
    "gpt-oss" "to=user<|channel|>analysis<|message|>Hm" thinks "Hm";
    "gpt-oss" " to=functions.none<|message|>oops<|end|>" says " to=functions.none<|message|>oops";
    "gpt-oss" " to=functions.none<|message|> " says " to=functions.none<|message|>";
    "gpt-oss" " to=functions.none<|message|><|ca" says " to=functions.none<|message|><|ca";
    "gpt-oss" " to=functions.none<|message|>{}\n<|call|>" calls none "{}";
    "gpt-oss" " to=functions.none<|message|>{} x" says "x" calls none "{}";
    "gpt-oss" "<|channel|>commentary to=functions.nosuch<|message|>{}" says "<|channel|>commentary to=functions.nosuch<|message|>{}";
    "gpt-oss" "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.none<|message|><|call|>" says "I will look." calls none "{}";
    "gpt-oss" "<|channel|>commentary to=python<|message|>print(1)" says "<|channel|>commentary to=python<|message|>print(1)";
    "muse" " to=user<|message|>Hello.<|eot|>" says "Hello.";
    "muse" " to=self<|message|>Hm<|eom|><|start|>assistant to=time<|message|><atem:function_calls>\n<atem:invoke name=\"time\">\n<atem:parameter name=\"days\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>" thinks "Hm" calls time r#"{"days": 1}"#;
    "muse" " to=user<|message|>Like <atem:function_calls>" says "Like <atem:function_calls>";
    "functionary-v3.1" "<function=time>{\"city\": \"A\"}</function>" calls time r#"{"city": "A"}"#;
    "functionary-v3.1" "Sure <function=none>{}</function><function=time>{\"days\": 2}</function>" says "Sure" calls none "{}", time r#"{"days": 2}"#;
    "functionary-v3.2" "all\nHello\nthere" says "Hello\nthere";
    "functionary-v3.2" "time\n{\"city\": \"A\"}>>>none\n{}" calls time r#"{"city": "A"}"#, none "{}";
    "functionary-v3.2" "all\nOk>>>none\n{}" says "Ok" calls none "{}";
    "command-r7b" "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>" thinks "Hm" says "Hi";
    "command-r7b" "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"time\", \"parameters\": {\"city\": \"A\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"none\", \"parameters\": {}}\n]<|END_ACTION|>" calls time r#"{"city": "A"}"#, none "{}";
    "command-r" "Action:\n```json\n[\n    {\n        \"tool_name\": \"time\",\n        \"parameters\": {\"days\": 1}\n    }\n]\n```" calls time r#"{"days": 1}"#;
    "command-r" "Hi<|END_OF_TURN_TOKEN|>" says "Hi";
    "apertus" "<|inner_prefix|>Hm<|inner_suffix|><|tools_prefix|>[{\"time\": {\"days\": 1}}, {\"none\": {}}]<|tools_suffix|>" thinks "Hm" calls time r#"{"days": 1}"#, none "{}";
    "solar-open" "<|think|>Hm<|end|><|begin|>assistant<|content|>Hi" thinks "Hm" says "Hi";
    "solar-open" "<|think|><|end|><|begin|>assistant<|content|>Hi" says "Hi";
    "solar-open" "<|content|>Hi <|end|> you" says "Hi <|end|> you";
    "solar-open" "<|think|>Hm<|end|><|begin|>assistant<|content|>Hi<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>time<|tool_call:args|>{\"days\": 1}<|tool_call:end|><|tool_call:begin|>b2<|tool_call:name|>none<|tool_call:args|>{}<|tool_call:end|>" thinks "Hm" says "Hi" calls time r#"{"days": 1}"#, none "{}";
    "solar-open" "<|tool_calls|><|tool_call:begin|>none<|tool_call:args|>{}<|tool_call:end|>" calls none "{}";
    "granite3" "<|tool_call|>[{\"name\": \"time\", \"arguments\": {\"days\": 1}}]" calls time r#"{"days": 1}"#;
    "granite3" "<think>Hm</think><response>Hi</response>" thinks "Hm" says "Hi";
    "phi4" "<|tool_call|>[{\"name\": \"none\", \"arguments\": {}}]<|/tool_call|>" calls none "{}";
    "gemma4" "<|channel>thought\nHm\n<channel|>Hi<|tool_call>call:time{city:<|\"|>a \"b\" {c}<|\"|>,days:3,exact:true,any:{x:[1,<|\"|>y<|\"|>]}}<tool_call|><|tool_call>call:none{}<tool_call|>" thinks "Hm" says "Hi" calls time r#"{"city": "a \"b\" {c}", "days": 3, "exact": true, "any": {"x": [1, "y"]}}"#, none "{}";
    "gemma4" "<|channel>thought<channel|>Hi" says "Hi";
    "functiongemma" "<start_function_call>call:time{city:<escape>Oslo<escape>}<end_function_call>" calls time r#"{"city": "Oslo"}"#;
    "gemma3" "```tool_code\nprint(default_api.time(city='A'))\n```" calls time r#"{"city": "A"}"#;
    "gemma3" "```tool_code\nprint(print(none())))\n```" says ")))\n```" calls none "{}";
    "gemma3" "```tool_code\nnone()\nnone()\n```\nDone." says "Done." calls none "{}", none "{}";
    "lfm2" "<|tool_call_start|>[time(city='O\\'s \"x\"', days=-1.5, exact=False, any=None, tags=['a', (1, 2)])]<|tool_call_end|>" calls time r#"{"city": "O's \"x\"", "days": -1.5, "exact": false, "any": null, "tags": ["a", [1, 2]]}"#;
    "lfm2" "<think>x</think>Look.<|tool_call_start|>[time(city=\"A\\u00e9\\n\"), none()]<|tool_call_end|>" thinks "x" says "Look." calls time r#"{"city": "Aé\n"}"#, none "{}";
    "lfm2" "<|tool_call_start|>[time(any={'a': 1, \"b\": [True,]})]<|tool_call_end|>" calls time r#"{"any": {"a": 1, "b": [true]}}"#;
    "lfm2" "<|tool_call_start|>[time(city='\\t\\r\\n\\\\\\'\\\"\\/\\x41\\u00e9\\q\\xZ')]<|tool_call_end|>" calls time r#"{"city": "\t\r\n\\'\"/Aé\\q\\xZ"}"#;
    "lfm2" "<|tool_call_start|>[time(city='a\\\nb', any='\\ud83d')]<|tool_call_end|>" calls time r#"{"city": "ab", "any": "\ufffd"}"#;
    "lfm2" "<|tool_call_start|>[time(city='C:\\user\\x', any='\\ud83d\\ude00\\U0001F600\\U00110000')]<|tool_call_end|>" calls time r#"{"city": "C:\\user\\x", "any": "😀😀\\U00110000"}"#;
    "lfm2" "<|tool_call_start|>[time(city='\\ude00\\ud83da\\ud83d\\ud83d\\n', any='\\101\\60x\\0\\b\\f\\8')]<|tool_call_end|>" calls time r#"{"city": "\ufffd\ufffda\ufffd\ufffd\n", "any": "A0x\u0000\b\f\\8"}"#;
    "llama4" "[time(city='A'), none()]" calls time r#"{"city": "A"}"#, none "{}";
    "llama4" "<|python_start|>[none()]<|python_end|>" calls none "{}";
    "llama4" "[1] is a citation" says "[1] is a citation";
    "nemotron" "<TOOLCALL>[{\"name\": \"time\", \"arguments\": {\"days\": 1}}]</TOOLCALL>\n" says "" calls time r#"{"days": 1}"#;
    "firefunction" " functools[{\"name\": \"time\", \"arguments\": {\"days\": 1}}]" calls time r#"{"days": 1}"#;
    "gigachat3" "Hi<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"none\", \"arguments\": {}}" says "Hi" calls none "{}";
    "gigachat3.1" "<|function_call|>{\"name\": \"time\", \"arguments\": {\"days\": 1}}" calls time r#"{"days": 1}"#;
    "minimax-m1" "<tool_calls>\n{\"name\": \"time\", \"arguments\": {\"days\": 1}}\n{\"name\": \"none\", \"arguments\": {}}\n</tool_calls>" calls time r#"{"days": 1}"#, none "{}";
    "minimax-m2" "<minimax:tool_call>\n<invoke name=\"time\">\n<parameter name=\"days\">1</parameter>\n</invoke>\n<invoke name=\"none\">\n</invoke>\n</minimax:tool_call>" calls time r#"{"days": 1}"#, none "{}";
    "minimax-m3" "<mm:think>Hm</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"time\">]<]minimax[>[<city>A < B]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>" thinks "Hm" calls time r#"{"city": "A < B", "days": 2}"#;
    "minimax-m3" "</mm:think>Hi" says "Hi";
    "seed-oss" "<seed:think>Hm</seed:think>\n<seed:tool_call>\n<function=time>\n<parameter=city>A</parameter>\n</function>\n</seed:tool_call>" thinks "Hm" calls time r#"{"city": "A"}"#;
    "apriel" "Here are my reasoning steps:\nHm\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{\"name\": \"none\", \"arguments\": {}}]</tool_calls>" thinks "Hm" calls none "{}";
    "minicpm5" "<function name=\"run\"><param name=\"code\"><![CDATA[<a>b</param>]]></param></function>" calls run r#"{"code": "<a>b</param>"}"#;
    "minicpm5" "<function name=\"time\"><param name=\"days\">1</param></function>\n<function name=\"none\"></function>" calls time r#"{"days": 1}"#, none "{}";
    "generic" "{\"name\": \"time\", \"arguments\": {\"days\": 1}}" calls time r#"{"days": 1}"#;
    "generic" "Wait.\n<tool_call>\n{\"name\": \"time\", \"arguments\": {\"days\": 1}}\n</tool_call>" says "Wait."
        calls time r#"{"days": 1}"#;
    "generic" "\n{\"tool\": 1}" says "\n{\"tool\": 1}";
    "generic" "Hello {name}" says "Hello {name}";
};
