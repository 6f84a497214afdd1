//! What the known formats write and read, as tables.

/// The texts that llama.cpp writes under these names for four messages, with the first token where the model has one.
pub const OF_LLAMA_CPP: &[(&str, &str)] = &[
    (
        "chatml",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n B <|im_end|>\n\
             <|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "llama3",
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "gemma",
        "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n\
             <start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
    ),
    (
        "phi3",
        "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\n B <|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
    ),
    (
        "phi4",
        "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|>\
             <|im_start|>assistant<|im_sep|> B <|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    ("falcon3", "<|system|>\nS\n<|user|>\nA\n<|assistant|>\n B \n<|user|>\nC\n<|assistant|>\n"),
    ("vicuna", "<s>S\n\nUSER: A\nASSISTANT:  B </s>\nUSER: C\nASSISTANT:"),
    ("deepseek3", "<s>S\n\n<｜User｜>A<｜Assistant｜> B </s><｜User｜>C<｜Assistant｜>"),
    (
        "command-r",
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|>\
             <|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    ("mistral-v1", "<s> [INST] S\n\nA [/INST]  B </s> [INST] C [/INST]"),
    ("mistral-v3", "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"),
    (
        "hunyuan-dense",
        "<｜hy_begin▁of▁sentence｜>S<｜hy_place▁holder▁no▁3｜><｜hy_User｜>A<｜hy_Assistant｜> B <｜hy_place▁holder▁no▁2｜>\
             <｜hy_User｜>C<｜hy_Assistant｜>",
    ),
    (
        "grok-2",
        "System: S<|separator|>\n\nHuman: A<|separator|>\n\nAssistant:  B <|separator|>\n\nHuman: C<|separator|>\n\nAssistant:",
    ),
    ("llama2-sys", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s>[INST] C [/INST]"),
    ("llama2-sys-bos", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
    ("llama2-sys-strip", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST]B</s>[INST] C [/INST]"),
    ("mistral-v3-tekken", "<s>[INST]S\n\nA[/INST] B </s>[INST]C[/INST]"),
    ("mistral-v7", "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST]  B </s>[INST] C[/INST]"),
    ("mistral-v7-tekken", "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST] B </s>[INST]C[/INST]"),
    (
        "monarch",
        "<s>system\nS</s>\n<s>user\nA</s>\n<s>assistant\n B </s>\n<s>user\nC</s>\n<s>assistant\n",
    ),
    ("orion", "<s>Human: S\n\nA\n\nAssistant: </s> B </s>Human: C\n\nAssistant: </s>"),
    (
        "openchat",
        "<s>S<|end_of_turn|>GPT4 Correct User: A<|end_of_turn|>GPT4 Correct Assistant:  B <|end_of_turn|>\
             GPT4 Correct User: C<|end_of_turn|>GPT4 Correct Assistant:",
    ),
    ("vicuna-orca", "<s>SYSTEM: S\nUSER: A\nASSISTANT:  B </s>\nUSER: C\nASSISTANT:"),
    (
        "deepseek",
        "<s>S### Instruction:\nA\n### Response:\n B \n<|EOT|>\n### Instruction:\nC\n### Response:\n",
    ),
    ("deepseek2", "<s>S\n\nUser: A\n\nAssistant:  B </s>User: C\n\nAssistant:"),
    (
        "chatglm3",
        "[gMASK]sop<|system|>\n S<|user|>\n A<|assistant|>\n  B <|user|>\n C<|assistant|>",
    ),
    (
        "chatglm4",
        "[gMASK]<sop><|system|>\nS<|user|>\nA<|assistant|>\n B <|user|>\nC<|assistant|>\n",
    ),
    ("glmedge", "<|system|>\nS<|user|>\nA<|assistant|>\n B <|user|>\nC<|assistant|>"),
    ("minicpm", "<s>S<用户>A<AI>B<用户>C<AI>"),
    ("exaone3", EXAONE),
    ("exaone4", EXAONE),
    ("rwkv-world", "System: S\n\nUser: A\n\nAssistant: B\n\nUser: C\n\nAssistant:"),
    (
        "gigachat",
        "<s>S<|message_sep|>user<|role_sep|>A<|message_sep|>available functions<|role_sep|>[]<|message_sep|>\
             assistant<|role_sep|> B <|message_sep|>user<|role_sep|>C<|message_sep|>\
             available functions<|role_sep|>[]<|message_sep|>assistant<|role_sep|>",
    ),
    (
        "megrez",
        "<|role_start|>system<|role_end|>S<|turn_end|><|role_start|>user<|role_end|>A<|turn_end|>\
             <|role_start|>assistant<|role_end|> B <|turn_end|><|role_start|>user<|role_end|>C<|turn_end|>\
             <|role_start|>assistant<|role_end|>",
    ),
    (
        "bailing",
        "<role>SYSTEM</role>S<role>HUMAN</role>A<role>ASSISTANT</role> B <role>HUMAN</role>C<role>ASSISTANT</role>",
    ),
    (
        "bailing-think",
        "<role>SYSTEM</role>S<role>HUMAN</role>A<role>ASSISTANT</role> B <role>HUMAN</role>C<role>ASSISTANT</role><think>",
    ),
    (
        "granite-4.0",
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>A<|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|> B <|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>C<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "granite-4.1",
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>A<|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|> B <|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>C<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "exaone-moe",
        "<|system|>\nS<|endofturn|>\n<|user|>\nA<|endofturn|>\n<|assistant|>\nB<|endofturn|>\n<|user|>\nC<|endofturn|>\n<|assistant|>\n",
    ),
    (
        "hunyuan-vl",
        "<｜hy_begin▁of▁sentence｜>S<｜hy_place▁holder▁no▁3｜>A<｜hy_User｜> B <｜hy_Assistant｜>C<｜hy_User｜>",
    ),
    ("deepseek-ocr", "<s>SA B C"),
    (
        "pangu-embedded",
        "[unused9]系统：S[unused10][unused9]用户：A[unused10][unused9]助手： B [unused10][unused9]用户：C[unused10][unused9]助手：",
    ),
    (
        "solar-open",
        "<|begin|>system<|content|>S<|end|><|begin|>user<|content|>A<|end|><|begin|>assistant<|content|> B <|end|>\
             <|begin|>user<|content|>C<|end|><|begin|>assistant",
    ),
    (
        "llama4",
        "<s><|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user<|header_end|>\n\nA<|eot|>\
             <|header_start|>assistant<|header_end|>\n\nB<|eot|><|header_start|>user<|header_end|>\n\nC<|eot|>\
             <|header_start|>assistant<|header_end|>\n\n",
    ),
    (
        "smolvlm",
        "<|im_start|>S\n\nUser: A<end_of_utterance>\nAssistant:  B <end_of_utterance>\nUser: C<end_of_utterance>\nAssistant:",
    ),
    (
        "hunyuan-moe",
        "<|startoftext|>S<|extra_4|><|startoftext|>A<|extra_0|> B <|eos|><|startoftext|>C<|extra_0|>",
    ),
    (
        "kimi-k2",
        "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>A<|im_end|>\
             <|im_assistant|>assistant<|im_middle|> B <|im_end|><|im_user|>user<|im_middle|>C<|im_end|>\
             <|im_assistant|>assistant<|im_middle|>",
    ),
    (
        "seed_oss",
        "<seed:bos>system\nS<seed:eos><seed:bos>user\nA<seed:eos><seed:bos>assistant\nB<seed:eos>\
             <seed:bos>user\nC<seed:eos><seed:bos>assistant\n",
    ),
];

/// Those of the models' own templates, from which llama.cpp's texts differ. The model of `yandex` has no system message.
pub const OF_MODELS: &[(&str, &str)] = &[
    ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
    (
        "zephyr",
        "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\n B </s>\n<|user|>\nC</s>\n<|assistant|>\n",
    ),
    (
        "granite",
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>A<|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|> B <|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>C<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "bailing2",
        "<role>SYSTEM</role>S\ndetailed thinking off<|role_end|><role>HUMAN</role>A<|role_end|><role>ASSISTANT</role> B <|role_end|>\
             <role>HUMAN</role>C<|role_end|><role>ASSISTANT</role>",
    ),
    (
        "gpt-oss",
        "<|start|>system<|message|>S<|end|><|start|>user<|message|>A<|end|>\
             <|start|>assistant<|channel|>final<|message|> B <|end|><|start|>user<|message|>C<|end|><|start|>assistant",
    ),
    (
        "yandex",
        "<s> Пользователь: S\n\nA\n\n Ассистент:  B \n\n Пользователь: C\n\n Ассистент:[SEP]",
    ),
];

const EXAONE: &str =
    "[|system|]S[|endofturn|]\n[|user|]A\n[|assistant|]B[|endofturn|]\n[|user|]C\n[|assistant|]";

/// A question, what an answer calls with text before it, and the result.
pub const CALLS: &[(&str, &str)] = &[
    (
        "mistral-v3",
        "[INST] A[/INST] B[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS] {\"content\": \"R\", \"call_id\": \"100000000\"}[/TOOL_RESULTS]",
    ),
    (
        "mistral-v3-tekken",
        "[INST]A[/INST]B[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS]{\"content\": \"R\", \"call_id\": \"100000000\"}[/TOOL_RESULTS]",
    ),
    (
        "mistral-v7",
        "[INST] A[/INST] B[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS] 100000000[TOOL_CONTENT] R[/TOOL_RESULTS]",
    ),
    (
        "mistral-v7-tekken",
        "[INST]A[/INST]B[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}, \"id\": \"100000000\"}]</s>\
             [TOOL_RESULTS]100000000[TOOL_CONTENT]R[/TOOL_RESULTS]",
    ),
    (
        "kimi-k2",
        "<|im_user|>user<|im_middle|>A<|im_end|><|im_assistant|>assistant<|im_middle|>B<|tool_calls_section_begin|>\
             <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"x\", \"n\": [1]}<|tool_call_end|>\
             <|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.f:0\nR<|im_end|>\
             <|im_assistant|>assistant<|im_middle|>",
    ),
    (
        "gpt-oss",
        "<|start|>user<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>T<|end|>\
             <|start|>assistant<|channel|>commentary<|message|>B<|end|>\
             <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": \"x\", \"n\": [1]}<|call|>\
             <|start|>functions.f to=assistant<|channel|>commentary<|message|>R<|end|><|start|>assistant",
    ),
    (
        "seed_oss",
        "<seed:bos>user\nA<seed:eos><seed:bos>assistant\n<seed:think>T</seed:think>\nB\n<seed:tool_call>\n<function=f>\n\
             <parameter=a>x</parameter>\n<parameter=n>[1]</parameter>\n</function>\n</seed:tool_call><seed:eos>\
             <seed:bos>tool\nR<seed:eos><seed:bos>assistant\n",
    ),
    ("llama4", "B\n<|python_start|>[f(a=\"x\", n=[1])]<|python_end|><|eot|>"),
    (
        "command-r",
        "B\nAction:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"x\", \"n\": [1]}}]\n```<|END_OF_TURN_TOKEN|>",
    ),
    (
        "granite",
        "B\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}]<|end_of_text|>",
    ),
    (
        "granite-4.0",
        "B\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}\n</tool_call><|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>\n<tool_response>\nR\n</tool_response><|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "granite-4.1",
        "B\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}\n</tool_call><|end_of_text|>\n\
             <|start_of_role|>user<|end_of_role|>\n<tool_response>\nR\n</tool_response><|end_of_text|>\n\
             <|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "bailing2",
        "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>A<|role_end|><role>ASSISTANT</role>B\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}\n</tool_call><|role_end|>\
             <role>OBSERVATION</role>\n<tool_response>\nR\n</tool_response><|role_end|><role>ASSISTANT</role>",
    ),
    (
        "solar-open",
        "<|begin|>user<|content|>A<|end|><|begin|>assistant<|think|>T<|end|><|begin|>assistant<|content|>B<|end|>\
             <|begin|>assistant<|tool_calls|><|tool_call:begin|>call_1<|tool_call:name|>f<|tool_call:args|>{\"a\": \"x\", \"n\": [1]}\
             <|tool_call:end|><|calls|><|begin|>tool<|content|>R<|end|><|begin|>assistant",
    ),
    (
        "deepseek3",
        "B\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"x\", \"n\": [1]}\n\
             ```<｜tool▁call▁end｜><｜tool▁calls▁end｜></s>",
    ),
    (
        "chatml",
        "B\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"n\": [1]}}\n</tool_call><|im_end|>",
    ),
];

/// Several system messages, one without a question, and one after a conversation, under the names of the formats.
pub const SYSTEM_MESSAGES: &[(&str, [&str; 3])] = &[
    (
        "llama2",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST] B </s><s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys-bos",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s><s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "llama2-sys-strip",
        [
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n<<SYS>>\nS2\n<</SYS>>\n\nA [/INST]",
            "<s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
            "<s>[INST] A [/INST]B</s>[INST] <<SYS>>\nS1\n<</SYS>>\n\n",
        ],
    ),
    (
        "mistral-v1",
        [
            "<s> [INST] S1\n\nS2\n\nA [/INST]",
            "<s> [INST] S1\n\n",
            "<s> [INST] A [/INST] B</s> [INST] S1\n\n",
        ],
    ),
    (
        "mistral-v3",
        [
            "<s>[INST] S1\n\nS2\n\nA[/INST]",
            "<s>[INST] S1\n\n",
            "<s>[INST] A[/INST] B</s>[INST] S1\n\n",
        ],
    ),
    (
        "mistral-v3-tekken",
        ["<s>[INST]S1\n\nS2\n\nA[/INST]", "<s>[INST]S1\n\n", "<s>[INST]A[/INST]B</s>[INST]S1\n\n"],
    ),
    (
        "orion",
        [
            "<s>Human: S1\n\nS2\n\nA\n\nAssistant: </s>",
            "<s>Human: S1\n\nAssistant: </s>",
            "<s>Human: A\n\nAssistant: </s>B</s>Human: S1\n\nAssistant: </s>",
        ],
    ),
    (
        "gemma",
        [
            "<s><start_of_turn>user\nS1\n\nS2\n\nA<end_of_turn>\n<start_of_turn>model\n",
            "<s><start_of_turn>user\nS1<end_of_turn>\n<start_of_turn>model\n",
            "<s><start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n\
             <start_of_turn>user\nS1<end_of_turn>\n<start_of_turn>model\n",
        ],
    ),
];

const HERMES: &str =
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}\n</tool_call>";

/// The formats of known names whose models have one of their own, and replies with the reasoning `hmm`, the content `Hi` and a
/// call, as far as the models write them in one reply.
pub const REPLIES: &[(&str, &str, &str, &str)] = &[
    ("llama4", "llama4", "Hi", "<|python_start|>[now(zone=\"Rome\")]<|python_end|>"),
    (
        "mistral-v3",
        "mistral-v3",
        "Hi",
        "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}]",
    ),
    (
        "mistral-v3-tekken",
        "mistral-v3",
        "Hi",
        "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}]",
    ),
    (
        "mistral-v7",
        "mistral-v3",
        "Hi",
        "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}]",
    ),
    (
        "mistral-v7-tekken",
        "mistral-v3",
        "Hi",
        "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}]",
    ),
    (
        "deepseek3",
        "deepseek-r1",
        "<think>hmm</think>Hi",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"zone\": \"Rome\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "command-r",
        "command-r",
        "Hi",
        "\nAction: ```json\n[{\"tool_name\": \"now\", \"parameters\": {\"zone\": \"Rome\"}}]```",
    ),
    (
        "granite",
        "granite3",
        "Hi",
        "<|tool_call|>[{\"name\": \"now\", \"arguments\": {\"zone\": \"Rome\"}}]",
    ),
    (
        "kimi-k2",
        "kimi-k2",
        "<think>hmm</think>Hi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{\"zone\": \"Rome\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    ("granite-4.0", "hermes", "Hi", HERMES),
    ("granite-4.1", "hermes", "Hi", HERMES),
    ("exaone-moe", "hermes", "<think>hmm</think>Hi", HERMES),
    ("bailing2", "hermes", "Hi", HERMES),
    ("pangu-embedded", "generic", "[unused16]hmm[unused17]Hi", HERMES),
    (
        "solar-open",
        "solar-open",
        "<|think|>hmm<|end|><|begin|>assistant<|content|>Hi",
        "<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>now<|tool_call:args|>{\"zone\": \"Rome\"}<|tool_call:end|>",
    ),
    (
        "gpt-oss",
        "gpt-oss",
        "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{\"zone\": \"Rome\"}<|call|>",
    ),
    (
        "seed_oss",
        "seed-oss",
        "<seed:think>hmm</seed:think>Hi",
        "<seed:tool_call>\n<function=now>\n<parameter=zone>Rome</parameter>\n</function>\n</seed:tool_call>",
    ),
];
