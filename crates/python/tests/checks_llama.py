"""Checks of the drop-in for llama-cpp-python."""

import json
import subprocess
import sys
import threading

import bilayer
from bilayer.llama_cpp import Llama, LlamaGrammar
from checking import DEMO, check, raised

USER = [{"role": "user", "content": "when"}]
#: A template that writes functions, and its call of one.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};{% endfor %}assistant:"
)
ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": ZONE}}]
CALL = 'root ::= "so: <tool_call>{\\"name\\": \\"now\\", \\"arguments\\": {\\"zone\\": \\"UTC\\"}}</tool_call>"'


@check
def a_completion_that_is_cut_off_is_an_error():
    endless = {"max_tokens": -1, "ignore_eos": True}
    llama = Llama(DEMO, n_ctx=8192)
    threading.Timer(0.5, llama.close).start()
    assert raised(bilayer.Error, "interrupted", lambda: llama("a", **endless)).code == 130
    llama = Llama(DEMO, n_ctx=8192)
    chunks = llama("a", stream=True, **endless)
    next(chunks)
    llama.close()
    assert raised(bilayer.Error, "interrupted", lambda: list(chunks)).code == 130


@check
def grammars_and_formats_exclude_each_other():
    with Llama(DEMO, n_ctx=512, chat_format="chatml") as llama:
        for grammar in (LlamaGrammar.from_string('root ::= "yes"'), LlamaGrammar.from_json_schema('{"type": "null"}')):
            for schema in ({"type": "integer"}, None):
                given = {"grammar": grammar, "response_format": {"type": "json_object", "schema": schema}}
                raised(bilayer.UsageError, "exclude each other", lambda: llama.create_chat_completion(USER, **given))
        answer = llama.create_chat_completion(USER, grammar=LlamaGrammar.from_string('root ::= "yes"'))
        assert answer["choices"][0]["message"]["content"] == "yes"
        form = {"type": "json_object", "schema": {"enum": [7]}}
        answer = llama.create_chat_completion(USER, response_format=form)
        assert answer["choices"][0]["message"]["content"] == "7"
        raised(TypeError, "response_format must be a dict, not str", lambda: llama.create_chat_completion(USER, response_format="a"))


@check
def grammars_are_checked_when_they_are_made():
    raised(bilayer.UsageError, "GBNF", lambda: LlamaGrammar.from_string("root ::= ("))
    raised(bilayer.UsageError, "schema", lambda: LlamaGrammar.from_json_schema("{"))
    raised(TypeError, "grammar must be a text", lambda: LlamaGrammar.from_string(3))
    assert LlamaGrammar.from_json_schema('{"type": "integer"}').options() == {"json_schema": '{"type": "integer"}'}


@check
def texts_and_tokens_that_cannot_be_sent_are_named():
    with Llama(DEMO, n_ctx=512) as llama:
        raised(bilayer.UsageError, "prompt has a lone surrogate", lambda: llama("\ud83d"))
        raised(bilayer.UsageError, "1000000000", lambda: llama.detokenize([10**9]))
        raised(TypeError, "logit_bias must be a dict", lambda: llama("a", logit_bias=[1]))


@check
def functions_are_called_by_the_drop_in():
    with Llama(DEMO, n_ctx=512, chat_format=TEMPLATE) as llama:
        grammar = LlamaGrammar.from_string(CALL)
        given = {"tools": TOOLS, "temperature": 0}
        for choice in ("auto", None):
            answer = llama.create_chat_completion(USER, grammar=grammar, tool_choice=choice, **given)["choices"][0]
            message, [call] = answer["message"], answer["message"]["tool_calls"]
            assert answer["finish_reason"] == "tool_calls" and message["content"] == "so:", answer
            assert call["function"] == {"name": "now", "arguments": '{"zone": "UTC"}'} and call["type"] == "function"
        # The call and its result go on.
        more = [*USER, message, {"role": "tool", "tool_call_id": call["id"], "content": "12:00"}]
        assert llama.create_chat_completion(more, max_tokens=1, **given)["usage"]["prompt_tokens"] > 8
        chunks = list(llama.create_chat_completion(USER, grammar=grammar, stream=True, **given))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant"} and deltas[1] == {"content": "so:"} and deltas[-1] == {}, deltas
        [made] = deltas[2]["tool_calls"]
        assert made["index"] == 0 and made["function"] == call["function"] and len(deltas) == 4
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        for choice in ({"type": "function", "function": {"name": "now"}}, "required"):
            answer = llama.create_chat_completion(USER, tool_choice=choice, **given)["choices"][0]
            [call] = answer["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"zone": "UTC"}, call
            assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
        plain = llama.create_chat_completion(USER, tool_choice="none", max_tokens=2, **given)["choices"][0]
        assert "tool_calls" not in plain["message"] and plain["finish_reason"] == "length"
        other = {"type": "function", "function": {"name": "then"}}
        for choice in (other, "always", {}):
            raised(bilayer.UsageError, "tool_choice is", lambda: llama.create_chat_completion(USER, tool_choice=choice, **given))
        raised(bilayer.UsageError, "functions", lambda: llama.create_chat_completion(USER, functions=TOOLS))
        raised(TypeError, "tools must be a list of dicts", lambda: llama.create_chat_completion(USER, tools=TOOLS[0]))
        for wrong in ([{"function": 3}], [{"function": {"name": []}}]):
            raised(bilayer.UsageError, "tools: ", lambda: llama.create_chat_completion(USER, tools=wrong))


@check
def names_that_programs_import_are_there():
    script = """
import bilayer.llama_cpp
bilayer.llama_cpp.install()
import llama_cpp
import llama_cpp.llama
import llama_cpp.llama_chat_format, llama_cpp.llama_types
from llama_cpp import LogitsProcessorList, StoppingCriteriaList, LlamaDiskCache, llama_supports_gpu_offload
from llama_cpp.llama import Llama
from llama_cpp.llama_cache import LlamaRAMCache
from llama_cpp.llama_grammar import LlamaGrammar
assert Llama is llama_cpp.llama.Llama is bilayer.Llama and llama_supports_gpu_offload()
assert (llama_cpp.GGML_TYPE_Q8_0, llama_cpp.LLAMA_SPLIT_MODE_LAYER, llama_cpp.LLAMA_POOLING_TYPE_LAST) == (8, 1, 3)
assert llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN == 2 and not hasattr(llama_cpp, "LLAMA_OTHER")
try:
    llama_cpp.llama_backend_init()
except AttributeError as error:
    assert "llama.cpp's own functions are not supported" in str(error), error
try:
    LlamaDiskCache()
except bilayer.UsageError as error:
    assert "use LlamaRAMCache" in str(error), error
import os
with Llama(os.environ["DEMO"], n_ctx=64, type_k=llama_cpp.GGML_TYPE_Q8_0, type_v=llama_cpp.GGML_TYPE_Q8_0) as llama:
    given = {"logits_processor": LogitsProcessorList(), "stopping_criteria": StoppingCriteriaList()}
    assert llama("a", max_tokens=1, **given)
    try:
        llama("a", max_tokens=1, logits_processor=LogitsProcessorList([print]))
    except bilayer.UsageError as error:
        assert "logits_processor" in str(error), error
"""
    subprocess.run([sys.executable, "-c", script], check=True)
