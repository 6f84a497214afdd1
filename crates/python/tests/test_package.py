"""Checks of the installed package with NumPy, pandas, and models that the command line makes."""

import ast
import asyncio
import inspect
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import bilayer
import checks

DEMO = checks.DEMO
ENCODER = os.environ.get("ENCODER")


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_check(check):
    check()


@pytest.fixture
def model():
    with checks.opened() as model:
        yield model


@pytest.fixture(scope="module")
def encoder():
    if not ENCODER:
        pytest.skip("no encoder: ENCODER is not set")
    with bilayer.Bilayer(ENCODER, gpu_layers=0) as model:
        yield model


def command(*arguments):
    done = subprocess.run(["bilayer", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_command_says_the_same(model):
    flags = "run --temp 0 -n 24 -ngl 0 -c 512 --no-display-prompt".split()
    text = model.generate("ROMEO:\n", max_tokens=24, temperature=0).text()
    assert text.strip() == command(*flags, "-p", "ROMEO:\n").strip()


def test_logits_are_the_engines_memory(model):
    rows = model.logits("ROMEO:\n")
    assert rows.dtype == np.float32 and rows.shape == (len(model.tokenize("ROMEO:\n")), model.vocab)
    assert not rows.flags.owndata and rows.base is not None and not rows.flags.writeable
    first = next(model.generate("ROMEO:\n", max_tokens=1, temperature=0, logprobs=3))
    assert int(rows[-1].argmax()) == first.id
    log_softmax = rows[-1].astype(np.float64)
    log_softmax = log_softmax - log_softmax.max()
    log_softmax -= np.log(np.exp(log_softmax).sum())
    assert abs(log_softmax[first.id] - first.logprob) < 1e-4
    assert [id for id, _ in first.top] == list(np.argsort(-rows[-1], kind="stable")[:3])
    copy = rows.copy()
    model.generate("JULIET:\n", max_tokens=8).text()
    del model
    assert (rows == copy).all()


def test_log_probabilities_of_an_echoed_prompt():
    with bilayer.Llama(DEMO, n_ctx=512, verbose=False) as llama:
        rows = llama("ROMEO:\n", max_tokens=4, temperature=0, logprobs=2)["choices"][0]["logprobs"]
        # With the prompt's: the answer's are those of the prompt that has them, and the first token has none.
        echo = {"max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": True}
        whole = llama("ROMEO:\n", **echo)["choices"][0]
        found = whole["logprobs"]
        assert found["tokens"][-4:] == rows["tokens"] and "".join(found["tokens"]).strip() == whole["text"].strip()
        assert found["text_offset"][0] == 0 and found["token_logprobs"][0] is found["top_logprobs"][0] is None
        again = llama(whole["text"], **{**echo, "max_tokens": 1})["choices"][0]["logprobs"]
        for mine, other in zip(found["token_logprobs"][1:], again["token_logprobs"][1:]):
            assert abs(mine - other) < 0.05, (found, again)
        parts = [c["choices"][0]["logprobs"] for c in llama("ROMEO:\n", stream=True, **echo)]
        streamed = [part for part in parts if part]
        assert sum((part["tokens"] for part in streamed), []) == found["tokens"]
        assert sum((part["text_offset"] for part in streamed), []) == found["text_offset"]


def test_offsets_count_the_characters_of_the_text():
    text = "a 😀é b"
    with bilayer.Llama(DEMO, n_ctx=512) as llama:
        choice = llama(text, max_tokens=1, echo=True, logprobs=0, temperature=0)["choices"][0]
        rows = choice["logprobs"]
        pieces = [llama.detokenize([token], special=True) for token in llama.tokenize(text.encode(), add_bos=False)]
        assert any(piece.decode("utf-8", "replace") == "\ufffd" for piece in pieces), pieces
        ends = [len(b"".join(pieces[:at]).decode("utf-8", "ignore")) for at in range(len(pieces) + 1)]
        assert rows["text_offset"] == ends[: len(rows["text_offset"])], (rows, ends)
        chunks = llama(text, max_tokens=1, echo=True, logprobs=0, temperature=0, stream=True)
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        assert sum((part["text_offset"] for part in parts if part), []) == rows["text_offset"]


def test_embeddings_are_those_of_the_command(encoder):
    texts = ["A cat sat on the mat.", "A kitten sat on a rug.", "A tax return"]
    rows = encoder.embed(texts)
    assert rows.shape == (3, encoder.width) and rows.dtype == np.float32 and rows.flags.writeable
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    lines = command("embed", "-m", ENCODER, "-ngl", "0", "--normalize", *texts).splitlines()
    expected = np.array([json.loads(line)["embedding"] for line in lines], dtype=np.float32)
    assert np.abs(rows - expected).max() < 1e-6
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    raw = encoder.embed(texts, normalize=False)
    assert np.abs(raw / np.linalg.norm(raw, axis=1, keepdims=True) - rows).max() < 1e-5
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)
    assert np.abs(encoder.embed(texts, normalize=True) - rows).max() < 1e-6
    assert encoder.embed([]).shape[0] == 0
    with pytest.raises(bilayer.UsageError, match="prompt"):
        encoder.embed(texts, prompt_name="absent")
    decoder = bilayer.Bilayer(DEMO, pooling="last")
    vectors = decoder.embed(texts)
    assert vectors.shape == (len(texts), decoder.width)
    assert np.abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    with pytest.raises(bilayer.MemoryExceededError, match="longer than the context"):
        encoder.embed(["a " * 9000])
    assert encoder.embed(["a " * 9000], truncate=True).shape == (1, encoder.width)
    with pytest.raises(bilayer.UsageError, match="encoder"):
        encoder.generate("a").text()


def test_ctrl_c_ends_an_embedding(encoder):
    import signal
    import threading
    import time

    texts = ["A cat sat on the mat. " * 40] * 20_000
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        encoder.embed(texts, truncate=True)
    began = time.monotonic()
    assert encoder.embed(["a"]).shape[0] == 1
    assert time.monotonic() - began < 30


def test_scores_are_refused_by_embedders(encoder):
    with pytest.raises(bilayer.UsageError, match="reranker"):
        encoder.rerank("a", ["b"])
    with pytest.raises(bilayer.UsageError, match="classifier"):
        encoder.classify(["a"])


def test_the_drop_in_embeds(encoder):
    with bilayer.Llama(ENCODER, n_ctx=0, embedding=True) as llama:
        texts = ["A cat", "A dog"]
        answer = llama.create_embedding(texts)
        rows = np.array([row["embedding"] for row in answer["data"]])
        assert np.abs(rows - encoder.embed(texts, normalize=False)).max() < 1e-5
        for normalize in (True, 1):
            unit = llama.embed(texts, normalize=normalize)
            assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
        assert answer["usage"]["prompt_tokens"] == sum(len(encoder.tokenize(text)) for text in texts)
        assert llama.embed("A cat") == answer["data"][0]["embedding"]
    with bilayer.Llama(DEMO, embedding=True, pooling_type=3) as llama:
        expected = bilayer.Bilayer(DEMO, pooling="last").embed(["A cat"], normalize=False)[0]
        assert np.abs(np.array(llama.embed("A cat")) - expected).max() < 1e-5
    with pytest.raises(bilayer.UsageError, match="pooling_type"):
        bilayer.Llama(DEMO, pooling_type=4)


def test_a_profile_is_a_table():
    pandas = pytest.importorskip("pandas")
    profile = bilayer.profile(DEMO, gpu_layers=0, prompt_tokens=8, decode_tokens=2, rounds=1)
    frame = pandas.DataFrame(profile)
    # Without a GPU only the first row is measured.
    assert frame["gpu_layers"][0] == 0 and frame["decode_ms"][0] > 0
    assert profile.recommended in set(frame["gpu_layers"]) and profile.why


def test_an_async_answer_can_be_cancelled():
    async def main():
        with checks.opened(context=4096) as model:

            async def read():
                async for _ in model.generate("ROMEO:\n", ignore_eos=True):
                    pass

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(read(), 0.3)
            assert model.generate("ROMEO:\n", max_tokens=2, ignore_eos=True).text()

    asyncio.run(main())


def test_the_lock_is_free_while_the_engine_works(model):
    import threading
    import time

    ticks, is_over = [], threading.Event()

    def tick():
        while not is_over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    model.logits("ROMEO: " * 60)
    is_over.set()
    thread.join()
    assert len(ticks) >= 2


def test_the_stubs_are_those_of_the_library():
    """Every name of the native module is in its stubs with the same parameters."""
    folder = pathlib.Path(bilayer.__file__).parent
    assert (folder / "py.typed").exists()
    tree = ast.parse((folder / "_native.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    native = bilayer._native
    public = {name for name in dir(native) if not name.startswith("__")}
    assert public == set(classes) | functions
    for name, node in classes.items():
        found = {m for m in vars(getattr(native, name)) if not m.startswith("_")}
        stubs = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")}
        assert found == set(stubs), name
        for method, stub in stubs.items():
            parameters = list(inspect.signature(getattr(getattr(native, name), method)).parameters)
            assert parameters == [a.arg for a in stub.args.args], f"{name}.{method}"


def test_scalars_and_arrays_are_arguments(model):
    options = {"max_tokens": 12, "seed": 7}
    plain = model.generate("ROMEO:", temperature=0.5, top_k=3, **options).text()
    assert plain == model.generate("ROMEO:", temperature=np.float32(0.5), top_k=np.int64(3), **options).text()
    assert next(model.generate("ROMEO:", logit_bias={np.int32(70): np.float32(1000)}, ignore_eos=np.bool_(True))).id == 70
    tokens = np.array(model.tokenize("ROMEO:"))
    assert model.generate(tokens, max_tokens=np.int8(1)).reply() and model.detokenize(tokens).strip() == "ROMEO:"
    with pytest.raises(TypeError, match="temperature must be a number, not ndarray"):
        model.generate("a", temperature=np.zeros(2))
    with bilayer.Llama(DEMO, n_ctx=64) as llama:
        llama.eval(tokens)
        ids = llama.input_ids[: llama.n_tokens]
        assert llama.detokenize(ids) == llama.detokenize(tokens.tolist()) == b"ROMEO:"
        given = {"max_tokens": 3, "temperature": np.float32(0), "top_k": np.int64(40)}
        assert llama(ids, **given)["choices"] == llama(tokens.tolist(), **given)["choices"]
        found = [token for token, _ in zip(llama.generate(tokens, temp=0.0), range(3))]
        assert len(found) == 3 and llama.n_tokens == len(tokens) + 3


def test_sampling_parameters_have_types():
    from bilayer import _arguments, _model

    assert set(_arguments.Sampling.__annotations__) == set(_model._SAMPLING)
    assert {"gpu_layers", *_arguments.Settings.__annotations__} == set(_arguments._DEFAULTS)
    own = set(inspect.signature(bilayer.Bilayer.generate).parameters) - {"self", "prompt", "sampling"}
    assert own == set(_arguments.Options.__annotations__) - set(_arguments.Sampling.__annotations__)


def test_type_checkers_find_wrong_arguments(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(
        "import bilayer\n"
        "model = bilayer.Bilayer('m', context=3, device=None)\n"
        "model.generate('a', temperature=0.3, stop='a')\n"
        "model.chat([{'role': 'user'}], max_tokens=3, top_k=1)\n"
        "bilayer.Llama('m').n_ctx().bit_length()\n"
        "bilayer.Bilayer('m', thread=4)\n"
        "model.generate('a', temprature=0.3)\n"
        "model.chat([], max_token=3)\n"
        "bilayer.Llama('m').n_ctxt()\n"
        "bilayer.Lama\n"
    )
    line = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(script)]
    folder = str(pathlib.Path(bilayer.__file__).parents[1])
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "MYPYPATH": folder})
    wrong = [row.split(":")[1] for row in done.stdout.splitlines() if row.startswith(str(script)) and "error" in row]
    assert wrong == ["6", "7", "8", "9", "10"], done.stdout + done.stderr


def test_every_public_name_is_documented():
    for name in bilayer.__all__:
        item = getattr(bilayer, name)
        assert item.__doc__, name
        for member, value in vars(item).items() if inspect.isclass(item) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert getattr(value, "__doc__", None), f"{name}.{member}"


def test_programs_that_import_llama_cpp_run():
    script = (
        "import os, bilayer.llama_cpp; bilayer.llama_cpp.install()\n"
        "from llama_cpp import Llama, LlamaGrammar\n"
        "llama = Llama(os.environ['DEMO'], n_ctx=256)\n"
        "grammar = LlamaGrammar.from_string('root ::= \"yes\" | \"no\"')\n"
        "print(llama('Who?', grammar=grammar)['choices'][0]['text'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("yes", "no")
