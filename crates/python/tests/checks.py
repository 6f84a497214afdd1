"""Checks of the package that need nothing but Python: each prints a line `ok NAME` or `failed NAME: why`."""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading

import bilayer
import bilayer.llama_cpp

# Those of the other files are in the same list.
import checks_answers  # noqa: F401
import checks_arguments  # noqa: F401
import checks_llama  # noqa: F401
from checking import CHECKS, DEMO, check, forked, main, opened, raised  # noqa: F401


@check
def an_answer_is_an_iterator_of_tokens():
    with opened() as model:
        answer = model.generate("ROMEO:\n", max_tokens=12, temperature=0)
        tokens = list(answer)
        assert len(tokens) == 12 and answer.stop == "length", (tokens, answer.stop)
        assert answer.statistics["generated_tokens"] == 12
        text = "".join(map(str, tokens))
        assert text == model.generate("ROMEO:\n", max_tokens=12, temperature=0).text()
        assert text == model.generate(model.tokenize("ROMEO:\n"), max_tokens=12, temperature=0).text()
        assert list(answer) == [] and tokens[0].logprob is None


@check
def seeds_choose_the_answer():
    with opened() as model:
        texts = [model.generate("ROMEO:\n", max_tokens=24, seed=seed).text() for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2], texts


@check
def stops_and_grammars_bound_the_answer():
    with opened() as model:
        whole = model.generate("ROMEO:\n", max_tokens=40, temperature=0).text()
        stop = whole[10:13]
        answer = model.generate("ROMEO:\n", max_tokens=40, temperature=0, stop=stop)
        assert answer.text() == whole.split(stop)[0] and answer.stop == "stop"
        assert model.generate("ROMEO:\n", regex="[0-9]{4}").text().isdigit()


@check
def an_answer_that_is_dropped_makes_room():
    with opened(context=4096) as model:
        answer = model.generate("ROMEO:\n", ignore_eos=True)
        next(answer)
        answer.close()
        assert len(model.generate("ROMEO:\n", max_tokens=2, ignore_eos=True).text()) > 0
        for _ in model.generate("ROMEO:\n", ignore_eos=True):
            break
        model.generate("ROMEO:\n", max_tokens=2).text()


@check
def answers_may_be_read_one_within_the_other():
    with opened() as model:
        first = model.generate("ROMEO:\n", max_tokens=8, temperature=0)
        head = next(first).text
        second = model.generate("ROMEO:\n", max_tokens=8, temperature=0).text()
        assert head + first.text() == second


@check
def async_answers_leave_the_loop_free():
    async def main():
        with opened() as model:
            turns = 0

            async def others():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.ensure_future(others())
            text = ""
            async for token in model.generate("ROMEO:\n", max_tokens=12, temperature=0):
                text += token.text
            task.cancel()
            assert turns > 5, turns
            assert text == model.generate("ROMEO:\n", max_tokens=12, temperature=0).text()

    asyncio.run(main())


@check
def chat_takes_messages():
    with opened(chat_template="chatml") as model:
        messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Who?"}]
        answer = model.chat(messages, max_tokens=4)
        assert isinstance(answer.text(), str)
        assert answer.statistics["prompt_tokens"] > 10
        begun = messages[1:] + [{"role": "assistant", "content": "In fair"}]
        plain = model.generate("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nIn fair", max_tokens=1)
        answer = model.chat(begun, max_tokens=1, continue_final_message=True)
        assert isinstance(answer.text(), str) and isinstance(plain.text(), str)
        assert answer.statistics["prompt_tokens"] < plain.statistics["prompt_tokens"] + 2
        raised(bilayer.UsageError, "role", lambda: model.chat([{"role": "wizard", "content": ""}]))
        raised(bilayer.UsageError, "role and content", lambda: model.chat([{"role": "user"}]))
    with opened() as model:
        answer = model.chat([{"role": "user", "content": "Who?"}])
        raised(bilayer.Error, "template", lambda: next(answer))


@check
def tokens_and_texts_convert():
    with opened() as model:
        tokens = model.tokenize("ROMEO: O me!")
        assert tokens[0] == model.bos and model.detokenize(tokens).strip() == "ROMEO: O me!"
        assert model.tokenize("ROMEO: O me!", add_special=False) == tokens[1:]


@check
def plans_say_what_runs_where():
    with opened() as model:
        assert "cpu" in model.plan().map and model.plan().gpu_layers == 0
        planned = bilayer.plan(DEMO, gpu_layers=0, context=512)
        assert planned.map == model.plan().map and "cache" in str(planned)
        assert len(planned.data["layers"]) == 6


@check
def files_are_made_and_scored():
    with tempfile.TemporaryDirectory() as folder:
        out, other = os.path.join(folder, "small.gguf"), os.path.join(folder, "again.gguf")
        raised(bilayer.UsageError, "`allow_requantize`", lambda: bilayer.quantize(DEMO, out, "Q8_0"))
        raised(bilayer.UsageError, "is no type", lambda: bilayer.quantize(DEMO, out, "Q9_X"))
        raised(bilayer.UsageError, "add imatrix=", lambda: bilayer.quantize(DEMO, out, "IQ1_S", allow_requantize=True))
        missing = os.path.join(folder, "missing.gguf")
        raised(bilayer.MissingFileError, "missing.gguf", lambda: bilayer.quantize(missing, out, "Q8_0"))
        raised(bilayer.UsageError, "is no type to convert to", lambda: bilayer.convert(folder, out, outtype="q4_k"))
        raised(bilayer.Error, "config.json", lambda: bilayer.convert(folder, out))
        assert not os.path.exists(out)
        before, after = bilayer.quantize(DEMO, out, "Q2_K", allow_requantize=True, threads=2)
        assert 0 < after < before and os.path.getsize(out) > after
        command = [sys.executable, "-m", "bilayer", "quantize", DEMO, other, "Q2_K", "--allow-requantize"]
        subprocess.run(command, check=True, capture_output=True)
        with open(out, "rb") as one, open(other, "rb") as two:
            assert one.read() == two.read()
        checkpoint = os.path.join(os.path.dirname(DEMO), "../../../examples/train_demo/checkpoint")
        assert 0 < bilayer.convert(checkpoint, other) < os.path.getsize(other)
        with bilayer.Bilayer(other, gpu_layers=0, context=64) as model:
            assert model.generate("ROMEO:", max_tokens=2).text()
        text = "ROMEO: But, soft! what light through yonder window breaks? " * 20
        whole = bilayer.perplexity(DEMO, text, gpu_layers=0, context=64)
        small = bilayer.perplexity(out, text, gpu_layers=0, context=64)
        assert whole.tokens == small.tokens > 64 and 1 < whole.value < small.value, (whole, small)
        raised(bilayer.UsageError, "smaller `context`", lambda: bilayer.perplexity(DEMO, "short", gpu_layers=0))


@check
def the_cpu_may_divide_its_weights_and_round_them_in_prompts():
    def first(**settings):
        with opened(threads=2, **settings) as model:
            [token] = model.generate("ROMEO: O me! " * 60, max_tokens=1, temperature=0, logprobs=1)
            return token.logprob, model.plan().data["notes"]

    whole, _ = first()
    divided, notes = first(numa="2")
    assert divided == whole and "copied to 2 simulated NUMA nodes" in "; ".join(notes), notes
    rounded, _ = first(fast_prefill=True)
    listed = subprocess.run([sys.executable, "-m", "bilayer", "devices", "--json"], check=True, capture_output=True)
    rounds = json.loads(listed.stdout)["cpu"]["level"] in ("avx512vnni", "avx512bf16")
    assert abs(rounded - whole) < 0.1 and (rounded != whole) == rounds, (rounded, whole)


@check
def experts_may_be_on_both_devices():
    sizes = "--layers 2 --width 64 --heads 2 --kv-heads 1 --head-dim 32 --ffn 64 --vocab 300 --context 128"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mixture.gguf")
        line = f"-m bilayer synth --shape mixtral-8x7b --type F32 {sizes} {path}"
        subprocess.run([sys.executable, *line.split()], check=True, capture_output=True)

        def answer(**settings):
            with bilayer.Bilayer(path, **settings) as model:
                text = model.generate("a", max_tokens=6, temperature=0, ignore_eos=True).text()
                return text, model.plan().data.get("experts")

        expected, none = answer(gpu_layers=0)
        assert none is None
        try:
            whole, _ = answer(device="software", gpu_layers="all", expert_cache="auto")
        except bilayer.Error as error:
            assert error.code == 69, error
            print("skipped: no software adapter")
            return
        text, experts = answer(device="software", gpu_layers="all", expert_cache=300_000)
        assert text == whole == expected, (text, whole, expected)
        # An expert has three matrices of 64 times 64 floats, so six fit.
        assert experts["bytes"] == 6 * 3 * 64 * 64 * 4, experts


@check
def errors_have_the_engines_message():
    missing = raised(FileNotFoundError, "missing.gguf", lambda: bilayer.Bilayer("missing.gguf"))
    assert isinstance(missing, bilayer.MissingFileError) and missing.code == 66
    raised(bilayer.ModelFileError, "checks.py", lambda: bilayer.Bilayer(__file__))
    raised(bilayer.UsageError, "gpu_layers is some", lambda: bilayer.Bilayer(DEMO, "some"))
    raised(bilayer.UsageError, "cache_type is q2", lambda: bilayer.Bilayer(DEMO, cache_type="q2"))
    for wrong, settings in {
        "expert_cache is few": {"expert_cache": "few"},
        "expert_cache is auto; it must be 0: the model has no experts": {"expert_cache": "auto"},
        "expert_cache is 1.00 MiB": {"expert_cache": 1 << 20},
        "expert_counts is ": {"expert_counts": DEMO},
        "numa is isolate; it must be off, distribute or a number of simulated nodes from 2 to 64; to stay in": {"numa": "isolate"},
    }.items():
        raised(bilayer.UsageError, wrong, lambda: bilayer.Bilayer(DEMO, **settings))
    raised(bilayer.UsageError, "hadamard_keys is on with f16", lambda: bilayer.Bilayer(DEMO, hadamard_keys=True))
    with opened() as model:
        raised(bilayer.UsageError, "top_k is 1.5", lambda: model.generate("a", top_k=1.5))
        raised(bilayer.UsageError, "samplers is 'hot'", lambda: model.generate("a", samplers="top_k;hot"))
        raised(bilayer.Error, "embeddings and scores", lambda: model.embed(["a"]))
        raised(bilayer.Error, "context", lambda: next(model.generate("a " * 5000)))
        raised(bilayer.Error, "at least one token", lambda: next(model.generate([])))
        raised(bilayer.Error, "vocabulary", lambda: next(model.generate([10**8])))
        raised(bilayer.Error, "temperature is NaN", lambda: next(model.generate("a", temperature=float("nan"))))


@check
def wrong_types_are_type_errors():
    with opened() as model:
        for call in (
            lambda: bilayer.Bilayer(3),
            lambda: bilayer.Bilayer(DEMO, gpu_layers=[]),
            lambda: bilayer.Bilayer(DEMO, contxt=3),
            lambda: model.generate(3),
            lambda: model.generate(b"a"),
            lambda: model.generate(["a"]),
            lambda: model.generate("a", temperature="hot"),
            lambda: model.generate("a", heat=1),
            lambda: model.generate("a", max_tokens="a"),
            lambda: model.embed("a"),
            lambda: model.tokenize(3),
            lambda: model.detokenize(["a"]),
        ):
            raised(TypeError, "", call)
        for part, messages in {
            "messages[0] must be a dict, not int": [3],
            "messages[1] must be a dict, not str": [{"role": "user", "content": "a"}, "b"],
            "messages[0].role must be a text, not int": [{"role": 3, "content": "a"}],
            "messages[0].content must be a text or a list of text parts, not int": [{"role": "user", "content": 3}],
            "messages[0].content must be a value of JSON, not bytes": [{"role": "user", "content": b"a"}],
            "a key of messages[0].meta must be a text": [{"role": "user", "content": "a", "meta": {3: 1}}],
        }.items():
            raised(TypeError, part, lambda: model.chat(messages))
        raised(TypeError, "messages must be a list", lambda: model.chat("a"))


@check
def arguments_out_of_range_are_named():
    user = {"role": "user", "content": "a"}
    with opened() as model:
        for part, call in {
            "max_tokens is -2; it must be at least 0": lambda: model.generate("a", max_tokens=-2),
            "seed is -2": lambda: model.generate("a", seed=-2),
            "seed is 18446744073709551616; it must be from 0": lambda: model.generate("a", seed=2**64),
            "logprobs is -1": lambda: model.generate("a", logprobs=-1),
            "logit_bias is -1": lambda: model.generate("a", logit_bias={-1: 1.0}),
            "prompt[1] is -1": lambda: model.generate([1, -1]),
            "tokens[0] is -1": lambda: model.detokenize([-1]),
            "prompt has a lone surrogate at 1": lambda: model.generate("a\ud800"),
            "text has a lone surrogate": lambda: model.tokenize("\ud800"),
            "gpu_layers is -2": lambda: bilayer.Bilayer(DEMO, gpu_layers=-2),
            "context is -1": lambda: bilayer.Bilayer(DEMO, context=-1),
            "threads is -1": lambda: bilayer.Bilayer(DEMO, threads=-1),
            "pooling is sum": lambda: bilayer.Bilayer(DEMO, pooling="sum"),
            "rounds is 0": lambda: model.profile(rounds=0),
            "messages must not be empty": lambda: model.chat([]),
            "messages[0].content has a lone surrogate at 0": lambda: model.chat([user | {"content": "\ud800"}]),
            "messages[0].score is nan; it must be finite": lambda: model.chat([user | {"score": float("nan")}]),
            "tools[0].x is inf": lambda: model.chat([user], tools=[{"x": float("inf")}]),
            "must be system, developer, user": lambda: model.chat([user | {"role": "wizard"}]),
        }.items():
            raised(bilayer.UsageError, part, call)
        raised(bilayer.MemoryExceededError, "use a larger `context`", lambda: next(model.generate("a " * 5000)))
        for token in (70, "70"):
            assert next(model.generate("ROMEO:", logit_bias={token: 1000.0})).id == 70
        texts = {model.generate("ROMEO:", max_tokens=24, seed=seed).text() for seed in (None, -1, None)}
        assert len(texts) > 1, "a random seed"
        assert list(model.generate([model.bos], max_tokens=-1, stop="\n"))


@check
def functions_are_called_and_their_results_read():
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.name }}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};"
        "{% endfor %}assistant:"
    )
    function = {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}}}
    tools = [{"type": "function", "function": function}]
    call = 'root ::= "so: <tool_call>{\\"name\\": \\"now\\", \\"arguments\\": {\\"zone\\": \\"UTC\\"}}</tool_call>"'
    with opened(chat_template=template) as model:
        messages = [{"role": "user", "content": "when"}]
        reply = model.chat(messages, tools=tools, grammar=call).reply()
        assert reply.text == "so:" and reply.reasoning == "", reply
        answer = model.chat(messages, tools=tools, grammar=call)
        assert answer.reply() is answer.reply(), "ids of calls stay"
        ids = set()
        for _ in range(2):
            random.seed(0)
            ids.add(model.chat(messages, tools=tools, grammar=call).reply().tool_calls[0]["id"])
        assert len(ids) == 2, "ids do not depend on the program's seed"
        [made] = reply.tool_calls
        assert made["function"] == {"name": "now", "arguments": '{"zone": "UTC"}'}, made
        result = {"role": "tool", "tool_call_id": made["id"], "content": [{"type": "text", "text": "12:00"}]}

        def size(*more):
            answer = model.chat(messages + list(more), max_tokens=1)
            answer.text()
            return answer.statistics["prompt_tokens"]

        silent = {"role": "assistant", "content": None}
        assert size(reply.message, result) > size(silent, result) + 8
        dicts = {**silent, "tool_calls": [{"function": {"name": "now", "arguments": {"zone": "UTC"}}}]}
        assert size(dicts) > size(silent) + 8
        assert size({"role": "user", "content": "a", "name": "Ada Lovelace"}) > size({"role": "user", "content": "a"})
        for part, message in {
            "messages[0].content must be a text": {"role": "user", "content": None},
            "messages[0].content[0] is of type image_url": {"role": "user", "content": [{"type": "image_url"}]},
            "messages[0].tool_calls[0].function": {"role": "assistant", "tool_calls": [{}]},
        }.items():
            raised(bilayer.UsageError, part, lambda: model.chat([message]))
        raised(bilayer.UsageError, "tools: ", lambda: model.chat(messages, tools=[{"type": "function"}]))
        raised(bilayer.Error, "in a conversation", lambda: next(model.generate("a", tools=tools)))
        begun = messages + [{"role": "assistant", "content": "so"}]
        raised(bilayer.UsageError, "is for conversations", lambda: next(model.generate("a", continue_final_message=True)))
        raised(bilayer.UsageError, "needs a last", lambda: next(model.chat(messages, continue_final_message=True)))
        raised(TypeError, "", lambda: model.chat(begun, continue_final_message="yes"))
        assert model.generate("ROMEO:", max_tokens=4).reply().text
        failed = model.generate("a " * 5000)
        raised(bilayer.MemoryExceededError, "", failed.reply)
        raised(bilayer.UsageError, "has failed", failed.reply)


@check
def models_of_the_hub_are_missing_by_their_codes():
    saved = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HF_HOME=folder, HF_HUB_OFFLINE="1")
        try:
            missing = raised(bilayer.MissingFileError, "org/none", lambda: bilayer.hub("org/none"))
            assert missing.code == 66
            raised(bilayer.UsageError, "not the name of a model", lambda: bilayer.hub("none"))
            offline = lambda: bilayer.Llama.from_pretrained("org/none", "*Q4_K_M.gguf")
            raised(FileNotFoundError, "org/none:Q4_K_M", offline)
            raised(bilayer.Error, "(no HF_HUB_OFFLINE)", lambda: bilayer.hub("org/none"))
            refused = lambda: bilayer.Llama.from_pretrained("org/none", cache_dir=folder)
            raised(bilayer.UsageError, "cache_dir", refused)
        finally:
            for name in ("HF_HOME", "HF_HUB_OFFLINE"):
                os.environ.pop(name)
                if name in saved:
                    os.environ[name] = saved[name]


@check
def patterns_choose_files_of_the_hub():
    asked = []

    def hub(name):
        asked.append(name)
        return "/cache/a-Q4_K_M-00001-of-00002.gguf"

    saved, bilayer.llama_cpp.hub = bilayer.llama_cpp.hub, hub
    try:
        for pattern, name in {
            "*Q4_K_M.gguf": "org/a:Q4_K_M",
            "*q4_k_m.GGUF": "org/a:q4_k_m",
            "*Q4_K_M-00001-of-00002.gguf": "org/a:Q4_K_M-00001-of-00002",
            "Q4_K_M/*.gguf": "org/a:Q4_K_M",
            "*.gguf": "org/a",
            None: "org/a",
            "a-Q4_K_M.gguf": "org/a/a-Q4_K_M.gguf",
        }.items():
            bilayer.llama_cpp._file_on_hub("org/a", pattern)
            assert asked.pop() == name, pattern
        raised(bilayer.UsageError, "give its name", lambda: bilayer.llama_cpp._file_on_hub("org/a", "b*Q4_K_M.gguf"))
    finally:
        bilayer.llama_cpp.hub = saved


@check
def a_closed_model_refuses_work():
    model = opened(context=4096)
    answer = model.generate("ROMEO:\n", ignore_eos=True)
    next(answer)
    model.close()
    model.close()
    list(answer)
    for call in (lambda: model.generate("a"), lambda: model.tokenize("a"), model.plan):
        raised(bilayer.UsageError, "closed", call)
    assert "closed" in repr(model)


@check
def a_process_that_forks_is_refused():
    with opened() as model:
        forked(lambda: raised(bilayer.UsageError, "forked", lambda: model.tokenize("a")))


@check
def threads_share_a_model():
    with opened() as model:
        expected = model.generate("ROMEO:\n", max_tokens=16, temperature=0).text()
        found, shared = [], model.generate("ROMEO:\n", max_tokens=64, temperature=0)
        pieces = []

        def work():
            for _ in range(4):
                found.append(model.generate("ROMEO:\n", max_tokens=16, temperature=0).text())
            pieces.extend(shared)

        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert found == [expected] * 16, found
        assert len(pieces) == 64, len(pieces)


@check
def closing_while_others_wait_is_safe():
    model = opened(context=4096)

    def work():
        try:
            list(model.generate("ROMEO:\n", ignore_eos=True))
        except bilayer.UsageError as error:
            assert "closed" in str(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    model.close()
    [thread.join(60) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)


@check
def the_drop_in_answers_like_openai():
    from bilayer import Llama

    with Llama(DEMO, n_ctx=512, verbose=False, numa=True) as llama:
        answer = llama("ROMEO:\n", max_tokens=8, temperature=0, echo=True)
        text = answer["choices"][0]["text"]
        assert text.startswith("ROMEO:\n") and answer["choices"][0]["finish_reason"] == "length"
        usage = answer["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["prompt_tokens"] == len(llama.tokenize(b"ROMEO:\n"))
        chunks = list(llama("ROMEO:\n", max_tokens=8, temperature=0, stream=True))
        assert "ROMEO:\n" + "".join(c["choices"][0]["text"] for c in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        rows = llama("ROMEO:\n", max_tokens=4, temperature=0, logprobs=2)["choices"][0]["logprobs"]
        assert len(rows["tokens"]) == 4 and all(p <= 0 for p in rows["token_logprobs"])
        assert len(rows["top_logprobs"][0]) in (2, 3) and rows["text_offset"][0] == len("ROMEO:\n")
        assert llama.detokenize(llama.tokenize("O, à moi!".encode())) == "O, à moi!".encode()
        raised(bilayer.UsageError, "suffix", lambda: llama("a", suffix="b"))
        raised(bilayer.MissingFileError, "x.gguf", lambda: Llama(DEMO, lora_path="x.gguf", lora_scale=0.5))
        Llama(DEMO, n_ctx=64, lora_path="").close()
        raised(bilayer.UsageError, "lora_base", lambda: Llama(DEMO, lora_base="x.gguf"))
        raised(bilayer.UsageError, "type_v is 5; it must be one of 0 (f32)", lambda: Llama(DEMO, type_k=8, type_v=5))
        raised(bilayer.UsageError, "chat_format is 'alpaca'", lambda: Llama(DEMO, chat_format="alpaca"))
        raised(TypeError, "n_cxt", lambda: Llama(DEMO, n_cxt=3))
        raised(bilayer.UsageError, "numa is 2", lambda: Llama(DEMO, numa=2))
        assert llama("ROMEO:\n", max_tokens=2, top_k=-1, seed=1) and llama("ROMEO:\n", max_tokens=2, top_k=0)
        assert llama.metadata["general.architecture"] and "tokenizer.ggml.tokens" not in llama.metadata
        assert llama.tokenizer().decode(llama.tokenizer().encode("O me!")).strip() == "O me!"
        assert Llama.longest_token_prefix([1, 2, 3], [1, 2, 4]) == 2
    with Llama(DEMO, n_ctx=64, type_k=8, type_v=1, kv_overrides={"general.name": "other"}) as llama:
        assert llama("ROMEO:", max_tokens=2) and llama.metadata["general.name"] == "other"
    for name in ["llama-2", "llama-3", "mistral-instruct", "qwen", "gemma", "vicuna", "zephyr"]:
        with Llama(DEMO, n_ctx=512, chat_format=name) as llama:
            assert llama.create_chat_completion([{"role": "user", "content": "Who is there?"}], max_tokens=1)
    with Llama(DEMO, n_ctx=512, chat_format="chatml") as llama:
        messages = [{"role": "user", "content": "Who is there?"}]
        answer = llama.create_chat_completion(messages, max_tokens=8, temperature=0)
        assert answer["object"] == "chat.completion" and answer["usage"]["prompt_tokens"] > 8
        chunks = list(llama.create_chat_completion(messages, max_tokens=8, temperature=0, stream=True))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
        joined = "".join(delta.get("content", "") for delta in deltas)
        assert joined == answer["choices"][0]["message"]["content"]


@check
def the_drop_in_keeps_what_was_evaluated():
    from bilayer.llama_cpp import Llama, LlamaRAMCache

    with Llama(DEMO, n_ctx=64) as llama, Llama(DEMO, n_ctx=64) as other:
        tokens = llama.tokenize(b"ROMEO:\n")
        expected = [token for token, _ in zip(llama.generate(tokens, temp=0.0), range(3))]
        assert llama.n_tokens == len(tokens) + 3
        llama.reset()
        llama.eval(tokens)
        assert [llama.sample(temp=0.0)] == expected[:1] and llama.n_tokens == len(tokens)
        state = llama.save_state()
        llama.eval(expected[:1])
        assert llama.sample(temp=0.0) == expected[1]
        assert llama.sample(temp=0.0, idx=len(tokens) - 1) == expected[0]
        other.load_state(state)
        assert [token for token, _ in zip(other.generate([], reset=False, temp=0.0), range(3))] == expected
        raised(bilayer.MemoryExceededError, "context of 64", lambda: llama.eval([1] * 64))
        cache = LlamaRAMCache(capacity_bytes=200)
        llama.set_cache(cache)
        text = llama(tokens, max_tokens=3, temperature=0)["choices"][0]["text"]
        assert cache[tokens].tokens[: len(tokens)] == tuple(tokens) and [2047] not in cache
        other.set_cache(cache)
        assert other(tokens, max_tokens=3, temperature=0)["choices"][0]["text"] == text
        for first in range(40):
            cache[(first, first, first)] = state
        assert cache.cache_size <= 200


if __name__ == "__main__":
    sys.exit(main())
