"""The parts that need no cluster: prefixes, ranking, scaling, arguments, the child process."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import bilayer
from bilayer.ray._data import _kept
from bilayer.ray._prefix import BLOCK, Blocks, best_first, chain, matched, prefix_text
from bilayer.ray._process import Server, check_arguments
from bilayer.ray._scaling import replicas_needed
from conftest import BINARY, DEMO


def test_equal_beginnings_have_equal_chains():
    base = "".join(chr(97 + at % 26) for at in range(4 * BLOCK))
    first, second = chain(base + "one" * BLOCK), chain(base + "two" * BLOCK)
    assert first[:4] == second[:4] and first[4] != second[4]
    assert chain("x" + base)[0] != chain(base)[0] and chain("short") == []
    # A block is known by all that is before it.
    assert chain("y" * BLOCK + base)[1] != chain(base)[0]
    assert matched(second, frozenset(first)) == 4 and matched(second, frozenset(), frozenset()) == 0


def test_the_text_of_a_request_is_in_the_order_of_its_tokens():
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    longer = talk + [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
    assert prefix_text({"messages": longer}).startswith(prefix_text({"messages": talk}))
    assert prefix_text({"prompt": ["only"]}) == prefix_text({"prompt": "only", "max_tokens": 3})
    tools = [{"type": "function"}]
    assert prefix_text({"messages": talk, "tools": tools}).startswith(prefix_text({"tools": tools}))
    assert prefix_text({"prompt": [1, 2, 3]}).startswith(prefix_text({"prompt": [1, 2]}))
    assert prefix_text({"prompt": 7}) == ""


def test_the_prefix_leads_until_its_replica_is_crowded():
    assert best_first({"a": 3, "b": 8}, {"a": 0, "b": 4}, 4) == ["b", "a"]
    assert best_first({"a": 3, "b": 8}, {"a": 0, "b": 5}, 4) == ["a", "b"]
    assert best_first({"a": 5, "b": 5, "c": 0}, {"a": 2, "b": 1, "c": 0}, 4) == ["b", "a", "c"]


def test_the_oldest_blocks_are_forgotten():
    blocks = Blocks(3)
    blocks.add([1, 2, 3])
    blocks.add([1, 4])
    assert list(blocks) == [3, 1, 4] and 2 not in blocks


def test_replicas_follow_the_queue_and_the_cache():
    assert replicas_needed(0, [0, 0], 8, 0.8) == 0
    assert replicas_needed(17, [0.1, 0.1], 8, 0.8) == 3
    assert replicas_needed(2, [0.95, 0.9], 8, 0.8) == 3
    assert replicas_needed(2, [0.8], 8, 0.8) == 1


def test_a_journal_knows_the_contents_of_adapters(tmp_path):
    adapter, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in (adapter, copy):
        path.write_bytes(b"first")
    first = _kept({"lora": adapter, "pooling": "cls"})
    given = {"lora": {copy: 1.0}, "pooling": "cls", "progress": print, "main_gpu": 1, "split_mode": "none", "mlock": True}
    assert json.dumps(first) == json.dumps(_kept(given))
    assert first != _kept({"lora": [(adapter, 0.5)], "pooling": "cls"})
    assert first != _kept({"control_vector": adapter, "pooling": "cls"})
    adapter.write_bytes(b"other")
    assert first != _kept({"lora": str(adapter), "pooling": "cls"})


def test_arguments_of_the_deployment_are_its_own():
    assert check_arguments(["-c", "512"]) == ["-c", "512"]
    for given, advice in {"--port=1": "deployment", "-np": "parallel", "--api-key": "api_keys"}.items():
        with pytest.raises(bilayer.UsageError, match=advice):
            check_arguments([given])


def test_a_server_answers_and_stops():
    with pytest.raises(bilayer.Error, match="nowhere.gguf"):
        Server(["-m", "nowhere.gguf"], binary=BINARY)
    deaths = []
    server = Server(["-m", DEMO, "-t", "1"], binary=BINARY, on_death=deaths.append)
    assert server.is_ready() and server.gauges()["llamacpp:requests_processing"] == 0
    answer = server.post("/v1/completions", {"prompt": "ROMEO:", "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] == 4
    with pytest.raises(bilayer.Error, match="400"):
        server.post("/v1/completions", {"prompt": 1})
    server.stop()
    assert not deaths and not os.path.exists(f"/proc/{server.pid}")


def test_a_server_ends_with_its_parent():
    code = (
        "from bilayer.ray._process import Server; import time\n"
        f"print(Server(['-m', {DEMO!r}, '-t', '1'], binary={BINARY!r}).pid, flush=True); time.sleep(99)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{child}")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
